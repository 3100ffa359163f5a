"""Which definitions make a feature: those that only some of the tests reach.

In: who reached what, from two traced runs in different orders, and the index; out: `Candidate`s in a fixed order. Definitions are
keyed by file and first line, as a property's getter and setter share their name. What ran while modules were imported and tests
collected, or between tests, is out of reach for a cut. Two orders are needed because a one-shot initialiser is seen only in the first test
that needs it: what no test reaches in both is one, and out of reach too.

    tests(x)    stable tests that reach x, over both runs
    function    one x with 1 <= |tests(x)| <= max_share * |stable|
    set         all y with tests(y) a subset of tests(x), for a seed x, that hang together: one names another, or is of its class
    class       one whose reached methods are all free
    module      one whose reached functions are all free

Not here: how to run a trace (grade/runner.py), whether a cut holds (prove.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from etude.synth.groups import exclusive_sets, in_turns
from etude.synth.names import Index, Key
from etude.synth.source import Definition, FunctionNode, is_trivial

Reach = Mapping[str, Iterable[Key]]
Kind = Literal["function", "set", "class", "module"]
KINDS: tuple[Kind, ...] = ("function", "class", "set", "module")
MAX_SYMBOLS = 60
MAX_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    kind: Kind
    targets: tuple[Definition, ...]  # sorted by key
    tests: frozenset[str]  # stable tests that reach one of them
    num_lines: int

    @property
    def is_private(self) -> bool:
        return all(definition.name.startswith("_") for definition in self.targets)

    @property
    def name(self) -> str:
        """For people: what it is about, by its largest definition."""
        if self.kind == "module":
            return self.targets[0].path
        largest = max(self.targets, key=lambda d: (d.end_line - d.line, d.key))
        more = f" and {len(self.targets) - 1} more" if len(self.targets) > 1 else ""
        return f"{largest.path}:{largest.line} {largest.qualname}{more}"


def find_candidates(
    index: Index,
    sources: Sequence[str],
    stable: frozenset[str],
    runs: Sequence[Reach],
    outside: Sequence[str],
    *,
    max_share: float = 0.25,
) -> list[Candidate]:
    """`outside`: the owners in `runs` that are no tests (collection, between tests)."""
    reached, fixed = attribute(index, sources, stable, runs, outside)
    limit = max(1, int(max_share * len(stable)))
    functions = {
        definition.key: definition
        for path in sources
        if path.endswith(".py")
        for definition in index.sources[path].definitions
        if isinstance(definition.node, FunctionNode)
    }
    free = {key: reached[key] for key in sorted(reached) if key in functions and key not in fixed and not is_trivial_key(functions, key)}
    small = {key: tests for key, tests in free.items() if len(tests) <= limit}
    found = [_candidate("function", [functions[key]], tests) for key, tests in small.items()]
    found += _sets(index, functions, small)
    found += _classes(index, sources, reached, fixed, limit)
    found += _modules(index, sources, reached, fixed, limit)
    return _ordered(found)


def attribute(
    index: Index, sources: Sequence[str], stable: frozenset[str], runs: Sequence[Reach], outside: Sequence[str]
) -> tuple[dict[Key, frozenset[str]], set[Key]]:
    """tests(x) for every function, and those that ran outside of tests or once in a run. Code inside a function is the function's."""
    known = set(sources)
    tests: dict[Key, set[str]] = defaultdict(set)
    seen: dict[Key, dict[int, set[str]]] = defaultdict(dict)  # by run
    fixed: set[Key] = set()
    places: dict[Key, Key | None] = {}
    for number, run in enumerate(runs):
        for owner, reached in run.items():
            for place in reached:
                place = (place[0], place[1])
                if owner in outside and place[1] <= 1:
                    continue  # the module's own code, which has the line of a definition at the very top
                if place not in places:
                    definition = index.sources[place[0]].enclosing(place[1]) if place[0] in known else None
                    places[place] = definition.key if definition and not definition.is_class else None
                key = places[place]
                if key is None:
                    continue
                if owner in outside:
                    fixed.add(key)
                elif owner in stable:
                    tests[key].add(owner)
                    seen[key].setdefault(number, set()).add(owner)
    fixed |= {key for key, by_run in seen.items() if len(by_run) > 1 and not set.intersection(*by_run.values())}
    return {key: frozenset(owners) for key, owners in tests.items()}, fixed


def is_trivial_key(functions: Mapping[Key, Definition], key: Key) -> bool:
    node = functions[key].node
    return isinstance(node, FunctionNode) and is_trivial(node)


def _sets(index: Index, functions: Mapping[Key, Definition], small: Mapping[Key, frozenset[str]]) -> list[Candidate]:
    words = {key: index.unit_of(functions[key]).words for key in small}

    def near(one: Key, other: Key) -> bool:
        return _hang_together(functions[one], functions[other], words)

    groups = exclusive_sets(small, near, max_size=MAX_SYMBOLS)
    return [_candidate("set", [functions[key] for key in group], tests) for group, tests in groups]


def _hang_together(one: Definition, other: Definition, words: Mapping[Key, frozenset[str]]) -> bool:
    return other.name in words[one.key] or one.name in words[other.key] or (one.owner is not None and one.owner is other.owner)


def _classes(index: Index, sources: Sequence[str], reached: Mapping[Key, frozenset[str]], fixed: set[Key], limit: int) -> list[Candidate]:
    found: list[Candidate] = []
    for path in sources:
        for owner in index.sources[path].definitions if path.endswith(".py") else ():
            if not owner.is_class:
                continue
            inside = [d.key for d in index.sources[path].definitions if owner.line < d.line <= owner.end_line and not d.is_class]
            tests = frozenset().union(*(reached.get(key, ()) for key in inside))
            if len(inside) > 1 and fixed.isdisjoint(inside) and 1 <= len(tests) <= limit:
                found.append(_candidate("class", [owner], tests))
    return found


def _modules(index: Index, sources: Sequence[str], reached: Mapping[Key, frozenset[str]], fixed: set[Key], limit: int) -> list[Candidate]:
    found: list[Candidate] = []
    for path in sources:
        if not path.endswith(".py"):
            continue
        definitions = index.sources[path].definitions
        keys = [d.key for d in definitions if not d.is_class]
        tops = [d for d in definitions if d.owner is None]
        tests = frozenset().union(*(reached.get(key, ()) for key in keys))
        if len(tops) > 1 and fixed.isdisjoint(keys) and 1 <= len(tests) <= limit:
            found.append(_candidate("module", tops, tests))
    return found


def _candidate(kind: Kind, targets: Sequence[Definition], tests: frozenset[str]) -> Candidate:
    ordered = tuple(sorted(targets, key=lambda d: d.key))
    return Candidate(kind=kind, targets=ordered, tests=tests, num_lines=sum(d.end_line - d.line + 1 for d in ordered))


def _ordered(found: Iterable[Candidate]) -> list[Candidate]:
    """Without doubles and without what is too large, all kinds and files taking turns, public and small ones first."""
    return in_turns(
        (candidate for candidate in found if candidate.num_lines <= MAX_LINES),
        rank=lambda c: (c.is_private, c.num_lines, KINDS.index(c.kind), [d.key for d in c.targets]),
        lane=lambda c: (KINDS.index(c.kind), c.targets[0].path),
        same=lambda c: tuple(d.key for d in c.targets),
    )
