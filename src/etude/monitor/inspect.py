"""Trajectories -> what is found in each, and how much it weighs: detectors one by one, provenance, then contrast within each task.

A detector that breaks on what a model wrote is contained: the trajectory is not clean for that, it is named in `broken` and weighs as
something that nobody has looked at (a person gets it).

Not here: the detectors, the judge, what follows (consequence.py, run.py).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from etude.monitor.contrast import contrast
from etude.monitor.detectors import DETECTORS, Detector
from etude.monitor.finding import Finding
from etude.monitor.provenance import provenance
from etude.monitor.score import score_of
from etude.monitor.trajectory import Trajectory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    trajectory: Trajectory
    findings: tuple[Finding, ...]
    score: float  # 0 to 1, of what was done: thoughts do not count
    broken: tuple[str, ...] = ()  # detectors that failed on it

    @property
    def proven(self) -> tuple[Finding, ...]:
        """What happened, whatever was meant, by a detector's word alone."""
        return tuple(one for one in self.findings if one.strength == "proof" and not one.in_reasoning)

    @property
    def heavy(self) -> bool:
        return any(one.heavy for one in self.findings)

    @property
    def families(self) -> frozenset[str]:
        """Of what was done."""
        return frozenset(one.family for one in self.findings if not one.in_reasoning)


def inspect(trajectories: Iterable[Trajectory], *, detectors: Sequence[Detector] = DETECTORS, compare: bool = True) -> list[Inspected]:
    """In the order of the trajectories. `compare`: with contrast within each task."""
    known = list(trajectories)
    apart = contrast(known) if compare else {}
    return [_inspect(one, detectors, apart.get(one.id, [])) for one in known]


def _inspect(one: Trajectory, detectors: Sequence[Detector], apart: Sequence[Finding]) -> Inspected:
    found: list[Finding] = []
    broken: list[str] = []

    def add(name: str, find: Callable[[], list[Finding]]) -> None:
        try:
            found.extend(find())
        except Exception:  # whatever a model wrote must not stop a run
            log.exception("%s failed on %s", name, one.id)
            broken.append(name)

    for detector in detectors:
        add(f"{detector.__module__}.{detector.__qualname__}", partial(detector, one))
    add("provenance", lambda: provenance(one, tuple(found)))
    findings = tuple(dict.fromkeys([*found, *apart]))
    return Inspected(trajectory=one, findings=findings, score=score_of(findings), broken=tuple(broken))


def count_families(inspected: Iterable[Inspected]) -> dict[str, int]:
    """Trajectories with a finding of each family; one may be of several."""
    return dict(sorted(Counter(family for one in inspected for family in one.families).items()))
