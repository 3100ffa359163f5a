"""One made-up repository, in a src layout, with odd ways to define, export, register and test. Chosen cuts of it are tried."""

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.kinds import deletion

FILES = {
    "pyproject.toml": """\
[project]
name = "folk"
version = "1"
[tool.pytest.ini_options]
addopts = "-n 2 --dist=loadfile -p randomly --doctest-modules"
""",
    "src/folk/__init__.py": """\
from folk import registry
from folk.api import *
from folk.kinds import Bag, Pair, Speaker

__all__ = ('Bag', 'Pair', 'Speaker', 'registry')
__all__ += tuple(name for name in dir() if name in {'shout', 'whisper'})
""",
    "src/folk/api.py": """\
from folk._impl import mumble, whisper
from folk._impl import shout as shout

__all__ = ['shout']
__all__ += ['whisper']
__all__.append('mumble')
""",
    "src/folk/_impl.py": '''\
def shout(text):
    """Loud.

    >>> shout('a')
    'A'
    """
    return text.upper()


def whisper(text):
    quiet = text.lower()
    return quiet


def mumble(text):
    half = whisper(text)[::2]
    return half
''',
    "src/folk/registry.py": """\
COMMANDS = {}
CALLS = []


def command(name):
    def add(function):
        COMMANDS[name] = function
        return function

    return add


@command('square')
def square(x):
    CALLS.append(x)
    return x * x


@command('cube')
def cube(x):
    CALLS.append(x)
    return x * x * x


def run(name, x):
    found = COMMANDS[name]
    return found(x)


def reset():
    CALLS.clear()
    return None
""",
    "src/folk/kinds.py": """\
from typing import NamedTuple, Protocol, TypedDict


class Options(TypedDict, total=False):
    loud: bool


class Pair(NamedTuple):
    left: int
    right: int = 0

    def total(self):
        both = self.left + self.right
        return both


class Speaker(Protocol):
    def speak(self, options: Options) -> str:
        loud = options.get('loud')
        return 'MUTE' if loud else 'mute'


class Dog(Speaker):
    pass


class Bag:
    def __init__(self):
        self._items = []

    @property
    def size(self):
        items = self._items
        return len(items)

    @size.setter
    def size(self, number):
        self._items = [None] * number

    @size.deleter
    def size(self):
        self._items.clear()
""",
    "tests/conftest.py": """\
import pytest

from folk import Bag, registry


@pytest.fixture(autouse=True)
def clean():
    registry.reset()
    yield


@pytest.fixture
def three():
    bag = Bag()
    bag.size = 3
    return bag
""",
    "tests/test_functions.py": """\
import inspect

import folk
from folk import whisper
from folk.registry import COMMANDS, run, square


def test_shout():
    assert folk.shout('a') == 'A'


def test_whisper():
    assert whisper('B') == 'b'


def test_source():
    assert 'quiet' in inspect.getsource(whisper)


def test_star():
    scope = {}
    exec('from folk import *', scope)
    assert scope['Bag'] is folk.Bag


def test_square():
    assert square(3) == 9


def test_cube():
    assert run('cube', 2) == 8


def test_registered():
    assert sorted(COMMANDS) == ['cube', 'square']
""",
    "tests/test_kinds.py": """\
import pytest

from folk.kinds import Bag, Dog, Pair


def test_size(three):
    assert three.size == 3


def test_set():
    bag = Bag()
    bag.size = 2
    assert bag._items == [None, None]


def test_del():
    bag = Bag()
    bag._items.append(1)
    del bag.size
    assert bag._items == []


def test_total():
    assert Pair(1, 2).total() == 3


def test_left():
    assert Pair(1).left == 1


def test_speak():
    assert Dog().speak({'loud': True}) == 'MUTE'


async def test_native():
    assert Pair(1).right == 0


@pytest.mark.parametrize('number', range(24))
def test_more(number):
    assert number >= 0
""",
    "tests/test_units.py": """\
import unittest

from folk._impl import mumble


class TestMumble(unittest.TestCase):
    def test_words(self):
        for word, half in (('Abc', 'ac'), ('D', 'd')):
            with self.subTest(word=word):
                self.assertEqual(mumble(word), half)


class TestLater(unittest.IsolatedAsyncioTestCase):
    async def test_later(self):
        self.assertEqual(mumble('xyz'), 'xz')


def load_tests(loader, tests, pattern):
    return unittest.TestSuite()
""",
}
GETTER, SETTER, DELETER = (f"stub function src/folk/kinds.py:{line} Bag.size" for line in (31, 36, 40))
TRIED = {
    GETTER, SETTER, DELETER,
    "stub function src/folk/registry.py:19 cube",
    "remove function src/folk/registry.py:19 cube",
    "remove function src/folk/registry.py:13 square",
    "stub function src/folk/_impl.py:10 whisper",
    "remove function src/folk/_impl.py:1 shout",
    "remove function src/folk/_impl.py:15 mumble",
    "remove function src/folk/kinds.py:12 Pair.total",
    "stub function src/folk/kinds.py:18 Speaker.speak",
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down):
    """(report, store, names of all ideas)."""
    folder = tmp_path_factory.mktemp("names")
    seen = []

    def find(*arguments):
        ideas = list(deletion.find(*arguments))
        seen.extend(idea.name for idea in ideas)
        return [idea for idea in ideas if idea.name in TRIED]

    report = build_tasks(
        str(lay_down(folder / "folk", FILES)),
        folder / "tasks",
        options=BuildOptions(max_share=0.1),
        backend=Bubblewrap(),
        finders={"feature_deletion": find},
    )
    return report, TaskStore.open(folder / "tasks"), seen


def of(store, name, mode, line=None):
    return next(
        task
        for task in store.tasks()
        if task.mode == mode and task.symbols[0].qualname == name and line in (None, task.symbols[0].line)
    )  # fmt: skip


def test_every_chosen_cut_is_found_and_only_what_must_be_is_rejected(built):
    report, _, seen = built
    assert set(seen) >= TRIED
    assert set(report.rejected) == {
        "stub function src/folk/_impl.py:10 whisper",
        "remove function src/folk/registry.py:19 cube",
        "remove function src/folk/registry.py:13 square",
    }, report.rejected


def test_options_that_need_plugins_stop_nothing_and_a_native_coroutine_is_dropped(built):
    report, _, _ = built
    assert report.dropped == {"tests/test_kinds.py::test_native": "failed"}


def test_examples_in_docstrings_are_no_tests_though_the_repository_asks_for_them(built):
    """`--doctest-modules` is in its options, and `shout` has an example: it is dropped in silence, as only test files are collected."""
    report, store, _ = built
    ids = {id for task in store.tasks() for id in (*task.fail_to_pass, *task.pass_to_pass)} | report.dropped.keys()
    assert {id.partition("::")[0] for id in ids} == {"tests/test_functions.py", "tests/test_kinds.py", "tests/test_units.py"}


def test_the_parts_of_a_property_are_told_apart_also_through_a_fixture(built):
    _, store, _ = built
    ids = "tests/test_kinds.py::"
    assert of(store, "Bag.size", "stub", 31).fail_to_pass == (f"{ids}test_size",)
    assert of(store, "Bag.size", "stub", 36).fail_to_pass == (f"{ids}test_set", f"{ids}test_size")
    assert of(store, "Bag.size", "stub", 40).fail_to_pass == (f"{ids}test_del",)


def test_what_a_decorator_registers_may_be_stubbed_and_is_not_removed_where_a_test_counts(built):
    report, store, _ = built
    assert of(store, "cube", "stub").fail_to_pass == ("tests/test_functions.py::test_cube",)
    assert (
        "1 other tests fail, first tests/test_functions.py::test_registered"
        in report.rejected["remove function src/folk/registry.py:19 cube"]
    )


def test_what_a_fixture_runs_in_every_test_is_no_feature(built):
    _, _, seen = built
    assert not any("reset" in name for name in seen)


def test_a_test_that_reads_the_source_rejects_a_stub(built):
    report, _, _ = built
    assert "first tests/test_functions.py::test_source" in report.rejected["stub function src/folk/_impl.py:10 whisper"]


def test_exports_of_every_form_go_with_the_function(built):
    _, store, _ = built
    for name, test in (("shout", "tests/test_functions.py::test_shout"), ("mumble", "tests/test_units.py::TestMumble::test_words")):
        task = of(store, name, "remove")
        assert test in task.fail_to_pass
        assert "tests/test_functions.py::test_star" in task.pass_to_pass
        workspace = store.workspace(task)
        assert name not in (workspace / "src/folk/api.py").read_text()
        assert name not in (workspace / "src/folk/_impl.py").read_text()
        assert grade(task, task.gold, store=store, backend=Bubblewrap()).solved


def test_units_with_subtests_and_coroutines_count_and_load_tests_does_not(built):
    _, store, _ = built
    assert of(store, "mumble", "remove").fail_to_pass == (
        "tests/test_units.py::TestLater::test_later",
        "tests/test_units.py::TestMumble::test_words",
    )


def test_members_of_named_tuples_and_protocols(built):
    _, store, _ = built
    task = of(store, "Pair.total", "remove")
    assert task.fail_to_pass == ("tests/test_kinds.py::test_total",)
    assert (
        "class Pair(NamedTuple):\n    left: int\n    right: int = 0\n\n\nclass Speaker"
        in (store.workspace(task) / "src/folk/kinds.py").read_text()
    )
    assert of(store, "Speaker.speak", "stub").fail_to_pass == ("tests/test_kinds.py::test_speak",)
