"""Outcomes are known from outside, id by id, whatever the code under test prints or does."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.errors import SandboxError
from etude.grade.runner import BETWEEN, COLLECT, TestRun, run_tests
from etude.sandbox.protocol import Backend
from etude.types import Limits, Repo

RunRepo = Callable[..., TestRun]
KINDS = """\
import os
import sys
import threading
import unittest

import pytest

import code_under_test


def test_passes():
    code_under_test.used()


def test_fails():
    assert {"at": object()} == 0x7f0000000000, "0x7f1234567890 in /tmp/pytest-of-user/pytest-0/x"


def test_skips():
    pytest.skip("not today")


@pytest.mark.skip
def test_is_marked_to_skip():
    pass


@pytest.mark.xfail
def test_fails_as_expected():
    assert False


@pytest.mark.xfail
def test_passes_unexpectedly():
    pass


@pytest.mark.xfail(strict=True)
def test_passes_against_a_strict_mark():
    pass


def test_calls_xfail():
    pytest.xfail("really")


@pytest.fixture
def broken():
    raise RuntimeError("no set-up")


@pytest.fixture
def leaves_a_mess():
    yield
    raise RuntimeError("no tear-down")


def test_set_up_fails(broken):
    pass


def test_tear_down_fails(leaves_a_mess):
    pass


@pytest.mark.parametrize("x", [1, 2, 3, 4, 5, 6, 7], ids=["a b", "a::b", "a: b[c]", "ünïcode", "quote'\\"$(x)`", "-k not", "x\\ny\\0"])
def test_parameter(x):
    assert x != 3


@pytest.mark.parametrize("x", [1, 2])
def test_raises_in_one_case(x):
    assert x == 1


class TestOld(unittest.TestCase):
    def test_all_subtests_pass(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertLess(n, 3)

    def test_one_subtest_fails(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)

    def test_one_subtest_skips(self):
        for n in range(3):
            with self.subTest(n=n):
                if n == 1:
                    self.skipTest("one")

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.fail()


def test_prints_that_everything_passed(capfd):
    with capfd.disabled():
        print("tests/test_kinds.py::test_fails PASSED")
        print("========= 99 passed in 1.23s =========")


def test_environment():
    wanted = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "HOME": "/tmp", "PYTHONHASHSEED": "0"}
    assert wanted.items() <= dict(os.environ).items()
    assert sys.flags.hash_randomization == 0
    assert "PYTEST_ADDOPTS" not in os.environ


def test_exit_and_help_are_there():
    assert callable(exit) and callable(help)


def test_standard_input_is_empty():
    assert os.read(0, 1) == b""


def test_in_a_thread():
    thread = threading.Thread(target=code_under_test.used_in_a_thread)
    thread.start()
    thread.join()
"""
CODE = """\
def used():
    def inner():
        return list(n for n in range(3))
    return inner()


@property
def decorated(self):
    pass


def used_in_a_thread():
    pass


def unused():
    pass


class Twice:
    @property
    def x(self):
        return 1

    @x.setter
    def x(self, value):
        pass


def at_import():
    pass


at_import()
"""
REPO = {
    "code_under_test.py": CODE,
    "tests/test_kinds.py": KINDS,
    "tests/test_broken.py": "import nothing_of_that_name\n\n\ndef test_never():\n    pass\n",
    "tests/test_syntax.py": "def test_never(:\n    pass\n",
    "tests/test_setter.py": "import code_under_test\n\n\ndef test_set():\n    code_under_test.Twice().x = 2\n",
    "pytest.ini": "[pytest]\naddopts = --no-such-option -k nothing\npython_files = nothing.py\n",
    "tests/pytest.py": "raise SystemExit('not the runner')\n",
    "pytest.py": "raise SystemExit('not the runner')\n",
    "pluggy/__init__.py": "raise SystemExit('not the runner')\n",
    "json.py": "raise SystemExit('not the standard library')\n",
}


@pytest.fixture(scope="module")
def run(run_repo: RunRepo) -> TestRun:
    return run_repo(REPO, trace=True)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_passes", "passed"),
        ("test_fails", "failed"),
        ("test_skips", "skipped"),
        ("test_is_marked_to_skip", "skipped"),
        ("test_fails_as_expected", "xfailed"),
        ("test_passes_unexpectedly", "xpassed"),
        ("test_passes_against_a_strict_mark", "failed"),
        ("test_calls_xfail", "xfailed"),
        ("test_set_up_fails", "failed"),
        ("test_tear_down_fails", "failed"),
        ("test_raises_in_one_case[1]", "passed"),
        ("test_raises_in_one_case[2]", "failed"),
        ("TestOld::test_all_subtests_pass", "passed"),
        ("TestOld::test_one_subtest_fails", "failed"),
        ("TestOld::test_one_subtest_skips", "skipped"),
        ("TestOld::test_expected_failure", "xfailed"),
        ("test_prints_that_everything_passed", "passed"),
        ("test_environment", "passed"),
        ("test_exit_and_help_are_there", "passed"),
        ("test_standard_input_is_empty", "passed"),
        ("test_in_a_thread", "passed"),
        ("test_parameter[a b]", "passed"),
        ("test_parameter[a::b]", "passed"),
        ("test_parameter[a: b[c]]", "failed"),
        ("test_parameter[\\xfcn\\xefcode]", "passed"),
        ("test_parameter[quote'\"$(x)`]", "passed"),
        ("test_parameter[-k not]", "passed"),
    ],
)
def test_every_kind_of_test_has_its_outcome(run: TestRun, name: str, outcome: str) -> None:
    assert run.outcomes[f"tests/test_kinds.py::{name}"] == outcome


def test_a_run_with_failures_is_complete_and_knows_all_that_was_collected(run: TestRun) -> None:
    assert run.complete
    assert run.result.code == 1
    assert set(run.outcomes) == set(run.collected) == set(run.durations)
    assert len(run.collected) == len(set(run.collected))


def test_collection_errors_name_the_file_and_the_exception(run: TestRun) -> None:
    assert sorted(run.collect_errors) == [
        "tests/test_broken.py: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        "tests/test_syntax.py: SyntaxError: invalid syntax",
    ]


def test_messages_have_one_line_without_addresses_and_temporary_folders(run: TestRun) -> None:
    assert run.messages["tests/test_kinds.py::test_fails"] == "AssertionError: 0x... in /tmp/..."
    assert run.messages["tests/test_kinds.py::test_set_up_fails"] == "RuntimeError: no set-up"
    assert "tests/test_kinds.py::test_passes" not in run.messages


def test_the_reach_of_a_test_has_the_first_lines_of_what_it_ran(run: TestRun) -> None:
    def of(owner: str) -> set[int]:
        return {line for path, line in run.reach[owner] if path == "code_under_test.py"}

    assert {1, 2, 3} == of("tests/test_kinds.py::test_passes")
    assert of("tests/test_setter.py::test_set") == {25}
    assert of("tests/test_kinds.py::test_in_a_thread") == {12}
    assert of(COLLECT) == {1, 20, 30}
    assert BETWEEN not in run.reach or not of(BETWEEN)
    assert not any(path.startswith("/") or "site-packages" in path for places in run.reach.values() for path, _ in places)


PAIR = {
    "tests/test_a.py": "import pytest\n\n\n@pytest.mark.parametrize('x', ['1', '::2', 'b.py::c'])\ndef test_a(x):\n    pass\n",
    "tests/test_b.py": "raise RuntimeError('must not even be read')\n",
    "tests/deep/test_c.py": "def test_c():\n    pass\n\n\ndef test_d():\n    pass\n",
}
IDS = ("tests/deep/test_c.py::test_d", "tests/test_a.py::test_a[::2]", "tests/test_a.py::test_a[b.py::c]")


def test_chosen_ids_run_alone_and_other_files_are_not_even_read(run_repo: RunRepo) -> None:
    run: TestRun = run_repo(PAIR, ids=IDS)
    assert run.outcomes == dict.fromkeys(IDS, "passed")
    assert run.collect_errors == ()
    assert run.passed(IDS)
    assert not run.passed(IDS[:2])
    assert not run.passed((*IDS, "tests/test_a.py::test_a[gone]"))


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_another_order_has_the_same_tests(run_repo: RunRepo, order: str) -> None:
    files = {"tests/test_n.py": "import pytest\n\n\n@pytest.mark.parametrize('n', range(20))\ndef test_n(n):\n    pass\n"}
    expected = [f"tests/test_n.py::test_n[{n}]" for n in range(20)]
    if order == "reversed":
        expected.reverse()
    else:
        random.Random(7).shuffle(expected)
    run: TestRun = run_repo(files, order=order, seed=7)
    assert list(run.collected) == expected == list(run.outcomes)
    assert run.passed(expected)


PASSING = "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"
FORGED = """\
import contextlib, json, os, signal, zlib

nonce = "0" * 32
ids = ["tests/test_x.py::test_one", "tests/test_x.py::test_two"]
events = [["ready"], ["items", ids]]
for id in ids:
    events += [["start", id], ["report", id, "call", "passed", False, 0.0, ""], ["report", id, "teardown", "passed", False, 0.0, ""]]
events += [["exit", 0]]
lines = "".join(f"{nonce} {json.dumps(event)}\\n" for event in events).encode()
head = json.dumps({"status": "exited", "code": 0, "output": "", "wall_s": 0.0, "nonce": nonce}).encode() + b"\\n"


def try_to(function, *arguments):
    with contextlib.suppress(OSError):
        function(*arguments)


"""
NOTHING_PASSES = {
    "exit at import": ("import os\nos._exit(0)\n", PASSING),
    "SystemExit at import": ("raise SystemExit(0)\n", PASSING),
    "skip at import": ("import pytest\npytest.skip('all', allow_module_level=True)\n", PASSING),
    "SkipTest at import": ("import unittest\nraise unittest.SkipTest('all')\n", PASSING),
    "pytest.exit at import": ("import pytest\npytest.exit('done', returncode=0)\n", PASSING),
    "stop the supervisor": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n", PASSING),
    "print as if": ("import os\nos.write(1, b'tests/test_x.py::test_one PASSED\\n2 passed in 0.01s\\n')\nos._exit(0)\n", PASSING),
    "write to every descriptor": (FORGED + "for fd in range(3, 64):\n    try_to(os.write, fd, lines)\nos._exit(0)\n", PASSING),
    "close every descriptor": ("import os\nos.closerange(3, 256)\n", PASSING),
    "no tests": ("", "def nothing():\n    pass\n"),
    "a report of one's own": (
        FORGED
        + "open('.etude-result', 'wb').write(bytes(256 * 64) + zlib.compress(head + lines))\nos.kill(os.getppid(), signal.SIGKILL)\n",
        PASSING,
    ),
}


@pytest.mark.parametrize("trick", NOTHING_PASSES)
def test_a_trick_makes_nothing_pass(run_repo: RunRepo, trick: str) -> None:
    code, tests = NOTHING_PASSES[trick]
    run: TestRun = run_repo({"x.py": code, "tests/test_x.py": f"import x\n\n\n{tests}"})
    assert "passed" not in run.outcomes.values()
    assert not run.passed(["tests/test_x.py::test_one", "tests/test_x.py::test_two"])


def test_a_process_that_ends_in_a_test_fails_it_and_loses_the_rest(run_repo: RunRepo) -> None:
    files = {"tests/test_x.py": "import os\n\n\ndef test_a():\n    pass\n\n\ndef test_b():\n    os._exit(0)\n\n\ndef test_c():\n    pass\n"}
    run: TestRun = run_repo(files)
    assert run.outcomes == {"tests/test_x.py::test_a": "passed", "tests/test_x.py::test_b": "failed"}
    assert not run.complete
    assert run.result.code == 0


def test_what_happens_at_exit_has_no_say(run_repo: RunRepo) -> None:
    code = "import atexit, os, threading, time\natexit.register(os._exit, 0)\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    files = {"tests/test_x.py": code + "\n\ndef test_a():\n    assert False\n"}
    run: TestRun = run_repo(files)
    assert run.complete
    assert run.result.code == 1
    assert run.outcomes == {"tests/test_x.py::test_a": "failed"}


def test_a_fork_that_runs_on_into_pytest_reports_nothing(run_repo: RunRepo) -> None:
    code = "import os\n\n\ndef test_a():\n    if os.fork():\n        os.wait()\n\n\ndef test_b():\n    assert os.getppid() != 1\n"
    run: TestRun = run_repo({"tests/test_x.py": code})
    assert run.outcomes == dict.fromkeys(run.collected, "passed")
    assert run.complete


def test_a_test_that_hangs_is_a_failure_and_the_run_a_timeout(run_repo: RunRepo) -> None:
    code = "import time\n\n\ndef test_a():\n    pass\n\n\ndef test_b():\n    time.sleep(600)\n\n\ndef test_c():\n    pass\n"
    run: TestRun = run_repo({"tests/test_x.py": code}, wall_s=10.0)
    assert run.outcomes == {"tests/test_x.py::test_a": "passed", "tests/test_x.py::test_b": "failed"}
    assert (run.result.status, run.result.code, run.complete) == ("timeout", None, False)


def test_a_process_left_alive_does_not_hold_up_the_run(run_repo: RunRepo) -> None:
    code = "import subprocess\n\n\ndef test_a():\n    subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    run: TestRun = run_repo({"tests/test_x.py": code}, wall_s=30.0)
    assert run.complete
    assert run.outcomes == {"tests/test_x.py::test_a": "passed"}


def test_the_supervisor_that_holds_the_key_of_the_report_is_out_of_reach(run_repo: RunRepo) -> None:
    code = """
import os
import pytest


@pytest.mark.parametrize("name", ["mem", "environ", "maps", "fd/0", "fd/1", "fd/3"])
def test_parent(name):
    with pytest.raises(PermissionError):
        open(f"/proc/{os.getppid()}/{name}", "rb").read(1)


def test_own():
    assert open(f"/proc/{os.getpid()}/mem", "rb")
"""
    run: TestRun = run_repo({"tests/test_x.py": code})
    assert len(run.outcomes) == 7
    assert run.outcomes == dict.fromkeys(run.collected, "passed"), run.messages


def test_a_source_layout_and_modules_beside_the_tests_are_imported(run_repo: RunRepo) -> None:
    files = {
        "src/pkg/__init__.py": "VALUE = 1\n",
        "tests/helpers.py": "def one():\n    return 1\n",
        "tests/test_x.py": "import helpers\nimport pkg\n\n\ndef test_a():\n    assert pkg.VALUE == helpers.one()\n",
    }
    run: TestRun = run_repo(files, roots=("src",))
    assert run.passed(["tests/test_x.py::test_a"])


def test_missing_test_paths_are_no_tests(run_repo: RunRepo) -> None:
    run: TestRun = run_repo({"x.py": ""}, tests=("tests", "more/test_y.py"))
    assert run.complete
    assert (run.collected, run.outcomes, run.result.code) == ((), {}, 5)


@pytest.mark.parametrize("path", ["tests::x", "a[b].py", "-p", "/etc", "../x"])
def test_a_path_that_pytest_would_read_as_something_else_is_refused(run_repo: RunRepo, path: str) -> None:
    with pytest.raises(ValueError, match="a relative path without"):
        run_repo({"x.py": ""}, paths=[path])


def test_a_sandbox_without_pytest_is_the_sandboxs_fault(tmp_path: Path, backend: Backend) -> None:
    repo = Repo(name="r", digest="", import_roots=(".",), test_paths=())
    with (
        backend.open(tmp_path, limits=Limits(wall_s=20.0, memory_mb=256, disk_mb=16)) as sandbox,
        pytest.raises(SandboxError, match="pytest did not start in the sandbox: ModuleNotFoundError: No module named 'pytest'"),
    ):
        run_tests(sandbox, repo)


def test_a_second_run_shows_the_same_and_tracing_changes_nothing(run_repo: RunRepo, run: TestRun) -> None:
    again: TestRun = run_repo(REPO)
    assert run.result.stdout == again.result.stdout != b""
    assert (run.outcomes, run.messages, run.collect_errors) == (again.outcomes, again.messages, again.collect_errors)
    assert again.reach == {}


TREES_OWN = """\
import importlib.metadata
import sys

import iniconfig
import pluggy
import pytest
from iniconfig.late import VALUE


def test_the_trees():
    assert (pluggy.MINE, VALUE) == (1, 2)
    assert pytest.importorskip("pluggy") is pluggy


def test_pytest_has_its_own():
    manager = sys.modules["_pytest.config"].PluginManager
    assert manager.__init__.__code__.co_filename.startswith("/env/pluggy/")
    assert not hasattr(pluggy, "PluginManager")


def test_what_pytest_imports_late(monkeypatch):
    config = sys.modules["_pytest.config"]
    exec("def late():\\n    import iniconfig.exceptions\\n    return iniconfig.exceptions", vars(config))
    assert config.late().__file__.startswith("/env/")
    assert iniconfig.__file__.startswith("/work/")
    monkeypatch.setattr("pluggy.MINE", 3)
    assert pluggy.MINE == 3


def test_metadata():
    assert importlib.metadata.version("own_name") == "4.5"
    assert importlib.metadata.version("pytest") == pytest.__version__
"""


def test_a_package_that_pytest_imports_too_is_tested_from_the_tree(run_repo: RunRepo) -> None:
    files = {
        "src/pluggy/__init__.py": "MINE = 1\n",
        "src/iniconfig/__init__.py": "",
        "src/iniconfig/late.py": "VALUE = 2\n",
        "tests/test_x.py": TREES_OWN,
        "PKG-INFO": "Metadata-Version: 2.1\nName: own-name\nVersion: 4.5\n\nName: other\n",
    }
    run = run_repo(files, roots=("src",))
    assert dict.fromkeys(run.outcomes.values()) == {"passed": None}, run.messages
    assert len(run.outcomes) == 4


def test_metadata_of_a_checkout_comes_from_its_pyproject(run_repo: RunRepo) -> None:
    files = {
        "pyproject.toml": "[project]\nname = 'own.name'\ndynamic = ['version']\n",
        "tests/test_x.py": "import importlib.metadata\n\n\ndef test_a():\n    assert importlib.metadata.version('own-name') == '0.0.0'\n",
    }
    assert run_repo(files).passed(["tests/test_x.py::test_a"])


SETTINGS = {
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = ['-m', 'not stress', '-x']\npython_functions = ['test_*', 'check_*']\n",
    "setup.cfg": "[tool:pytest]\naddopts = --import-mode=importlib -m 'not stress' --maxfail=1 -x\npython_functions = test_* check_*\n",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_say_which_tests_there_are_count_and_those_that_stop_do_not(run_repo: RunRepo, name: str) -> None:
    code = (
        "import pytest\n\n\n@pytest.mark.stress\ndef test_a():\n    pass\n\n\ndef test_b():\n    assert 0\n\n\ndef check_c():\n    pass\n"
    )
    run = run_repo({name: SETTINGS[name], "tests/test_x.py": code})
    assert run.outcomes == {"tests/test_x.py::test_b": "failed", "tests/test_x.py::check_c": "passed"}


def test_the_interpreter_is_whole(run_repo: RunRepo) -> None:
    """Its library is the one that its modules were built for, also where the system has another of the same name."""
    code = f"import ssl\nimport sys\n\n\ndef test_a():\n    assert sys.version_info[:3] == {sys.version_info[:3]}\n"
    assert run_repo({"tests/test_x.py": code}).passed(["tests/test_x.py::test_a"])
