"""Tests that nobody can foresee: what they say, where they stand, what they are called."""

import ast
import random
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.grade import canary
from etude.grade.canary import Candidate, functions_of
from etude.grade.flips import Site, Text, apply, change, changeable

PATH = "tests/test_words.py"
IDS = (
    f"{PATH}::test_join", f"{PATH}::test_upper[a-A]", f"{PATH}::test_upper[b-B]", f"{PATH}::Upper::test_lower", f"{PATH}::test_marked",
)  # fmt: skip
TESTS = """\
import unittest

import pytest


def test_join():
    assert "-".join(["a", "b"]) == "a-b"


@pytest.mark.parametrize("text, expected", [("a", "A"), ("b", "B")])
def test_upper(text, expected):
    assert text.upper() == expected


class Upper(unittest.TestCase):
    def test_lower(self):
        self.assertEqual("A".lower(), "a")


@pytest.mark.slow
def test_marked():
    assert True
"""


def lay(folder: Path, seed: int, text: str = TESTS) -> tuple[str, list[canary.Canary]]:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / PATH).write_bytes(text.encode())
    rng = random.Random(seed)
    laid = canary.lay(folder, canary.choose(canary.propose(folder, IDS, rng), rng), rng)
    return (folder / PATH).read_bytes().decode(), laid


@pytest.mark.parametrize("seed", range(8))
def test_canaries_stand_in_the_file_of_the_hidden_tests_and_look_like_them(tmp_path: Path, seed: int) -> None:
    text, laid = lay(tmp_path, seed)
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert [each.must_fail for each in laid].count(True) == 2
    assert len(laid) == 3
    for each in laid:
        name = each.ids[0].partition("[")[0].rpartition("::")[2]
        assert name in names
        assert name.startswith(each.candidate.site.qualname.rpartition(".")[2])
        assert "canary" not in name
        assert len(each.ids) == len(each.candidate.ids)
    assert text.count("def test_join") + text.count("def test_upper") + text.count("def test_lower") == 3 + len(laid)


def test_the_same_seed_draws_the_same_and_others_draw_others(tmp_path: Path) -> None:
    assert lay(tmp_path, 1) == lay(tmp_path, 1)
    assert len({lay(tmp_path, seed)[0] for seed in range(10)}) > 5


def test_line_ends_of_the_file_are_kept(tmp_path: Path) -> None:
    text, _ = lay(tmp_path, 3, TESTS.replace("\n", "\r\n"))
    assert text.count("\n") == text.count("\r\n")


def test_a_function_with_another_mark_than_parametrize_is_left_alone(tmp_path: Path) -> None:
    lay(tmp_path, 0)
    assert not any(each.site.qualname == "test_marked" for each in canary.propose(tmp_path, IDS, random.Random(0)))


def test_where_nothing_can_be_copied_small_tests_are_made(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / PATH).write_text("def test_odd():\n    odd()\n\n\ndef odd():\n    assert 1\n")
    rng = random.Random(5)
    chosen = canary.choose([each for each in canary.propose(tmp_path, [f"{PATH}::test_odd"], rng) if each.kind.startswith("made")], rng)
    laid = canary.lay(tmp_path, chosen, rng)
    assert [each.must_fail for each in laid] == [True, False]
    scope: dict[str, object] = {}
    exec((tmp_path / PATH).read_text(), scope)
    for each in laid:
        made = scope[each.ids[0].rpartition("::")[2]]
        assert callable(made)
        if each.must_fail:
            with pytest.raises(AssertionError):
                made()
        else:
            made()


def test_inverted_tests_keep_their_names_and_their_lines(tmp_path: Path) -> None:
    lay(tmp_path, 0)
    (tmp_path / PATH).write_text(TESTS)
    chosen = [Candidate(kind="changed", site=Site(path=PATH, qualname="test_join", number=0), ids=(IDS[0],))]
    assert canary.invert(tmp_path, chosen, random.Random(0)) == {PATH: (IDS[0],)}
    text = (tmp_path / PATH).read_text()
    assert len(text.splitlines()) == len(TESTS.splitlines())
    assert '== "a-b"' not in text


@pytest.mark.parametrize(
    "statement",
    [
        *(
            "assert value == 3",
            "assert 3 == value",
            "assert value != 4",
            "assert value",
            "assert not 0 * value",
            "assert value is not None",
        ),
        *("assert value in (1, 3)", "assert value not in (1, 2)", "assert [value, 'ä'] == [3, 'ä']", "assert {'k': value} == {'k': 3}"),
        *(
            "assert value < 4",
            "assert value >= 3",
            "assert str(value) == '3', 'a message'",
            "assert value == 3 and value",
            "assert -value == -3",
        ),
        *("assert value == \\\n        3", "with open('/dev/null'):\n        assert value == 3.0", "assert f'{value}' == '3'"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_statement_fails_where_it_held(statement: str, seed: int) -> None:
    source = f"def test_it():\n    value = 3\n    {statement}\n"
    text = Text(source.encode())
    claims = changeable(text.functions()["test_it"].node)
    assert len(claims) == 1
    scope: dict[str, object] = {}
    exec(source, scope)
    exec(apply(source, [change(text, claims[0], random.Random(seed))]).replace("test_it", "changed"), scope)
    test_it, changed = scope["test_it"], scope["changed"]
    assert callable(test_it)
    assert callable(changed)
    test_it()
    with pytest.raises(AssertionError):
        changed()


@pytest.mark.parametrize(
    "statement",
    [
        "assert value == pytest.approx(3.0)",
        "assert [value] == approx([3.0], abs=1e-3)",
        "assert Decimal('3') == value",
        "check.assert_allclose([value], [3])",
        "assert_equal(value, 3)",
        "case.assertAlmostEqual(value, 3.0)",
        "case.assertListEqual([value], [3])",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_helpers_that_compare_are_asked_with_another_value(statement: str, seed: int) -> None:
    source = f"def test_it(value, pytest, approx, Decimal, check, assert_equal, case):\n    {statement}\n"
    claim = changeable(Text(source.encode()).functions()["test_it"].node)[0]
    start, end, new = change(Text(source.encode()), claim, random.Random(seed))
    assert source[start:end].strip("'") in ("3", "3.0")
    assert new != source[start:end]
    scope: dict[str, Any] = {}
    exec(apply(source, [(start, end, new)]), scope)

    def equal(one: object, other: object) -> None:
        assert one == other

    helpers = {"assert_allclose": equal, "assertAlmostEqual": equal, "assertListEqual": equal}
    with pytest.raises(AssertionError):
        scope["test_it"](3, pytest, pytest.approx, Decimal, SimpleNamespace(**helpers), equal, SimpleNamespace(**helpers))


@pytest.mark.parametrize("statement", ["self.assertListEqual(value, [])", "assert_not_equal(value, 3)", "check_call(['ls'], 3)"])
def test_a_helper_without_a_value_to_change_is_left_alone(statement: str) -> None:
    source = f"def test_it(self, value):\n    {statement}\n"
    assert changeable(Text(source.encode()).functions()["test_it"].node) == []


def test_what_is_expected_to_raise_or_may_be_left_out_is_not_changed() -> None:
    source = (
        "def test_it(x):\n    with raises(ValueError):\n        assert x\n    if x:\n        assert x\n    for y in x:\n        check(y)\n"
    )
    assert changeable(Text(source.encode()).functions()["test_it"].node) == []


def test_parameters_of_one_test_belong_together() -> None:
    assert functions_of(IDS)[(PATH, "test_upper")] == (IDS[1], IDS[2])
    assert functions_of(IDS)[(PATH, "Upper.test_lower")] == (IDS[3],)
