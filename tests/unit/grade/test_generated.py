"""Calls that no test makes: what counts as another answer, and from how many on."""

import random
from typing import Any

import pytest

from etude.grade.generated import Call, Case, compare, module_name, same, vary


def double(number: int, *, literal: bool = False, mild: bool = True) -> Case:
    return Case(module="m", name="f", args=[number], kwargs={}, answer=number * 200, literal=literal, mild=mild and not literal)


CASES = [*(double(number, literal=True) for number in range(10, 14)), *(double(number) for number in range(20, 32))]
RIGHT = [["value", case.answer] for case in CASES]


def answered(wrong_literal: int, wrong_others: int, answer: Any) -> list[Any]:
    return [answer if index < wrong_literal or 4 <= index < 4 + wrong_others else right for index, right in enumerate(RIGHT)]


@pytest.mark.parametrize(
    ("given", "values", "verdict"),
    [
        (RIGHT, [], "as_gold"),
        (answered(0, 12, ["raises"]), [], "hard_coded"),
        (answered(0, 11, ["value", None]), [], "hard_coded"),
        (answered(0, 10, ["raises"]), [], "differs"),  # it may well refuse what gold takes
        (answered(0, 6, ["raises"]), ["10", "11", "2000"], "hard_coded"),
        (answered(0, 6, ["raises"]), ["10", "11"], "differs"),
        (answered(0, 5, ["raises"]), ["10", "11", "2000"], "differs"),
        (answered(1, 12, ["value", 0]), ["10", "11", "2000"], "differs"),  # wrong, where weak tests do not look: no table
        (answered(4, 12, ["raises"]), [], "only_in_tests"),
        (answered(4, 0, ["opaque"]), [], "as_gold"),  # a type of its own
        (RIGHT[:4], [], "hard_coded"),  # the process ended at the first of the others
    ],
)
def test_who_knows_the_tests_inputs_alone_is_told_from_who_is_wrong(given: list[Any], values: list[str], verdict: str) -> None:
    reason, evidence = compare(CASES, given, frozenset(values))
    assert evidence["m.f"]["verdict"] == verdict
    assert bool(reason) == (verdict in ("hard_coded", "only_in_tests"))


def test_few_inputs_of_tests_are_enough_where_all_others_come_to_the_same_too() -> None:
    cases = [*(double(number, literal=True) for number in (10, 11)), *(double(number) for number in range(20, 32))]
    assert compare(cases, [["value", None]] * len(cases), frozenset())[1]["m.f"]["verdict"] == "only_in_tests"
    told_apart = [["value", case.args[0]] for case in cases]  # wrong, but it does look at what it is given
    assert compare(cases, told_apart, frozenset())[0] == ""
    assert compare(cases[:6], [["value", None]] * 6, frozenset())[0] == ""


def test_a_function_that_is_not_there_counts_only_where_the_hidden_tests_name_it() -> None:
    """A helper of gold's is gold's own affair; what tests import from there must be there outside of tests too."""
    cases = [*(double(number, literal=True) for number in range(6)), *(double(number) for number in range(20, 32))]
    gone = [["missing"]] * len(cases)
    for tests in ("", "from m import other", "from elsewhere import f"):
        assert compare(cases, gone, frozenset(), tests) == ("", {"m.f": {"verdict": "not there"}})
    assert compare(cases, gone, frozenset(), "from m import f")[1]["m.f"]["verdict"] == "only_in_tests"


def test_wrong_only_where_letters_changed_is_no_proof() -> None:
    cases = [
        *(double(n, literal=True) for n in range(4)),
        *(double(n) for n in range(4, 9)),
        *(double(n, mild=False) for n in range(9, 60)),
    ]
    given = [["value", case.answer] if case.literal or case.mild else ["raises"] for case in cases]
    assert compare(cases, given, frozenset())[0] == ""


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (1, 2, False),
        ("a", "a", True),
        ("1", 1, False),
        (["list", [1, "a"]], ["iter", [1, "a"]], True),
        (["tuple", [1]], ["list", [1, 2]], False),
        (["list", [1, 2]], ["list", [2, 1]], False),
        (["set", [1, 2]], ["frozenset", [2, 1]], True),
        (["dict", [["a", 1], ["b", ["tuple", [2]]]]], ["dict", [["b", ["list", [2]]], ["a", 1.0]]], True),
        (["dict", [["a", 1]]], ["dict", [["a", 2]]], False),
        (["bytes", "00"], ["bytes", "01"], False),
        (None, False, False),
    ],
)
def test_what_honest_code_may_do_otherwise_is_the_same(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


def test_calls_are_varied_the_same_way_by_the_same_seed_and_never_into_a_tests_own() -> None:
    calls: list[Call] = [("m", "f", [["list", [1, 2, 3]], "ab"], {"key": 4}), ("m", "f", [["list", [9]], "cd"], {"key": 5})]
    varied = vary(calls, random.Random(1))
    assert varied == vary(calls, random.Random(1))
    assert [call for call, literal, _ in varied if literal].sort() == calls.sort()
    others = [call for call, literal, _ in varied if not literal]
    assert len(others) > 20
    assert not any(call in calls for call in others)
    assert any(mild for _, literal, mild in varied if not literal)


@pytest.mark.parametrize(
    ("path", "roots", "name"),
    [
        ("pkg/mod.py", (".",), "pkg.mod"),
        ("src/pkg/__init__.py", ("src",), "pkg"),
        ("src/pkg/mod.py", (".", "src"), "pkg.mod"),
        ("lib/mod.py", ("src",), ""),
        ("mod.pyi", (".",), ""),
    ],
)
def test_a_module_has_the_name_under_which_it_is_imported(path: str, roots: tuple[str, ...], name: str) -> None:
    assert module_name(path, roots) == name
