"""metrics.py: lines that survive a kill, and are cut back on resume."""

import json
import math
from pathlib import Path

import pytest

from etude.metrics import Metrics, read_metrics, truncate


def test_a_line_is_on_disk_with_kind_step_and_seconds_before_the_next_call(tmp_path: Path) -> None:
    now = iter([100.0, 107.5])
    metrics = Metrics(tmp_path / "metrics.jsonl", clock=lambda: next(now))
    metrics.log("step", step=1, reward_mean=0.25, **{"lambda": 0.5})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"kind": "step", "step": 1, "t": 7.5, "reward_mean": 0.25, "lambda": 0.5}


def test_a_line_without_a_step_belongs_to_the_last_training_step_not_to_the_warm_up(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.log("warmup", step=40, loss=1.0)
        metrics.log("stage", name="warm start", seconds=1.0)
        metrics.log("step", step=2)
        metrics.log("stage", name="train", seconds=2.0)
    assert [(r["kind"], r["step"]) for r in read_metrics(tmp_path / "m.jsonl")] == [("warmup", 40), ("stage", 0), ("step", 2), ("stage", 2)]


def test_a_torn_last_line_is_ignored_by_the_reader_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"kind":"step","step":1,"t":1.0}\n{"kind":"step","st')
    assert [r["step"] for r in read_metrics(path)] == [1]
    with Metrics(path) as metrics:
        metrics.log("step", step=2)
    assert [r["step"] for r in read_metrics(path)] == [1, 2]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"kind":"step","step":1,"t":1.0}\n{"kind":"st\n{"kind":"step","step":2,"t":1.0}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)


def test_time_and_steps_go_on_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    first, second = iter([0.0, 30.0]), iter([5000.0, 5010.0])
    with Metrics(path, clock=lambda: next(first)) as metrics:
        metrics.log("step", step=3)
    with Metrics(path, clock=lambda: next(second)) as metrics:
        metrics.log("stage", name="after", seconds=1.0)
    assert [(r["step"], r["t"]) for r in read_metrics(path)] == [(3, 30.0), (3, 40.0)]


def test_truncation_keeps_the_warm_up_and_every_line_up_to_the_step_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Metrics(path) as metrics:
        metrics.log("warmup", step=40, loss=1.0)
        metrics.log("step", step=1)
        metrics.log("stage", name="train", seconds=1.0)
    kept = path.read_bytes()
    with Metrics(path) as metrics:
        metrics.log("stage", step=2, name="collect", seconds=1.0)
        metrics.log("step", step=2)
        metrics.log("step", step=3)
    truncate(path, 1)
    assert path.read_bytes() == kept
    truncate(path, 0)
    assert [r["kind"] for r in read_metrics(path)] == ["warmup"]


def test_truncation_inside_the_warm_up_forgets_all_that_followed(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Metrics(path) as metrics:
        metrics.log("stage", name="build tasks", seconds=1.0)
        for step in (10, 20):
            metrics.log("warmup", step=step)
        metrics.log("step", step=1)
    truncate(path, 20, warmup=True)
    assert [(r["kind"], r["step"]) for r in read_metrics(path)] == [("stage", 0), ("warmup", 10), ("warmup", 20)]
    truncate(path, 10, warmup=True)
    assert [(r["kind"], r["step"]) for r in read_metrics(path)] == [("stage", 0), ("warmup", 10)]


def test_truncating_a_file_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    truncate(tmp_path / "m.jsonl", 1)
    assert not (tmp_path / "m.jsonl").exists()


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.log("step", step=1, grad_norm=math.inf, rl_loss=math.nan)
    assert read_metrics(tmp_path / "m.jsonl", "step")[0]["grad_norm"] is None


def test_only_lines_of_the_wanted_kind_are_read(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.log("warmup", step=1)
        metrics.log("step", step=1)
    assert [r["kind"] for r in read_metrics(tmp_path / "m.jsonl", "step")] == ["step"]
