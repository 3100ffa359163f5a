"""What could be cut from a foreign repository: exclusive sets of definitions, from what ran in which test.

In: Codes and a Baseline; out: Candidates, all kinds and files taking turns, public and small ones first. A definition is free if it ran in
tests only; `tests(x)` are the stable tests that ran it. Kinds: function (one), class (a class with all its methods), set (definitions that
run only in the tests of one of them and hang together by name or class), file (everything in a file).

Not here: whether a cut holds (prove.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from etude.languages.protocol import Code, Definition
from etude.synth.foreign.workshop import Baseline, Key
from etude.synth.groups import exclusive_sets, in_turns

Kind = Literal["function", "class", "set", "file"]
KINDS: tuple[Kind, ...] = ("set", "function", "class", "file")
MAX_SYMBOLS = 12
MAX_LINES = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    kind: Kind
    targets: tuple[Definition, ...]  # by key
    tests: frozenset[str]
    num_lines: int

    @property
    def name(self) -> str:
        first = self.targets[0]
        more = f" and {len(self.targets) - 1} more" if len(self.targets) > 1 else ""
        return f"{first.path}:{first.line} {first.qualname}{more}"

    @property
    def is_private(self) -> bool:
        return all(d.name.startswith(("_", "#")) for d in self.targets)

    @property
    def largest(self) -> Definition:
        return max(self.targets, key=lambda d: (d.end_line - d.line, d.key))


def find_candidates(codes: Sequence[Code], baseline: Baseline, *, max_share: float) -> list[Candidate]:
    limit = max(1, int(max_share * len(baseline.stable)))
    known = {d.key: d for code in codes for d in code.definitions if not d.is_class and d.body}
    free = {key: baseline.reached[key] for key in known if key in baseline.reached and key not in baseline.fixed}
    small = {key: tests for key, tests in free.items() if len(tests) <= limit}
    found = [_candidate("function", [known[key]], tests) for key, tests in small.items()]
    found += _sets(codes, known, small)
    for code in codes:
        for owner in code.definitions:
            if owner.is_class:
                inside = [d for d in code.definitions if owner.start < d.start and d.end <= owner.end]
                found += _group("class", [owner], inside, free, baseline.fixed, limit)
        tops = [d for d in code.definitions if not any(o.is_class and o.start < d.start and d.end <= o.end for o in code.definitions)]
        if len(tops) > 1:
            found += _group("file", tops, code.definitions, free, baseline.fixed, limit)
    return _ordered(found)


def narrowed(candidate: Candidate, targets: Iterable[Definition]) -> Candidate:
    """The same idea with fewer definitions."""
    return _candidate(candidate.kind, targets, candidate.tests)


def _group(
    kind: Kind,
    targets: Sequence[Definition],
    inside: Iterable[Definition],
    free: Mapping[Key, frozenset[str]],
    fixed: frozenset[Key],
    limit: int,
) -> list[Candidate]:
    keys = [definition.key for definition in inside]
    tests = frozenset().union(*(free.get(key, frozenset()) for key in keys))
    reached = sum(key in free for key in keys)
    return [_candidate(kind, targets, tests)] if reached > 1 and fixed.isdisjoint(keys) and len(tests) <= limit else []


def _sets(codes: Sequence[Code], known: Mapping[Key, Definition], small: Mapping[Key, frozenset[str]]) -> list[Candidate]:
    data = {code.path: code.data for code in codes}
    texts = {key: data[key[0]][known[key].start : known[key].end] for key in small}

    def near(one: Key, other: Key) -> bool:
        return _hang_together(known[one], known[other], texts)

    groups = exclusive_sets(small, near, max_size=MAX_SYMBOLS)
    return [_candidate("set", [known[key] for key in group], tests) for group, tests in groups]


def _hang_together(one: Definition, other: Definition, texts: Mapping[Key, bytes]) -> bool:
    same_class = one.owner != "" and (one.path, one.owner) == (other.path, other.owner)
    return same_class or other.name.encode() in texts[one.key] or one.name.encode() in texts[other.key]


def _candidate(kind: Kind, targets: Iterable[Definition], tests: frozenset[str]) -> Candidate:
    ordered = tuple(sorted(targets, key=lambda d: d.key))
    return Candidate(kind=kind, targets=ordered, tests=tests, num_lines=sum(d.end_line - d.line + 1 for d in ordered))


def _ordered(found: Iterable[Candidate]) -> list[Candidate]:
    return in_turns(
        (candidate for candidate in found if candidate.num_lines <= MAX_LINES),
        rank=lambda c: (c.is_private, c.num_lines, KINDS.index(c.kind), [d.key for d in c.targets]),
        lane=lambda c: (KINDS.index(c.kind), c.targets[0].path),
        same=lambda c: tuple(d.key for d in c.targets),
    )
