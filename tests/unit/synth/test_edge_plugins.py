"""One made-up repository whose conftest does to ids and order what plugins do: coroutines on two loops, repeats, ids of its own, shuffling,
snapshots. Beside it names as nose finds them, and a compiled extension whose Python twin is what runs.
"""

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.tree import make_patch

CONFTEST = '''\
import asyncio
import inspect
import random
from pathlib import Path

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def loop(request):
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """As anyio does: every coroutine once on each loop, whether it asks for one or not."""
    if inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("loop")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = inspect.signature(pyfuncitem.obj).parameters
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True


def pytest_make_parametrize_id(config, val, argname):
    """Raw, where pytest itself would escape."""
    return val if isinstance(val, str) else None


def pytest_collection_modifyitems(items):
    """As randomly and flakefinder do: another order every time, and some more than once under one id."""
    items += [item for item in items if "twice" in item.keywords]
    random.SystemRandom().shuffle(items)


def pytest_runtest_setup(item):
    random.seed(7)


@pytest.fixture
def snapshot(request):
    file = Path(request.node.path).parent / "__snapshots__" / f"{request.node.path.stem}.txt"
    stored = dict(line.split(" = ", 1) for line in file.read_text().splitlines())
    return lambda value: stored.get(request.node.name) == repr(value)
'''
ODD = ["two\nlines", "größe ☃", "a::b", "nul\0", "x" * 300, "[", "]::test_other["]
FILES = {
    "setup.cfg": "[tool:pytest]\naddopts = -p randomly --flake-finder --snapshot-update\npython_functions = test_* *_should_*\n",
    "plug/__init__.py": "try:\n    from plug._fast import total\nexcept ImportError:\n    from plug._pure import total\n",
    "plug/_fast.pyx": "# cython: language_level=3\nfrom plug._pure import total as slow\n\n\ndef version():\n    return 3\n",
    "plug/_fast.cpython-311-x86_64-linux-gnu.so": b"\x7fELF for another machine",
    "plug/_pure.py": "def total(items):\n    found = 0\n    for item in items:\n        found += item\n    return found\n\n\nKEEP = 1\n",
    "plug/ops.py": (
        "import random\n\n\nasync def later(x):\n    found = x + 1\n    return found\n\n\n"
        "def twofold(x):\n    found = x * 2\n    return found\n\n\n"
        "def odd(text):\n    found = text.upper()\n    return found\n\n\n"
        "def banner(text):\n    line = f'*** {text} ***'\n    return line\n\n\n"
        "def draw():\n    found = random.random()\n    return found\n\n\n"
        "def shout(text):\n    loud = text + '!'\n    return loud\n"
    ),
    "tests/conftest.py": CONFTEST,
    "tests/__snapshots__/test_shots.txt": "test_banner = '*** a ***'\ntest_plain = 'a'\n",
    "tests/test_later.py": (
        "from plug.ops import later\n\n\nasync def test_later():\n    assert await later(1) == 2\n\n\n"
        "async def test_loop(loop):\n    assert loop in ('asyncio', 'trio')\n"
    ),
    "tests/test_odd.py": (
        f"import pytest\n\nfrom plug.ops import odd\n\nODD = {ODD!r}\n\n\n"
        "@pytest.mark.parametrize('text', ODD)\ndef test_odd(text):\n    assert odd(text) == text.upper()\n\n\n"
        "@pytest.mark.parametrize('text', ODD)\ndef test_kept(text):\n    assert text in ODD\n\n\n"
        "def test_größe():\n    assert odd('ü') == 'Ü'\n"
    ),
    "tests/test_random.py": (
        "import random\n\nfrom plug.ops import draw\n\n\ndef test_draw():\n    random.seed(7)\n    one = draw()\n    random.seed(7)\n"
        "    assert one == random.random()\n\n\ndef test_seeded():\n    assert 0.32 < random.random() < 0.33\n"
    ),
    "tests/test_shots.py": (
        "from plug.ops import banner\n\n\ndef test_banner(snapshot):\n    assert snapshot(banner('a'))\n\n\n"
        "def test_plain(snapshot):\n    assert snapshot('a')\n"
    ),
    "tests/test_twice.py": (
        "import pytest\n\nfrom plug.ops import twofold\n\nSEEN = []\n\n\n"
        "@pytest.mark.twice\ndef test_twofold():\n    assert twofold(2) == 4\n\n\n"
        "@pytest.mark.twice\ndef test_second_fails():\n    SEEN.append(1)\n    assert len(SEEN) == 1\n"
    ),
    "tests/test_fast.py": (
        "import plug\n\n\ndef test_total():\n    assert plug.total([1, 2]) == 3\n\n\ndef test_file():\n    assert plug.__file__\n"
    ),
    "tests/test_nose.py": (
        "from plug.ops import shout\n\nREADY = []\n\n\ndef setup_module():\n    READY.append(1)\n\n\n"
        "def teardown_module():\n    READY.clear()\n\n\n"
        "def shout_should_add():\n    assert READY and shout('a') == 'a!'\n\n\n"
        "class TestNose:\n    def setup_method(self):\n        self.ready = 1\n\n"
        "    def nose_should_find(self):\n        assert self.ready\n"
    ),
    "tests/test_more.py": "import pytest\n\n\n@pytest.mark.parametrize('x', range(9))\ndef test_more(x):\n    assert x >= 0\n",
}
TRIED = {
    ("stub", "later"), ("remove", "twofold"), ("remove", "odd"), ("remove", "banner"),
    ("stub", "draw"), ("remove", "total"), ("remove", "shout"),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(build_chosen):
    return build_chosen("plug", FILES, lambda name: (name.split()[0], name.split()[-1]) in TRIED and " function " in name)


def of(store, name):
    return next(task for task in store.tasks() if task.symbols[0].qualname == name)


def test_every_cut_holds_and_only_what_cannot_be_told_apart_is_dropped(built):
    report, store = built
    assert report.rejected == {}
    assert {(task.mode, task.symbols[0].qualname) for task in store.tasks()} == TRIED
    assert report.dropped == {"tests/test_twice.py::test_second_fails": "failed"}


def test_coroutines_on_two_loops_have_an_id_each(built):
    _, store = built
    assert of(store, "later").fail_to_pass == ("tests/test_later.py::test_later[asyncio]", "tests/test_later.py::test_later[trio]")
    assert "tests/test_later.py::test_loop[trio]" in of(store, "later").pass_to_pass


def test_an_id_that_runs_twice_counts_once_and_any_failure_wins(built):
    _, store = built
    task = of(store, "twofold")
    assert task.fail_to_pass == ("tests/test_twice.py::test_twofold",)
    verdict = grade(task, task.gold, store=store, backend=Bubblewrap())
    assert verdict.solved, verdict.reason


def test_raw_newlines_unicode_nul_and_long_ids_travel_whole(built):
    _, store = built
    task = of(store, "odd")
    ids = {id for id in task.fail_to_pass if "test_odd[" in id}
    assert {id.removeprefix("tests/test_odd.py::test_odd[")[:-1] for id in ids} == set(ODD)
    assert "tests/test_odd.py::test_größe" in task.fail_to_pass
    assert sum("test_kept[" in id for id in task.pass_to_pass) == len(ODD)
    assert grade(task, task.gold, store=store, backend=Bubblewrap()).solved
    assert not grade(task, "", store=store, backend=Bubblewrap()).solved


def test_an_order_that_changes_with_every_run_and_a_seed_of_the_plugin_change_nothing(built):
    _, store = built
    task = of(store, "draw")
    assert task.fail_to_pass == ("tests/test_random.py::test_draw",)
    assert "tests/test_random.py::test_seeded" in task.pass_to_pass


def test_a_snapshot_is_the_graders_whatever_the_agent_writes_into_it(built, tmp_path, lay_down):
    _, store = built
    task = of(store, "banner")
    assert task.fail_to_pass == ("tests/test_shots.py::test_banner",)
    before = lay_down(tmp_path / "before", {"tests/__snapshots__/test_shots.txt": FILES["tests/__snapshots__/test_shots.txt"]})
    after = lay_down(tmp_path / "after", {"tests/__snapshots__/test_shots.txt": "test_banner = None\ntest_plain = None\n"})
    verdict = grade(task, task.gold + make_patch(before, after), store=store, backend=Bubblewrap())
    assert verdict.solved, verdict.reason
    assert [path for path, _ in verdict.refused] == ["tests/__snapshots__/test_shots.txt"]


def test_the_python_twin_of_an_extension_is_cut_and_the_extension_is_not_in_the_way(built):
    _, store = built
    task = of(store, "total")
    assert task.fail_to_pass == ("tests/test_fast.py::test_total",)
    assert not list(store.workspace(task).rglob("*.so"))
    assert grade(task, task.gold, store=store, backend=Bubblewrap()).solved


def test_names_as_nose_finds_them_and_its_set_up_functions(built):
    _, store = built
    task = of(store, "shout")
    assert task.fail_to_pass == ("tests/test_nose.py::shout_should_add",)
    assert "tests/test_nose.py::TestNose::nose_should_find" in task.pass_to_pass
    text = (store.workspace(task) / "tests/test_nose.py").read_text()
    assert "shout" not in text
    assert "def setup_module" in text
