"""Sentences from tests and docstrings: what stands for itself is told, everything else is left out."""

import ast

import pytest

from etude.synth.behaviour import facts, parameters, prose
from etude.synth.examples import doc_examples, test_examples
from etude.synth.symptoms import report, symptoms

HEAD = "import pytest\nfrom pkg import f, g as gg\n\n\ndef even(x):\n    return x % 2 == 0\n\n\n"


def told(repository, body, head=HEAD):
    repo = repository({"pkg.py": "def f(a): return a\ndef g(a): return a\n", "tests/test_a.py": f"{head}def test_a(fixture=None):\n{body}"})
    return [(example.sentence, example.helpers) for example in test_examples(repo.index, repo.definition("test_a"))]


@pytest.mark.parametrize(
    ("body", "sentences"),
    [
        ("    assert f(1) == 2\n", ["`f(1)` gives `2`"]),
        ("    assert 2 == f(1) and not f(0)\n", ["`f(1)` gives `2`", "`f(0)` is false"]),
        ("    a = [1, 2]\n    expected = a + [3]\n    assert f(a) == expected\n", ["`f([1, 2])` gives `[1, 2] + [3]`"]),
        ("    a = [1]\n    a.append(2)\n    assert f(a) == 3\n", []),  # the method may have changed it
        ("    for a in range(3):\n        assert f(a)\n    assert f(a) == 1\n", []),
        ("    assert f(fixture) == 1\n", []),
        ("    assert f(2) is None\n    assert 3 in f(4)\n", ["`f(2)` gives `None`", "`3 in f(4)` holds"]),
        ("    assert f(1) is True\n", ["`f(1)` is true"]),
        (
            "    with pytest.raises(ValueError, match='no 1'):\n        f(1)\n",
            ["`f(1)` raises `ValueError` with a message that matches `no 1`"],
        ),
        ("    pytest.raises(ValueError, f, 1, b=2)\n", ["`f(1, b=2)` raises `ValueError`"]),
        ("    assert raises(ValueError, lambda: f(1))\n", ["`f(1)` raises `ValueError`"]),
        ("    h = lambda x: x + 1\n    assert f(h)(1) == 2\n", ["`f(lambda x: x + 1)(1)` gives `2`"]),
        ("    def h(x):\n        return x\n    assert f(h).__name__ == 'h'\n", []),  # told as a lambda it has no such name
        ("    assert undefined(1) == 2\n", []),
    ],
)
def test_a_call_is_told_once_it_stands_for_itself(repository, body, sentences):
    assert [sentence for sentence, _ in told(repository, body)] == sentences


def test_helpers_and_other_names_of_the_test_file_are_told_along(repository):
    assert told(repository, "    assert gg(even) == 1\n") == [
        ("`gg(even)` gives `1`", ("`even(x)` returns `x % 2 == 0`", "`gg` is `pkg.g`")),
    ]


def test_the_first_rows_of_a_parametrised_test_are_put_in(repository):
    rows = ", ".join(f"({number}, {number + 1})" for number in range(9))
    body = f"    pass\n\n\n@pytest.mark.parametrize('a, b', [{rows}])\ndef test_b(a, b):\n    assert f(a) == b\n"
    repo = repository({"pkg.py": "def f(a): return a\n", "tests/test_a.py": f"{HEAD}def test_a():\n{body}"})
    found = [example.sentence for example in test_examples(repo.index, repo.definition("test_b"))]
    assert found == ["`f(0)` gives `1`", "`f(1)` gives `2`", "`f(2)` gives `3`"]


def test_unittest_assertions_are_read(repository):
    text = "import unittest\nfrom pkg import f\n\n\nclass TestA(unittest.TestCase):\n    def test_a(self):\n" + "".join(
        f"        {line}\n"
        for line in ("self.assertEqual(f(1), 2)", "self.assertTrue(f(2))", "self.assertIsNone(f(3))", "self.assertRaises(KeyError, f, 4)")
    )
    repo = repository({"pkg.py": "def f(a): return a\n", "tests/test_a.py": text})
    found = [example.sentence for example in test_examples(repo.index, repo.definition("TestA.test_a"))]
    assert found == ["`f(1)` gives `2`", "`f(2)` is true", "`f(3)` gives `None`", "`f(4)` raises `KeyError`"]


def test_doctests_give_examples_unless_they_are_unsteady():
    text = (
        "Do.\n\n>>> a = [1]\n>>> f(a)\n[1]\n>>> f(0)\nTraceback (most recent call last):\nValueError: x\n"
        + ">>> g()\n1\n>>> g()\n2\n>>> print(1)\n"
    )
    assert [example.sentence for example in doc_examples(text)] == ["`f([1])` gives `[1]`", "`f(0)` raises `ValueError`"]


CODE = '''
def f(a, b=2, *, c, d=None):
    """Do this

    and that
    in two lines

    Like this:

    >>> f(1)
    1

    Returns
    -------
    Nothing.
    """
    if a < 0:
        raise ValueError("a is negative")
    if helper(a):
        raise KeyError(a)
    yield a

class A:
    @property
    def x(self, *args, **kwargs): return 1
'''


def test_prose_ends_before_examples_and_sections(repository):
    repo = repository({"pkg.py": CODE})
    assert prose(repo.definition("f").node) == "Do this.\n\nand that in two lines."
    assert prose(repo.definition("A").node) == ""


def test_parameters_and_facts_are_sentences(repository):
    repo = repository({"pkg.py": CODE})
    f, x = repo.definition("f"), repo.definition("A.x")
    assert parameters(f) == "It takes `a`, `b` and by keyword only `c` and `d`; unless given, `b` is `2` and `d` is `None`."
    assert parameters(x) == "It takes any number of further arguments (`*args`) and any keywords (`**kwargs`)."
    generator, value_error, key_error = facts(f, conditions=True)
    assert generator == "It gives its results one after the other, as a generator."
    assert value_error == "It raises `ValueError` (a is negative) when `a < 0`."
    assert key_error == "It raises `KeyError`."  # what helper is nobody knows
    assert facts(f, conditions=False)[1] == "It raises `ValueError` (a is negative)."
    assert facts(x, conditions=True) == ["It is a property."]


@pytest.mark.parametrize(
    ("body", "message", "sentence"),
    [
        ("assert f(1) == 2", "assert 3 == 2", "`f(1)` gives `3`; `2` was expected."),
        ("assert f(0) == 1\n    assert f(1) == [2]", "AssertionError: assert [3] == [2]", "`f(1)` gives `[3]`; `[2]` was expected."),
        ("assert f(1) == 2", "TypeError: no 1", "`f(1)` raises `TypeError: no 1`; `2` was expected."),
        ("assert f(1)", "assert False", "`f(1)` does not do what it should: a true value was expected."),
        (
            "with pytest.raises(KeyError):\n        f(1)",
            "Failed: DID NOT RAISE <class 'KeyError'>",
            "`f(1)` raises nothing; `KeyError` was expected.",
        ),
        ("assert f(1)\n    assert f(2)", "assert None", "Not all of this holds any more: `f(1)` is true; `f(2)` is true."),
        ("assert f(1) == 1\n    assert f(2) == 2", "KeyError: 3", "A call like `f(1)` or `f(2)` raises `KeyError: 3`."),
    ],
)
def test_a_symptom_says_what_was_called_what_came_and_what_was_expected(repository, body, message, sentence):
    repo = repository({"pkg.py": "def f(a): return a\n", "tests/test_a.py": f"{HEAD}def test_a():\n    {body}\n"})
    (symptom,) = symptoms(repo.index, {"tests/test_a.py::test_a": repo.definition("test_a")}, {"tests/test_a.py::test_a": message})
    assert symptom.sentence == sentence
    assert symptom.is_clear


def test_a_report_names_the_place_by_level(repository):
    repo = repository({"pkg.py": "class A:\n    def f(self): return 1\n"})
    texts = {level: "\n".join(report([], [repo.definition("A.f")], level)) for level in "ABC"}
    assert "`A.f` in `pkg.py`" in texts["A"]
    assert "`A.f`" in texts["B"]
    assert "pkg.py" not in texts["B"]
    assert "A.f" not in texts["C"]


def test_sentences_of_examples_can_be_read_again(repository):
    (example,) = doc_examples(">>> f('a`b')\n1\n")
    assert example.sentence == "`` f('a`b') `` gives `1`"
    assert ast.parse(example.call)
