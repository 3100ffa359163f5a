"""studio/summary.py: what a set of rollouts amounts to, and whether another set is better."""

import io
import json
import random
import re

import pytest
from rich.console import Console

from etude.studio.summary import (
    METRICS,
    Estimate,
    Pair,
    by_task,
    change,
    compare,
    effective_size,
    end_table,
    estimate,
    exchange_test,
    run_summary,
    show_change,
    show_p,
    summarise,
    summary_table,
    wilson,
)
from etude.types import Reward, Rollout, Status, Usage

SOLVED, SHARE, INVALID, TURNS, TOKENS = METRICS


def rollout(
    task: str, number: int = 0, *, solved: bool | None = False, calls: int = 10, invalid: int = 0, status: Status = "finished"
) -> Rollout:
    reward = None if solved is None else Reward(total=float(solved), solved=solved, parts={"fail_to_pass_share": float(solved)})
    usage = Usage(sampled_tokens=100, turns=calls, calls=calls, invalid_calls=invalid)
    return Rollout(id=f"{task}/{number}", task_id=task, group=task, seed=number, status=status, segments=(), reward=reward, usage=usage)


def width(found: Estimate) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_wilsons_interval_matches_published_values() -> None:
    # Newcombe 1998, Table I, method 3: 81/263 -> .2553 to .3662; 15/148 -> .0624 to .1605; 0/20 -> 0 to .1611; 1/29 -> .0061 to .1718
    for successes, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert wilson(successes / n, n) == pytest.approx((low, high), abs=5e-5)


def test_one_rollout_per_task_counts_as_one_trial_each() -> None:
    rollouts = [rollout(f"t{i}", solved=i < 3) for i in range(10)]
    found = estimate(SOLVED, rollouts)
    assert (found.low, found.high) == pytest.approx(wilson(0.3, 10), abs=0.02)  # n / (n - 1) of the variance is the only difference


def test_rollouts_of_a_task_that_always_agree_are_worth_one_trial_per_task() -> None:
    sums = list(by_task(SOLVED, [rollout(f"t{i}", n, solved=i < 5) for i in range(10) for n in range(8)]).values())
    assert effective_size(sums) == 10


def test_where_nothing_is_solved_the_interval_still_has_a_width_and_ends_at_zero() -> None:
    found = estimate(SOLVED, [rollout(f"t{i}", n) for i in range(12) for n in range(4)])
    assert found.value == found.low == 0
    assert found.high == pytest.approx(wilson(0, 12)[1])


def test_the_interval_of_a_rate_over_calls_is_wider_when_invalid_calls_cluster_in_few_tasks() -> None:
    spread = [rollout(f"t{i}", invalid=2) for i in range(9)] + [rollout("t9", invalid=3)]
    clustered = [rollout(f"t{i}", invalid=10 if i < 2 else 0) for i in range(10)]
    assert width(estimate(INVALID, clustered)) > 5 * width(estimate(INVALID, spread))


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(60):
        rollouts = []
        for task in range(15):
            rate = rng.betavariate(2, 4)  # mean 1/3
            rollouts += [rollout(f"t{task}", n, invalid=sum(rng.random() < rate for _ in range(10))) for n in range(3)]
        found = estimate(INVALID, rollouts)
        hits += found.low is not None and found.high is not None and found.low <= 1 / 3 <= found.high
    assert hits >= 52  # of 60 at 95%: fewer has a chance below 1%


def test_the_invalid_call_rate_is_calls_over_calls_not_a_mean_over_rollouts() -> None:
    assert estimate(INVALID, [rollout("a", calls=30, invalid=0), rollout("b", calls=10, invalid=10)]).value == 0.25


def test_what_was_not_graded_counts_for_calls_but_not_for_solved() -> None:
    summary = summarise([rollout("a", solved=True), rollout("b", solved=None, invalid=5)])
    assert (summary["graded"], summary["solved"]["value"], summary["invalid_call_rate"]["value"]) == (1, 1.0, 0.25)


def test_interrupted_and_lost_rollouts_are_left_out_and_a_repeated_id_counts_once() -> None:
    rollouts = [rollout("a", status="interrupted"), rollout("a", solved=True), rollout("b", status="sandbox_lost", solved=None)]
    summary = summarise(rollouts)
    assert (summary["rollouts"], summary["left_out"], summary["solved"]["value"]) == (1, 1, 1.0)


def test_nothing_measured_is_none_not_zero() -> None:
    assert summarise([])["solved"] == {"value": None, "low": None, "high": None}
    assert compare([], [rollout("a")])["turns"]["verdict"] == "not measured"


def test_a_mean_over_one_task_has_no_interval() -> None:
    found = estimate(TURNS, [rollout("a", n) for n in range(4)])
    assert (found.value, found.low, found.high) == (10.0, None, None)


def test_a_clear_fall_of_invalid_calls_is_better_and_a_clear_rise_worse() -> None:
    many = [rollout(f"t{i}", invalid=5 + i % 3) for i in range(12)]
    few = [rollout(f"t{i}", invalid=1 + i % 2) for i in range(12)]
    assert change(INVALID, many, few).verdict == "better"
    assert change(INVALID, few, many).verdict == "worse"


def test_a_change_inside_the_noise_is_called_no_clear_change() -> None:
    before = [rollout(f"t{i}", solved=i % 4 == 0) for i in range(12)]
    after = [rollout(f"t{i}", solved=i % 4 == 1 or i == 4) for i in range(12)]
    found = change(SOLVED, before, after)
    assert found.value is not None
    assert found.value > 0
    assert found.verdict == "no clear change"


def test_more_turns_are_neither_better_nor_worse() -> None:
    before, after = [rollout(f"t{i}", calls=5) for i in range(8)], [rollout(f"t{i}", calls=8 + i % 2) for i in range(8)]
    assert change(TURNS, before, after).verdict == "higher"


def test_a_change_over_a_handful_of_tasks_claims_nothing() -> None:
    before, after = [rollout(f"t{i}") for i in range(5)], [rollout(f"t{i}", solved=True) for i in range(5)]
    assert change(SOLVED, before, after).verdict == "too few tasks"


def test_a_change_compares_only_tasks_in_both_sets() -> None:
    found = change(SOLVED, [rollout("a"), rollout("b", solved=True)], [rollout("a", solved=True), rollout("c")])
    assert (found.value, found.tasks) == (1.0, 1)


def test_the_numbers_are_the_same_every_time() -> None:
    rollouts = [rollout(f"t{i}", n, invalid=(3 * i + n) % 7, solved=(i + n) % 3 == 0) for i in range(9) for n in range(3)]
    assert summarise(rollouts) == summarise(list(reversed(rollouts)))


def test_a_change_too_small_to_print_shows_as_zero_without_a_sign() -> None:
    before, after = [rollout("a", calls=1000, invalid=501)], [rollout("a", calls=1000, invalid=500)]
    assert show_change(INVALID, change(INVALID, before, after)) == ("0 points", "")


def test_the_end_table_shows_values_intervals_and_a_verdict_per_metric_in_80_columns() -> None:
    before = [rollout(f"t{i}", invalid=5 + i % 3) for i in range(12)]
    after = [rollout(f"t{i}", invalid=1 + i % 2) for i in range(12)]
    console = Console(width=80, file=io.StringIO())
    console.print(end_table(before, after))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "12 tasks, 12 and 12 rollouts" in lines[0]
    at = next(i for i, line in enumerate(lines) if "invalid calls" in line)
    assert re.split(r" {2,}", lines[at].strip()) == ["invalid calls", "60%", "15%", "−45 points", "better"]
    assert re.fullmatch(r"\s*\d+% to \d+% +\d+% to \d+% +−\d+ to −\d+ +p = \.\d+\s*", lines[at + 1])
    assert "unchanged" in next(line for line in lines if line.strip().startswith("solved"))


def test_the_exchange_test_is_the_sign_test_where_every_task_moves_the_same_way_by_the_same_amount() -> None:
    def pairs(n: int) -> list[Pair]:
        return [((0.0, 1.0), (1.0, 1.0))] * n

    assert [exchange_test(pairs(n)) for n in (6, 8)] == [2 / 2**6, 2 / 2**8]


def test_the_exchange_test_finds_nothing_where_nothing_moved_and_is_never_zero() -> None:
    same: Pair = ((1.0, 2.0), (1.0, 2.0))
    assert exchange_test([same] * 8) == 1
    assert 0 < exchange_test([((0.0, 9.0), (9.0, 9.0))] * 30) < 0.001


def test_a_change_seen_in_five_of_eight_tasks_is_not_yet_clear() -> None:
    before = [rollout(f"t{i}") for i in range(8)]
    after = [rollout(f"t{i}", solved=i < 5) for i in range(8)]
    found = change(SOLVED, before, after)
    assert found.low is not None
    assert found.low > 0  # the bootstrap alone would have said better
    assert (found.p, found.verdict) == (2 / 2**5, "no clear change")


def test_one_set_alone_has_a_table_of_its_own() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(summary_table([rollout(f"t{i}", invalid=i % 3) for i in range(9)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "9 rollouts on 9 tasks" in text
    assert re.search(r"invalid calls +10% +\d+% to \d+%", text)


def test_the_summary_of_a_run_holds_both_sets_and_their_change_as_json() -> None:
    before, after = [rollout(f"t{i}", invalid=5) for i in range(8)], [rollout(f"t{i}", invalid=1 + i % 2) for i in range(8)]
    found = json.loads(json.dumps(run_summary(before, after)))
    assert found["before"]["invalid_call_rate"]["value"] == 0.5
    assert found["after"]["rollouts"] == 8
    assert found["change"]["invalid_call_rate"]["verdict"] == "better"


def test_p_is_printed_as_papers_do() -> None:
    assert [show_p(p) for p in (None, 1.0, 0.25, 0.0625, 0.0004)] == ["–", "1", ".25", ".062", "<.001"]
