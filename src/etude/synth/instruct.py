"""The instruction of a task at a level, written without a model.

    A  signatures and docstrings (write.py)             bugs: symptoms, function and file
    B  names, what they take and what they do           bugs: symptoms and function
    C  what is missing or wrong, and nothing else       bugs: symptoms

In: a proof and the functions of its hidden tests; out: text for the agent. Whatever the level, every name that the hidden tests need and
that the agent's tree no longer has is in the text: `missing_identifiers` finds them and is a gate. B and C show a few calls with what
comes of them, from docstrings first, never more than half of what the hidden tests check. `visible` is the share of the hidden
test functions that are quoted whole.

Not here: a model's better text (writer.py), level A's parts (write.py), sentences about definitions (behaviour.py), tests (examples.py)
and bugs (symptoms.py).
"""

import ast
import builtins
import hashlib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.synth.behaviour import facts, parameters, prose, with_facts
from etude.synth.examples import Example, code, doc_examples, test_examples
from etude.synth.names import Index, Key
from etude.synth.observe import Observed
from etude.synth.prove import Proof
from etude.synth.source import Definition, DefinitionNode
from etude.synth.symptoms import report, symptoms
from etude.synth.units import WORD
from etude.synth.workshop import Workshop
from etude.synth.write import identifiers, removed_parts, signature, stubbed_parts, use, words_of

MAX_EXAMPLES = 3  # of one feature; each further public definition adds one
MAX_EXAMPLES_ALL = 10
MAX_DOC_SHOWN = 2  # of a docstring's examples, of one definition
SHORT = 120  # characters of docstrings: what they tell is not enough
LOOKUPS = (
    "getattr",
    "hasattr",
    "setattr",
    "delattr",
    "patch",
    "object",
    "delitem",
    "setitem",
    "import_module",
    "attrgetter",
    "methodcaller",
)
COMMON = frozenset({*dir(object), *dir(type), *dir(lambda: None)})  # attributes that are everywhere
TAIL = "Every other test must keep passing. Change source files only: tests and configuration are not taken over."
BUG, REPLAY = "bug_injection", "commit_replay"
Level = str  # "A" | "B" | "C"
Words = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    text: str  # what a model may put better
    quoted: tuple[str, ...] = ()  # hidden tests that are shown

    def whole(self, text: str | None = None) -> str:
        """The instruction; `text`: instead of its own."""
        return "\n\n".join((self.text if text is None else text, *self.quoted, TAIL)) + "\n"


def draft(
    workshop: Workshop,
    proof: Proof,
    tests: Sequence[Definition],
    words: Words,
    *,
    level: Level = "A",
    visible: float = 0.0,
    observed: Mapping[Key, Sequence[Observed]] | None = None,
) -> Draft:
    """`tests`: the functions of the hidden tests; `words`: those of every original source file; `observed`: calls that a bug changes."""
    index, kind = workshop.index, proof.proposal.kind
    if kind == BUG:
        functions = {id: test for id in proof.fail_to_pass if (test := _test_of(tests, id)) is not None}
        seen = symptoms(index, functions, proof.messages, observed)
        if not visible and not any(symptom.is_clear for symptom in seen):
            visible = 1 / len(tests) if tests else 0.0  # nothing else says what is wrong
        parts = report(seen, proof.proposal.symbols, level)
        parts += use(proof, tests)[:1] if level == "A" else []
    elif level == "A":
        left = _changed(proof) if kind == REPLAY else stubbed_parts(proof)
        parts = [*_preface(proof), *removed_parts(index, proof), *left, *use(proof, tests)]
    else:
        examples = _examples(index, proof, tests)
        told = [prose(definition.node) for definition in _told_about(index, proof)]
        if not examples and sum(map(len, told)) < SHORT and not visible:
            visible = 1 / len(tests) if tests else 0.0  # too little says what it does
        parts = [*_preface(proof), *(_names_and_behaviour(proof, index) if level == "B" else _behaviour(workshop, proof))]
        parts += [*examples, *_access(index, proof, tests)]
    quoted = _quoted(index, choose_visible(tests, visible))
    text = "\n\n".join(parts)
    extra = missing_identifiers(workshop, proof, tests, words, "\n\n".join((text, *quoted)))
    if extra:
        text += f"\n\nThe hidden tests also use these names: {', '.join(code(name) for name in extra)}."
    return Draft(text=text, quoted=tuple(quoted))


# -- completeness


def missing_identifiers(workshop: Workshop, proof: Proof, tests: Sequence[Definition], words: Words, text: str) -> list[str]:
    """Names that hidden tests import or access and the original sources have, but neither the agent's sources nor `text`."""
    before: set[str] = set().union(*words.values())
    after: set[str] = set(WORD.findall(text))
    for path, found in words.items():
        if path not in proof.source_changes:
            after |= found
    for path, data in proof.source_changes.items():
        if data is not None:
            encoding = workshop.index.sources[path].encoding if path in workshop.index.sources else "utf-8"
            after |= words_of(data.decode(encoding, "replace"))
    used: set[str] = set()
    for path, node in _with_helpers(workshop.index, tests):
        used |= _accessed(workshop.index, path, node)
    return sorted((used & before) - after - set(dir(builtins)))


def needed_names(workshop: Workshop, proof: Proof, tests: Sequence[Definition], words: Words, draft: Draft) -> list[str]:
    """Names that hidden tests need and only the draft tells."""
    told = words_of(draft.text)
    return [name for name in missing_identifiers(workshop, proof, tests, words, "") if name in told]


def _with_helpers(index: Index, tests: Iterable[Definition]) -> list[tuple[str, ast.AST]]:
    """The tests with the helpers, fixtures and imports of their files, and of conftest.py above them, that they use by name."""
    found: dict[ast.AST, str] = {}
    waiting: list[tuple[str, ast.AST]] = [(test.path, test.node) for test in tests]
    while waiting:
        path, node = waiting.pop()
        if node in found:
            continue
        found[node] = path
        names = identifiers(node) | {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        parents = [str(parent / "conftest.py") for parent in PurePosixPath(path).parents]
        for place in (path, *(each for each in parents if each in index.scopes and each != path)):
            scope = index.scopes[place]
            for name in names & scope.nodes.keys():
                waiting += [(place, other) for other in scope.nodes[name]]
    return [(path, node) for node, path in found.items()]


def _accessed(index: Index, path: str, node: ast.AST) -> set[str]:
    """Attributes, keywords, names that are not the node's own, and what it imports from the repository."""
    if isinstance(node, ast.alias):
        imported = index.scopes[path].imports.get(node)
        known = imported is not None and imported.module.partition(".")[0] in index.paths
        return set(node.name.split(".")) if known else set()
    own = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    own |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    own |= {part.name for part in ast.walk(node) if isinstance(part, (DefinitionNode, ast.ExceptHandler)) and part.name}
    found = _looked_up(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id not in own:
            found.add(part.id)
        elif isinstance(part, ast.Attribute) and part.attr not in COMMON:
            found.add(part.attr)
        elif isinstance(part, ast.keyword) and part.arg:
            found.add(part.arg)
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            for alias in part.names:
                module = alias.name if isinstance(part, ast.Import) else index.absolute(path, part)
                if module.partition(".")[0] in index.paths:
                    found.update(alias.name.split("."))
    return found


def _looked_up(node: ast.AST) -> set[str]:
    """Names in strings that are used to get at an attribute or a module."""
    found: set[str] = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in LOOKUPS:
                for given in call.args:
                    if isinstance(given, ast.Constant) and isinstance(given.value, str) and re.fullmatch(r"[\w.]+", given.value):
                        found.update(given.value.split("."))
    return found


# -- visible tests


def choose_visible(tests: Sequence[Definition], share: float) -> list[Definition]:
    """Which test functions the agent may read, by the hash of their names: never all of several, unless the share is 1."""
    ranked = sorted(tests, key=lambda test: hashlib.sha256(f"{test.path}\0{test.qualname}".encode("utf-8", "surrogateescape")).digest())
    count = len(tests) if share >= 1 else min(round(share * len(tests)), len(tests) - 1)
    chosen = {test.key for test in ranked[: max(count, 0)]}
    return [test for test in tests if test.key in chosen]


def _quoted(index: Index, tests: Sequence[Definition]) -> list[str]:
    if not tests:
        return []
    parts = [f"{'One of the hidden tests is' if len(tests) == 1 else f'{len(tests)} of the hidden tests are'}:"]
    for test in tests:
        source = index.sources[test.path]
        data = source.data[source.starts[test.line - 1] : source.starts[test.end_line]]
        lines = textwrap.dedent(data.decode(source.encoding)).replace("\r\n", "\n").strip("\n")
        fence = "````" if "```" in lines else "```"
        parts.append(f"{fence}python\n# {test.path}\n{lines}\n{fence}")
    return parts


# -- levels B and C


def _preface(proof: Proof) -> list[str]:
    """What a kind has to say first: a commit's message, a feature's new place."""
    given = proof.proposal.evidence.get("preface")
    return [str(given)] if given else []


def _changed(proof: Proof) -> list[str]:
    """Level A of what a commit changed: its signatures afterwards."""
    parts: list[str] = []
    for path in dict.fromkeys(definition.path for definition in proof.cut.stubbed):
        mine = [definition for definition in proof.cut.stubbed if definition.path == path]
        outlines = "\n\n".join(f"# {definition.qualname}\n{signature(definition)} ..." for definition in mine)
        parts.append(f"Change {', '.join(code(definition.qualname) for definition in mine)} in {code(path)}. Afterwards:")
        parts.append(f"```python\n{outlines}\n```")
    return parts


def _told_about(index: Index, proof: Proof) -> list[Definition]:
    """The symbols; before methods whose class stays, the class, as its docstring is about them."""
    found: dict[tuple[str, int], Definition] = {}
    for definition in proof.proposal.symbols:
        owner = next((d for d in index.sources[definition.path].definitions if d.node is definition.owner), None)
        if owner is not None and definition.name.startswith("__"):
            found.setdefault(owner.key, owner)
        found.setdefault(definition.key, definition)
    return list(found.values())


def _names_and_behaviour(proof: Proof, index: Index) -> list[str]:
    parts: list[str] = []
    for definitions, what in ((proof.cut.removed, "gone from"), (proof.cut.stubbed, "without a body in")):
        for path in dict.fromkeys(definition.path for definition in definitions):
            mine = [definition for definition in definitions if definition.path == path]
            if proof.proposal.kind == REPLAY and definitions is proof.cut.stubbed:
                parts.append(f"These in {code(path)} are to be changed:")
            else:
                file_gone = proof.source_changes.get(path, b"") is None
                whole = f"The file {code(path)} is gone. It held" if file_gone else f"This is {what} {code(path)}"
                parts.append(f"{whole}:")
            parts.append("\n".join(line for definition in mine for line in _described(index, definition, 0)))
    classes = [d for d in _told_about(index, proof) if d not in proof.proposal.symbols and prose(d.node)]
    return parts + [f"About {code(d.qualname)}: {prose(d.node)}" for d in classes]


def _described(index: Index, definition: Definition, depth: int) -> list[str]:
    """A bullet with a definition's name and what it does, and its members below it."""
    kind = "class " if definition.is_class else ""
    told = [parameters(definition), *facts(definition, conditions=True)]
    if isinstance(definition.node, ast.ClassDef):
        bases = [code(ast.unparse(base)) for base in definition.node.bases]
        told = [f"It extends {', '.join(bases)}."] if bases else []
    body = with_facts(prose(definition.node), told)
    name = definition.qualname if depth == 0 else definition.name
    lines = [f"{'  ' * depth}- {kind}{code(name)}{': ' if body else ''}{_indented(body, '  ' * (depth + 1))}"]
    if definition.is_class:
        for member in index.sources[definition.path].definitions:
            if member.owner is definition.node and (not member.name.startswith("_") or member.name == "__init__"):
                lines += _described(index, member, depth + 1)
    return lines


def _behaviour(workshop: Workshop, proof: Proof) -> list[str]:
    about = _told_about(workshop.index, proof)
    public = [definition for definition in about if not definition.name.startswith("_")]
    told: list[str] = []
    for definition in public or about:
        whole = definition.is_class and definition in proof.proposal.symbols
        inside = [d for d in workshop.index.sources[definition.path].definitions if d.owner is definition.node] if whole else []
        sentences = facts(definition, conditions=False)
        sentences += [text.partition("\n\n")[0] for member in inside if not member.name.startswith("_") and (text := prose(member.node))]
        text = with_facts(prose(definition.node), sentences)
        if text:
            told.append(text)
    told = list(dict.fromkeys(told))
    name = workshop.repo.name
    if proof.proposal.kind == REPLAY:
        new = told if proof.cut.removed or not _preface(proof) else []
        return [f"Afterwards {name} has this:", "\n".join(f"- {_indented(text, '  ')}" for text in new)] if new else []
    if not told:
        return [f"A feature of {name} is missing. What it does shows in what follows."]
    if len(told) == 1:
        return [f"A feature of {name} is missing. Its description:", told[0]]
    return [f"{len(told)} things that belong together are missing in {name}:", "\n".join(f"- {_indented(text, '  ')}" for text in told)]


def _indented(text: str, indent: str) -> str:
    return "\n".join(indent + line if line and number else line for number, line in enumerate(text.split("\n")))


def _examples(index: Index, proof: Proof, tests: Sequence[Definition]) -> list[str]:
    """Of docstrings first; of what hidden tests check at most half."""
    symbols = proof.proposal.symbols
    nodes = {d.key: d for s in symbols for d in index.sources[s.path].definitions if s.line <= d.line <= s.end_line}
    wanted = {definition.name for definition in (*nodes.values(), *_told_about(index, proof)) if not definition.name.startswith("__")}
    shown = [example for d in nodes.values() for example in doc_examples(ast.get_docstring(d.node) or "")[:MAX_DOC_SHOWN]]
    checked = [example for test in tests for example in test_examples(index, test)]
    limit = min(MAX_EXAMPLES_ALL, MAX_EXAMPLES + sum(not d.name.startswith("_") for d in symbols) - 1)
    few = choose_examples(checked, wanted, min(max(limit - len(shown), 1), max(len(checked) // 2, 1)))
    patterns = {e.match: e for e in checked if e.match and e not in few}
    every = list({e.sentence: e for e in (*shown[:limit], *few, *patterns.values())}.values())
    if not every:
        return []
    parts = ["Some of what holds:\n" + "\n".join(f"- {example.sentence}" for example in every)]
    helpers = list(dict.fromkeys(sentence for example in every for sentence in example.helpers))
    return [*parts, f"There {'; '.join(helpers)}."] if helpers else parts


def choose_examples(examples: Sequence[Example], wanted: set[str], limit: int) -> list[Example]:
    """Those that name what is wanted, the names taking turns, and of each name different relations first."""
    useful = [example for example in examples if example.names & wanted] or list(examples)
    lanes: dict[str, list[Example]] = {}
    for example in useful:
        lanes.setdefault(min(example.names & wanted, default=""), []).append(example)
    for lane in lanes.values():
        first = {relation: next(e for e in lane if e.relation == relation) for relation in dict.fromkeys(e.relation for e in lane)}
        lane.sort(key=lambda example: (_is_odd(example, wanted), example is not first[example.relation]))
    chosen: list[Example] = []
    turn = 0
    while len(chosen) < limit and any(turn < len(lane) for lane in lanes.values()):
        chosen += [lane[turn] for lane in lanes.values() if turn < len(lane)]
        turn += 1
    return chosen[:limit]


def _is_odd(example: Example, wanted: set[str]) -> bool:
    """Compares one use with another, or looks at what only machinery needs."""
    return "__" in example.call or bool(words_of(example.value) & wanted)


def _access(index: Index, proof: Proof, tests: Sequence[Definition]) -> list[str]:
    """The dotted names under which hidden tests reach what is gone."""
    gone = proof.cut.closure.gone
    reached: dict[str, None] = {}
    for test in tests:
        scope = index.scopes[test.path]
        unit = index.unit_of(test)
        for chain in sorted(unit.now | unit.later):
            bound = [node for node in scope.nodes.get(chain[0], []) if isinstance(node, ast.alias)]
            if not bound or not index.dead_chain(test.path, None, chain, gone):
                continue
            stop = next((n for n in range(1, len(chain)) if index.dead_chain(test.path, None, chain[:n], gone)), len(chain))
            imported = scope.imports[bound[-1]]
            reached[".".join([imported.module, *([imported.name] if imported.name else []), *chain[1:stop]])] = None
    names = list(reached)
    return [f"The hidden tests reach it as {', '.join(code(name) for name in names)}."] if names else []


def _test_of(tests: Sequence[Definition], id: str) -> Definition | None:
    name = id.partition("[")[0].split("::")[-1]
    path = id.split("::")[0]
    exact = [test for test in tests if test.name == name and test.path == path]
    return (exact or [test for test in tests if test.name == name] or [None])[0]  # type: ignore[list-item]
