"""Bug injection: mutants of functions (mutate.py) that tests notice, one alone or two or three together.

    single   one mutant of a function
    double   two mutants of one function, or one of a function and one of a function that it calls
    triple   one mutant of each function of a chain of three callers

In: functions that a small share of the stable tests reach; out: Ideas. What `make` tries are a few mutants of each function, run against
the tests that reach it: the first one that some of these tests notice and others do not is taken, else the first that is noticed. In a
double or triple each mutant is noticed alone, so what is left after mending the others shows. Nothing is hidden that was not a
real test: the tests that fail go from the agent's tree, those that still pass stay.

Not here: the mutants (mutate.py), the proof (prove.py), the report of symptoms (symptoms.py).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.candidates import attribute, is_trivial_key
from etude.synth.cut import CutError
from etude.synth.mutate import Mutation, apply, is_valid, mutants
from etude.synth.names import Key
from etude.synth.options import BuildOptions
from etude.synth.proposal import Idea, Made, Proposal, make_slug, propose_change
from etude.synth.source import Definition, FunctionNode
from etude.synth.workshop import Baseline, Changes, Workshop, write_tree

KIND = "bug_injection"
TRIES = 4  # mutants of one function that are run
SEED = 0
MIN_STATEMENTS = 2  # of a function's body, the docstring included


@dataclass(frozen=True, slots=True)
class _Function:
    definition: Definition
    tests: frozenset[str]

    @property
    def label(self) -> str:
        return f"{self.definition.path}:{self.definition.line} {self.definition.qualname}"


def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
    """Singles, doubles and triples taking turns, each beginning elsewhere among the functions, whose order only their names decide."""
    functions = _functions(workshop, baseline, options.max_share)
    callees = _callees(workshop, functions)
    lanes: list[list[tuple[_Function, ...]]] = [[], [], [], []]
    for key, function in functions.items():
        lanes[0].append((function,))
        lanes[1] += [(function, functions[called]) for called in callees[key][:1]]
        source = workshop.index.sources[function.definition.path]
        if len(mutants(source, function.definition, seed=SEED, limit=2 * TRIES)) == 2 * TRIES:
            lanes[2].append((function, function))
        lanes[3] += [
            (function, functions[second], functions[third])
            for second in callees[key][:2]
            for third in callees[second][:1]
            if third not in (key, second)
        ][:1]
    lanes = [lane[start:] + lane[:start] for number, lane in enumerate(lanes) for start in [number * len(lane) // len(lanes)]]
    for turn in range(max(map(len, lanes))):
        for lane in lanes:
            if turn < len(lane):
                chain = lane[turn]
                name = f"{KIND} {len(chain)} in {' and '.join(dict.fromkeys(function.label for function in chain))}"
                yield Idea(kind=KIND, name=name, group=name, row=KIND, make=partial(_make, workshop, chain, name))


def _functions(workshop: Workshop, baseline: Baseline, max_share: float) -> dict[Key, _Function]:
    """Those that a test reaches and a bug in which leaves most tests alone, by the hash of their place."""
    index = workshop.index
    reached, fixed = attribute(index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN))
    limit = max(1, int(max_share * len(baseline.stable)))
    found: dict[Key, _Function] = {}
    for path in workshop.layout.sources:
        for definition in index.sources[path].definitions if path.endswith(".py") else ():
            tests = reached.get(definition.key, frozenset())
            if not isinstance(definition.node, FunctionNode) or definition.key in fixed or not 1 <= len(tests) <= limit:
                continue
            if not is_trivial_key({definition.key: definition}, definition.key) and len(definition.node.body) >= MIN_STATEMENTS - 1:
                found[definition.key] = _Function(definition, tests)
    return dict(sorted(found.items(), key=lambda item: _rank(item[1].label)))


def _callees(workshop: Workshop, functions: Mapping[Key, _Function]) -> dict[Key, list[Key]]:
    """Functions that another one refers to and that share a test with it."""
    by_name: dict[str, list[Key]] = {}
    for key, function in functions.items():
        by_name.setdefault(function.definition.name, []).append(key)
    found: dict[Key, list[Key]] = {}
    for key, function in functions.items():
        referred = {name for chain in workshop.index.unit_of(function.definition).later for name in chain}
        words = sorted(referred & by_name.keys())
        near = [other for word in words if len(by_name[word]) == 1 for other in by_name[word] if other != key]
        found[key] = [other for other in near if functions[other].tests & function.tests]
    return found


def _make(workshop: Workshop, chain: Sequence[_Function], name: str) -> Proposal:
    """Runs tests. CutError where no mutant is noticed."""
    chosen: list[Mutation] = []
    alone: list[int] = []
    for function in chain:
        mutation, failing = _noticed(workshop, function, chosen)
        chosen.append(mutation)
        alone.append(failing)
    definitions = list({function.definition.key: function.definition for function in chain}.values())
    return propose_change(
        workshop,
        _changes(workshop, chosen),
        kind=KIND,
        name=name.removeprefix(f"{KIND} "),
        mode="stub",
        symbols=definitions,
        tests=frozenset().union(*(function.tests for function in chain)),
        slug=make_slug(definitions),
        evidence={"mutations": [mutation.words for mutation in chosen], "failing_alone": alone},
    )


def _noticed(workshop: Workshop, function: _Function, taken: Sequence[Mutation]) -> tuple[Mutation, int]:
    """A mutation of the function that tests notice, apart from those already taken, and how many notice it."""
    source = workshop.index.sources[function.definition.path]
    coarse: tuple[Mutation, int] | None = None
    tried = 0
    for mutation in mutants(source, function.definition, seed=SEED):
        if any(mutation.start <= other.end and other.start <= mutation.end for other in taken if other.path == mutation.path):
            continue
        if tried == TRIES:
            break
        data = apply(source, [mutation])
        if not is_valid(source, data):
            continue
        tried += 1
        failing = _failing(workshop, {mutation.path: data}, function.tests)
        if 0 < failing < len(function.tests):
            return mutation, failing
        if failing and coarse is None:
            coarse = mutation, failing
            if len(function.tests) == 1:
                break
    if coarse is None:
        raise CutError(f"no test notices any of {tried} mutants of {function.definition.qualname}", "fail_to_pass")
    return coarse


def _failing(workshop: Workshop, changes: Changes, tests: frozenset[str]) -> int:
    """How many of the tests fail; 0 where the run does not come to its end."""
    with workshop.folder() as folder:
        write_tree(workshop.files, changes, folder / "tree", workshop.bytecode)
        with workshop.open(folder / "tree") as sandbox:
            run = workshop.run_in(sandbox, ids=tests)
    if not run.complete or run.collect_errors or set(run.collected) != tests:
        return 0
    return sum(run.outcomes.get(id) != "passed" for id in tests)


def _changes(workshop: Workshop, mutations: Sequence[Mutation]) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for path in sorted({mutation.path for mutation in mutations}):
        source = workshop.index.sources[path]
        try:
            out[path] = apply(source, [mutation for mutation in mutations if mutation.path == path])
        except ValueError as error:
            raise CutError(str(error)) from None
    return out


def _rank(text: str) -> bytes:
    return hashlib.sha256(f"{SEED}\0{text}".encode("utf-8", "surrogateescape")).digest()
