"""A quarantined task loses what told its answer and is proven again, or it is said why not."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from etude import tree
from etude.grade.grader import grade
from etude.store import TaskStore
from etude.synth.rescrub import rescrub


@pytest.fixture
def with_files(pocket_store, lay_down, pocket, tmp_path):
    """The task of a repository that held these files too."""

    def make(files):
        task = pocket_store.get("pocket-slugify")
        folder = lay_down(tmp_path / "original", {**pocket, **files})
        return replace(task, id="pocket-slugify-00000000", repo=replace(task.repo, digest=pocket_store.add_snapshot(folder)))

    return make


@pytest.fixture
def again(pocket_store, backend):
    return lambda task, *quotes: rescrub(task, pocket_store, backend, quotes=quotes)


def test_a_left_over_goes_and_the_task_is_proven_without_it(with_files, again, pocket, pocket_store, backend):
    task = with_files({"debug.log": pocket["pocket/text.py"], "notes.log": "nothing of it\n"})
    done = again(task)
    assert (done.outcome, done.removed) == ("scrubbed", ("debug.log",)), done.why
    made = done.made
    assert made.id != task.id
    assert made.origin == (task.id,)
    assert made.evidence["rescrubbed"] == {"removed": ["debug.log"]}
    assert set(tree.files(pocket_store.workspace(task))) - set(tree.files(pocket_store.workspace(made))) == {"debug.log"}
    assert grade(made, made.gold, store=pocket_store, backend=backend).solved
    assert again(made).outcome == "clean"
    assert again(task).made == made  # twice the same


def test_nothing_left_is_clean_and_makes_no_task(with_files, again):
    done = again(with_files({"notes.log": "nothing of it\n"}))
    assert (done.outcome, done.removed, done.made) == ("clean", (), None)


def test_what_a_flagged_rollout_read_goes_too_where_a_scrub_may_take_it(with_files, again):
    task = with_files({"notes.log": "nothing of it\n", "README.md": "A pocket.\n"})
    done = again(task, "cat /workspace/notes.log", "cat README.md pocket/text.py")
    assert (done.outcome, done.removed) == ("scrubbed", ("notes.log",)), done.why


def test_what_may_not_go_makes_it_stuck(with_files, again, pocket):
    done = again(with_files({"copy.md": pocket["pocket/text.py"]}))
    assert done.outcome == "stuck"
    assert "copy.md" in done.why
    assert done.made is None


def test_a_tree_that_fails_without_it_makes_it_stuck(with_files, again, pocket, pocket_store):
    """Its tests read the log."""
    reads = "def test_log():\n    assert open('debug.log').read()\n"
    task = with_files({"debug.log": pocket["pocket/text.py"], "tests/test_log.py": reads})
    task = replace(task, pass_to_pass=tuple(sorted((*task.pass_to_pass, "tests/test_log.py::test_log"))))
    done = again(task)
    assert done.outcome == "stuck"
    assert done.why.startswith("without them 1 tests do not pass")


def test_by_hand_the_new_task_is_added_to_the_folder(with_files, pocket, pocket_store, lay_down, tmp_path):
    folder = tmp_path / "tasks"
    TaskStore.create(folder)
    for name in ("repos", "env"):
        (folder / name).symlink_to(pocket_store.path / name)
    task = with_files({"debug.log": pocket["pocket/text.py"]})
    TaskStore.open(folder).add(task)
    command = [sys.executable, "-m", "etude", "tasks", "rescrub", str(folder), task.id, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (row,) = json.loads(done.stdout)
    assert (done.returncode, row["outcome"], row["removed"]) == (0, "scrubbed", ["debug.log"])
    assert TaskStore.open(folder).get(row["made"]).origin == (task.id,)
