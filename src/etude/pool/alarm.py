"""A pass rate that jumps is a suspicion: weights move little in a step, a way round the tests is found at once.

A group raises an alarm if, by the posterior from everything before it (decayed to its version), as many solved rollouts had a probability
below UNLIKELY, and the pass rate moved up by at least JUMP. Groups of one version count in full for each other, so a jump within a
version is the clearest; after a pause the posterior is wide and asks for more. The task of an alarm is quarantined until somebody has
looked into it (`Pool.clear`, or `Pool.hold`).

Not here: what hacks look like inside a rollout (flags of the monitors).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from etude.pool.entry import Outcome
from etude.pool.posterior import Beta, decay, tail

UNLIKELY = 1e-3  # one false alarm in a thousand groups of a policy that stands still, at most
JUMP = 0.5  # of the pass rate
ENOUGH = 4  # rollouts' worth of evidence before there is anything to jump from


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    task: str
    version: int
    key: str  # of the group
    before: float  # pass rate
    after: float
    probability: float  # of a group like this, or better


def alarms_of(outcomes: Sequence[Outcome], start: Beta, *, rate: float) -> list[Alarm]:
    """Of one task, whose groups are in the order of their versions."""
    found: list[Alarm] = []
    solved = samples = 0.0
    version = 0
    for one in outcomes:
        weight = decay(rate, one.version - version)
        solved, samples, version = solved * weight, samples * weight, one.version
        if one.samples and samples >= ENOUGH:
            before, after = solved / samples, one.solved / one.samples
            if after - before >= JUMP:
                probability = tail(start.observed(solved, samples - solved), one.solved, one.samples)
                if probability < UNLIKELY:
                    found.append(
                        Alarm(task=one.task, version=one.version, key=one.key, before=before, after=after, probability=probability)
                    )
        solved, samples = solved + one.solved, samples + one.samples
    return found
