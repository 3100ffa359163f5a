"""What the pool keeps: a task's traits (Entry), what a group of its rollouts did (Outcome), a request for a new one (Wish).

Not here: how they are stored (database.py, pool.py), what follows from them (view.py).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from etude.tree import patch_paths
from etude.types import Task

Arm = tuple[str, str, str]  # kind of task, repository, band of size
Want = Literal["harder", "easier", "more"]
Change = Literal[
    "lower_level",  # A -> B -> C
    "hide_tests",  # none of the feature's tests visible
    "join",  # with `partners`
    "remove",  # the definition goes, not only its body
    "raise_level",  # C -> B -> A
    "show_tests",  # a half of the feature's tests, then all
    "split",  # into parts
    "new",  # another one like those of `arm`
]
CHANGES: tuple[Change, ...] = ("lower_level", "hide_tests", "join", "remove", "raise_level", "show_tests", "split", "new")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A task as the pool knows it."""

    id: str
    kind: str
    repo: str
    band: str
    mode: str = "remove"
    level: str = "A"
    visible_share: float = 0.0
    origin: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # that solving it touches
    wish: str = ""  # id of the wish that it was made for
    admitted: int | None = 0  # first step that may draw it; None: made, and not taken in yet
    held: str = ""  # why a person, or an audit, took it out; "" if nobody did
    cleared: int = -1  # alarms up to this policy version were looked into and are void

    @property
    def arm(self) -> Arm:
        return (self.kind, self.repo, self.band)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One group of rollouts of one task."""

    key: str  # recording the same key again replaces it
    task: str
    version: int  # of the policy, before the step
    samples: int  # with a verdict
    solved: int
    deviation: float  # mean |reward - mean reward|
    shaped: float  # variance of the rewards of those that did not solve it; 0 for rewards of 0 and 1
    cost: float  # whatever it is counted in, tokens say; never seconds: a run must draw the same again

    @property
    def informative(self) -> bool:
        return self.deviation > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A task that the pool would like to have."""

    kind: Want
    change: Change
    task: str = ""  # id of the one to begin with; "" for "new"
    to: str = ""  # the level, or the share of visible tests
    partners: tuple[str, ...] = ()  # ids, for "join"
    arm: Arm = ("", "", "")
    step: int = 0  # when it was wished

    @property
    def id(self) -> str:
        """Of what is asked for; a new task may be asked for again at another step."""
        again = (str(self.step),) if self.change == "new" else ()
        parts = "\0".join((self.kind, self.change, self.task, self.to, *self.partners, *self.arm, *again))
        return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def entry_of(task: Task, *, wish: str = "", admitted: int | None = 0) -> Entry:
    files = sorted({*patch_paths(task.gold), *(symbol.path for symbol in task.symbols)})
    return Entry(
        id=task.id,
        kind=task.kind,
        repo=task.repo.name,
        band=task.band,
        mode=task.mode,
        level=task.level,
        visible_share=task.visible_share,
        origin=task.origin,
        files=tuple(files),
        wish=wish,
        admitted=admitted,
    )


def outcome_of(key: str, task: str, version: int, solved: Sequence[bool], rewards: Sequence[float], cost: float) -> Outcome:
    """ValueError where the two lists do not belong together."""
    if len(solved) != len(rewards):
        raise ValueError(f"{len(solved)} outcomes but {len(rewards)} rewards of {task}: give one of each per graded rollout")
    equal = not rewards or min(rewards) == max(rewards)  # exactly: a mean's rounding error is no signal
    middle = sum(rewards) / max(1, len(rewards))
    return Outcome(
        key=key,
        task=task,
        version=version,
        samples=len(solved),
        solved=sum(solved),
        deviation=0.0 if equal else sum(abs(reward - middle) for reward in rewards) / len(rewards),
        shaped=_variance([reward for reward, one in zip(rewards, solved, strict=True) if not one]),
        cost=float(cost),
    )


def _variance(values: Sequence[float]) -> float:
    if not values or min(values) == max(values):
        return 0.0
    middle = sum(values) / len(values)
    return sum((value - middle) ** 2 for value in values) / len(values)
