"""Tasks from a real repository: a pinned source distribution that carries its tests. About 15 seconds, so marked slow."""

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks


@pytest.mark.slow
def test_toolz_gives_tasks_whose_gold_solves_them_and_whose_cut_does_not(tmp_path):
    backend = Bubblewrap()
    report = build_tasks("toolz==1.0.0", tmp_path / "tasks", options=BuildOptions(max_candidates=7), backend=backend)
    assert report.valid["remove"] >= 1
    assert report.valid["stub"] >= 3
    assert report.dropped == {}
    store = TaskStore.open(tmp_path / "tasks")
    for task in store.tasks():
        assert task.repo.source == "toolz==1.0.0 sdist"
        assert grade(task, task.gold, store=store, backend=backend).solved
        cut = grade(task, "", store=store, backend=backend)
        assert (cut.solved, set(cut.fail_to_pass.values()) & {"passed"}) == (False, set())
