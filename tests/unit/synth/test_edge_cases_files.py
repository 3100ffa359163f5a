"""One made-up repository, in a flat layout, with odd files, and tests that ask the machine for what a sandbox has not."""

import pytest

from etude.errors import UserError
from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.discover import add_generated
from etude.synth.kinds import deletion

PLAIN = "def {0}(x):\n    y = x + 1\n    return y\n\n\nKEEP = 1\n"
FILES = {
    "pyproject.toml": """\
[project]
name = "flat"
dynamic = ["version"]
[tool.setuptools_scm]
version_file = "flat/_version.py"
""",
    "flat/__init__.py": "from flat._version import __version__\n",
    "flat/crlf.py": PLAIN.format("crlf").replace("\n", "\r\n").encode(),
    "flat/bom.py": (b"\xef\xbb\xbf" + PLAIN.format("bom").encode()),
    "flat/latin.py": "# -*- coding: latin-1 -*-\ndef latin(x):\n    word = 'ü'\n    return word * x\n\n\nNAME = 'é'\n".encode("latin-1"),
    "flat/feed.py": "ONE = 1\n\f\ndef feed(x):\n    y = x + ONE\n    return y\n\f\nTWO = 2\n",
    "flat/Case.py": PLAIN.format("upper"),
    "flat/case.py": PLAIN.format("lower"),
    "flat/old.py": "print 'this is no Python of today'\n",
    "flat/side.py": """\
import atexit
import os
import sys

print('loading')
sys.stdout.write('PASSED')
os.environ['SIDE'] = '1'
with open('ran.txt', 'a') as file:
    file.write('x')
atexit.register(os._exit, 3)


def side(x):
    y = os.environ['SIDE'] * x
    return y
""",
    "space/deep/mod.py": PLAIN.format("deep"),
    "tests/test_empty.py": '"""Nothing yet."""\n',
    "tests/test_files.py": (
        "import pathlib\n\nimport flat\nfrom flat.bom import bom\nfrom flat.Case import upper\nfrom flat.case import lower\n"
        "from flat.crlf import crlf\nfrom flat.feed import feed\nfrom flat.latin import latin\n"
        "from flat.side import side\nfrom space.deep.mod import deep\n\n\n"
        + "".join(f"def test_{name}():\n    assert {name}(1) == 2\n\n\n" for name in ("bom", "crlf", "deep", "feed", "lower", "upper"))
        + "def test_latin():\n    assert latin(2) == '\\xfc\\xfc'\n\n\ndef test_side():\n    assert side(2) == '11'\n\n\n"
        "def test_version():\n    assert flat.__version__\n\n\n"
        "def test_lint():\n    assert b'NotImplementedError' not in pathlib.Path(flat.__file__).with_name('latin.py').read_bytes()\n"
    ),
    "tests/test_machine.py": (
        "import locale\nimport os\nimport socket\nimport time\n\nimport pytest\n\n\n"
        "def test_tty():\n    assert os.isatty(0)\n\n\n"
        "def test_network():\n    socket.create_connection(('192.0.2.1', 80), timeout=1)\n\n\n"
        "def test_root():\n    os.mkdir('/root/x')\n\n\n"
        "def test_locale():\n    locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n\n\n"
        "def test_timezone():\n    assert time.tzname[0] == 'UTC'\n\n\n"
        "@pytest.mark.skipif(not os.path.exists('/none'), reason='no such machine')\ndef test_other():\n    pass\n\n\n"
        "@pytest.mark.xfail\ndef test_wish():\n    assert False\n\n\n"
        "def test_loopback():\n    with socket.create_server(('127.0.0.1', 8765)) as server:\n        assert server.fileno() > 0\n\n\n"
        + "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(6))
    ),
}
TRIED = {
    "remove function flat/crlf.py:1 crlf",
    "stub function flat/bom.py:1 bom",
    "stub function flat/latin.py:2 latin",
    "remove function flat/latin.py:2 latin",
    "remove function flat/feed.py:3 feed",
    "stub function flat/Case.py:1 upper",
    "remove function flat/case.py:1 lower",
    "stub function flat/side.py:13 side",
    "remove function space/deep/mod.py:1 deep",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down):
    folder = tmp_path_factory.mktemp("files")
    repository = lay_down(folder / "flat", FILES)
    (repository / "linked").symlink_to("space")
    report = build_tasks(
        str(repository),
        folder / "tasks",
        options=BuildOptions(max_share=0.1),
        backend=Bubblewrap(),
        finders={"feature_deletion": lambda *arguments: [idea for idea in deletion.find(*arguments) if idea.name in TRIED]},
    )
    return report, TaskStore.open(folder / "tasks")


def of(store, name, mode):
    return next(task for task in store.tasks() if task.mode == mode and task.symbols[0].qualname == name)


def test_all_but_a_stub_that_a_lint_finds_become_tasks(built):
    report, _ = built
    assert sum(report.tried.values()) == len(TRIED)
    assert list(report.rejected) == ["stub function flat/latin.py:2 latin"], report.rejected
    assert "first tests/test_files.py::test_lint" in report.rejected["stub function flat/latin.py:2 latin"]


def test_a_file_of_another_python_is_left_alone_with_its_reason(built):
    report, store = built
    assert report.skipped.keys() == {"flat/old.py"}
    assert (store.workspace(of(store, "crlf", "remove")) / "flat/old.py").exists()


def test_tests_that_ask_for_another_machine_are_dropped_with_what_they_did(built):
    report, _ = built
    names = {id.removeprefix("tests/test_machine.py::test_"): why for id, why in report.dropped.items()}
    assert names == {"tty": "failed", "network": "failed", "root": "failed", "locale": "failed", "other": "skipped", "wish": "xfailed"}


@pytest.mark.parametrize(
    ("name", "mode", "path", "left"),
    [
        ("crlf", "remove", "flat/crlf.py", b"KEEP = 1\r\n"),
        ("bom", "stub", "flat/bom.py", b"\xef\xbb\xbfdef bom(x):\n    raise NotImplementedError\n\n\nKEEP = 1\n"),
        ("latin", "remove", "flat/latin.py", b"# -*- coding: latin-1 -*-\n\n\nNAME = '\xe9'\n"),
        ("feed", "remove", "flat/feed.py", b"ONE = 1\n\f\n\f\nTWO = 2\n"),
        ("upper", "stub", "flat/Case.py", b"def upper(x):\n    raise NotImplementedError\n\n\nKEEP = 1\n"),
        ("lower", "remove", "flat/case.py", b"KEEP = 1\n"),
        ("deep", "remove", "space/deep/mod.py", b"KEEP = 1\n"),
    ],
)
def test_bytes_around_a_cut_stay(built, name, mode, path, left):
    _, store = built
    task = of(store, name, mode)
    assert (store.workspace(task) / path).read_bytes() == left
    assert task.fail_to_pass == (f"tests/test_files.py::test_{name}",)


def test_names_that_differ_in_case_are_two_files(built):
    _, store = built
    task = of(store, "upper", "stub")
    assert (store.workspace(task) / "flat/case.py").read_text() == FILES["flat/case.py"]
    verdict = grade(task, task.gold, store=store, backend=Bubblewrap())
    assert verdict.solved, verdict.reason


def test_a_linked_folder_is_no_second_copy(built):
    _, store = built
    workspace = store.workspace(of(store, "deep", "remove"))
    assert not (workspace / "linked").exists()
    assert [path.name for path in workspace.rglob("mod.py")] == ["mod.py"]


def test_what_runs_on_import_changes_no_verdict(built):
    _, store = built
    task = of(store, "side", "stub")
    assert task.fail_to_pass == ("tests/test_files.py::test_side",)
    assert not (store.workspace(task) / "ran.txt").exists()


def test_the_version_file_that_set_up_code_would_make_is_there(built):
    _, store = built
    task = of(store, "crlf", "remove")
    assert "tests/test_files.py::test_version" in task.pass_to_pass
    assert "__version__ = " in (store.workspace(task) / "flat/_version.py").read_text()


def test_a_file_that_only_set_up_code_could_make_is_named(tmp_path, lay_down):
    files = {"pkg/__init__.py": "from pkg._built import x\n", "tests/test_a.py": "import pkg\n\n\ndef test_a():\n    assert pkg\n"}
    with pytest.raises(UserError, match=r"No module named 'pkg\._built'; if its set-up code makes this file, put it there"):
        build_tasks(str(lay_down(tmp_path / "pkg", files)), tmp_path / "tasks", backend=Bubblewrap())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.setuptools_scm]\nwrite_to = "pkg/_v.py"\n'),
        ("pyproject.toml", '[tool.hatch.build.hooks.vcs]\nversion-file = "pkg/_v.py"\n'),
        ("pyproject.toml", '[tool.pdm.version]\nwrite_to = "./pkg/_v.py"\n'),
        ("setup.py", "from setuptools import setup\nsetup(use_scm_version={'write_to': 'pkg/_v.py'})\n"),
    ],
)
def test_version_files_are_found_wherever_they_are_asked_for(tmp_path, lay_down, name, text):
    folder = lay_down(tmp_path / "repository", {"pkg/__init__.py": "", name: text})
    assert add_generated(folder) == ["pkg/_v.py"]
    assert add_generated(folder) == []  # it is there now
    scope = {}
    exec((folder / "pkg/_v.py").read_text(), scope)
    assert (scope["version"], scope["version_tuple"]) == ("0.0.0", (0, 0, 0))


@pytest.mark.parametrize("path", ["../outside.py", "/tmp/outside.py", "link/v.py", "none/v.py", "pkg/v.txt", "pkg/__init__.py"])
def test_a_version_file_elsewhere_is_not_written(tmp_path, lay_down, path):
    folder = lay_down(tmp_path / "repository", {"pkg/__init__.py": "", "pyproject.toml": f'[tool.setuptools_scm]\nwrite_to = "{path}"\n'})
    (tmp_path / "elsewhere").mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert add_generated(folder) == []
    assert not list(tmp_path.rglob("v.*"))
    assert not list(tmp_path.rglob("outside*"))
