"""Node ids and names, resolved without running anything."""

import ast

import pytest

from etude.synth.reduce import locate
from etude.synth.workshop import slow_tests
from etude.synth.write import identifiers, signature

FILES = {
    "pkg.py": "def f(): return 1\n",
    "tests/base.py": "class Base:\n    def test_shared(self): pass\n\n    def test_other(self): pass\n",
    "tests/test_a.py": (
        "import tests.base\nfrom tests.base import Base\nfrom test_b import test_lent\n\n\n"
        "def test_plain(x): pass\n\n\n"
        "class TestA(Base):\n    def test_own(self): pass\n\n    def test_other(self): pass\n\n"
        "    class TestInner(tests.base.Base):\n        pass\n\n\n"
        "test_made = lambda: None\n"
    ),
    "tests/test_b.py": "def test_lent(): pass\n",
}


@pytest.mark.parametrize(
    ("node_id", "place"),
    [
        ("tests/test_a.py::test_plain", ("tests/test_a.py", 6)),
        ("tests/test_a.py::test_plain[a::b [c] ü\n]", ("tests/test_a.py", 6)),
        ("tests/test_a.py::TestA::test_own", ("tests/test_a.py", 10)),
        ("tests/test_a.py::TestA::test_other[1]", ("tests/test_a.py", 12)),
        ("tests/test_a.py::TestA::test_shared", ("tests/base.py", 2)),
        ("tests/test_a.py::TestA::TestInner::test_other", ("tests/base.py", 4)),
        ("tests/test_a.py::test_lent", ("tests/test_b.py", 1)),
        ("tests/test_a.py::test_made", None),
        ("tests/test_a.py::test_missing", None),
        ("tests/test_c.py::test_plain", None),
        ("tests/test_a.py", None),
    ],
)
def test_the_function_behind_a_node_id_is_found(repository, node_id, place):
    found = locate(repository(FILES).index, node_id)
    assert (found.key if found else None) == place


def test_a_signature_is_what_stands_before_the_colon(repository):
    text = (
        "@deco(1)\nasync def f(a, /, b: int = 2, *c, d, **e) -> 'x':\n    pass\n\n\n"
        "class A(B, metaclass=M):\n    @property\n    def x(self): return 1\n"
    )
    repo = repository({"pkg.py": text})
    assert signature(repo.definition("f")) == "@deco(1)\nasync def f(a, /, b: int=2, *c, d, **e) -> 'x':"
    assert signature(repo.definition("A")) == "class A(B, metaclass=M):"
    assert signature(repo.definition("A.x")) == "@property\ndef x(self):"


def test_identifiers_are_names_attributes_keywords_and_imports():
    node = ast.parse("from a.b import c as d\nx.y(z=1)\n'text'\n")
    assert identifiers(node) == {"c", "x", "y", "z"}


def test_slow_tests_are_left_out_of_long_suites_only():
    short = {f"t{number}": 0.1 for number in range(100)} | {"slow": 5.0}
    assert slow_tests(short) == frozenset()
    assert slow_tests(short | {"slower": 50.0}) == {"slow", "slower"}


def test_a_test_class_of_another_test_file_is_found_by_the_name_that_pytest_gives_it(repository):
    base = "class TestBase:\n    def test_one(self):\n        pass\n"
    files = {
        "src/lib/__init__.py": "",
        "tests/group/__init__.py": "",
        "tests/group/test_base.py": base,
        "tests/group/test_more.py": "from group.test_base import TestBase\n\n\nclass TestMore(TestBase):\n    pass\n",
    }
    index = repository(files, roots=("src",)).index
    for id in ("test_base.py::TestBase::test_one", "test_more.py::TestBase::test_one", "test_more.py::TestMore::test_one[a::b]"):
        found = locate(index, f"tests/group/{id}")
        assert found is not None
        assert (found.path, found.qualname) == ("tests/group/test_base.py", "TestBase.test_one")
    assert locate(index, "tests/group/test_more.py::TestNowhere::test_one") is None
