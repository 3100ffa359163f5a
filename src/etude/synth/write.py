"""The instruction of a task, without a model: from signatures, docstrings, what else went, and what the hidden tests use.

In: a proof; out: text for the agent. In remove mode it holds the signature and the docstring of everything that is gone, the statements
and `__all__` entries that went along, and the names under which it must be importable; in stub mode signatures only, as the docstrings are
still in the files. Every name that the hidden tests use and that the agent's tree no longer holds is in the text: `missing_names` finds
them, `instruction` adds them, and the build fails if one is left.

Not here: which tests are hidden (prove.py).
"""

import ast
import builtins
import inspect
from collections.abc import Iterable, Mapping, Sequence

from etude.synth.names import Index
from etude.synth.prove import Proof
from etude.synth.source import Definition, FunctionNode, docstring
from etude.synth.units import WORD
from etude.synth.workshop import Workshop

MAX_TESTS = 8  # named in the text
MAX_DOC_LINES = 60  # of one docstring
INDENT = "    "


def instruction(workshop: Workshop, proof: Proof, tests: Sequence[Definition], words: Mapping[str, frozenset[str]]) -> str:
    """`tests`: the functions of the hidden tests; `words`: the words of every original source file."""
    parts = [*removed_parts(workshop.index, proof), *stubbed_parts(proof), *use(proof, tests)]
    text = "\n\n".join(parts)
    extra = missing_names(workshop, proof, tests, words, text)
    if extra:
        text += f"\n\nThe hidden tests also use these names: {', '.join(f'`{name}`' for name in extra)}."
    return text + "\n\nEvery other test must keep passing. Change source files only: tests and configuration are not taken over.\n"


def missing_names(
    workshop: Workshop, proof: Proof, tests: Sequence[Definition], words: Mapping[str, frozenset[str]], text: str
) -> list[str]:
    """Names in the hidden tests that the original sources have, the agent's sources do not, and neither has `text`."""
    before: set[str] = set().union(*words.values())
    after: set[str] = set(WORD.findall(text))
    for path, found in words.items():
        if path not in proof.source_changes:
            after |= found
        else:
            data = proof.source_changes[path]
            after |= words_of(data.decode(workshop.index.sources[path].encoding, "replace")) if data is not None else frozenset()
    used = {name for test in tests for name in identifiers(test.node)}
    return sorted((used & before) - after - set(dir(builtins)))


def identifiers(node: ast.AST) -> set[str]:
    """Names, attributes, keywords and imported names, not what is in strings."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.keyword) and part.arg:
            found.add(part.arg)
        elif isinstance(part, ast.alias):
            found.update(part.name.split("."))
    return found


def words_of(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text))


def signature(definition: Definition) -> str:
    """The definition up to its colon, decorators included."""
    node = definition.node
    lines = [f"@{ast.unparse(decorator)}" for decorator in node.decorator_list]
    if isinstance(node, FunctionNode):
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        lines.append(f"{kind} {node.name}({ast.unparse(node.args)}){returns}:")
    else:
        bases = ", ".join([*map(ast.unparse, node.bases), *map(ast.unparse, node.keywords)])
        lines.append(f"class {node.name}({bases}):" if bases else f"class {node.name}:")
    return "\n".join(lines)


# -- parts


def removed_parts(index: Index, proof: Proof) -> list[str]:
    parts: list[str] = []
    for path in dict.fromkeys(definition.path for definition in proof.cut.removed):
        mine = [definition for definition in proof.cut.removed if definition.path == path]
        names = ", ".join(f"`{definition.qualname}`" for definition in mine)
        gone = proof.source_changes.get(path, b"") is None
        where = f"the file `{path}` with {names} is gone" if gone else f"{names} {'is' if len(mine) == 1 else 'are'} gone from `{path}`"
        parts.append(
            f"{where[0].upper() + where[1:] if not where.startswith('`') else where}. Write {'it' if len(mine) == 1 else 'them'} again:"
        )
        parts += [f"```python\n{_outline(index, definition)}\n```" for definition in mine]
    if parts:
        parts += along(index, proof)
    return parts


def _outline(index: Index, definition: Definition) -> str:
    """Signature and docstring; for a class those of its methods too."""
    lines = signature(definition).splitlines()
    doc = docstring(definition.node)
    if doc is not None:
        lines += [INDENT + line if line else "" for line in _quoted(doc)]
    if definition.is_class:
        inner = [d for d in index.sources[definition.path].definitions if d.owner is definition.node]
        for member in inner:
            lines += ["", *(INDENT + line if line else "" for line in _outline(index, member).splitlines())]
    elif definition.owner is not None and doc is None:
        lines.append(f"{INDENT}...")
    if len(lines) == len(signature(definition).splitlines()):
        lines.append(f"{INDENT}...")
    return "\n".join(lines)


def _quoted(doc: ast.Expr) -> list[str]:
    assert isinstance(doc.value, ast.Constant)
    lines = inspect.cleandoc(str(doc.value.value)).splitlines() or [""]
    if len(lines) > MAX_DOC_LINES:
        lines = [*lines[:MAX_DOC_LINES], "..."]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = f'"""{text}'.splitlines()
    return [f'{lines[0]}"""'] if len(lines) == 1 else [*lines, '"""']


def along(index: Index, proof: Proof) -> list[str]:
    """What went along: module-level statements, exports, imports elsewhere."""
    gone = proof.cut.closure.gone
    own = {definition.node for definition in proof.cut.removed}
    lines: list[str] = []
    for path in sorted(proof.cut.closure.by_path):
        if path.endswith(".pyi") or path not in index.scopes:
            continue
        nodes = proof.cut.closure.by_path[path]
        exported = [str(constant.value) for _, constant in index.exports.get(path, ()) if constant in nodes]
        if exported:
            lines.append(f"- `__all__` of `{path}` listed {', '.join(f'`{name}`' for name in exported)}")
        for unit in index.units[path]:
            node = unit.node
            if isinstance(node, ast.ImportFrom):
                names = [alias.asname or alias.name for alias in node.names if alias in nodes and alias.name != "*"]
                taken = [name for name in names if path.endswith("__init__.py") or index.is_taken(path, name)]
                if taken:
                    lines.append(f"- `{path}` imported {', '.join(f'`{name}`' for name in taken)}")
            elif node in gone.nodes and node not in own and isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
                text = ast.unparse(node)
                if len(text) <= 120 and "__all__" not in text:
                    lines.append(f"- `{path}` had `{text}`")
    return ["What belonged to it and is gone too:\n" + "\n".join(lines)] if lines else []


def stubbed_parts(proof: Proof) -> list[str]:
    parts: list[str] = []
    for path in dict.fromkeys(definition.path for definition in proof.cut.stubbed):
        mine = [definition for definition in proof.cut.stubbed if definition.path == path]
        names = ", ".join(f"`{definition.qualname}`" for definition in mine)
        if len(mine) == 1:
            what = f"Implement {names} in `{path}`: its body is gone and raises NotImplementedError."
        else:
            what = f"Implement {names} in `{path}`: their bodies are gone and raise NotImplementedError."
        parts.append(what + " Signatures and docstrings are in the file.")
        if len(mine) == 1:
            parts.append(f"```python\n{signature(mine[0])}\n```")
    return parts


def use(proof: Proof, tests: Sequence[Definition]) -> list[str]:
    """What the hidden tests show: their names, keywords in calls, expected exceptions."""
    names = list(dict.fromkeys(test.qualname for test in tests))
    more = f" and {len(names) - MAX_TESTS} more" if len(names) > MAX_TESTS else ""
    text = f"Hidden tests check it: {', '.join(f'`{name}`' for name in names[:MAX_TESTS])}{more}."
    wanted = {definition.name for definition in (*proof.cut.removed, *proof.cut.stubbed)}
    keywords: dict[str, None] = {}
    raised: dict[str, None] = {}
    for test in tests:
        for call in ast.walk(test.node):
            if not isinstance(call, ast.Call):
                continue
            name = _last(call.func)
            if name in wanted:
                keywords |= dict.fromkeys(keyword.arg for keyword in call.keywords if keyword.arg)
            elif name in ("raises", "assertRaises", "assertRaisesRegex") and call.args:
                expected = call.args[0]
                each: Iterable[ast.expr] = expected.elts if isinstance(expected, ast.Tuple) else [expected]
                raised |= dict.fromkeys(found for one in each if (found := _last(one)))
    if keywords:
        text += f" They call it with {', '.join(f'`{name}=`' for name in sorted(keywords))}."
    if raised:
        text += f" They expect {', '.join(f'`{name}`' for name in sorted(raised))} to be raised."
    return [text]


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
