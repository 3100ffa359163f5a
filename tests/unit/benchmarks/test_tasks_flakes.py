"""A regrade that comes out otherwise than it must is a flake; a stopped run goes on; the interval is Wilson's."""

from dataclasses import replace

import pytest

from benchmarks.tasks_flakes import Regrade, read, regrade, rows_of, run_all, wilson
from etude.errors import UserError


@pytest.fixture
def task(pocket_store):
    return pocket_store.get("pocket-slugify")


def test_gold_and_empty_come_out_as_they_must_in_any_order(task, pocket_store, backend, tmp_path):
    found = run_all([task], 1, tmp_path / "f.jsonl", pocket_store, backend, minutes=5)
    assert [(one.patch, one.order, one.verdict) for one in found] == [
        ("gold", "plain", "as it must be"),
        ("empty", "plain", "as it must be"),
        ("gold", "shuffled", "as it must be"),
        ("empty", "shuffled", "as it must be"),
    ]
    assert run_all([task], 1, tmp_path / "f.jsonl", pocket_store, None, minutes=5) == found  # nothing runs again


def test_a_task_whose_gold_fails_or_whose_tests_pass_without_it_is_a_flake(task, pocket_store, backend):
    without = replace(task, gold="")
    for order in ("plain", "shuffled"):
        one = regrade(without, "gold", order, 0, pocket_store, backend)
        assert one.verdict == "flake"
        assert "tests do not pass with gold, first tests/test_text.py::test_slugify" in one.why
    shown = replace(task, fail_to_pass=task.pass_to_pass, pass_to_pass=())
    one = regrade(shown, "empty", "shuffled", 0, pocket_store, backend)
    assert one.verdict == "flake"
    assert "tests pass without the feature" in one.why


def test_a_line_that_a_kill_tore_is_done_again_and_another_file_is_refused(tmp_path):
    file = tmp_path / "f.jsonl"
    file.write_text('{"task": "a", "patch": "gold", "order": "plain", "round": 0, "verdict": "flake", "why": "x"}\n{"task": "b", "pat')
    assert list(read(file)) == [("a", "gold", "plain", 0)]
    assert file.read_text().endswith("\n")
    file.write_text('{"benchmark": 1}\n')
    with pytest.raises(UserError, match="holds no regrades"):
        read(file)


def test_rows_count_flakes_over_what_was_judged():
    made = [("flake", "the tests ran out of time (60 s)"), ("none", "no sandbox"), *[("as it must be", "")] * 8]
    found = [
        Regrade(task=f"t{number}", patch="gold", order="plain", round=0, verdict=verdict, why=why)
        for number, (verdict, why) in enumerate(made)
    ]
    total = rows_of(found)[-1]
    assert [total[name] for name in ("regrades", "no verdict", "flakes", "of them out of time")] == [9, 1, 1, 1]
    assert total["share"] == pytest.approx(1 / 9)


def test_the_interval_is_that_of_the_textbook():
    assert wilson(1, 10) == pytest.approx((0.0179, 0.4042), abs=1e-4)
    assert wilson(0, 2000) == pytest.approx((0.0, 0.00192), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)
