"""Draws: in proportion to what a task may teach, the same for the same seed, step and outcomes."""

from collections import Counter
from dataclasses import replace

import pytest

from etude.config import PoolConfig
from etude.pool.draw import SHARPNESS, choose, uniform
from etude.pool.entry import Entry, Outcome, outcome_of
from etude.pool.view import look


def entry(name: str, **traits: object) -> Entry:
    return Entry(**{"id": name, "kind": "feature_deletion", "repo": "toolz", "band": "S", **traits})


def group(task: str, version: int, solved: int, number: int = 0) -> Outcome:
    flags = [k < solved for k in range(8)]
    return outcome_of(f"{version}/{task}/{number}", task, version, flags, [float(one) for one in flags], 1.0)


def seen(entries, outcomes, version=2, **settings):
    return look(entries, outcomes, version=version, group_size=8, settings=PoolConfig(**{"max_draws": 0, **settings}))


NAMES = [f"t{k:02d}" for k in range(30)]


def test_the_same_seed_and_step_draw_the_same_and_others_do_not():
    view = seen([entry(name) for name in NAMES], [])
    draws = [choose(view, 6, seed=seed, step=step).tasks for seed, step in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3
    assert len(set(draws[0])) == 6


def test_a_task_that_joins_does_not_reshuffle_the_others():
    before = choose(seen([entry(name) for name in NAMES], []), 6, seed=0, step=0).tasks
    after = choose(seen([entry(name) for name in (*NAMES, "new")], []), 6, seed=0, step=0).tasks
    assert [name for name in after if name != "new"] == list(before)[: len(after) - ("new" in after)]


@pytest.mark.parametrize(("max_draws", "power", "solved"), [(0, SHARPNESS, 6), (1, 1.0, 7)])
def test_even_tasks_come_more_often_than_others_much_more_where_they_may_come_again(max_draws, power, solved):
    entries = [entry("even"), entry("nearly"), entry("retired")]
    outcomes = [group("even", 1, 4), group("nearly", 1, solved), group("retired", 1, 8)]
    known = seen(entries, outcomes, stale_share=0.0)
    tasks = {name: replace(one, draws=0) for name, one in known.tasks.items()}  # so that all may come in either case
    view = replace(known, tasks=tasks, settings=PoolConfig(max_draws=max_draws, stale_share=0.0))
    drawn = Counter(choose(view, 1, seed=0, step=step).tasks[0] for step in range(400))
    weights = [(view.tasks[name].learnability + 0.01) ** power for name in ("even", "nearly")]
    assert set(drawn) == {"even", "nearly"}
    assert drawn["even"] / 400 == pytest.approx(weights[0] / sum(weights), abs=0.07)
    assert weights[0] / sum(weights) < 0.95


def test_a_share_goes_to_what_was_not_seen_for_long():
    entries = [entry("old"), entry("now")]
    outcomes = [group("old", 0, 7), group("now", 9, 4)]
    drawn = [
        Counter(choose(seen(entries, outcomes, 10, stale_share=share), 1, seed=0, step=k).tasks[0] for k in range(300))
        for share in (0, 0.5)
    ]
    assert drawn[1]["old"] > drawn[0]["old"] + 30


def test_the_stock_of_unsolved_tasks_gets_its_share_longest_untried_first():
    hopeless = [group(name, version, 0) for name, version in (("t00", 1), ("t01", 0)) for _ in (0,)]
    hopeless += [group(name, version, 0, 1) for name, version in (("t00", 1), ("t01", 0))]
    view = seen([entry(name) for name in NAMES], hopeless, unsolved_share=0.25)
    assert {view.tasks[name].state for name in ("t00", "t01")} == {"unsolved"}
    for step in range(20):
        drawn = choose(view, 4, seed=0, step=step).tasks
        assert drawn[0] == "t01"
        assert "t00" not in drawn
    assert sum("t01" in choose(view, 2, seed=0, step=step).tasks for step in range(200)) == pytest.approx(100, abs=20)  # half a group


def test_no_task_is_drawn_more_often_than_it_may():
    outcomes = [group("t00", 0, 4)]
    assert "t00" not in choose(seen([entry(name) for name in NAMES], outcomes, max_draws=1), 30, seed=0, step=2).tasks
    assert "t00" in choose(seen([entry(name) for name in NAMES], outcomes, max_draws=2), 30, seed=0, step=2).tasks


def test_what_was_not_taken_in_is_held_or_alarmed_is_never_drawn():
    entries = [entry("a"), entry("b", admitted=None), entry("c", held="why"), entry("d")]
    view = seen(entries, [group("d", 1, 0), group("d", 1, 8, 1)])
    assert choose(view, 4, seed=0, step=2).tasks == ("a",)


def test_retired_tasks_fill_up_only_where_nothing_else_is_left():
    view = seen([entry("a"), entry("b")], [group("b", 1, 8)])
    assert choose(view, 1, seed=3, step=2).tasks == ("a",)
    assert choose(view, 3, seed=3, step=2).tasks == ("a", "b")


def test_more_are_drawn_where_too_few_groups_can_be_expected_to_differ():
    outcomes = [group(name, 1, 7, number) for name in NAMES for number in range(3)]
    view = seen([entry(name) for name in NAMES], outcomes, oversample=3.0)
    drawn = choose(view, 4, seed=0, step=2)
    assert 4 < len(drawn.tasks) < 12
    assert drawn.expected >= 4 > drawn.expected - 1
    assert len(choose(seen([entry(name) for name in NAMES], outcomes, oversample=1.25), 4, seed=0, step=2).tasks) == 5


def test_an_arm_that_teaches_more_is_drawn_more():
    entries = [entry(f"{repo}{k}", repo=repo) for repo in ("good", "dull") for k in range(40)]
    outcomes = [group(f"good{k}", 1, 4) for k in range(10)] + [group(f"dull{k}", 1, 8) for k in range(10)]
    view = seen(entries, outcomes, max_draws=1)
    drawn = Counter(name[:4] for step in range(20) for name in choose(view, 6, seed=0, step=step).tasks)
    assert drawn["good"] > 2 * drawn["dull"] > 0


def test_uniform_takes_every_task_alike():
    drawn = Counter(name for step in range(300) for name in uniform(NAMES, 3, seed=0, step=step).tasks)
    assert set(drawn) == set(NAMES)
    assert max(drawn.values()) < 2.5 * min(drawn.values())
