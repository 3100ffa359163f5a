"""States, priors, the stock, arms and alarms: what follows from entries and outcomes."""

import pytest

from etude.config import PoolConfig
from etude.pool.arms import ArmCount, count_arms, scores
from etude.pool.entry import Entry, Outcome, outcome_of
from etude.pool.view import UNSOLVED_AFTER, look


def entry(name: str, **traits: object) -> Entry:
    return Entry(**{"id": name, "kind": "feature_deletion", "repo": "toolz", "band": "S", **traits})


def group(task: str, version: int, solved: int, n: int = 8, number: int = 0) -> Outcome:
    flags = [k < solved for k in range(n)]
    return outcome_of(f"{version}/{task}/{number}", task, version, flags, [float(one) for one in flags], 1.0)


def seen(entries, outcomes, version=5, **settings):
    return look(entries, outcomes, version=version, group_size=8, settings=PoolConfig(max_draws=0, **settings))


def test_a_task_goes_from_fresh_to_retired_as_it_is_solved():
    view = seen([entry(name) for name in "abcd"], [group("b", 4, 4), group("c", 4, 8), group("d", 4, 7)])
    assert {name: one.state for name, one in view.tasks.items()} == {"a": "fresh", "b": "active", "c": "retired", "d": "active"}
    assert [one.entry.id for one in view.frontier] == ["b"]  # of the others the next group is likely alike


def test_what_nobody_solves_is_stock_as_far_as_there_is_room_and_else_quarantined():
    names = [f"t{k}" for k in range(10)]
    hopeless = [group(name, version, 0) for name in names[:4] for version in (3, 4)]
    view = seen([entry(name) for name in names], [*hopeless, group("t2", 5, 0)], unsolved_share=0.1)
    states = {name: one.state for name, one in view.tasks.items()}
    assert [states[name] for name in names[:4]] == ["quarantined", "quarantined", "unsolved", "quarantined"]  # the latest tried stays
    assert set(states.values()) == {"quarantined", "unsolved", "fresh"}


def test_half_as_many_failures_are_not_enough_and_old_ones_fade():
    assert seen([entry("a")], [group("a", 4, 0)]).tasks["a"].state == "active"
    tries = [group("a", version, 0) for version in (0, 1)]
    assert sum(one.samples for one in tries) == UNSOLVED_AFTER
    assert seen([entry("a")], tries, version=2).tasks["a"].state == "quarantined"
    assert seen([entry("a")], tries, version=40).tasks["a"].state == "active"


def test_an_unsolved_task_whose_rewards_differ_is_not_given_up():
    shaped = [outcome_of(str(v), "a", v, [False] * 8, [0.1 * k for k in range(8)], 1.0) for v in (3, 4, 5)]
    one = seen([entry("a")], shaped).tasks["a"]
    assert one.state == "active"
    assert one.informative == 1.0
    assert one.learnability > 0.05


def test_evidence_decays_towards_what_the_arm_is_like():
    outcomes = [group("a", 0, 0), *(group("b", version, 8, number=version) for version in range(1, 30))]
    early = seen([entry("a"), entry("b")], outcomes, version=0).tasks["a"].posterior.mean
    late = seen([entry("a"), entry("b")], outcomes, version=30).tasks["a"].posterior.mean
    assert early < 0.2 < 0.5 < late


def test_a_task_that_was_made_begins_below_what_it_was_made_from():
    child = entry("child", origin=("a",), wish="w", admitted=5)
    view = seen([entry("a"), child, entry("other", repo="attrs")], [group("a", 4, 8)])
    assert view.tasks["child"].posterior.mean < view.tasks["a"].posterior.mean
    assert view.tasks["child"].posterior.mean > 0.5


def test_outcomes_of_later_versions_are_not_looked_at():
    outcomes = [group("a", 4, 4), group("a", 9, 8), group("a", 10, 8)]
    assert seen([entry("a")], outcomes, version=5) == seen([entry("a")], outcomes[:1], version=5)


def test_the_order_of_rows_changes_nothing():
    entries = [entry(name, repo=repo) for name, repo in (("a", "x"), ("b", "y"), ("c", "x"))]
    outcomes = [group(name, version, (version * 3) % 9) for name in "abc" for version in range(4)]
    assert seen(entries, outcomes) == seen(entries[::-1], outcomes[::-1])


def test_a_jump_is_an_alarm_and_quarantines_until_it_is_cleared():
    jump = [group("a", 3, 0), group("a", 3, 0, number=1), group("a", 3, 8, number=2)]  # within one version
    one = seen([entry("a")], jump).tasks["a"]
    (alarm,) = one.alarms
    assert (alarm.version, alarm.before, alarm.after, one.state) == (3, 0.0, 1.0, "quarantined")
    assert alarm.probability < 1e-4
    assert seen([entry("a", cleared=3)], jump).tasks["a"].alarms == ()
    assert seen([entry("a", cleared=2)], jump).tasks["a"].alarms != ()


@pytest.mark.parametrize(
    "quiet",
    [
        [0, 1, 3, 5, 7, 8],  # learning, a group a version
        [4, 8],
        [0, 3],
        [8, 0],  # a fall is no hack
    ],
)
def test_learning_is_no_alarm(quiet):
    assert seen([entry("a")], [group("a", version, solved) for version, solved in enumerate(quiet)]).tasks["a"].alarms == ()


def test_after_a_long_pause_a_jump_is_less_of_a_surprise():
    assert seen([entry("a")], [group("a", 0, 0), group("a", 1, 8)]).tasks["a"].alarms
    assert not seen([entry("a")], [group("a", 0, 0), group("a", 12, 8)], version=12).tasks["a"].alarms


def test_held_is_out_whatever_was_solved():
    assert seen([entry("a", held="gold fails")], [group("a", 4, 4)]).tasks["a"].state == "quarantined"


def test_an_arm_that_pays_more_for_its_cost_scores_higher_and_an_untried_one_is_explored():
    rich, poor, dear, new = (("k", name, "S") for name in ("rich", "poor", "dear", "new"))
    outcomes = [(arm, group("t", 0, solved, number=k)) for arm, solved in ((rich, 4), (poor, 8), (dear, 4)) for k in range(9)]
    arms = count_arms(outcomes, version=0, rate=0.9)
    arms[dear] = ArmCount(groups=9, gain=arms[dear].gain, cost=4 * arms[dear].cost)
    plain = scores(arms, (rich, poor, dear, new), {}, 0.0)
    assert plain[rich] > plain[dear] > plain[poor]
    eager = scores(arms, (rich, poor, dear, new), {}, 5.0)
    assert max(eager, key=eager.__getitem__) == new
    assert scores(arms, (rich,), {rich: 6}, 1.0)[rich] < scores(arms, (rich,), {}, 1.0)[rich]


def test_an_arm_forgets():
    arms = count_arms([(("k", "r", "S"), group("t", 0, 4))], version=10, rate=0.5)
    assert arms["k", "r", "S"].groups == pytest.approx(0.5**10)


def test_rewards_that_are_all_alike_have_no_deviation_to_the_bit():
    assert outcome_of("k", "t", 0, [False] * 3, [0.1] * 3, 1.0).deviation == 0.0
    assert outcome_of("k", "t", 0, [True, False], [1.0, 0.0], 1.0).deviation == 0.5
    with pytest.raises(ValueError, match="2 outcomes but 1 rewards"):
        outcome_of("k", "t", 0, [True, False], [1.0], 1.0)
