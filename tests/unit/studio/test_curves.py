"""studio/curves.py: the numbers of a run over its steps."""

from typing import Any

import pytest

from etude.studio.curves import number, stage_times, step_charts, step_rows, steps_table


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "t": 1.0, **values}


def test_only_charts_with_a_value_are_drawn() -> None:
    titles = [
        chart.title for chart in step_charts([step(1, reward_mean=0.1, feedback_kl=None), step(2, reward_mean=0.2, feedback_kl=None)])
    ]
    assert titles == ["Reward"]
    assert step_charts([]) == []


def test_a_series_that_was_never_measured_is_not_in_the_legend() -> None:
    (chart,) = step_charts([step(1, solved=0.5)])
    assert chart.names == ("solved",)


def test_a_step_that_was_done_again_after_a_resume_counts_once_with_its_last_numbers() -> None:
    rows = step_rows([step(2, solved=0.1), step(1, solved=0.0), step(2, solved=0.4)])
    assert [(row["step"], row["solved"]) for row in rows] == [(1, 0.0), (2, 0.4)]


def test_the_share_of_informative_groups_is_of_the_groups_of_its_step() -> None:
    rows = step_rows([step(1, groups=4, informative_groups=1), step(2, groups=0, informative_groups=0), step(3)])
    assert [row["informative_share"] for row in rows] == [0.25, None, None]


def test_warm_up_and_step_times_have_charts_of_their_own() -> None:
    lines = [{"kind": "warmup", "step": 1, "t": 0.0, "loss": 2.0}, step(1, collect_s=40.0, train_s=20.0)]
    assert [(chart.title, chart.bars) for chart in step_charts(lines)] == [("Time per step", True), ("Warm start", False)]


def test_the_table_has_every_number_and_a_dash_where_one_is_missing() -> None:
    table = steps_table([step(1, solved=0.5), step(2, solved=None, lr=2e-5)])
    assert table == {"names": ["solved", "lr"], "steps": [1, 2], "rows": [["0.5", "–"], ["–", "2e−5"]]}


def test_a_stage_that_was_entered_twice_is_added_up_and_bars_are_relative_to_the_longest() -> None:
    lines = [{"kind": "stage", "step": 0, "t": 0.0, "name": name, "seconds": s} for name, s in (("a", 30.0), ("b", 80.0), ("a", 10.0))]
    lines += [{"kind": "step", "step": k, "t": 0.0, "collect_s": 15.0, "train_s": 5.0} for k in (1, 2)]
    assert [(row["name"], row["time"], row["share"]) for row in stage_times(lines)] == [
        ("a", "00:40", 0.5),
        ("b", "01:20", 1.0),
        ("training: rollouts", "00:30", 0.375),
        ("training: learning", "00:10", 0.125),
    ]


@pytest.mark.parametrize("value", [True, "3", None, [1]])
def test_what_is_no_number_is_not_drawn(value: object) -> None:
    assert number(value) is None
