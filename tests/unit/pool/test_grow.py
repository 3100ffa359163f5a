"""Wishes are fulfilled in the background; what fails or is late is an answer, never an error."""

import threading
import time
from collections.abc import Callable

import pytest

from etude.pool.entry import Entry
from etude.pool.grow import Grower, grow_once
from etude.pool.pool import Pool
from etude.types import Environment, Repo, Task

DIGEST = "0" * 64


def task(name: str) -> Task:
    return Task(
        id=name,
        repo=Repo(name="toolz", digest=DIGEST, import_roots=(".",), test_paths=("tests",)),
        environment=Environment(python="3.11", requirements=(), digest=DIGEST),
        instruction="",
        cut="",
        gold="",
        fail_to_pass=(),
        pass_to_pass=(),
        symbols=(),
    )


@pytest.fixture
def pool(tmp_path):
    """With one wish."""
    with Pool(str(tmp_path / "pool.sqlite")) as pool:
        pool.register([Entry(id="a", kind="feature_deletion", repo="toolz", band="S")])
        pool.record("a", 0, [True] * 8)
        assert len(pool.wish(step=0, can=("lower_level",), target=9)) == 1
        yield pool


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answers(pool: Pool) -> list[tuple[str, str]]:
    return [(state, note) for _, state, note in pool.wishes()]


def test_a_wish_is_fulfilled_and_its_task_is_kept_before_the_pool_names_it(pool):
    kept: list[list[str]] = []
    assert grow_once(pool, lambda wish: [task("b")], keep=lambda one: kept.append([one.id, *answers(pool)[0]]), deadline_s=60)
    assert kept == [["b", "taken", ""]]
    assert answers(pool) == [("made", "")]
    assert not grow_once(pool, lambda wish: [task("b")], keep=kept.append, deadline_s=60)
    made = pool.view(1).tasks["b"].entry
    assert (made.origin, made.admitted) == (("a",), None)


def test_the_grower_works_beside_and_ends(pool):
    seen = threading.Event()

    def make(wish):
        seen.set()
        return [task("b")]

    with Grower(pool, make, keep=lambda one: None):
        assert seen.wait(60)
        until(lambda: answers(pool) == [("made", "")])
    assert not any(thread.name == "grower" for thread in threading.enumerate())


def fails(wish):
    raise RuntimeError("no \n such feature")


def full(one):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("make", "keep", "why"),
    [
        (fails, lambda one: None, "no such feature"),
        (lambda wish: [], lambda one: None, "no task came of it"),
        (lambda wish: [task("b")], full, "[Errno 28] No space left on device"),
    ],
)
def test_what_goes_wrong_is_the_wishs_answer(pool, make, keep, why):
    assert grow_once(pool, make, keep=keep, deadline_s=60)
    assert answers(pool) == [("failed", why)]
    assert list(pool.view(1).tasks) == ["a"]


def test_what_comes_after_the_deadline_is_thrown_away(pool):
    release, back = threading.Event(), threading.Event()

    def slow(wish):
        release.wait(60)
        back.set()
        return [task("b")]

    kept = []
    assert grow_once(pool, slow, keep=kept.append, deadline_s=0.05)
    assert answers(pool) == [("late", "not made within 0.05 s")]
    release.set()
    assert back.wait(60)
    assert (kept, list(pool.view(1).tasks)) == ([], ["a"])
