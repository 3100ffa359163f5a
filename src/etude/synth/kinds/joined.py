"""Joined features: two to four deletions that hang together are cut as one.

    file     both have a definition in the same file
    caller   some function, of the sources or the tests, that survives neither or both, names a definition of each

In: the deletions that this build made so far, else the candidates for one; out: Ideas of pairs, triples and quads taking turns. The parts
share no definition and have one mode. A task's origin are the ids of the tasks that it was joined from.

Not here: the cut and the proof: a joined feature is a candidate like any other (cut.py, prove.py).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice

from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.candidates import MAX_LINES, find_candidates
from etude.synth.cut import Mode
from etude.synth.options import BuildOptions
from etude.synth.proposal import FEATURE_DELETION, Idea, Made, Proposal, make_slug, propose_cut
from etude.synth.prove import MAX_GONE_SHARE
from etude.synth.source import Definition
from etude.synth.workshop import Baseline, Workshop

KIND = "joined_features"
SIZES = (2, 3, 4)
LOOKED_AT = 100  # groups of one size that one deletion begins
EACH = 2  # of them that are tried


@dataclass(frozen=True, slots=True)
class _Part:
    label: str
    mode: Mode
    targets: tuple[Definition, ...]
    tests: frozenset[str]
    task: str = ""  # id

    @property
    def num_lines(self) -> int:
        return sum(d.end_line - d.line + 1 for d in self.targets)


def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
    parts = _parts_of_tasks(made) or _parts_of_candidates(workshop, baseline, options)
    parts.sort(key=lambda part: _rank(part.label))
    shared = _Shared(workshop, parts)
    near = [shared.near(number) for number in range(len(parts))]
    limit = int(MAX_GONE_SHARE * len(baseline.stable))
    seen: set[frozenset[int]] = set()
    lanes: dict[int, list[tuple[int, ...]]] = {size: [] for size in SIZES}
    for _ in range(EACH):
        for first in range(len(parts)):
            for size in SIZES:
                groups = ((first, *others) for others in islice(combinations(near[first], size - 1), LOOKED_AT))
                fitting = (group for group in groups if frozenset(group) not in seen and _fits([parts[n] for n in group], limit))
                group = next(fitting, None)
                if group is not None:
                    seen.add(frozenset(group))
                    lanes[size].append(group)
    for turn in range(max(map(len, lanes.values()), default=0)):
        for size in SIZES:
            if turn < len(lanes[size]):
                group = lanes[size][turn]
                yield _idea(workshop, [parts[number] for number in group], [shared.why(group[0], number) for number in group[1:]])


def _idea(workshop: Workshop, parts: Sequence[_Part], why: Sequence[str]) -> Idea:
    mode = parts[0].mode
    name = f"{KIND} {mode} {' + '.join(part.label for part in parts)}"
    return Idea(kind=KIND, name=name, group=name, row=KIND, make=partial(_make, workshop, parts, why, name))


def _make(workshop: Workshop, parts: Sequence[_Part], why: Sequence[str], name: str) -> Proposal:
    targets = sorted((d for part in parts for d in part.targets), key=lambda d: d.key)
    return propose_cut(
        workshop,
        targets,
        parts[0].mode,
        name=name.removeprefix(f"{KIND} "),
        tests=frozenset().union(*(part.tests for part in parts)),
        kind=KIND,
        slug=make_slug(targets),
        origin=tuple(sorted(part.task for part in parts if part.task)),
        evidence={"parts": [part.label for part in parts], "shared": list(why)},
    )


def _parts_of_tasks(made: Sequence[Made]) -> list[_Part]:
    found: list[_Part] = []
    for each in made:
        if each.task.kind == FEATURE_DELETION:
            proposal = each.idea.make()
            if proposal.symbols and proposal.tests is not None:
                found.append(_Part(proposal.name, proposal.mode, proposal.symbols, proposal.tests, each.task.id))
    return found


def _parts_of_candidates(workshop: Workshop, baseline: Baseline, options: BuildOptions) -> list[_Part]:
    found = find_candidates(
        workshop.index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN), max_share=options.max_share
    )
    useful = [candidate for candidate in found if candidate.kind in ("function", "class") and not candidate.is_private]
    return [_Part(f"{mode} {c.kind} {c.name}", mode, c.targets, c.tests) for mode in options.modes for c in useful]


def _fits(parts: Sequence[_Part], limit: int) -> bool:
    keys = [d.key for part in parts for d in part.targets]
    tests = frozenset().union(*(part.tests for part in parts))
    nested = any(
        one.path == other.path and one is not other and one.line <= other.line <= one.end_line
        for first, second in combinations(parts, 2)
        for one in (*first.targets, *second.targets)
        for other in (*first.targets, *second.targets)
        if one.is_class
    )
    return len(set(keys)) == len(keys) and not nested and len(tests) <= limit and sum(part.num_lines for part in parts) <= MAX_LINES


class _Shared:
    """What deletions have in common."""

    def __init__(self, workshop: Workshop, parts: Sequence[_Part]) -> None:
        self.parts = parts
        self.files = [frozenset(d.path for d in part.targets) for part in parts]
        self.callers: list[dict[tuple[str, int], str]] = []
        names = [frozenset(d.name for d in part.targets if not d.name.startswith("__")) for part in parts]
        units = [
            (definition.key, definition.qualname, workshop.index.unit_of(definition).words)
            for path in (*workshop.layout.sources, *workshop.layout.tests)
            for definition in workshop.index.sources[path].definitions
            if not definition.is_class and path.endswith(".py")
        ]
        for part, wanted in zip(parts, names, strict=True):
            own = {d.key for d in part.targets}
            self.callers.append({key: qualname for key, qualname, words in units if key not in own and words & wanted})

    def why(self, one: int, other: int) -> str:
        """ "" if nothing."""
        common = sorted(self.callers[one].keys() & self.callers[other].keys())
        if common:
            return f"caller {common[0][0]}:{common[0][1]} {self.callers[one][common[0]]}"
        files = sorted(self.files[one] & self.files[other])
        return f"file {files[0]}" if files else ""

    def near(self, one: int) -> list[int]:
        """Those that share something with it and have its mode, a caller before a file."""
        here = self.parts[one]
        others = {n: self.why(one, n) for n, part in enumerate(self.parts) if n != one and part.mode == here.mode}
        near = [n for n, why in others.items() if why]
        return sorted(near, key=lambda n: (not others[n].startswith("caller"), _rank(f"{here.label}\0{self.parts[n].label}")))


def _rank(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
