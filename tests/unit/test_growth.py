"""What a pool wishes for is found among the tasks that are there, or built, and never touches what is held out."""

from dataclasses import replace
from pathlib import Path

import pytest

from etude.growth import Growth, builder, fits, grown_folder
from etude.pool.entry import Wish
from etude.records import encode
from etude.types import Symbol, Task


def wish(change: str, task: str = "a", **traits: object) -> Wish:
    return Wish(**{"kind": "harder", "change": change, "task": task, "arm": ("feature_deletion", "pocket", "S"), **traits})


@pytest.fixture
def old(pocket_store) -> Task:
    task = pocket_store.get("pocket-slugify")
    return replace(
        task, id="a", level="B", visible_share=0.5, mode="stub", symbols=(Symbol(path="pocket/text.py", qualname="f", line=3, num_lines=4),)
    )


def test_each_change_fits_the_task_that_has_it_and_no_other(old):
    tasks = {
        "lower_level": replace(old, id="1", level="C"),
        "raise_level": replace(old, id="2", level="A"),
        "hide_tests": replace(old, id="3", visible_share=0.0),
        "show_tests": replace(old, id="4", visible_share=1.0),
        "remove": replace(old, id="5", mode="remove"),
        "join": replace(old, id="6", kind="joined_features", origin=("a", "b")),
        "new": replace(old, id="7", repo=replace(old.repo, digest="1" * 64), symbols=()),
    }
    to = {"lower_level": "C", "raise_level": "A", "join": ""}
    for change in tasks:
        one = wish(change, to=to.get(change, ""), partners=("b",) if change == "join" else ())
        fitting = [name for name, task in tasks.items() if fits(task, one, old)]
        assert fitting == [change] if change != "new" else "join" not in fitting
    joined = replace(old, id="ab", kind="joined_features", origin=("a", "b"))
    assert fits(old, wish("split", "ab"), joined)
    assert not fits(replace(old, id="c"), wish("split", "ab"), joined)


def lay(folder: Path, *tasks: Task) -> Path:
    folder.mkdir(exist_ok=True)
    for task in tasks:
        (folder / f"{task.id}.json").write_bytes(encode(task))
    return folder


def test_what_is_taken_or_touches_a_held_out_file_is_not_given(old, tmp_path):
    other = (Symbol(path="pocket/other.py", qualname="g", line=1, num_lines=2),)
    easy, hard = replace(old, id="b", gold="", symbols=()), replace(old, id="c", gold="", symbols=other)
    folder = lay(tmp_path / "tasks", old, easy, hard)
    (folder / "torn.json").write_text("{")

    def made(taken, held_out) -> list[str]:
        return [
            task.id
            for task in Growth((folder,), taken=lambda: taken, held_out=held_out, build=None).make(
                wish("new", arm=(old.kind, old.repo.name, old.band))
            )
        ]

    assert made(["a"], []) == ["b"]
    assert made(["a", "b"], []) == ["c"]
    assert made(["a", "b"], [replace(hard, id="held")]) == []
    assert made(["a", "b", "c"], []) == []


def test_a_repository_is_built_once_when_nothing_fits(old, tmp_path):
    folder, built = lay(tmp_path / "tasks", old), []

    def build(repo) -> None:
        built.append(repo.name)
        lay(folder, replace(old, id="b", level="C"))

    growth = Growth((folder,), taken=lambda: ["a"], held_out=[], build=build)
    arm = (old.kind, old.repo.name, old.band)
    assert [task.id for task in growth.make(wish("lower_level", to="C", arm=arm))] == ["b"]
    assert growth.make(wish("raise_level", to="A", arm=arm)) == []
    assert built == ["pocket"]


def test_what_is_built_during_a_run_uses_the_repositories_of_the_runs_tasks(tmp_path, pocket_store, backend):
    grown = grown_folder(tmp_path, pocket_store)
    assert grown_folder(tmp_path, pocket_store) == grown
    old = pocket_store.get("pocket-slugify")
    growth = Growth((pocket_store.path, grown), taken=lambda: [old.id], held_out=[], build=builder(pocket_store, grown, backend, most=1))
    (made,) = growth.make(wish("new", "", arm=("feature_deletion", "pocket", "S")))
    assert made.repo.digest == old.repo.digest
    assert (grown / f"{made.id}.json").is_file()
    assert pocket_store.workspace(made).is_dir()  # the run's own store can lay it down
