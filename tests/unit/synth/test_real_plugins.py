"""One made-up repository whose tests need real plugins, declared as its test requirements and installed from the package index.

xdist and randomly are in its options too: the first is not installed, the second is and stays out of every run. The others do their part.
"""

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap

pytestmark = pytest.mark.slow  # downloads the plugins, and hypothesis takes long to import
PLUGINS = ("anyio", "hypothesis", "pytest-asyncio", "pytest-mock", "pytest-randomly", "pytest-repeat", "pytest-subtests", "pytest-xdist")
FILES = {
    "pyproject.toml": (
        '[project]\nname = "real"\nversion = "1.0"\ndependencies = ["attrs"]\n\n'
        f"[dependency-groups]\ntest = {[*PLUGINS, 'syrupy', 'trio']}\n\n"
        '[tool.pytest.ini_options]\naddopts = "-n 2 --dist loadgroup -p randomly --snapshot-warn-unused"\nasyncio_mode = "auto"\n'
    ),
    "real/__init__.py": "",
    "real/boxes.py": (
        "import attrs\n\n\n@attrs.define\nclass Box:\n"
        "    side: int = attrs.field(validator=attrs.validators.gt(0))\n    name: str = attrs.field()\n\n"
        "    @name.default\n    def _named(self):\n        found = 'b' * self.side\n        return found\n\n"
        "    def area(self):\n        found = self.side * self.side\n        return found\n"
    ),
    "real/ops.py": (
        "import random\n\n\nasync def later(x):\n    found = x + 1\n    return found\n\n\n"
        "async def soon(x):\n    found = x + 2\n    return found\n\n\n"
        "def turned(items):\n    found = list(items)\n    found.reverse()\n    return found\n\n\n"
        "def parts(n):\n    found = n + 1\n    return found\n\n\n"
        "def shown(n):\n    found = {'n': n, 'text': '*' * n}\n    return found\n\n\n"
        "def told(tell, text):\n    loud = text.upper()\n    tell(loud)\n\n\n"
        "def grouped(n):\n    found = n * 3\n    return found\n\n\n"
        "def drawn():\n    found = random.randint(0, 9)\n    return found\n"
    ),
    "tests/test_async.py": (
        "import asyncio\n\nimport pytest\n\nfrom real.ops import later, soon\n\n\n"
        "async def test_later():\n    await asyncio.sleep(0)\n    assert await later(1) == 2\n\n\n"
        "@pytest.fixture(params=['asyncio', 'trio'])\ndef anyio_backend(request):\n    return request.param\n\n\n"
        "@pytest.mark.anyio\ndef test_plain(anyio_backend):\n    assert anyio_backend\n\n\n"
        "def test_soon(anyio_backend):\n    import anyio\n\n    assert anyio.run(soon, 1, backend=anyio_backend) == 3\n"
    ),
    "tests/test_boxes.py": (
        "import pytest\n\nfrom real.boxes import Box\n\n\ndef test_area():\n    assert Box(2, 'x').area() == 4\n\n\n"
        "def test_name():\n    assert Box(2) == Box(2, 'bb')\n\n\n"
        "def test_positive():\n    with pytest.raises(ValueError):\n        Box(0, 'x')\n"
    ),
    "tests/test_drawn.py": (
        "from hypothesis import given, strategies\n\nfrom real.ops import drawn, turned\n\n\n"
        "@given(strategies.lists(strategies.integers()))\ndef test_turned(items):\n    assert turned(turned(items)) == items\n\n\n"
        "@given(strategies.integers())\ndef test_any(n):\n    assert isinstance(n, int)\n\n\n"
        "def test_number():\n    assert 0 <= drawn() <= 9\n"
    ),
    "tests/test_parts.py": (
        "from real.ops import parts\n\n\n"
        "def test_parts(subtests):\n    for n in range(3):\n        with subtests.test('one', n=n):\n            assert parts(n) == n + 1\n"
        "\n\n"
        "def test_one_part_fails(subtests):\n    for n in range(3):\n        with subtests.test(n=n):\n            assert n != 1\n\n\n"
        "def test_no_parts():\n    pass\n"
    ),
    "tests/test_shown.py": (
        "from real.ops import shown\n\n\ndef test_shown(snapshot):\n    assert shown(2) == snapshot\n\n\n"
        "def test_stored(snapshot):\n    assert 'as it was' == snapshot\n"
    ),
    "tests/__snapshots__/test_shown.ambr": (
        "# serializer version: 1\n# name: test_shown\n  dict({\n    'n': 2,\n    'text': '**',\n  })\n# ---\n"
        "# name: test_stored\n  'as it was'\n# ---\n"
    ),
    "tests/test_told.py": (
        "import pytest\n\nfrom real.ops import grouped, told\n\n\n"
        "def test_told(mocker):\n    tell = mocker.Mock()\n    told(tell, 'a')\n    tell.assert_called_once_with('A')\n\n\n"
        "@pytest.mark.repeat(2)\ndef test_again():\n    pass\n\n\n"
        "@pytest.mark.xdist_group('one')\ndef test_grouped():\n    assert grouped(1) == 3\n"
    ),
    "tests/test_more.py": "import pytest\n\n\n@pytest.mark.parametrize('x', range(20))\ndef test_more(x):\n    assert x >= 0\n",
}
FAIL_TO_PASS = {
    "Box._named": {"tests/test_boxes.py::test_name"},
    "Box.area": {"tests/test_boxes.py::test_area"},
    "later": {"tests/test_async.py::test_later"},
    "turned": {"tests/test_drawn.py::test_turned"},
    "parts": {"tests/test_parts.py::test_parts"},
    "shown": {"tests/test_shown.py::test_shown"},
    "told": {"tests/test_told.py::test_told"},
}


@pytest.fixture(scope="module")
def built(build_chosen):
    return build_chosen("real", FILES, lambda name: name.split()[0] == "stub" and name.split()[-1] in FAIL_TO_PASS)


def test_the_plugins_are_in_the_environment_and_their_tests_fail_without_the_feature(built):
    report, store = built
    assert report.rejected == {}
    assert {task.symbols[0].qualname: set(task.fail_to_pass) for task in store.tasks()} == FAIL_TO_PASS
    names = {text.partition("==")[0] for text in store.tasks()[0].environment.requirements}
    assert {*PLUGINS, "attrs", "syrupy", "trio"} - names == {"pytest-xdist"}  # which no run here needs


def test_only_the_test_with_a_failing_subtest_is_dropped(built):
    report, _ = built
    assert report.dropped == {"tests/test_parts.py::test_one_part_fails": "failed"}


def test_repeated_and_parametrised_ids_are_those_of_the_plugins(built):
    _, store = built
    task = next(task for task in store.tasks() if task.symbols[0].qualname == "told")
    ids = {id for id in task.pass_to_pass if "::test_again" in id or "::test_plain" in id}
    assert ids == {
        "tests/test_told.py::test_again[1-2]", "tests/test_told.py::test_again[2-2]",
        "tests/test_async.py::test_plain[asyncio]", "tests/test_async.py::test_plain[trio]",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["Box.area", "later", "turned", "parts", "shown"])
def test_gold_is_solved_and_the_cut_is_not(built, name):
    _, store = built
    task = next(task for task in store.tasks() if task.symbols[0].qualname == name)
    verdict = grade(task, task.gold, store=store, backend=Bubblewrap())
    assert verdict.solved, verdict.reason
    assert not grade(task, "", store=store, backend=Bubblewrap()).solved
