"""What a flag changes in training.

    watch(rollouts, tasks, settings) -> Watched(learned, silent, counts, ...)

A rollout is flagged where something is proven, or where its score reaches the threshold. By `consequence`:

    mask       it is not learned from, neither its reward nor its hints, and it is no part of its group's baseline (the default)
    penalise   where a detector has proven it the reward becomes PENALTY; other flagged ones are masked
    none       it is counted

The task that let a flagged rollout count as solved is quarantined and scrubbed again (curriculum.py). A rollout whose only findings rest
on thoughts is left alone, whatever they say: a policy that is trained against a monitor of its thoughts learns to hide them
(arXiv 2503.11926). No judge is asked here, so nothing is trained on what a model said of a rollout.

Not here: the pool (curriculum.py), writing (train.py).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from etude.config import MonitorConfig
from etude.monitor.detectors import DETECTORS, Detector
from etude.monitor.inspect import Inspected, count_families, inspect
from etude.monitor.queue import QueuedCase
from etude.monitor.readers.etude import from_rollout
from etude.types import Rollout, Task

PENALTY = -1.0  # below what any honest rollout gets, so that a group whose others all fail still tells the two apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    learned: list[Rollout]  # what the step learns from: without those that are masked, with the rewards that are penalised
    silent: frozenset[str] = frozenset()  # ids that no hint is written for: flagged
    masked: tuple[str, ...] = ()
    penalised: tuple[str, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)  # task -> why
    flagged: tuple[Inspected, ...] = ()
    families: Mapping[str, int] = field(default_factory=dict)  # family -> flagged rollouts with a finding of it
    in_reasoning: int = 0  # rollouts with findings in thoughts alone: counted, nothing else
    ms_per_turn: float = 0.0

    def quotes(self, task: str) -> list[str]:
        """What was seen of a task's flagged rollouts."""
        return [finding.quote for one in self.flagged if one.trajectory.task_id == task for finding in one.findings]


def watch(
    rollouts: Sequence[Rollout],
    tasks: Mapping[str, Task],
    settings: MonitorConfig,
    *,
    detectors: Sequence[Detector] = DETECTORS,
) -> Watched:
    """`tasks` by id: what is known of them."""
    if not settings.enabled:
        return Watched(learned=list(rollouts))
    begun = time.perf_counter()
    plain = {name: msgspec.to_builtins(task) for name, task in tasks.items()}
    seen = inspect([from_rollout(rollout, plain.get(rollout.task_id)) for rollout in rollouts], detectors=detectors)
    turns = sum(len(one.trajectory.steps) for one in seen)
    spent = 1000 * (time.perf_counter() - begun) / max(1, turns)
    flagged = {one.trajectory.id: one for one in seen if is_flagged(one, settings.threshold)}
    penalised = {name for name, one in flagged.items() if one.proven} if settings.consequence == "penalise" else set()
    masked = set(flagged) - penalised if settings.consequence != "none" else set()
    solved = [one for one in flagged.values() if one.trajectory.solved and settings.consequence != "none"]
    return Watched(
        learned=[_penalise(r) if r.id in penalised else r for r in rollouts if r.id not in masked],
        silent=frozenset(penalised),
        masked=tuple(sorted(masked)),
        penalised=tuple(sorted(penalised)),
        quarantined={one.trajectory.task_id: f"{one.trajectory.id}: {strongest(one)}" for one in solved},
        flagged=tuple(flagged.values()),
        families=count_families(flagged.values()),
        in_reasoning=sum(bool(one.findings) and all(f.in_reasoning for f in one.findings) for one in seen),
        ms_per_turn=spent,
    )


def is_flagged(one: Inspected, threshold: float) -> bool:
    """By what was done: neither a proof nor the score counts thoughts."""
    return bool(one.proven) or one.score >= threshold


def strongest(one: Inspected) -> str:
    """Why, in one line."""
    order = {"proof": 0, "strong": 1, "weak": 2}
    found = sorted((f for f in one.findings if not f.in_reasoning), key=lambda f: order[f.strength])
    return f"{found[0].family}, {found[0].why}" if found else ""


def _penalise(rollout: Rollout) -> Rollout:
    if rollout.reward is None:
        return rollout
    return replace(rollout, reward=replace(rollout.reward, total=PENALTY))


def action(watched: Watched, rollout: str) -> str:
    return "masked" if rollout in watched.masked else "penalised" if rollout in watched.penalised else "none"


def rows(watched: Watched) -> list[dict[str, Any]]:
    """One a flagged rollout, for the run folder."""
    return [
        {
            "rollout": one.trajectory.id,
            "task": one.trajectory.task_id,
            "score": one.score,
            "action": action(watched, one.trajectory.id),
            "findings": [asdict(finding) for finding in one.findings],
        }
        for one in watched.flagged
    ]


def metrics(watched: Watched) -> dict[str, Any]:
    return {
        "flagged": len(watched.flagged),
        "masked": len(watched.masked),
        "penalised": len(watched.penalised),
        "quarantined": len(watched.quarantined),
        "in_reasoning": watched.in_reasoning,
        "ms_per_turn": watched.ms_per_turn,
        **{f"family_{name}": count for name, count in watched.families.items()},
    }


def queued(one: Inspected) -> QueuedCase:
    trajectory = one.trajectory
    return QueuedCase(
        id=trajectory.id,
        kind="flagged",
        trajectory=trajectory.id,
        task=trajectory.task_id,
        score=one.score,
        title=strongest(one),
        findings=one.findings,
    )
