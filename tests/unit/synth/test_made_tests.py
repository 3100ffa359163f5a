"""Tests that no function in the sources is: they are made while the module runs, and go with what makes them."""

from dataclasses import replace

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.cut import CutError
from etude.synth.reduce import hold, locate, reduce_tests
from etude.synth.relevel import relevel

MACHINES = """\
import unittest

import stack


def machine(rules):
    def runTest(self):
        made = rules()
        for name in dir(rules):
            if not name.startswith("_"):
                getattr(made, name)()

    return type("Machine", (unittest.TestCase,), {"runTest": runTest})


class PushRules:
    def pushes(self):
        assert stack.push((), 1) == (1,)


class PopRules:
    def pops(self):
        assert stack.pop(items=(1, 2)) == (1,)

    def stays(self):
        assert True


PushTests = machine(PushRules)
PopTests = machine(PopRules)
"""
FILES = {
    "stack.py": (
        "def push(items, item):\n    new = (*items, item)\n    return new\n\n\n"
        "def pop(items):\n    left = items[:-1]\n    return left\n\n\n"
        "def peek(items):\n    last = items[-1]\n    return last\n\n\n"
        "def size(items):\n    found = len(items)\n    return found\n"
    ),
    "tests/test_machines.py": MACHINES,
    "tests/test_meta.py": (
        "import stack\n\n\nclass Meta(type):\n    def __new__(cls, name, bases, scope):\n"
        "        for number in range(1, 4):\n            exec(f'def test_{number}(self): assert stack.peek([{number}]) == {number}',"
        " scope['scope'], scope)\n        return super().__new__(cls, name, bases, scope)\n\n\n"
        "class TestPeek(metaclass=Meta):\n    scope = globals()\n\n\ndef test_other():\n    assert stack.push((), 2) == (2,)\n"
    ),
    "tests/test_globals.py": (
        "import stack\n\n\ndef make(number):\n    def test():\n        assert stack.size([0] * number) == number\n\n    return test\n\n\n"
        "for number in range(3):\n    globals()[f'test_{number}'] = make(number)\n\n\ndef test_there():\n    assert stack\n"
    ),
    "tests/test_more.py": "import pytest\n\n\n@pytest.mark.parametrize('x', range(12))\ndef test_more(x):\n    assert x >= 0\n",
}


@pytest.fixture(scope="module")
def built(build_chosen):
    modes = {"push": "stub", "pop": "remove", "peek": "remove", "size": "remove"}
    return build_chosen(
        "stack", FILES, lambda idea: any(f"{mode} function stack.py" in idea and name in idea for name, mode in modes.items())
    )


def of(store, name):
    return next(task for task in store.tasks() if task.symbols[0].qualname == name)


def test_every_way_to_make_tests_gives_a_task(built):
    report, store = built
    assert report.rejected == {}
    assert sorted(task.symbols[0].qualname for task in store.tasks()) == ["peek", "pop", "push", "size"]
    for task in store.tasks():
        assert grade(task, task.gold, store=store, backend=Bubblewrap()).solved
        assert not grade(task, "", store=store, backend=Bubblewrap()).solved


def test_an_assignment_goes_with_the_class_that_only_it_used_and_the_others_stay(built):
    _, store = built
    task = of(store, "pop")
    assert task.fail_to_pass == ("tests/test_machines.py::PopTests::runTest",)
    assert "tests/test_machines.py::PushTests::runTest" in task.pass_to_pass
    start = MACHINES.index("class PopRules")
    kept = MACHINES[:start] + "PushTests = machine(PushRules)\n"
    assert (store.workspace(task) / "tests/test_machines.py").read_text() == kept


def test_the_instruction_tells_what_the_functions_need_that_a_made_test_is_made_of(built):
    _, store = built
    task = of(store, "pop")
    assert "`items=`" in task.instruction
    other = relevel(task, store, Bubblewrap(), level="B")
    assert relevel(replace(other, origin=()), store, Bubblewrap(), level="A").instruction == task.instruction


def test_a_class_of_made_methods_goes_whole(built):
    _, store = built
    task = of(store, "peek")
    assert task.fail_to_pass == tuple(f"tests/test_meta.py::TestPeek::test_{number}" for number in (1, 2, 3))
    text = (store.workspace(task) / "tests/test_meta.py").read_text()
    assert "TestPeek" not in text
    assert "test_other" in text


def test_a_file_goes_whole_where_most_of_it_is_needed(built):
    _, store = built
    task = of(store, "size")
    assert task.fail_to_pass == tuple(f"tests/test_globals.py::test_{number}" for number in range(3))
    assert task.evidence["lost"] == ["tests/test_globals.py::test_there"]
    assert not (store.workspace(task) / "tests/test_globals.py").exists()


def test_a_file_whose_other_tests_would_go_unneeded_stays_and_the_cut_is_rejected(tmp_path, lay_down):
    made = "for number in range(2):\n    globals()[f'test_{number}'] = make(number)\n"
    others = "".join(f"\n\ndef test_other_{number}():\n    assert True\n" for number in range(2))
    text = FILES["tests/test_globals.py"].partition("for number")[0] + made + others
    files = {"stack.py": FILES["stack.py"], "tests/test_globals.py": text, "tests/test_more.py": FILES["tests/test_more.py"]}
    with pytest.raises(Exception, match=r"2 candidates, first .*: the function behind tests/test_globals.py::test_0 cannot be found"):
        build_tasks(
            str(lay_down(tmp_path / "stack", files)),
            tmp_path / "tasks",
            options=BuildOptions(max_share=0.5, gates="quick", modes=("remove",)),
            backend=Bubblewrap(),
        )


def test_what_holds_a_made_test(repository):
    here = repository(
        {
            "tests/test_a.py": (
                "def make(rules): ...\n\n\nclass Rules:\n    def rule(self): ...\n\n    class Inner:\n        def deep(self): ...\n\n\n"
                "TestA = make(Rules)\nTestB = TestC = make(Rules)\nTestD, TestE = make(Rules)\ntest_f = make(1)\n\n\n"
                "class TestG:\n    def test_there(self): ...\n\n\nif TestA:\n    TestH = make(Rules)\nelse:\n    TestH = None\n"
            )
        }
    )
    held = {name: hold(here.index, f"tests/test_a.py::{name}") for name in ("TestA::runTest", "test_f[a::b]", "TestG::test_1[x]")}
    assert [(holder.name, holder.key[1]) for holder in held.values()] == [("TestA", 11), ("test_f", 14), ("TestG", 17)]
    assert [d.qualname for d in held["TestA::runTest"].functions] == ["make", "Rules.rule", "Rules.Inner.deep"]
    assert [d.qualname for d in held["TestG::test_1[x]"].functions] == ["TestG.test_there"]
    assert held["TestG::test_1[x]"].prefix == "tests/test_a.py::TestG::"
    for name in ("TestB::runTest", "TestD::runTest", "TestH::runTest", "test_nowhere", "odd name"):
        holder = hold(here.index, f"tests/test_a.py::{name}")
        assert (holder.node, holder.key, holder.prefix) == (None, ("tests/test_a.py", 0), "tests/test_a.py::")
    assert hold(here.index, "tests/test_b.py::TestA::runTest") is None
    assert locate(here.index, "tests/test_a.py::TestA::runTest") is None


def test_a_file_of_made_tests_that_others_import_does_not_go(repository):
    here = repository(
        {
            "tests/test_a.py": "globals()['test_x'] = print\n\n\ndef help(): ...\n",
            "tests/test_b.py": "from tests.test_a import help\n\n\ndef test_b():\n    help()\n",
            "pkg.py": "def f(): ...\n",
        }
    )
    cut = here.cut("f")
    holder = hold(here.index, "tests/test_a.py::test_x")
    with pytest.raises(CutError, match="cannot go as a whole"):
        reduce_tests(cut.closure.copy(), here.tests, [], cut.culprits, holders=[holder], taken=[holder])


def test_a_file_that_still_makes_tests_is_not_taken_for_empty(repository):
    here = repository(
        {"pkg.py": "def f(): ...\n", "tests/test_a.py": "from pkg import f\n\nTestA = type('A', (), {})\n\n\ndef test_f():\n    f()\n"}
    )
    cut = here.cut("f")
    for holders, gone in (([], True), ([hold(here.index, "tests/test_a.py::TestA::test_made")], False)):
        closure = cut.closure.copy()
        reduce_tests(closure, here.tests, [here.definition("test_f")], cut.culprits, holders=holders)
        assert ("tests/test_a.py" in closure.gone.files) == gone
