"""Rewards -> advantages: each rollout against the mean of its group.

    A_i = R_i - mean of R over the graded rollouts of the group

No division by the group's standard deviation (it blows up tiny differences between rollouts of equal correctness) and no length
term: Dr. GRPO, arXiv 2503.20783; Composer 2, arXiv 2603.24477, section 4.1. A group whose rewards are all equal says nothing; its
advantages are exactly zero, not a rounding error of the mean.

Not here: the reward (grade/), what an advantage does to the loss (losses.py).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from etude.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    advantages: dict[str, float]  # by rollout id; rollouts without a reward get 0
    groups: int
    informative: int  # groups with at least two graded rollouts whose rewards differ
    ungraded: int  # rollouts without a reward: no verdict, left out of the baseline

    @property
    def informative_share(self) -> float:
        """Share of groups that carry a learning signal; 0 without any group."""
        return self.informative / self.groups if self.groups else 0.0


def group_advantages(rollouts: Iterable[Rollout]) -> Credit:
    """Advantages of every rollout, and how many groups were informative. ValueError for two rollouts with one id."""
    groups: dict[str, list[Rollout]] = defaultdict(list)
    advantages: dict[str, float] = {}
    for rollout in rollouts:
        if rollout.id in advantages:
            raise ValueError(f"rollout id {rollout.id!r} occurs twice, ids must be unique: a rollout is trained on once")
        advantages[rollout.id] = 0.0
        groups[rollout.group].append(rollout)
    informative = ungraded = 0
    for members in groups.values():
        rewards = {rollout.id: rollout.reward.total for rollout in members if rollout.reward is not None}
        ungraded += len(members) - len(rewards)
        if not rewards or min(rewards.values()) == max(rewards.values()):
            continue
        informative += 1
        mean = sum(rewards.values()) / len(rewards)
        advantages.update({name: reward - mean for name, reward in rewards.items()})
    return Credit(advantages=advantages, groups=len(groups), informative=informative, ungraded=ungraded)
