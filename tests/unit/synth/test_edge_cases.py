"""One made-up repository with what has broken other factories: odd ids, definitions in several parts, names that are found by nobody."""

import pytest

from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks

LONG = "x" * 300
FILES = {
    "src/odd/__init__.py": (
        "from odd.parts import area\n\n__all__ = ['area']\n__all__ += ['lazy']\n\n\n"
        "def __getattr__(name):\n    if name == 'lazy':\n        from odd.late import lazy\n\n        return lazy\n"
        "    raise AttributeError(name)\n"
    ),
    "src/odd/late.py": "def lazy(x):\n    return x * 2\n",
    "src/odd/parts.py": (
        "import dataclasses\nimport enum\nimport functools\nfrom collections.abc import MutableMapping\nfrom typing import overload\n\n\n"
        "@functools.singledispatch\ndef area(shape):\n    raise TypeError(shape)\n\n\n"
        "@area.register\ndef _(shape: int):\n    return shape * shape\n\n\n"
        "@area.register\ndef _(shape: str):\n    return len(shape) * 10\n\n\n"
        "@overload\ndef twice(x: int) -> int: ...\n@overload\ndef twice(x: str) -> str: ...\ndef twice(x):\n    return x + x\n\n\n"
        "class Store(MutableMapping):\n    def __init__(self):\n        self.data = {}\n\n"
        "    def __getitem__(self, key):\n        return self.data[key]\n\n"
        "    def __setitem__(self, key, value):\n        self.data[key] = value\n\n"
        "    def __delitem__(self, key):\n        del self.data[key]\n\n"
        "    def __iter__(self):\n        return iter(self.data)\n\n    def __len__(self):\n        return len(self.data)\n\n\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int = 0\n\n    def moved(self, by):\n        return Point(self.x + by)\n\n\n"
        "class Colour(enum.Enum):\n    RED = 1\n\n    def loud(self):\n        return self.name + '!'\n"
    ),
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef seven():\n    return 7\n",
    "tests/deep/conftest.py": "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef quiet():\n    yield\n",
    "tests/deep/test_deep.py": "def test_seven(seven):\n    from odd.parts import twice\n\n    assert twice(seven) == 14\n",
    "tests/test_ids.py": (
        "import pytest\n\nfrom odd.parts import Point\n\n"
        f"IDS = ['a b', 'a::b', 'a[b]', 'two\\nlines', 'ü', '{LONG}', '-k not', '$(x)`']\n\n\n"
        "@pytest.mark.parametrize('by', range(8), ids=IDS)\ndef test_moved(by):\n    assert Point(1).moved(by).x == 1 + by\n\n\n"
        "@pytest.mark.parametrize('by', [1, 1], ids=['same', 'same'])\ndef test_same(by):\n    assert by == 1\n"
    ),
    "tests/test_units.py": (
        "import unittest\n\nfrom odd.parts import Colour, Store, area\nimport odd\n\n\n"
        "class Base:\n    def test_inherited(self):\n        assert Colour.RED.loud() == 'RED!'\n\n\n"
        "class TestArea(Base, unittest.TestCase):\n    def test_parts(self):\n        for shape, size in ((2, 4), ('abc', 30)):\n"
        "            with self.subTest(shape=shape):\n                self.assertEqual(area(shape), size)\n\n"
        "    def test_store(self):\n        store = Store()\n        store['a'] = 1\n        del store['a']\n"
        "        self.assertEqual(len(store), 0)\n\n\n"
        "def test_lazy():\n    assert odd.lazy(2) == 4\n\n\n" + "".join(f"def test_{number}(): pass\n" for number in range(8))
    ),
}


def lay(folder, files):
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edges")
    report = build_tasks(str(lay(folder / "odd", FILES)), folder / "tasks", options=BuildOptions(max_share=0.6), backend=Bubblewrap())
    return report, TaskStore.open(folder / "tasks")


def of(store, *names, mode="stub"):
    return next(task for task in store.tasks() if task.mode == mode and [s.qualname for s in task.symbols] == list(names))


def test_ids_travel_whole(built):
    _, store = built
    task = of(store, "Point.moved")
    names = ("a b", "a::b", "a[b]", "two\\nlines", "\\xfc", LONG, "-k not", "$(x)`")
    assert set(task.fail_to_pass) == {f"tests/test_ids.py::test_moved[{name}]" for name in names}
    verdict = grade(task, task.gold, store=store, backend=Bubblewrap())
    assert verdict.solved, verdict.reason
    assert not grade(task, "", store=store, backend=Bubblewrap()).solved


def test_nothing_is_dropped_but_what_cannot_be_told_apart(built):
    report, _ = built
    assert report.dropped == {}


def test_parts_of_one_name_are_taken_one_by_one(built):
    _, store = built
    lines = {task.symbols[0].line for task in store.tasks() if task.mode == "stub" and [s.qualname for s in task.symbols] == ["_"]}
    assert len(lines) == 2
    assert of(store, "twice").fail_to_pass == ("tests/deep/test_deep.py::test_seven",)


def test_a_special_method_of_an_abstract_class_is_stubbed_not_removed(built):
    report, store = built
    assert of(store, "Store.__delitem__").mode == "stub"
    removed = [task.symbols for task in store.tasks() if task.mode == "remove" and len(task.symbols) == 1]
    assert not any("__delitem__" in symbols[0].qualname for symbols in removed)
    assert any("Store.__delitem__" in name for name in report.inapplicable)


def test_an_inherited_test_and_a_lazy_attribute_are_found(built):
    _, store = built
    assert of(store, "Colour.loud").fail_to_pass == ("tests/test_units.py::TestArea::test_inherited",)
    assert of(store, "lazy").fail_to_pass == ("tests/test_units.py::test_lazy",)


def test_every_rejection_has_a_reason_and_most_candidates_hold(built):
    report, _ = built
    assert sum(report.valid.values()) >= 0.6 * sum(report.tried.values()), report.rejected
