"""From a made-up repository to tasks, with the real sandbox: what is built holds, twice the same, and bad input is one line."""

from dataclasses import replace

import pytest

from etude.errors import UserError
from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.check import check_task
from etude.synth.discover import discover
from etude.synth.read import read_sources
from etude.synth.source import parse
from etude.synth.workshop import compile_files

FILES = {
    "calc/__init__.py": "from .ops import *\nfrom .shapes import Circle\n\nplus = add\n",
    "calc/ops.py": (
        b"\xef\xbb\xbf__all__ = ['add', 'scale', 'mean']\r\n\r\n\r\n"
        b"def add(a, b):\r\n    return a + b\r\n\r\n\r\n"
        b'def scale(items, factor=2):\r\n    """Every item times `factor`.\r\n\r\n    >>> scale([1, 2])\r\n    [2, 4]\r\n    """\r\n'
        b"    return [item * factor for item in items]\r\n\r\n\r\n"
        b"def mean(items):\r\n    total = 0\r\n    for item in items:\r\n        total = add(total, item)\r\n"
        b"    return total / len(items)\r\n"
    ),
    "calc/shapes.py": (
        "# -*- coding: latin-1 -*-\nimport math\n\n\nclass Circle:\n    def __init__(self, radius):\n        self.radius = radius\n\n"
        "    @property\n    def diameter(self):\n        return math.fsum([self.radius, self.radius])\n\n"
        "    @diameter.setter\n    def diameter(self, value):\n        self.radius = value / 2\n\n\nNAME = 'Größe'"
    ).encode("latin-1"),
    "calc/bad_syntax.py": "def f(:\n",
    "calc/bad_bytes.py": b"x = '\xe9'\n",
    "tests/test_ops.py": (
        "import itertools\n\nimport pytest\nfrom calc import add, mean, plus, scale\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\n"
        "def test_plus():\n    assert plus(1, 1) == 2\n\n\ndef test_add_again():\n    assert add(2, 2) == 4\n\n\n"
        "@pytest.mark.parametrize('factor', [2, 'a::b [c]', 3])\ndef test_scale(factor):\n"
        "    assert scale([1, 2], factor=factor) == list(itertools.starmap(lambda x: x * factor, [(1,), (2,)]))\n\n\n"
        "def test_mean():\n    assert mean([1, 3]) == 2\n    with pytest.raises(ZeroDivisionError):\n        mean([])\n"
    ),
    "tests/test_shapes.py": (
        "import os\n\nfrom calc.shapes import Circle\n\n\n"
        "class TestCircle:\n    def test_diameter(self):\n        assert Circle(2).diameter == 4\n\n"
        "    def test_set(self):\n        circle = Circle(2)\n        circle.diameter = 6\n        assert circle.radius == 3\n\n\n"
        "def test_order():\n    assert 'SEEN' not in os.environ\n\n\n"
        "def test_breaks_order():\n    os.environ['SEEN'] = '1'\n\n\ndef test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\n"
    ),
    "tests/test_needs_more.py": "import no_such_module\n\n\ndef test_it():\n    assert no_such_module.x\n",
    "setup.py": "raise SystemExit('nobody runs this')\n",
}
OPTIONS = BuildOptions(max_candidates=5)


def lay(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


@pytest.fixture(scope="module")
def backend():
    return Bubblewrap()


@pytest.fixture(scope="module")
def built(tmp_path_factory, backend):
    """(report, store, progress) of the made-up repository."""
    folder = tmp_path_factory.mktemp("build")
    progress = []
    report = build_tasks(
        str(lay(folder / "calc-repo", FILES)), folder / "tasks", options=OPTIONS, backend=backend, progress=progress.append
    )
    return report, TaskStore.open(folder / "tasks"), progress


def test_tasks_of_both_modes_come_out(built):
    report, store, progress = built
    tasks = store.tasks()
    assert [task.id for task in tasks] == list(report.tasks)
    assert {task.mode for task in tasks} == {"remove", "stub"}
    assert {s.qualname for t in tasks for s in t.symbols} == {"scale", "mean", "Circle", "Circle.diameter", "Circle.__init__"}
    assert [event.stage for event in progress][:2] == ["fetch", "fetch"]
    assert progress[-1].done == progress[-1].total == sum(report.tried.values()) + len(report.inapplicable)


def test_files_that_cannot_be_read_are_skipped_and_named(built):
    assert built[0].skipped == {
        "calc/bad_bytes.py": "not utf-8 at byte 5; a coding cookie would say what else it is",
        "calc/bad_syntax.py": "syntax error at line 1: invalid syntax",
    }


def test_a_test_that_depends_on_the_order_is_dropped(built):
    report, store, _ = built
    assert report.dropped == {"tests/test_shapes.py::test_order": "failed/passed"}
    assert not any("test_order" in id for task in store.tasks() for id in (*task.fail_to_pass, *task.pass_to_pass))


def test_gold_scores_one_and_the_cut_scores_nothing(built, backend):
    _, store, _ = built
    for task in store.tasks():
        gold = grade(task, task.gold, store=store, backend=backend)
        assert (gold.solved, gold.refused) == (True, ()), gold.reason
        cut = grade(task, "", store=store, backend=backend)
        assert not cut.solved
        assert "passed" not in cut.fail_to_pass.values()


def test_a_check_from_the_files_alone_finds_what_is_wrong(built, backend):
    _, store, _ = built
    task = next(task for task in store.tasks() if task.mode == "stub" and task.symbols[0].qualname == "mean")
    wrong = replace(task, fail_to_pass=(*task.fail_to_pass, "tests/test_shapes.py::test_one"))
    assert check_task(wrong, store, backend).problems == (
        "the agent sees 1 hidden tests, first tests/test_shapes.py::test_one",
        "the agent sees 1 hidden tests, first tests/test_shapes.py::test_one",
        "1 tests pass without the feature, first tests/test_shapes.py::test_one",
        "1 tests pass without the feature in shuffled order, first tests/test_shapes.py::test_one",
    )


def test_the_agent_sees_neither_the_feature_nor_its_tests(built):
    _, store, _ = built
    task = next(task for task in store.tasks() if task.mode == "remove" and [s.qualname for s in task.symbols] == ["scale"])
    tree = store.workspace(task)
    assert b"scale" not in (tree / "calc/ops.py").read_bytes()
    assert (tree / "calc/ops.py").read_bytes().startswith(b"\xef\xbb\xbf__all__ = ['add', 'mean']\r\n\r\n\r\ndef add")
    tests = (tree / "tests/test_ops.py").read_text()
    assert "scale" not in tests
    assert "itertools" not in tests
    assert "import pytest\n" in tests
    assert task.fail_to_pass == tuple(f"tests/test_ops.py::test_scale[{factor}]" for factor in ("2", "3", "a::b [c]"))


def test_a_latin_1_file_is_cut_and_keeps_its_bytes(built):
    _, store, _ = built
    task = next(task for task in store.tasks() if [s.qualname for s in task.symbols] == ["Circle"] and task.mode == "remove")
    assert (store.workspace(task) / "calc/shapes.py").read_bytes() == b"# -*- coding: latin-1 -*-\n\n\nNAME = 'Gr\xf6\xdfe'"


def test_a_getter_is_stubbed_and_its_setter_left_alone(built):
    report, store, _ = built
    task = next(t for t in store.tasks() if [(s.qualname, s.line) for s in t.symbols] == [("Circle.diameter", 9)])
    assert (task.mode, task.fail_to_pass) == ("stub", ("tests/test_shapes.py::TestCircle::test_diameter",))
    why = "nothing can be removed: needed at calc/shapes.py:14"
    assert (report.rejected, report.inapplicable) == ({}, {"remove function calc/shapes.py:9 Circle.diameter": why})


def test_the_instruction_has_signature_docstring_and_all_that_the_hidden_tests_need(built):
    _, store, _ = built
    removed = next(t for t in store.tasks() if t.mode == "remove" and [s.qualname for s in t.symbols] == ["scale"])
    assert "def scale(items, factor=2):" in removed.instruction
    assert "Every item times `factor`." in removed.instruction
    assert "`factor=`" in removed.instruction
    assert "`__all__` of `calc/ops.py` listed `scale`" in removed.instruction
    stubbed = next(t for t in store.tasks() if t.mode == "stub" and [s.qualname for s in t.symbols] == ["mean"])
    assert "def mean(items):" in stubbed.instruction
    assert "`ZeroDivisionError`" in stubbed.instruction


def test_the_gold_patch_holds_no_tests(built):
    _, store, _ = built
    assert not any(line.startswith("diff --git a/tests") for task in store.tasks() for line in task.gold.splitlines())


def test_every_rejected_candidate_has_a_reason_and_a_gate_in_the_pool(built):
    report, store, _ = built
    (evidence,) = store.pool.evidence.values()
    assert (evidence["rejected"], evidence["inapplicable"]) == (report.rejected, report.inapplicable)
    assert evidence["rejected_at"] == report.rejected_at
    assert report.rejected_at.keys() == report.rejected.keys()
    assert all(report.rejected_at.values())
    assert sum(evidence["valid"].values()) + len(report.rejected) == sum(evidence["tried"].values())


class Stopped(Exception):
    """Stands for a kill: what was written before it is all that is left."""


def test_a_build_that_was_stopped_tries_only_the_rest_and_ends_the_same(built, tmp_path, backend):
    first, store, _ = built

    def stop(progress):
        if progress.stage == "tasks" and progress.done == 3:
            raise Stopped

    source, out = str(lay(tmp_path / "calc-repo", FILES)), tmp_path / "tasks"
    with pytest.raises(Stopped):
        build_tasks(source, out, options=OPTIONS, backend=backend, progress=stop)
    ledger = next(out.glob(".unfinished-*"))
    ledger.write_bytes(ledger.read_bytes() + b'{"name": "stub func')  # a line that a kill tore
    report = build_tasks(source, out, options=OPTIONS, backend=backend)
    assert report.sandbox_runs < first.sandbox_runs
    assert (report.tasks, report.valid, report.rejected) == (first.tasks, first.valid, first.rejected)
    assert all((out / f"{id}.json").read_bytes() == (store.path / f"{id}.json").read_bytes() for id in report.tasks)
    assert not list(out.glob(".unfinished-*"))


def test_another_build_gives_the_same_bytes(built, tmp_path, backend):
    """In one thread, with fewer candidates: what both builds make is equal, file by file."""
    _, store, _ = built
    folder = lay(tmp_path / "calc-repo", FILES)
    report = build_tasks(str(folder), tmp_path / "tasks", options=BuildOptions(max_candidates=1, jobs=1), backend=backend)
    assert len(report.tasks) == 2
    for id in report.tasks:
        assert (tmp_path / f"tasks/{id}.json").read_bytes() == (store.path / f"{id}.json").read_bytes()


BAD = {
    "an empty repository": ({}, "empty repository"),
    "no tests": ({"calc/__init__.py": "def f(): return 1\n"}, "has no tests"),
    "tests that fail": (
        {"calc.py": "def f():\n    return 1\n", "test_calc.py": "import calc\n\n\ndef test_f():\n    assert calc.f() == 2\n"},
        r"the tests of \S+ fail: only 0 of 1 pass every time; first test_calc\.py::test_f: AssertionError",
    ),
    "tests that cannot be collected": (
        {"calc.py": "def f(): return 1\n", "test_calc.py": "import nothing_like_this\n"},
        "cannot be collected: test_calc.py: ModuleNotFoundError: No module named 'nothing_like_this'; name what the tests need in",
    ),
    "tests of which most cannot be collected": (
        {
            "calc.py": "def f():\n    return 1\n",
            "tests/test_a.py": "import calc\n\n\ndef test_f():\n    assert calc.f() == 1\n",
            "tests/test_b.py": "from tests import helper\n",  # its __init__.py is not in the archive
            "tests/test_c.py": "from tests import helper\n",
        },
        "cannot be collected, 2 of 3 files: tests/test_b.py: ImportError: cannot import name 'helper' from 'tests'",
    ),
    "a conftest that fails": (
        {"calc.py": "def f(): return 1\n", "test_calc.py": "def test_f(): pass\n", "conftest.py": "raise RuntimeError('boo\\n two')\n"},
        "pytest cannot run the tests of .*: RuntimeError: boo",
    ),
    "a test that ends the process": (
        {"calc.py": "def f(): return 1\n", "test_calc.py": "import os\n\n\ndef test_f(): os._exit(0)\n"},
        "stop pytest before its end; 1 had begun, the last was test_calc.py::test_f",
    ),
    "no test in the test files": ({"calc.py": "def f(): return 1\n", "test_calc.py": "x = 1\n"}, "no tests that pytest finds"),
    "a syntax error in the only file": (
        {"calc.py": "def f(:\n", "test_calc.py": "def test_f(): pass\n"},
        "no source file of .* can be read; calc.py: syntax error at line 1",
    ),
    "a repository that is pytest itself": (
        {"_pytest/__init__.py": "def f(): return 1\n", "test_f.py": "def test_f(): pass\n"},
        "_pytest: this runs the tests",
    ),
    "nothing to cut": (
        {"calc.py": "def f():\n    return 1\n\n\nX = f()\n", "test_calc.py": "import calc\n\n\ndef test_f(): assert calc.f()\n"},
        "gives no task",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(tmp_path, backend, name):
    files, why = BAD[name]
    (tmp_path / "repo").mkdir()
    with pytest.raises(UserError, match=why) as error:
        build_tasks(str(lay(tmp_path / "repo", files)), tmp_path / "tasks", backend=backend)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("tasks/.unfinished-*"))


@pytest.mark.parametrize("wrong", [{"modes": ()}, {"jobs": -1}, {"max_candidates": 0}])
def test_options_that_mean_nothing_are_a_users_mistake(wrong):
    with pytest.raises(UserError):
        BuildOptions(**wrong)


def test_what_cannot_be_worked_on_is_skipped_with_a_reason(tmp_path):
    files = {
        "calc/__init__.py": "def f(): return 1\n",
        "calc/deep.py": f"x = {'+'.join(['1'] * 400)}\n",
        "tests/test_a.py": "",
        "tests/test_[b].py": "",
    }
    layout = discover(lay(tmp_path, files))
    sources, skipped = read_sources(tmp_path, layout)
    assert skipped == {
        "calc/deep.py": "nested more than 200 levels deep",
        "tests/test_[b].py": "pytest takes no file of this name; rename it",
    }
    assert sorted(sources) == ["calc/__init__.py", "tests/test_a.py"]


def test_warnings_about_the_code_of_a_repository_are_not_shown(tmp_path, recwarn):
    lay(tmp_path, {"a.py": "def f(a):\n    return a is 1, '\\d'\n"})
    parse("a.py", (tmp_path / "a.py").read_bytes())
    assert list(compile_files({"a.py": tmp_path / "a.py"}, tmp_path)) == ["a.py"]
    assert list(recwarn) == []
