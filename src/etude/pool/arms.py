"""Which sort of task pays: a discounted UCB bandit over arms = kind of task x repository x size.

    value_i = (A_i + A) / (c_i / C + 1)            gain of a group, per group's worth of cost, drawn towards the mean by one group
    score_i = value_i + exploration sqrt(ln(1 + N) / (1 + n_i))

n_i: groups of the arm, A_i: sum of their mean |advantage|, c_i: of their cost, all weighted gamma^(now - version); N = sum of n_i, A and C:
mean gain and mean cost of a group over all arms. Discounting: Garivier and Moulines, arXiv 0805.3415; |advantage| as a bandit's reward
over categories: arXiv 2505.14970. Within one step an arm that was chosen counts as played, so that a step is not all of one sort.

Cost is in tokens, not in seconds: a run that is resumed must draw what it would have drawn.

Not here: which task of an arm (draw.py).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etude.pool.entry import Arm, Outcome
from etude.pool.posterior import decay


@dataclass(slots=True)
class ArmCount:
    """All decayed."""

    groups: float = 0.0
    gain: float = 0.0  # mean |advantage| of each group, summed
    cost: float = 0.0
    solved: float = 0.0  # share of each group, summed: a task's rollouts tell of one task, however many they are


def count_arms(outcomes: Iterable[tuple[Arm, Outcome]], *, version: int, rate: float) -> dict[Arm, ArmCount]:
    arms: dict[Arm, ArmCount] = {}
    for name, one in outcomes:
        arm, weight = arms.setdefault(name, ArmCount()), decay(rate, version - one.version)
        arm.groups += weight
        arm.gain += weight * one.deviation
        arm.cost += weight * one.cost
        arm.solved += weight * one.solved / max(1, one.samples)
    return dict(sorted(arms.items()))


def scores(arms: Mapping[Arm, ArmCount], names: Iterable[Arm], played: Mapping[Arm, int], exploration: float) -> dict[Arm, float]:
    """Of each name, those without an outcome included; `played`: groups of this step already."""
    groups = sum(arm.groups for arm in arms.values())
    gain = sum(arm.gain for arm in arms.values()) / groups if groups else 0.0
    cost = sum(arm.cost for arm in arms.values()) / groups if groups else 0.0
    everything = math.log(1 + groups + sum(played.values()))
    found: dict[Arm, float] = {}
    for name in names:
        arm = arms.get(name, ArmCount())
        worth = arm.cost / cost if cost else arm.groups  # in groups
        value = (arm.gain + gain) / (worth + 1)
        found[name] = value + exploration * math.sqrt(everything / (1 + arm.groups + played.get(name, 0)))
    return found
