"""Moving a function to another module: its text, what it needs, and who imports it."""

import pytest

from etude.synth.cut import CutError
from etude.synth.move import Move, destinations, is_movable, move

FILES = {
    "pkg/__init__.py": "from .core import *\nfrom .extra import more\n",
    "pkg/core.py": (
        "'''Core.'''\nimport math\nfrom .tools import helper, other\n\n__all__ = ['area', 'twice', 'plain']\n\n\n"
        "def area(r):\n    # round\n    return helper(math.pi * r)\n\n\n"
        "def twice(r):\n    return area(r) * 2\n\n\n"
        "def plain(x):\n    return LIMIT + x\n\n\nLIMIT = 3\n\n\ndef wrap(f):\n    return f\n\n\nwrapped = wrap(wrap)\n"
    ),
    "pkg/tools.py": "def helper(x):\n    return x\n\n\ndef other(x):\n    return x\n",
    "pkg/extra.py": "import math\n\n\ndef more(x):\n    return math.sqrt(x)\n",
    "pkg/user.py": "from .core import area as a, twice\n\n\ndef use(x):\n    return a(x) + twice(x)\n",
    "tests/test_core.py": (
        "from pkg import area, more, twice\nfrom pkg.core import plain, wrap\n\n\ndef test_area():\n    assert area(1) > 3\n"
    ),
}
AREA = "def area(r):\n    # round\n    return helper(math.pi * r)\n"


@pytest.fixture
def repo(repository):
    return repository(FILES)


def moved(repo, *moves):
    changes = move(repo.index, repo.sources, repo.tests, moves, (".",))
    return {path: data.decode() for path, data in changes.items()}


def test_the_function_and_its_imports_go_to_a_module_that_exists(repo):
    files = moved(repo, Move(name="area", old="pkg/core.py", new="pkg/extra.py"))
    assert files["pkg/extra.py"] == "import math\nfrom .tools import helper\n\n\ndef more(x):\n    return math.sqrt(x)\n\n\n" + AREA
    assert "def area" not in files["pkg/core.py"]
    assert "__all__ = ['twice', 'plain']" in files["pkg/core.py"]


def test_or_to_a_new_one(repo):
    files = moved(repo, Move(name="area", old="pkg/core.py", new="pkg/core_area.py"))
    assert files["pkg/core_area.py"] == "import math\nfrom .tools import helper\n\n\n" + AREA


def test_everybody_imports_it_from_there(repo):
    files = moved(repo, Move(name="area", old="pkg/core.py", new="pkg/extra.py"))
    assert files["pkg/__init__.py"] == "from .core import *\nfrom .extra import area\nfrom .extra import more\n"
    assert files["pkg/user.py"].startswith("from .core import twice\nfrom .extra import area as a\n")
    assert files["tests/test_core.py"].startswith("from pkg import more, twice\nfrom pkg.extra import area\nfrom pkg.core import plain")
    assert "from .tools import helper, other\nfrom .extra import area\n" in files["pkg/core.py"]  # twice uses it


def test_several_go_one_after_the_other(repo):
    moves = [Move(name="area", old="pkg/core.py", new="pkg/extra.py"), Move(name="more", old="pkg/extra.py", new="pkg/tools.py")]
    files = moved(repo, *moves)
    assert "def more" in files["pkg/tools.py"]
    assert "def more" not in files["pkg/extra.py"]
    assert "from pkg.tools import more" in files["tests/test_core.py"]
    with pytest.raises(CutError, match="more cannot be moved from"):
        moved(repo, *moves, moves[1])


@pytest.mark.parametrize(
    ("name", "movable"),
    [
        ("area", True),
        ("more", True),
        ("plain", False),  # needs a constant of its module
        ("wrap", False),  # runs while its module is imported
        ("twice", False),  # needs a function of its module
        ("helper", False),  # no test imports it
    ],
)
def test_what_hangs_on_its_module_stays(repo, name, movable):
    assert is_movable(repo.index, repo.sources, repo.tests, repo.definition(name)) is movable


def test_what_is_reached_through_its_module_stays(repository):
    repo = repository({**FILES, "tests/test_b.py": "import pkg.core\n\n\ndef test_b():\n    assert pkg.core.area(1)\n"})
    assert not is_movable(repo.index, repo.sources, repo.tests, repo.definition("area"))


def test_no_destination_makes_a_cycle(repo):
    """pkg/user.py imports the old module, and pkg/tools.py is imported by it."""
    assert destinations(repo.index, repo.sources, repo.definition("area")) == ["pkg/extra.py", "pkg/core_area.py"]
