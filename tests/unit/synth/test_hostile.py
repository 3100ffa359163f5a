"""Hostile repositories: whatever their code, their tests or their files try, the build ends, says why, and nothing outside changes."""

import os
import socket
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.types import Limits

SOURCE = "def add(a, b):\n    return a + b\n\n\ndef scale(items, factor=2):\n    return [item * factor for item in items]\n"
TESTS = (
    "from calc import add, scale\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\ndef test_scale():\n    assert scale([1]) == [2]\n\n\n"
    "def test_one(): pass\ndef test_two(): pass\ndef test_three(): pass\ndef test_four(): pass\n"
)
TAME = {"calc.py": SOURCE, "tests/test_calc.py": TESTS}
ENDLESS_S = 6.0


class Hurried:
    """The real sandbox with small limits: what never ends is not waited for as long as for an honest suite."""

    def __init__(self, wall_s):
        self.backend, self.wall_s = Bubblewrap(), wall_s

    def check(self):
        self.backend.check()

    def open(self, workspace, *, environment=None, limits=Limits()):
        small = replace(limits, wall_s=min(limits.wall_s, self.wall_s), memory_mb=256, processes=24, disk_mb=16)
        return HurriedSandbox(self.backend.open(workspace, environment=environment, limits=small), self.wall_s)


class HurriedSandbox:
    def __init__(self, sandbox, wall_s):
        self.sandbox, self.wall_s = sandbox, wall_s
        self.read, self.write, self.changes, self.close = sandbox.read, sandbox.write, sandbox.changes, sandbox.close

    def run(self, argv, *, wall_s=None, **options):
        return self.sandbox.run(argv, wall_s=min(wall_s or self.wall_s, self.wall_s), **options)

    def __enter__(self):
        self.sandbox.__enter__()
        return self

    def __exit__(self, *exc):
        self.sandbox.__exit__(*exc)


def lay(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def listing(folder):
    return {path.relative_to(folder).as_posix(): (path.lstat().st_mode, _content(path)) for path in folder.rglob("*")}


def _content(path):
    return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None


def build(repository, out, wall_s=60.0):
    return build_tasks(str(repository), out, options=BuildOptions(max_candidates=1, modes=("stub",), jobs=1), backend=Hurried(wall_s))


@pytest.fixture
def outside(tmp_path):
    """A folder beside the repository whose files must stay as they are."""
    return lay(tmp_path / "outside", {"precious.txt": "mine\n", "calc.py": SOURCE})


def at_collection(statement):
    """The tame repository with a statement that runs as soon as its tests are collected."""
    return {**TAME, "conftest.py": f"import os, signal, time\n{statement}\n"}


def in_a_test(*statements):
    return {
        **TAME,
        "tests/test_more.py": "import os, signal, time\n\n\ndef test_more():\n" + "".join(f"    {line}\n" for line in statements),
    }


ENDS = {  # at once, or where a limit is reached
    "writes outside": (at_collection("open('{outside}/written', 'w').write('x')"), "FileNotFoundError"),
    "a full disk": (at_collection("with open('/work/big', 'wb') as file:\n    while True: file.write(b'x' * 65536)"), "OSError|disk full"),
    "all of the memory": (at_collection("hoard = []\nwhile True: hoard.append(b'x' * 10**7)"), "MemoryError|out of memory|killed|timeout"),
    "output without end": (at_collection("while True: os.write(1, b'x' * 65536)"), "timeout|killed|disk full|No space left"),
    "a fork bomb": (
        at_collection("while True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"),
        "timeout|too many processes|out of memory",
    ),
    "a test that never ends": (in_a_test("while True: pass"), "timeout"),
    "a test that sleeps through signals": (in_a_test("signal.signal(15, signal.SIG_IGN)", "time.sleep(999)"), "timeout"),
    "a test that kills its parent": (in_a_test("os.kill(os.getppid(), 9)", "os.kill(-1, 9)"), "end badly|stop pytest|pytest cannot run"),
    "a test that forges a report": (in_a_test("print('6 passed')", "os._exit(0)"), "stop pytest before its end"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_suite_that_cannot_be_used_is_one_line_and_touches_nothing(tmp_path, outside, kind):
    files, why = ENDS[kind]
    repository = lay(tmp_path / "repository", {path: text.replace("{outside}", str(outside)) for path, text in files.items()})
    before = listing(repository), listing(outside)
    with pytest.raises(UserError, match=why) as error:
        build(repository, tmp_path / "tasks", ENDLESS_S)
    assert str(error.value).isprintable()
    assert (listing(repository), listing(outside)) == before


EVIL_NAMES = (
    "a\nb.txt",
    "c\x1b[31md.txt",
    "-rf.txt",
    "e'f\"g.txt",
    "..h.txt",
    "ü" * 100,
    b"\xff\xfe.txt".decode("utf-8", "surrogateescape"),
)
EVIL_CONFTEST = """\
import os, shutil, time
for top in ("{outside}", "/usr", "/env", "/etc"):
    shutil.rmtree(top, ignore_errors=True)
for _ in range(5):  # children that outlive their parent
    if not os.fork():
        os.setsid()
        time.sleep(600)
        os._exit(0)
for _ in range(200):
    os.write(2, b"x" * 65536)
"""
EVIL_TEST = """\
import pathlib, socket


def test_network():
    socket.create_connection(("127.0.0.1", {port}), timeout=2)


def test_write_into_the_tree():
    for name in ("calc.py", "tests/test_calc.py", "conftest.py"):
        pathlib.Path("/work", name).write_text("broken(")
"""


@pytest.fixture(scope="module")
def survived(tmp_path_factory):
    """(report, store, knocks at the port, before, after) of a repository that tries everything that lets its suite end well."""
    folder = tmp_path_factory.mktemp("hostile")
    outside = lay(folder / "outside", {"precious.txt": "mine\n", "calc.py": SOURCE})
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        files = {
            **TAME,
            **dict.fromkeys(EVIL_NAMES, "x\n"),
            "i\nj.py": "def f(:\n",
            "k\x1b[2J.py": "x = 1\n",
            "setup.py": f"open('{outside}/written', 'w')\n",
            "conftest.py": EVIL_CONFTEST.replace("{outside}", str(outside)),
            "tests/test_more.py": EVIL_TEST.replace("{port}", str(server.getsockname()[1])),
        }
        repository = lay(folder / "repository", files)
        for name, target in (("secret.txt", "/etc/shadow"), ("stolen.py", outside / "calc.py"), ("everything", "/"), ("loop", "loop")):
            (repository / name).symlink_to(target)
        os.mkfifo(repository / "pipe")
        before = listing(repository), listing(outside)
        report = build(repository, folder / "tasks")
        try:
            server.accept()
            knocks = 1
        except BlockingIOError:
            knocks = 0
    return report, TaskStore.open(folder / "tasks"), knocks, before, (listing(repository), listing(outside))


def test_hostile_code_around_an_honest_suite_touches_nothing(survived):
    report, _, _, before, after = survived
    assert report.tasks
    assert before == after


def test_the_network_is_not_there(survived):
    report, _, knocks, _, _ = survived
    assert knocks == 0
    assert report.dropped["tests/test_more.py::test_network"] == "failed"


def test_links_out_of_the_tree_and_pipes_do_not_come_along(survived):
    report, store, *_ = survived
    kept = {path.name for path in store.snapshot(store.get(report.tasks[0]).repo).rglob("*")}
    assert kept.isdisjoint({"secret.txt", "stolen.py", "everything", "loop", "pipe"})


def test_hostile_names_are_carried(survived):
    report, store, *_ = survived
    assert {path.name for path in store.snapshot(store.get(report.tasks[0]).repo).iterdir()} >= set(EVIL_NAMES)
    assert any("j.py" in path for path in report.skipped)


@pytest.mark.parametrize("name", ["../outside/precious.txt", "/etc/etude-was-here", "link/precious.txt"])
def test_an_archive_writes_nothing_outside(tmp_path, outside, name):
    archive = tmp_path / "calc-1.0.tar.gz"
    source = lay(tmp_path / "source", TAME)
    with tarfile.open(archive, "w:gz") as tar:
        for path in TAME:
            tar.add(source / path, f"calc-1.0/{path}")
        link = tarfile.TarInfo("calc-1.0/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo(name if name.startswith(("/", "..")) else f"calc-1.0/{name}"))
    with pytest.raises(UserError, match="cannot be unpacked"):
        build(archive, tmp_path / "tasks")
    assert (outside / "precious.txt").read_text() == "mine\n"
    assert not Path("/etc/etude-was-here").exists()
