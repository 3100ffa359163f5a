"""Runs that share a sandbox say what runs in sandboxes of their own say."""

import pytest

from etude.grade.runner import Variant, run_tests, run_variants
from etude.types import Limits, Repo

TESTS = """\
import os
import pathlib
import subprocess
import sys

import tuned


def test_a():
    assert tuned.VALUE != 1


def test_b():
    assert tuned.VALUE != 2


def test_c():
    assert not pathlib.Path("/tmp/left").exists()
    assert sum(map(str.isdigit, os.listdir("/proc"))) < 9


def test_acts():
    if tuned.VALUE == 3:
        pathlib.Path("new").mkdir()
        pathlib.Path("new/left").write_text("x")
        pathlib.Path("/tmp/left").write_text("x")
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    if tuned.VALUE == 4:
        pathlib.Path("data.txt").write_text("changed")
    if tuned.VALUE == 5:
        while True:
            pass
    if tuned.VALUE == 6:
        os._exit(0)
    if tuned.VALUE == 7:
        import pytest
        pytest.exit("enough")


def test_reads():
    assert pathlib.Path("data.txt").read_text() == "data"
    assert not pathlib.Path("new").exists() or tuned.VALUE == 3
"""
NAMES = ("a", "b", "c", "acts", "reads")
IDS = tuple(f"test_it.py::test_{name}" for name in NAMES)
REPO = Repo(name="it", digest="", import_roots=(".",), test_paths=("test_it.py",), source="it")


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    for name, text in {"tuned.py": code(0), "test_it.py": TESTS, "data.txt": "data"}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def environment(environments, runner_environment):
    return environments / runner_environment.digest


def code(value):
    return f"VALUE = {value}\n"


def variant(value, *, until=(), wall_s=20.0):
    text = f"VALUE = {value}\n" if value != 8 else "import nothing_like_it\n"
    return Variant(files={"tuned.py": text.encode()}, ids=IDS, paths=("test_it.py",), until=until, wall_s=wall_s)


def open_in(backend, tree, environment):
    return backend.open(tree, environment=environment, limits=Limits(wall_s=60))


def alone(backend, tree, environment, value):
    (tree / "tuned.py").write_bytes(variant(value).files["tuned.py"])
    with open_in(backend, tree, environment) as sandbox:
        return run_tests(sandbox, REPO, ids=IDS, wall_s=20.0)


def told(run):
    return run.outcomes, run.collected, run.collect_errors, run.complete, run.messages, run.result.status, run.result.code


def test_each_variant_says_what_a_run_of_its_own_says(backend, tree, environment):
    values = (0, 1, 3, 2, 6, 7, 8, 0)
    with open_in(backend, tree, environment) as sandbox:
        runs = run_variants(sandbox, REPO, [variant(value) for value in values])
        assert sandbox.read("tuned.py") == code(0).encode()
        assert {change.path for change in sandbox.changes()} <= {".etude-result"}
    assert [told(run) for run in runs] == [told(alone(backend, tree, environment, value)) for value in values]
    assert runs[0].passed(IDS)
    assert [id for id, outcome in runs[1].outcomes.items() if outcome == "failed"] == [IDS[0]]


def test_a_file_that_was_changed_ends_the_sharing(backend, tree, environment):
    with open_in(backend, tree, environment) as sandbox:
        runs = run_variants(sandbox, REPO, [variant(4), variant(0)])
    assert len(runs) == 1
    assert runs[0].complete
    assert runs[0].outcomes[IDS[4]] == "failed"


def test_a_variant_that_loops_ends_and_the_next_one_runs(backend, tree, environment):
    with open_in(backend, tree, environment) as sandbox:
        looping, after = run_variants(sandbox, REPO, [variant(5, wall_s=4.0), variant(0)])
    assert (looping.complete, looping.result.status) == (False, "timeout")
    assert IDS[4] not in looping.outcomes
    assert after.passed(IDS)


def test_a_run_ends_when_enough_is_known(backend, tree, environment):
    both = (frozenset(IDS[:1]), frozenset(IDS[3:]))
    with open_in(backend, tree, environment) as sandbox:
        one, two, none, broken = run_variants(
            sandbox, REPO, [variant(1, until=both[:1]), variant(1, until=both), variant(2, until=both[:1]), variant(8, until=both)]
        )
    assert list(one.outcomes) == [IDS[0]]
    assert list(two.outcomes) == list(none.outcomes) == list(IDS)
    assert all(run.complete for run in (one, two, none, broken))
    assert (broken.collected, broken.outcomes) == ((), {})


def test_bytecode_of_a_changed_file_is_not_used(backend, tree, environment):
    import py_compile

    py_compile.compile(str(tree / "tuned.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)
    with open_in(backend, tree, environment) as sandbox:
        runs = run_variants(sandbox, REPO, [variant(1), variant(0)])
    assert [run.outcomes[IDS[0]] for run in runs] == ["failed", "passed"]
