"""Tests that need a feature where a profiler does not look by itself; a made-up repository."""

import pytest

FILES = {
    "tool/__init__.py": "from tool.parts import double, half\n",
    "tool/parts.py": "def double(n):\n    return 2 * n\n\n\ndef half(n):\n    return n // 2\n\n\ndef third(n):\n    return n // 3\n",
    "tool/__main__.py": "import sys\n\nfrom tool.parts import third\n\nprint(third(int(sys.argv[1])))\n",
    "tests/test_tool.py": (
        "import cProfile\nimport subprocess\nimport sys\n\nfrom tool import double, half\nfrom tool.parts import third\n\n\n"
        "def measured(function, n):\n    before = sys.getprofile()\n    sys.setprofile(None)\n    try:\n        return function(n)\n"
        "    finally:\n        sys.setprofile(before)\n\n\n"
        "def test_measured():\n    assert measured(double, 4) == 8\n\n\n"
        "def test_double():\n    assert double(2) == 4\n\n\n"
        "def test_profiled():\n    cProfile.Profile().runcall(len, [])\n\n\n"
        "def test_half():\n    assert half(8) == 4\n\n\n"
        "def test_half_again():\n    assert half(6) == 3\n\n\n"
        "def test_main():\n    assert subprocess.check_output([sys.executable, '-m', 'tool', '9']).split() == [b'3']\n\n\n"
        "def test_third():\n    assert third(12) == 4\n"
    ),
    "tool/wide.py": "def fill():\n    return [1, 2]\n\n\ndef spare():\n    return 3\n",
    "tests/test_wide.py": (
        "import pytest\n\nfrom tool.wide import fill, spare\n\n\n"
        "@pytest.fixture(scope='session', autouse=True)\ndef filled():\n    return fill()\n\n\n"
        "@pytest.fixture\ndef first(filled):\n    return filled[0]\n\n\n"
        "def test_first(first):\n    assert first == 1\n\n\ndef test_second():\n    assert spare() == 3\n\n\n"
        "def test_third():\n    pass\n\n\ndef test_fourth():\n    pass\n\n\ndef test_fifth():\n    pass\n"
    ),
    "tests/test_more.py": "".join(f"def test_{number}():\n    pass\n\n\n" for number in range(9)),
}


@pytest.fixture(scope="module")
def built(build_chosen):
    return build_chosen("tool", FILES, lambda name: name.startswith("stub function"))


@pytest.mark.parametrize(
    ("function", "tests"),
    [
        ("double", ("test_double", "test_measured")),  # the profiler was taken away meanwhile
        ("half", ("test_half", "test_half_again")),  # after a test that leaves none behind
        ("third", ("test_main", "test_third")),  # in another process
    ],
)
def test_what_a_test_needs_is_seen(built, function, tests):
    report, store = built
    assert not report.rejected
    task = next(task for task in store.tasks() if task.mode == "stub" and task.symbols[0].qualname == function)
    assert task.fail_to_pass == tuple(f"tests/test_tool.py::{name}" for name in tests)


def test_a_fixture_for_many_tests_is_reached_by_all_of_them(built):
    _, store = built
    task = next(task for task in store.tasks() if task.symbols[0].qualname == "fill")
    names = ("fifth", "first", "fourth", "second", "third")
    assert task.fail_to_pass == tuple(f"tests/test_wide.py::test_{name}" for name in names)
