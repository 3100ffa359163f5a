"""What is known of every task at one policy version: posterior, state, arms, frontier. A pure function of entries and outcomes.

A task is
    fresh        no rollout of it was graded yet
    active       worth drawing
    retired      solved in more than RETIRE_ABOVE of at least HARDER_AFTER rollouts: it says nothing any more
    unsolved     below EASIER_BELOW after UNSOLVED_AFTER rollouts and without a shaped signal; in the stock that is tried now and then
    quarantined  unsolved and replaced by an easier one, or without room in the stock; or held by a person; or an alarm that nobody cleared

Where its evidence has decayed below one rollout, an unsolved task is active again: the policy may have learned. The stock has room for
`unsolved_share` of the tasks that are neither retired nor held; those with the most solved and the most recently tried stay in it.

Evidence counts by the policy version it comes from (posterior.py). A task without any borrows: what was made harder or easier begins at
its origin's pass rate, LOGITS away; others at the pass rate of their arm, itself drawn towards that of all.

Not here: what is drawn (draw.py), what is wished for (evolve.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from etude.config import PoolConfig
from etude.pool.alarm import Alarm, alarms_of
from etude.pool.arms import ArmCount, count_arms
from etude.pool.entry import Entry, Outcome
from etude.pool.posterior import Beta, decay, expected_informative, learnability, prior, shifted

State = Literal["fresh", "active", "retired", "unsolved", "quarantined"]
STATES: tuple[State, ...] = ("fresh", "active", "retired", "unsolved", "quarantined")

RETIRE_ABOVE = 0.9  # a group of 8 is informative in 57% at this rate, and falling
HARDER_ABOVE, HARDER_AFTER = 0.75, 8  # pass rate and rollouts from which a harder one is wished
EASIER_BELOW, EASIER_AFTER = 1 / 16, 8  # and those from which an easier one is
UNSOLVED_AFTER = 16  # rollouts below EASIER_BELOW from which a task is drawn from the stock only
STRENGTH = 2.0  # of a prior, in rollouts: as much as Beta(1, 1)
LOGITS = 1.0  # what one change of a task is taken to move its pass rate by, before it was tried
PROMISING = 0.7  # expected probability that a group is informative, of a task of the frontier
FADED = 1.0  # rollouts' worth of evidence below which an unsolved task is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    entry: Entry
    state: State
    posterior: Beta
    solved: float  # decayed
    samples: float  # decayed
    rollouts: int  # ever
    draws: int  # groups ever
    last: int | None  # version of the last group
    learnability: float  # E[p(1-p)], and what shaped rewards add
    informative: float  # expected, of the next group
    shaped: float  # variance of the rewards of those that did not solve it, decayed
    alarms: tuple[Alarm, ...]  # those not cleared

    @property
    def rate(self) -> float | None:
        """Measured pass rate, old groups weighing less; None before the first."""
        return self.solved / self.samples if self.samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    version: int
    group_size: int
    tasks: Mapping[str, TaskView]  # sorted by id
    arms: Mapping[tuple[str, str, str], ArmCount]
    settings: PoolConfig

    def drawable(self, one: TaskView) -> bool:
        left = not self.settings.max_draws or one.draws < self.settings.max_draws
        return left and one.entry.admitted is not None and one.state in ("fresh", "active")

    @property
    def frontier(self) -> list[TaskView]:
        """Those that may be drawn and promise an informative group, and what was made for that and not tried yet."""
        return [
            one
            for one in self.tasks.values()
            if self.drawable(one) and (one.informative >= PROMISING or (one.state == "fresh" and one.entry.wish))
        ]


def look(entries: Iterable[Entry], outcomes: Iterable[Outcome], *, version: int, group_size: int, settings: PoolConfig) -> PoolView:
    """The pool as it is for the policy of that version; outcomes of later versions are not looked at."""
    known = {entry.id: entry for entry in sorted(entries, key=lambda entry: entry.id)}
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.version, outcome.key)):
        if outcome.task in known and outcome.version <= version:
            groups[outcome.task].append(outcome)
    arms = count_arms(((known[task].arm, one) for task, found in groups.items() for one in found), version=version, rate=settings.decay)
    mean = (sum(arm.solved for arm in arms.values()) + 1) / (sum(arm.groups for arm in arms.values()) + 2)
    counts = {task: _counted(found, version, settings.decay) for task, found in groups.items()}
    views: dict[str, TaskView] = {}
    for entry in known.values():
        found, (solved, samples, shaped) = groups.get(entry.id, []), counts.get(entry.id, (0.0, 0.0, 0.0))
        start = _prior(entry, known, counts, arms.get(entry.arm), mean)
        posterior = start.observed(solved, samples - solved)
        alarms = tuple(a for a in alarms_of(found, start, rate=settings.decay) if a.version > entry.cleared) if found else ()
        rollouts = sum(one.samples for one in found)
        views[entry.id] = TaskView(
            entry=entry,
            state=_state(entry, rollouts, solved, samples, shaped, alarms),
            posterior=posterior,
            solved=solved,
            samples=samples,
            rollouts=rollouts,
            draws=len(found),
            last=found[-1].version if found else None,
            learnability=learnability(posterior) + shaped,
            informative=max(expected_informative(posterior, group_size), _shaped_share(found) if shaped else 0.0),
            shaped=shaped,
            alarms=alarms,
        )
    _fill_stock(views, settings.unsolved_share)
    return PoolView(version=version, group_size=group_size, tasks=views, arms=arms, settings=settings)


def _counted(found: Sequence[Outcome], version: int, rate: float) -> tuple[float, float, float]:
    """(solved, samples, mean shaped variance), decayed."""
    weights = [decay(rate, version - one.version) for one in found]
    shaped = sum(weight * one.shaped for weight, one in zip(weights, found, strict=True)) / max(1e-300, sum(weights))
    solved = sum(weight * one.solved for weight, one in zip(weights, found, strict=True))
    return solved, sum(weight * one.samples for weight, one in zip(weights, found, strict=True)), shaped


def _shaped_share(found: Sequence[Outcome]) -> float:
    return sum(one.informative for one in found) / len(found)


def _prior(
    entry: Entry, known: Mapping[str, Entry], counts: Mapping[str, tuple[float, float, float]], arm: ArmCount | None, mean: float
) -> Beta:
    parents = [(counts[name][0] + 1) / (counts[name][1] + 2) for name in entry.origin if name in counts]
    if entry.wish and parents:
        middle = sum(parents) / len(parents)
        return prior(shifted(middle, -LOGITS if middle > 0.5 else LOGITS), STRENGTH)
    if arm is None:
        return prior(mean, STRENGTH)
    return prior((arm.solved + STRENGTH * mean) / (arm.groups + STRENGTH), STRENGTH)


def _state(entry: Entry, rollouts: int, solved: float, samples: float, shaped: float, alarms: Sequence[Alarm]) -> State:
    if entry.held or alarms:
        return "quarantined"
    if not rollouts:
        return "fresh"
    rate = solved / samples if samples else 0.0
    if rollouts >= HARDER_AFTER and rate > RETIRE_ABOVE:
        return "retired"
    if rollouts >= UNSOLVED_AFTER and rate < EASIER_BELOW and samples >= FADED and not shaped:
        return "unsolved"
    return "active"


def _fill_stock(views: dict[str, TaskView], share: float) -> None:
    """Those unsolved tasks that an easier one stands for, or that the stock has no room for, become quarantined."""
    unsolved = {one.entry.id for one in views.values() if one.state == "unsolved"}
    alive = sum(one.state in ("fresh", "active") and one.entry.admitted is not None for one in views.values())
    replaced = {name for one in views.values() if one.entry.wish for name in one.entry.origin} & unsolved
    stock = sorted((views[name] for name in unsolved - replaced), key=lambda one: (-(one.rate or 0.0), -(one.last or 0), one.entry.id))
    out = [*(views[name] for name in replaced), *stock[int(share * (alive + len(unsolved))) :]]
    for one in out:
        views[one.entry.id] = replace(one, state="quarantined")
