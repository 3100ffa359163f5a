"""Tasks of many repositories, with real processes and sandboxes: one bad repository spoils nothing, and a second call goes on."""

import pytest

from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.many import Outcome, build_many, general, read_list, reasons

OPTIONS = BuildOptions(max_candidates=1, modes=("stub",), jobs=1)


def repository(folder, name):
    (folder / name / "tests").mkdir(parents=True)
    (folder / name / f"{name}.py").write_text("def double(x):\n    return 2 * x\n\n\ndef other(x):\n    return x\n")
    tests = "".join(f"def test_other_{n}():\n    assert {name}.other({n}) == {n}\n\n\n" for n in range(4))
    double = f"def test_double():\n    assert {name}.double(2) == 4\n"
    (folder / name / "tests" / f"test_{name}.py").write_text(f"import {name}\n\n\n{tests}{double}")
    return str(folder / name)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    (folder / "empty").mkdir()
    sources = [repository(folder, "one"), str(folder / "empty"), repository(folder, "two")]
    return folder / "tasks", sources, build_many(sources, folder / "tasks", options=OPTIONS, workers=2)


def test_good_repositories_give_tasks_and_bad_ones_a_reason(built):
    out, _, outcomes = built
    assert [outcome.status for outcome in outcomes] == ["built", "refused", "built"]
    assert "empty repository" in outcomes[1].message
    store = TaskStore.open(out)
    assert {task.repo.name for task in store.tasks()} == {"one", "two"}
    assert set(store.pool.evidence) == {"one", "two"}
    assert len({task.environment.digest for task in store.tasks()}) == 1
    assert len(list((out / "env").iterdir())) == 1
    assert not (out / ".builds" / "tmp").exists()


def test_a_second_call_tries_nothing_again_and_says_the_same(built):
    out, sources, outcomes = built
    events = []
    assert build_many(sources, out, options=OPTIONS, workers=2, progress=events.append) == outcomes
    assert [event.outcome for event in events] == outcomes


def test_an_outcome_that_was_nobodys_fault_is_tried_again(built):
    out, sources, outcomes = built
    damaged = next((out / ".builds").glob("two-*.json"))
    before = damaged.read_bytes()
    damaged.write_bytes(before.replace(b'"status":"built"', b'"status":"crashed"'))
    again = build_many(sources, out, options=OPTIONS, workers=1)
    assert again[2].report["tasks"] == outcomes[2].report["tasks"]
    assert again[2].seconds != outcomes[2].seconds


def test_a_repository_that_takes_too_long_is_ended(tmp_path):
    outcomes = build_many([repository(tmp_path, "one")], tmp_path / "tasks", options=OPTIONS, workers=1, wall_s=0.3)
    assert outcomes[0].status == "out_of_time"


def test_lists_have_comments_and_paths_of_their_own_folder(tmp_path):
    (tmp_path / "here").mkdir()
    file = tmp_path / "list.txt"
    file.write_text("# ten of them\n\ntoolz==1.0.0  # small\nhere\nhttps://host/x#frag\ntoolz==1.0.0\n")
    assert read_list(file) == ["toolz==1.0.0", str(tmp_path / "here"), "https://host/x#frag"]
    file.write_text("# nothing\n")
    with pytest.raises(UserError, match="names no repository"):
        read_list(file)


def test_reasons_are_counted_by_kind():
    rejected = {"a": "3 other tests fail, first x::y: no", "b": "12 other tests fail, first z", "c": "no test fails without it"}
    outcomes = [
        Outcome(source="one", status="built", report={"rejected": rejected}),
        Outcome(source="two", status="refused", message="two has no tests: no file matches test_*.py"),
    ]
    assert reasons(outcomes) == [
        ("N other tests fail", 2),
        ("no test fails without it", 1),
        ("whole repository: two has no tests", 1),
    ]
    at = {"a": "pass_to_pass", "b": "pass_to_pass", "c": "fail_to_pass"}
    assert reasons([Outcome(source="one", status="built", report={"rejected": rejected, "rejected_at": at})]) == [
        ("pass_to_pass: N other tests fail", 2),
        ("fail_to_pass: no test fails without it", 1),
    ]
    assert general("exit code -9: Killed") == "exit code -N"
