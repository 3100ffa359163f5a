"""What a pool wishes for is found among the tasks that are there, or built, and never touches what is held out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from etude.config import PoolConfig
from etude.growth import Growth, builder, fits, grown_folder, releveler
from etude.pool.entry import CHANGES, Wish, entry_of
from etude.pool.grow import grow_once
from etude.pool.pool import Pool
from etude.pool.view import PoolView
from etude.records import encode
from etude.store import TaskStore
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
    gates = made.evidence["gates"]
    assert gates["residue"] == {"findings": 0}
    assert gates["inverse"]["symbols"] == len(made.symbols)
    assert gates["mutation"]["noticed"] * 2 >= gates["mutation"]["mutants"] > 0
    assert (grown / f"{made.id}.json").is_file()
    assert pocket_store.workspace(made).is_dir()  # the run's own store can lay it down


@pytest.fixture
def growing(pocket_store, tmp_path, backend):
    """A pool of one task and what makes more, as a training run has them."""
    grown = grown_folder(tmp_path, pocket_store)
    with Pool(str(tmp_path / "pool.sqlite"), PoolConfig(max_draws=0, decay=1.0)) as pool:

        def begin(task: Task) -> tuple[Pool, Growth]:
            TaskStore.open(grown).add(task)
            pool.register([entry_of(task)])
            write = releveler(TaskStore.open(grown), grown, backend)
            return pool, Growth((grown,), taken=lambda: [one.id for one in pool.entries()], held_out=[], relevel=write)

        yield begin


def play(pool: Pool, growth: Growth, solves: Callable[[PoolView, str], int], *, steps: int) -> list[list[str]]:
    """What a scripted learner is given: the tasks of each step, as level and share of tests shown; it solves so many of 8."""
    given: list[list[str]] = []
    for step in range(steps):
        drawn = pool.draw(8, seed=0, step=step).tasks
        entries = {one.id: one for one in pool.entries()}
        given.append([f"{entries[name].level} {entries[name].visible_share:g}" for name in drawn])
        view = pool.view(step)
        for name in drawn:
            solved = solves(view, name)
            pool.record(name, step, [number < solved for number in range(8)])
        pool.wish(step=step, can=CHANGES, target=8)
        while grow_once(pool, growth.make, keep=lambda task: None, deadline_s=60):
            pass
        pool.admit(step=step + 1)
    return given


def test_a_task_that_is_always_solved_comes_back_at_a_harder_level(pocket_store, growing):
    pool, growth = growing(replace(pocket_store.get("pocket-slugify"), visible_share=0.5))
    given = play(pool, growth, lambda view, name: 8, steps=6)
    assert list(dict.fromkeys(one for step in given for one in step)) == ["A 0.5", "B 0.5", "C 0.5", "C 0"]
    by_level = {f"{one.level} {one.visible_share:g}": one for one in pool.entries()}
    assert by_level["C 0"].origin == (by_level["C 0.5"].id,)
    assert {state for _, state, _ in pool.wishes() if state != "failed"} == {"made"}


def test_a_new_version_borrows_the_pass_rate_of_the_old_one_shifted(pocket_store, growing):
    pool, growth = growing(pocket_store.get("pocket-slugify"))
    play(pool, growth, lambda view, name: 8, steps=1)
    old, new = sorted(pool.view().tasks.values(), key=lambda one: one.entry.level)
    assert (old.entry.level, new.entry.level, new.state) == ("A", "B", "fresh")
    assert 0.5 < new.posterior.mean < old.posterior.mean


def test_a_task_that_is_never_solved_comes_back_easier_until_nothing_helps_and_is_quarantined(pocket_store, growing):
    hard = replace(pocket_store.get("pocket-slugify"), level="C")
    pool, growth = growing(hard)
    given = play(pool, growth, lambda view, name: 0, steps=6)
    versions = ["C 0", "B 0", "A 0", "A 0.5", "A 1"]
    assert [sorted(step) for step in given] == [["C 0"], *(sorted(pair) for pair in pairwise(versions)), ["A 1"]]
    states = {f"{one.entry.level} {one.entry.visible_share:g}": one.state for one in pool.view().tasks.values()}
    assert states == dict.fromkeys(versions, "quarantined")
    assert pool.view().tasks[hard.id].rollouts == 16  # the easier one stands for it then


def test_a_version_that_the_pool_has_is_not_made_again(pocket_store, growing):
    old = pocket_store.get("pocket-slugify")
    pool, growth = growing(old)
    (made,) = growth.make(wish("lower_level", old.id, to="B", arm=(old.kind, old.repo.name, old.band)))
    pool.register([entry_of(made)])
    with pytest.raises(ValueError, match=f"the pool has it: {old.id}"):
        growth.make(wish("raise_level", made.id, to="A", arm=(old.kind, old.repo.name, old.band)))


def test_features_that_were_made_harder_are_joined_by_what_they_were_built_as(old, tmp_path):
    built = [replace(old, id=name, level="A", visible_share=0.0) for name in "ab"]
    hard = [replace(one, id=f"{one.id}-C", level="C", origin=(one.id,)) for one in built]
    joined = replace(built[0], id="ab", kind="joined_features", origin=("a", "b"))
    folder = lay(tmp_path / "tasks", *built, *hard, joined)
    growth = Growth(
        (folder,),
        taken=lambda: ["a", "b", "a-C", "b-C"],
        held_out=[],
        relevel=lambda task, level, share: replace(task, id=f"{task.id}-{level}", level=level, visible_share=share),
    )
    (made,) = growth.make(wish("join", "a-C", partners=("b-C",)))
    assert (made.id, made.level) == ("ab-C", "C")
