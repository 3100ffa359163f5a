"""The measured inputs come from a store's outcomes; the rest is the formula."""

import msgspec
import pytest

from benchmarks.tasks_extrapolate import main, measured, need
from etude.errors import UserError
from etude.records import encode
from etude.store import TaskStore
from etude.synth.many import Outcome


@pytest.fixture
def store(pocket_store, tmp_path):
    """One repository of one task, 30 s; one that was refused, 6 s."""
    made = TaskStore.create(tmp_path / "tasks")
    for name in ("repos", "env"):
        (made.path / name).symlink_to(pocket_store.path / name)
    task = pocket_store.get("pocket-slugify")
    (made.path / f"{task.id}.json").write_bytes(encode(task))
    (made.path / ".builds").mkdir()
    built = {"tasks": [task.id, "since-removed"], "tried": {"remove": 2, "stub": 1}, "sandbox_runs": 12}
    outcomes = (Outcome(source="a", status="built", report=built, seconds=30.0), Outcome(source="b", status="refused", seconds=6.0))
    for one in outcomes:
        (made.path / ".builds" / f"{one.source}.json").write_bytes(msgspec.json.encode(one))
    return made


def test_all_that_was_spent_counts_for_the_tasks_that_are_there(store):
    found = measured(store.path, cores_each=2.0)
    assert (found.repositories, found.built, found.tasks, found.candidates) == (2, 1, 1, 3)
    assert (found.core_seconds, found.seconds_each, found.longest_s) == (72.0, 72.0, 30.0)
    assert found.task_bytes == (store.path / "pocket-slugify.json").stat().st_size
    assert 1_000 < found.snapshot_bytes < 10_000 < found.environment_bytes


def test_a_cluster_needs_what_the_formula_says_and_no_less_than_the_longest_repository(store):
    found = measured(store.path)
    few = need(found, 1000, 4, price=0.5)
    assert (few.core_hours, few.hours, few.dollars, few.repositories) == (10.0, 2.5, 5.0, 2000.0)
    assert need(found, 1000, 10**6, price=0.5).hours == pytest.approx(30 / 3600)
    shared = 1000 * (found.snapshot_bytes + found.environment_bytes)
    assert few.disk_gb * 1e9 == pytest.approx(shared + 1000 * found.task_bytes)


def test_the_tables_are_printed_and_a_folder_without_outcomes_is_refused(store, pocket_store, capsys):
    main([str(store.path), "--markdown", "--tasks", "1000"])
    assert "core-seconds a task" in capsys.readouterr().out
    with pytest.raises(UserError, match="tells of no task"):
        measured(pocket_store.path)
