"""Tests that classes inherit from one another, of which a feature needs those of one class; a made-up repository."""

import pytest

FILES = {
    "boxes.py": (
        "class Box:\n    def __init__(self):\n        self.held = []\n\n    def put(self, one):\n        self.held.append(one)\n\n"
        "    def count(self):\n        return len(self.held)\n\n\n"
        "class Sorted(Box):\n    def put(self, one):\n        self.held = sorted([*self.held, one])\n\n\n"
        "class Wide(Sorted):\n    pass\n\n\n"
        "class Full(Exception):\n    pass\n\n\n"
        "def limited(box, limit):\n    if box.count() > limit:\n        raise Full\n    return box\n\n\n"
        "def make(kind):\n    return kind()\n"
    ),
    "tests/test_boxes.py": (
        "import pytest\n\nfrom boxes import Box, Sorted, Wide, limited\n\n\n"
        "class TestBox:\n    @pytest.fixture(params=[1, 2, 3])\n    def box(self, request):\n        return Box()\n\n"
        + "".join(
            f"    def test_{number}(self, box):\n        box.put({number})\n        assert box.count() == 1\n\n" for number in range(4)
        )
        + "\nclass TestSorted(TestBox):\n    @pytest.fixture\n    def box(self):\n        return Sorted()\n\n"
        "    def test_order(self, box):\n        box.put(2)\n        box.put(1)\n        assert box.held == [1, 2]\n\n"
        "    def test_new(self, box):\n        assert box.held == []\n\n\n"
        "class TestLimited(TestBox):\n    @pytest.fixture\n    def box(self):\n        return limited(Box(), 3)\n\n\n"
        "def test_some():\n    assert True\n"
    ),
}


@pytest.fixture(scope="module")
def built(build_chosen):
    return build_chosen("boxes", FILES, lambda name: name.endswith(("Sorted.put", "limited")))


def test_the_class_goes_whose_inherited_tests_need_the_feature(built):
    _, store = built
    task = next(task for task in store.tasks() if task.mode == "stub" and task.symbols[0].qualname == "Sorted.put")
    inherited = [f"tests/test_boxes.py::TestSorted::test_{number}" for number in range(4)]
    assert task.fail_to_pass == (*inherited, "tests/test_boxes.py::TestSorted::test_order")
    assert task.evidence["lost"] == ["tests/test_boxes.py::TestSorted::test_new"]
    assert sum("::TestBox::" in id for id in task.pass_to_pass) == 12


def test_it_goes_too_where_the_inherited_tests_name_what_is_removed(built):
    _, store = built
    task = next(task for task in store.tasks() if task.mode == "remove" and task.symbols[0].qualname == "Sorted.put")
    assert task.fail_to_pass == ("tests/test_boxes.py::TestSorted::test_order",)
    assert sum("::TestBox::" in id for id in task.pass_to_pass) == 12


def test_a_class_that_loses_its_fixture_goes_as_the_inherited_one_would_make_other_tests(built):
    _, store = built
    task = next(task for task in store.tasks() if task.mode == "remove" and task.symbols[0].qualname == "limited")
    assert task.fail_to_pass == tuple(f"tests/test_boxes.py::TestLimited::test_{number}" for number in range(4))
    assert not any("TestLimited" in id for id in task.pass_to_pass)
    assert "class TestLimited" not in "\n".join(line[1:] for line in task.cut.splitlines() if line.startswith(" "))
