"""What tests of several packages share: a tiny repository with tests, one feature of it cut out as a task, and the real sandbox."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from etude import tree
from etude.grade.environment import make_environment
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Environment, Limits, Repo, Symbol, Task

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]

POCKET = {
    "pocket/__init__.py": """\
from pocket.stack import Stack
from pocket.stats import mean, median
from pocket.text import shout, slugify

__all__ = ["Stack", "mean", "median", "shout", "slugify"]
""",
    "pocket/stack.py": """\
class Stack:
    def __init__(self):
        self._items = []

    def push(self, item):
        self._items.append(item)

    def pop(self):
        return self._items.pop()

    @property
    def top(self):
        return self._items[-1]
""",
    "pocket/stats.py": """\
def mean(numbers):
    return sum(numbers) / len(numbers)


def median(numbers):
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return mean(ordered[middle - 1 : middle + 1])
""",
    "pocket/text.py": """\
import re


def shout(text):
    return text.upper() + "!"


def _words(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def slugify(text, sep="-"):
    return sep.join(_words(text))
""",
    "tests/test_stack.py": """\
from pocket import Stack


def test_push_and_pop():
    stack = Stack()
    stack.push(1)
    stack.push(2)
    assert stack.pop() == 2
    assert stack.pop() == 1


def test_top():
    stack = Stack()
    stack.push("x")
    assert stack.top == "x"
""",
    "tests/test_stats.py": """\
import pytest

from pocket import mean, median


def test_mean():
    assert mean([1, 2, 6]) == 3


@pytest.mark.parametrize("numbers, expected", [([3, 1, 2], 2), ([4, 1, 2, 3], 2.5)], ids=["odd", "even: two in the middle"])
def test_median(numbers, expected):
    assert median(numbers) == expected
""",
    "tests/test_text.py": """\
import pocket


def test_shout():
    assert pocket.shout("hey") == "HEY!"


def test_slugify():
    assert pocket.slugify("Hello, World 2") == "hello-world-2"


def test_slugify_separator():
    assert pocket.slugify("a b", sep="_") == "a_b"
""",
    "tests/conftest.py": "import os\n\nos.environ['POCKET_TESTS'] = '1'\n",
    "pyproject.toml": '[project]\nname = "pocket"\nversion = "1.0"\n',
    "README.md": "# pocket\n",
}
SLUGIFY = POCKET["pocket/text.py"][POCKET["pocket/text.py"].index("\n\ndef _words") :]
CUT = {
    "pocket/__init__.py": POCKET["pocket/__init__.py"].replace(", slugify", "").replace(', "slugify"', ""),
    "pocket/text.py": POCKET["pocket/text.py"].replace(SLUGIFY, "").replace("import re\n\n\n", ""),
    "tests/test_text.py": POCKET["tests/test_text.py"].split("\n\ndef test_slugify")[0],
}
FAIL_TO_PASS = ("tests/test_text.py::test_slugify", "tests/test_text.py::test_slugify_separator")
PASS_TO_PASS = (
    "tests/test_stack.py::test_push_and_pop",
    "tests/test_stack.py::test_top",
    "tests/test_stats.py::test_mean",
    "tests/test_stats.py::test_median[even: two in the middle]",
    "tests/test_stats.py::test_median[odd]",
    "tests/test_text.py::test_shout",
)


@pytest.fixture(scope="session")
def lay_down() -> LayDown:
    """Writes files, by relative path, into a folder; returns the folder."""

    def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return write


@pytest.fixture(scope="session")
def pocket() -> dict[str, str]:
    """The files of a repository of three modules and eight tests."""
    return dict(POCKET)


@pytest.fixture(scope="session")
def backend() -> Backend:
    return Bubblewrap()


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="session")
def runner_environment(environments: Path) -> Environment:
    """pytest and what it needs, in a folder of `environments`."""
    return make_environment((), environments)


@pytest.fixture(scope="session")
def pocket_store(
    tmp_path_factory: pytest.TempPathFactory, lay_down: LayDown, runner_environment: Environment, environments: Path
) -> TaskStore:
    """A folder of tasks with one: `slugify` is gone from pocket, with its helper, its re-export and its tests."""
    folder = tmp_path_factory.mktemp("pocket")
    original = lay_down(folder / "original", POCKET)
    start = lay_down(folder / "start", {**POCKET, **CUT})
    solved = lay_down(folder / "solved", {**POCKET, "tests/test_text.py": CUT["tests/test_text.py"]})
    store = TaskStore.create(folder / "tasks", sources=("pocket",))
    store.environments.symlink_to(environments)
    store.add(
        Task(
            id="pocket-slugify",
            repo=Repo(name="pocket", digest=store.add_snapshot(original), import_roots=(".",), test_paths=("tests",)),
            environment=runner_environment,
            instruction="Add `slugify(text, sep='-')` to pocket: the words of a text in lower case, joined by sep.",
            cut=tree.make_patch(original, start),
            gold=tree.make_patch(start, solved),
            fail_to_pass=FAIL_TO_PASS,
            pass_to_pass=PASS_TO_PASS,
            symbols=(
                Symbol(path="pocket/text.py", qualname="_words", line=8, num_lines=2),
                Symbol(path="pocket/text.py", qualname="slugify", line=12, num_lines=2),
            ),
            limits=Limits(wall_s=20.0, memory_mb=512, disk_mb=32),
        )
    )
    return store
