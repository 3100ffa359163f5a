"""What an unfinished build remembers, and what of it still counts where a test turns out to be flaky."""

from dataclasses import replace

import pytest

from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.ledger import Ledger
from etude.synth.refusal import Refusal
from etude.tree import digest
from etude.types import Environment, Repo, Task

A, B, C = "tests/test_x.py::test_a", "tests/test_x.py::test_b", "tests/test_x.py::test_c"


@pytest.fixture
def store(tmp_path):
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/x.py").write_text("x = 1\n")
    found = TaskStore.create(tmp_path / "tasks")
    found.add_snapshot(tmp_path / "repository")
    return found


def a_task(store, name, to_pass, to_keep):
    (snapshot,) = (store.path / "repos").iterdir()
    repo = Repo(name="x", digest=digest(snapshot), import_roots=(".",), test_paths=("tests",))
    environment = Environment(python="3.11", requirements=(), digest="0" * 64)
    task = Task(
        id=name,
        repo=repo,
        environment=environment,
        instruction="",
        cut="",
        gold="",
        fail_to_pass=to_pass,
        pass_to_pass=to_keep,
        symbols=(),
    )  # fmt: skip
    store.add(task)
    return task


def test_the_same_stable_tests_keep_every_outcome(store):
    ledger = Ledger(store, ("x",), frozenset({A, B}))
    ledger.add("one", a_task(store, "one", (A,), (B,)))
    ledger.add("two", Refusal("no test fails without it"))
    again = Ledger(store, ("x",), frozenset({A, B}))
    assert (again.stable, again.dropped) == ({A, B}, {})
    assert again.known("one") == store.get("one")
    assert again.known("two") == Refusal("no test fails without it")
    assert again.known("three") is None


def test_the_gate_of_a_refusal_is_kept_and_what_older_versions_wrote_is_read(store):
    Ledger(store, ("x",), frozenset({A})).add("one", Refusal("90% of the tests would go with it", "share"))
    (path,) = store.path.glob(".unfinished-*")
    path.write_bytes(path.read_bytes() + b'{"name": "old", "reason": "no"}\n{"name": "newer", "reason": "no", "gate": "unheard of"}\n')
    again = Ledger(store, ("x",), frozenset({A}))
    assert again.known("one") == Refusal("90% of the tests would go with it", "share")
    assert again.known("old") == again.known("newer") == Refusal("no")


def test_a_test_that_is_flaky_now_takes_only_what_hangs_on_it(store):
    ledger = Ledger(store, ("x",), frozenset({A, B, C}))
    ledger.add("must pass it", a_task(store, "one", (B,), (A, C)))
    ledger.add("must keep it", a_task(store, "two", (A,), (B, C)))
    ledger.add("without it", a_task(store, "three", (A,), (C,)))
    ledger.add("failed by it", Refusal(f"2 other tests fail, first {B}: no report"))
    ledger.add("failed by another", Refusal(f"2 other tests fail, first {C}: no report"))
    again = Ledger(store, ("x",), frozenset({A, C}))
    assert again.stable == {A, C}
    assert again.known("must pass it") is None
    assert again.known("failed by it") is None
    kept = replace(store.get("two"), pass_to_pass=(C,), evidence={"flaky_since": [B]})
    assert again.known("must keep it") == kept
    assert again.known("without it") == store.get("three")
    assert again.known("failed by another") == Refusal(f"2 other tests fail, first {C}: no report")


def test_a_task_that_kept_nothing_else_is_tried_again(store):
    Ledger(store, ("x",), frozenset({A, B})).add("one", a_task(store, "one", (A,), (B,)))
    assert Ledger(store, ("x",), frozenset({A})).known("one") is None


def test_a_test_that_was_flaky_once_stays_out(store):
    Ledger(store, ("x",), frozenset({A, B}))
    second = Ledger(store, ("x",), frozenset({A, C}))
    assert (second.stable, list(second.dropped)) == ({A}, [C])
    second.add("one", Refusal(f"fails in {A}"))
    third = Ledger(store, ("x",), frozenset({A, B, C}))
    assert (third.stable, list(third.dropped)) == ({A}, [B, C])
    assert third.known("one") == Refusal(f"fails in {A}")


def test_the_stable_tests_do_not_name_the_file_and_other_parts_do(store):
    Ledger(store, ("x",), frozenset({A, B}))
    Ledger(store, ("x",), frozenset({A}))
    assert len(list(store.path.glob(".unfinished-*"))) == 1
    Ledger(store, ("y",), frozenset({A}))
    assert len(list(store.path.glob(".unfinished-*"))) == 2


@pytest.mark.parametrize(("ends", "left"), [(None, 0), (UserError("refused"), 0), (RuntimeError("a kill"), 1), (KeyboardInterrupt(), 1)])
def test_it_goes_with_the_end_of_the_build_and_stays_where_that_was_stopped(store, ends, left):
    def build():
        with Ledger(store, ("x",), frozenset({A})) as ledger:
            ledger.add("one", Refusal("no"))
            if ends is not None:
                raise ends

    if ends is None:
        build()
    else:
        with pytest.raises(type(ends)):
            build()
    assert len(list(store.path.glob(".unfinished-*"))) == left


def test_damaged_lines_are_tried_again(store):
    """A line that is no record, a task whose file is gone, a name that is not UTF-8, a line that a kill tore."""
    task = a_task(store, "one", (A,), (B,))
    ledger = Ledger(store, ("x",), frozenset({A, B}))
    ledger.add("gone", task)
    ledger.add("stub function \udcff.py:1 f", Refusal("no"))
    (store.path / "one.json").unlink()
    (path,) = store.path.glob(".unfinished-*")
    path.write_bytes(b"{broken}\n3\n" + path.read_bytes() + b'{"name": "stub func')
    again = Ledger(TaskStore.open(store.path), ("x",), frozenset({A, B}))
    assert again.known("gone") is None
    assert again.known("stub function \udcff.py:1 f") == Refusal("no")


def test_without_its_first_line_the_tests_that_are_stable_now_count_from_now_on(store):
    Ledger(store, ("x",), frozenset({A, B})).add("one", Refusal("no"))
    (path,) = store.path.glob(".unfinished-*")
    path.write_bytes(b"{broken" + path.read_bytes())
    assert Ledger(store, ("x",), frozenset({A, C})).stable == {A, C}
    assert Ledger(store, ("x",), frozenset({A, B, C})).stable == {A, C}
