"""Calls of a made-up repository's tests, evaluated in the real sandbox on the original and on a tree with bugs."""

import pytest

from etude import tree
from etude.grade.environment import make_environment
from etude.sandbox.bubblewrap import Bubblewrap
from etude.synth.discover import discover
from etude.synth.names import Index
from etude.synth.observe import observe
from etude.synth.read import read_sources
from etude.synth.symptoms import symptoms
from etude.synth.workshop import Workshop, write_tree
from etude.types import Limits, Repo

CORE = """\
import itertools

count = itertools.count()


def double(x):
    return 2 * x


def pick(d, key):
    return d[key]


def check(x):
    if x < 0:
        raise ValueError(f"negative: {x}")
    return x


class Thing:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


def leave(x):
    return x


def ticket():
    return 0


def wait(x):
    return x
"""
BROKEN = (
    CORE.replace("2 * x", "2 + x")
    .replace("d[key]", "d[key + 1]")
    .replace("x < 0", "x > 0")
    .replace("self.x = x", "self.x = id(self)")
    .replace("def leave(x):\n", "def leave(x):\n    import os\n\n    print('[[1]]')\n    os.write(1, b'[]')\n    raise SystemExit\n")
    .replace("return 0", "return next(count)")
    .replace("def wait(x):\n", "def wait(x):\n    while x:\n        pass\n")
)
TESTS = """\
import pytest

from pkg.core import Thing, check, double, leave, pick, ticket, wait

DATA = {1: 'a'}


def test_double():
    assert double(2) == 4
    assert double(3) == 6


def test_more():
    assert 6 in [double(3)]
    assert double(0) == 0


def test_pick():
    assert pick(DATA, 1) == 'a'


def test_pick_again():
    assert pick({1: 'b'}, 1) == 'b'


def test_check():
    with pytest.raises(ValueError, match='negative'):
        check(-1)


def test_thing():
    assert Thing(1) == Thing(1)


def test_leave():
    assert leave(1) == 1


def test_ticket():
    assert ticket() == 0


def test_wait():
    assert wait(1) == 1


def test_wrong():
    assert double(5) == 11
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory, lay_down, environments):
    """(index, functions by name, what was observed)."""
    folder = tmp_path_factory.mktemp("observe")
    original = lay_down(folder / "repo", {"pkg/__init__.py": "", "pkg/core.py": CORE, "tests/test_core.py": TESTS})
    layout = discover(original, "pkg")
    sources, _ = read_sources(original, layout)
    environment = make_environment(layout.requirements, environments)
    files = tree.files(original)
    workshop = Workshop(
        repo=Repo(name="pkg", digest="0" * 64, import_roots=layout.import_roots, test_paths=layout.test_paths),
        layout=layout,
        index=Index(sources, layout.import_roots),
        original=original,
        files=files,
        environment=environments / environment.digest,
        backend=Bubblewrap(),
        limits=Limits(wall_s=60),
        scratch=folder,
    )
    write_tree(files, {"pkg/core.py": BROKEN.encode()}, folder / "broken")
    tests = {d.name: d for d in sources["tests/test_core.py"].definitions}
    return workshop.index, tests, observe(workshop, folder / "broken", list(tests.values()))


def sentences(seen, *names, messages=None):
    index, tests, observed = seen
    ids = {f"tests/test_core.py::{name}": tests[name] for name in names or tests}
    return [symptom.sentence for symptom in symptoms(index, ids, messages or {}, observed)]


def test_what_came_and_what_was_expected_is_told_of_calls_that_changed(seen):
    assert sentences(seen, "test_double") == ["`double(3)` gives `5`; `6` was expected."]  # double(2) does what it did
    assert sentences(seen, "test_more") == ["`6 in [double(3)]` does not hold.", "`double(0)` gives `2`; `0` was expected."]
    assert sentences(seen, "test_check") == ["`check(-1)` gives `-1`; `ValueError` with a message that matches `negative` was expected."]


def test_a_crash_is_told_once(seen):
    assert sentences(seen, "test_pick", "test_pick_again") == ["`pick(DATA, 1)` raises `KeyError: 2`; `'a'` was expected."]
    said = {"tests/test_core.py::test_double": "KeyError: 2"}
    assert sentences(seen, "test_pick", "test_double", messages=said)[-1] == "`pick(DATA, 1)` raises `KeyError: 2`; `'a'` was expected."


@pytest.mark.parametrize("name", ["test_leave", "test_ticket", "test_wait", "test_wrong"])
def test_what_ends_the_process_changes_takes_long_or_never_held_is_not_told(seen, name):
    _, tests, observed = seen
    assert tests[name].key not in observed


def test_a_value_that_says_nothing_is_not_shown(seen):
    (sentence,) = sentences(seen, "test_thing")
    assert "0x" not in sentence.replace("0x...", "")


def test_where_nothing_was_observed_the_line_of_the_test_is_used(seen):
    said = {"tests/test_core.py::test_leave": "AssertionError: assert 7 == 1"}
    assert sentences(seen, "test_leave", messages=said) == ["`leave(1)` gives `7`; `1` was expected."]
