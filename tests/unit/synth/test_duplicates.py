"""The same code makes one task: within a repository, and among builds that write into a store at the same time."""

from dataclasses import replace

import pytest

from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.duplicates import Duplicates

CACHES = {
    "caches.py": "".join(
        f"class {name}(dict):\n    def put(self, key):\n        self[key] = {number}\n\n"
        "    def wipe(self, keep):\n        left = [key for key in self if key != keep]\n        for key in left:\n"
        "            del self[key]\n"
        "        return len(left) + 1\n\n\n"
        for number, name in enumerate(("First", "Last"))
    ),
    "tests/test_caches.py": "from caches import First, Last\n\n\n"
    + "".join(
        f"def test_put_{name}():\n    one = {name}()\n    one.put('a')\n    assert one == {{'a': {number}}}\n\n\n"
        f"def test_wipe_{name}():\n    one = {name}(a=1, b=2)\n    assert one.wipe('a') == 2\n    assert one == {{'a': 1}}\n\n\n"
        for number, name in enumerate(("First", "Last"))
    )
    + "".join(f"def test_{number}(): pass\n" for number in range(6)),
}


def test_a_method_that_another_class_repeats_makes_one_task(tmp_path, lay_down, backend):
    options = BuildOptions(gates="full", modes=("stub",), max_share=0.2, jobs=1)
    report = build_tasks(str(lay_down(tmp_path / "caches", CACHES)), tmp_path / "tasks", options=options, backend=backend)
    found = [[symbol.qualname for symbol in task.symbols] for task in TaskStore.open(tmp_path / "tasks").tasks()]
    wipes = [names for names in found if names in (["First.wipe"], ["Last.wipe"])]
    assert len(wipes) == 1
    (other,) = {"First.wipe", "Last.wipe"} - set(wipes[0])
    (why,) = [why for name, why in report.rejected.items() if name.endswith(other)]
    assert why.startswith("the same code as caches-stub-")
    assert {"First.put", "Last.put"} <= {name for names in found for name in names}  # alike, and not the same


@pytest.fixture
def tasks(pocket_store, tmp_path):
    """(a store with nothing in it, a function that makes tasks for it)"""
    store, old = TaskStore.create(tmp_path / "tasks"), pocket_store.get("pocket-slugify")
    store.add_snapshot(pocket_store.snapshot(old.repo))

    def make(name, code, *, repo="", **changes):
        return replace(old, id=name, repo=replace(old.repo, name=repo or old.repo.name), evidence={"code_hash": code}, **changes)

    return store, make


def admit(duplicates, store, task):
    with duplicates.admitting(task) as same:
        if same is None:
            store.add(task)
    return same


def test_the_same_code_is_cut_once_in_each_way_and_broken_as_often_as_one_likes(tasks):
    store, make = tasks
    mine = Duplicates(store, make("a", "x").repo.name)
    assert admit(mine, store, make("a", "x", mode="stub")) is None
    assert admit(mine, store, make("b", "x", mode="stub")) == "a"
    assert admit(mine, store, make("c", "x", mode="remove")) is None
    assert admit(mine, store, make("d", "y", mode="stub")) is None
    for name in ("e", "f"):
        assert admit(mine, store, make(name, "x", kind="bug_injection")) is None
    for name in ("g", "h"):  # quick gates tell no hash
        assert admit(mine, store, make(name, "")) is None
    assert admit(Duplicates(store, make("a", "x").repo.name), store, make("a", "x", mode="stub")) is None  # another build proves it again


def test_what_another_build_writes_meanwhile_counts_at_the_last_moment(tasks):
    store, make = tasks
    mine, theirs = Duplicates(store, "mine"), Duplicates(TaskStore.open(store.path), "theirs")
    (store.path / "damaged.json").write_text("{")
    assert admit(theirs, TaskStore.open(store.path), make("theirs-a", "x", repo="theirs")) is None
    assert mine.of_others("x") is None
    assert admit(mine, store, make("mine-a", "x", repo="mine")) == "theirs-a"
    assert mine.of_others("x") == "theirs-a"
    assert admit(mine, store, make("mine-b", "y", repo="mine")) is None
    assert admit(theirs, store, make("theirs-b", "y", repo="theirs")) == "mine-b"
