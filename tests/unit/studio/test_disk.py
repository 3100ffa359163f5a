"""studio/disk.py: a run folder read back, finished or not."""

import json
from pathlib import Path

import pytest

from etude.studio.disk import read_run, read_tasks, stage_names


def test_the_files_of_rollouts_come_in_the_order_in_which_they_happened(tmp_path: Path) -> None:
    for name in ("after", "step-0010", "demonstrations", "before", "step-0002"):
        (tmp_path / f"{name}.jsonl").touch()
    assert stage_names(tmp_path) == ["demonstrations", "before", "step-0002", "step-0010", "after"]


def test_tasks_may_be_records_or_only_ids(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps({"train": ["a"], "held_out": [{"id": "b", "band": "S"}], "version": 1}))
    assert read_tasks(tmp_path / "tasks.json") == {"train": [{"id": "a"}], "held_out": [{"id": "b", "band": "S"}]}


def test_a_folder_without_anything_is_an_empty_run(tmp_path: Path) -> None:
    run = read_run(tmp_path)
    assert (run.name, run.config, run.metrics, run.tasks, run.rollouts, run.hints) == (tmp_path.name, {}, [], {}, {}, {})


def test_feedback_torn_by_a_kill_loses_only_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "feedback").mkdir()
    row = {"rollout_id": "r", "segment": 0, "turn": 2, "writer": "w", "gate": True, "effect": -0.5, "token_kl": [0.1, 0.2]}
    (tmp_path / "feedback" / "step-0001.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row)[:40])
    (found,) = read_run(tmp_path).feedback[("r", 0, 2)]
    assert (found.writer, found.gate, found.effect, found.token_kl) == ("w", True, -0.5, (0.1, 0.2))


def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "before.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="before"):
        read_run(tmp_path)
