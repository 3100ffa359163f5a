"""Group advantages: mean baseline, exact zeros where a group says nothing, ungraded rollouts left out."""

import pytest

from etude.learn.credit import group_advantages
from etude.types import Reward, Rollout


def rollout(name: str, group: str, reward: float | None) -> Rollout:
    graded = None if reward is None else Reward(total=reward, solved=reward >= 1)
    return Rollout(id=name, task_id=group, group=group, seed=0, status="finished", segments=(), reward=graded)


def test_each_rollout_stands_against_the_mean_of_its_group() -> None:
    credit = group_advantages(
        [rollout("a", "g", 1.0), rollout("b", "g", 0.0), rollout("c", "g", 0.5), rollout("d", "h", 9.0), rollout("e", "h", 1.0)]
    )
    assert credit.advantages == {"a": 0.5, "b": -0.5, "c": 0.0, "d": 4.0, "e": -4.0}
    assert (credit.groups, credit.informative, credit.informative_share) == (2, 2, 1.0)


def test_the_spread_of_a_group_does_not_rescale_its_advantages() -> None:
    credit = group_advantages([rollout("a", "g", 0.001), rollout("b", "g", 0.0)])
    assert credit.advantages == {"a": 0.0005, "b": -0.0005}


def test_equal_rewards_give_exact_zeros_and_an_uninformative_group() -> None:
    credit = group_advantages([rollout(name, "g", 0.1) for name in "abc"] + [rollout("d", "h", 1.0), rollout("e", "h", 0.0)])
    assert [credit.advantages[name] for name in "abc"] == [0.0, 0.0, 0.0]
    assert (credit.groups, credit.informative, credit.informative_share) == (2, 1, 0.5)


def test_a_rollout_without_a_verdict_moves_neither_the_baseline_nor_itself() -> None:
    credit = group_advantages([rollout("a", "g", 1.0), rollout("b", "g", 0.0), rollout("lost", "g", None), rollout("alone", "h", None)])
    assert credit.advantages == {"a": 0.5, "b": -0.5, "lost": 0.0, "alone": 0.0}
    assert (credit.ungraded, credit.groups, credit.informative) == (2, 2, 1)


def test_no_groups_have_no_share() -> None:
    assert group_advantages([]).informative_share == 0.0


def test_a_rollout_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' occurs twice"):
        group_advantages([rollout("a", "g", 1.0), rollout("a", "h", 1.0)])
