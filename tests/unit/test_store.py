"""The folder of tasks: what goes in comes out, whole, whoever else is writing."""

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from etude import tree
from etude.errors import UserError
from etude.store import Pool, TaskStore
from etude.types import Environment, Repo, Task

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]


@pytest.fixture
def task(pocket_store: TaskStore) -> Task:
    return pocket_store.get("pocket-slugify")


@pytest.fixture
def store(tmp_path: Path, pocket_store: TaskStore, task: Task) -> TaskStore:
    """A store of its own with the snapshot of pocket, and no task yet."""
    made = TaskStore.create(tmp_path / "tasks")
    made.add_snapshot(pocket_store.snapshot(task.repo))
    return made


def test_tasks_come_back_sorted_by_id_from_a_store_opened_again(store: TaskStore, task: Task) -> None:
    tasks = [replace(task, id=id) for id in ("b", "a-2", "c", "a.1")]
    for each in tasks:
        store.add(each)
    again = TaskStore.open(store.path)
    assert again.tasks() == sorted(tasks, key=lambda each: each.id) == store.tasks()
    assert again.get("c") == replace(task, id="c")


def test_a_task_added_again_replaces_the_old_one(store: TaskStore, task: Task) -> None:
    store.add(task)
    store.add(replace(task, instruction="new"))
    assert [each.instruction for each in TaskStore.open(store.path).tasks()] == ["new"]


def test_the_pool_says_where_tasks_came_from(store: TaskStore) -> None:
    pool = Pool(sources=("toolz==1.0.0",), evidence={"valid": 25})
    store.describe(pool)
    assert TaskStore.open(store.path).pool == pool


def test_an_unknown_id_is_answered_with_ids_like_it(store: TaskStore, task: Task) -> None:
    store.add(task)
    with pytest.raises(UserError, match=r"no task 'pocket-slugfy' in .*; did you mean pocket-slugify\?"):
        store.get("pocket-slugfy")
    with pytest.raises(UserError, match=r"no task 'zzz' in .*; there are 1: see"):
        store.get("zzz")


@pytest.mark.parametrize("id", ["../x", "a/b", "", ".hidden", "a b", "pool", "x" * 200])
def test_an_id_that_cannot_name_a_file_is_refused(store: TaskStore, task: Task, id: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        store.add(replace(task, id=id))


def test_a_folder_without_tasks_is_a_users_mistake(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match=r"no tasks at .*: there is no pool\.json in it; build some with `etude tasks build"):
            TaskStore.open(path)


def test_a_store_is_not_made_among_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="exists and holds no tasks"):
        TaskStore.create(tmp_path)
    with pytest.raises(UserError, match="exists and holds no tasks"):
        TaskStore.create(tmp_path / "thesis.tex")


def test_making_a_store_twice_keeps_its_tasks(store: TaskStore, task: Task) -> None:
    store.add(task)
    assert TaskStore.create(store.path).tasks() == [task]


@pytest.mark.parametrize(
    "text", ["{", '{"record":"task","version":1}', '{"record":"rollout","version":1}', '{"record":"task","version":99}']
)
def test_a_task_that_cannot_be_read_is_named(store: TaskStore, text: str) -> None:
    (store.path / "broken.json").write_text(text)
    with pytest.raises(UserError, match=r"broken\.json: "):
        TaskStore.open(store.path).tasks()


def test_a_snapshot_is_the_repository_without_its_caches(store: TaskStore, tmp_path: Path, lay_down: LayDown) -> None:
    folder = lay_down(tmp_path / "repo", {"a.py": "1\n", "__pycache__/a.pyc": b"x", ".git/HEAD": "x"})
    digest = store.add_snapshot(folder)
    assert digest == store.add_snapshot(folder) == tree.digest(folder)
    snapshot = store.snapshot(Repo(name="r", digest=digest, import_roots=(".",), test_paths=()))
    assert [path.name for path in snapshot.rglob("*")] == ["a.py"]


def test_what_is_missing_from_a_store_is_named(store: TaskStore, task: Task) -> None:
    with pytest.raises(UserError, match=r"the snapshot of pocket is missing: no folder .*; build the tasks again"):
        store.add(replace(task, repo=replace(task.repo, digest="0" * 64)))
    with pytest.raises(UserError, match="the environment is missing"):
        store.environment(Environment(python="3.11", requirements=(), digest="0" * 64))


def test_the_workspace_lacks_the_feature_and_gold_brings_its_source_back(pocket_store: TaskStore, task: Task) -> None:
    original, work, solved = pocket_store.snapshot(task.repo), pocket_store.workspace(task), pocket_store.solved_tree(task)
    for name in ("pocket/text.py", "pocket/__init__.py", "tests/test_text.py"):
        assert "slugify" in (original / name).read_text()
        assert "slugify" not in (work / name).read_text()
    assert (solved / "pocket/text.py").read_bytes() == (original / "pocket/text.py").read_bytes()
    assert "slugify" not in (solved / "tests/test_text.py").read_text()


def test_a_workspace_is_made_once_and_made_anew_when_the_cut_changes(store: TaskStore, task: Task, tmp_path: Path) -> None:
    first = store.workspace(task)
    mark = first.stat().st_ino
    assert store.workspace(task) == first
    assert first.stat().st_ino == mark
    assert first.stat().st_mode & 0o777 == 0o755
    other = store.workspace(replace(task, cut=""))
    assert other != first
    assert tree.digest(other) == task.repo.digest


def test_a_cut_that_does_not_apply_is_named_and_leaves_nothing(store: TaskStore, task: Task) -> None:
    with pytest.raises(UserError, match=r"task pocket-slugify: the patch does not apply: .*; its file was changed, build it again"):
        store.workspace(replace(task, cut=task.gold))
    assert list((store.path / ".cache").iterdir()) == []


def _digest_of_workspace(path: Path, task: Task) -> str:
    return tree.digest(TaskStore.open(path).workspace(task))


def test_processes_that_make_the_same_workspace_at_once_all_get_it(store: TaskStore, task: Task) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = set(pool.starmap(_digest_of_workspace, [(store.path, task)] * 8))
    assert found == {tree.digest(store.workspace(task))}
    assert len(list((store.path / ".cache").iterdir())) == 1


def test_a_task_file_whose_names_would_leave_the_store_is_refused(store: TaskStore, task: Task) -> None:
    store.add(task)
    file = store.path / f"{task.id}.json"
    whole = file.read_text()
    for old, new, why in (
        (task.id, "../../x", "task id '../../x'"),
        (task.id, "other", "holds the task 'other'"),
        (task.repo.digest, "../..", r"the digest of its repository is '\.\./\.\.'"),
        (task.environment.digest, "", "the digest of its environment is ''"),
    ):
        file.write_text(whole.replace(f'"{old}"', f'"{new}"'))
        with pytest.raises(UserError, match=f"{why}.*take this file away"):
            TaskStore.open(store.path).tasks()
