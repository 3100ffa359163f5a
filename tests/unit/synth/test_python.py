"""Python behind the protocol: the same cuts as Python's own factory, as byte edits."""

from etude.languages.edits import apply
from etude.languages.protocol import Language
from etude.synth.python import Python

FILES = {
    "pkg/__init__.py": "from pkg.core import add, twice\n\n__all__ = ['add', 'twice']\n",
    "pkg/core.py": "import math\n\n\ndef add(a, b):\n    return a + b\n\n\n"
    "def twice(a):\n    '''Two times.'''\n    return math.floor(2 * a)\n",
}
TEST = "from pkg import add, twice\n\n\ndef test_add():\n    assert add(1, 2) == 3\n\n\ndef test_twice():\n    assert twice(2) == 4\n"


def test_python_meets_the_protocol_with_the_cuts_of_its_own_factory():
    language: Language = Python()
    codes = {path: language.read(path, text.encode(), is_test=False) for path, text in FILES.items()}
    test = language.read("tests/test_core.py", TEST.encode(), is_test=True)
    (twice,) = [d for d in codes["pkg/core.py"].definitions if d.name == "twice"]
    assert codes["pkg/core.py"].data[twice.start : twice.end].startswith(b"def twice")
    assert language.signature(codes["pkg/core.py"], twice) == "def twice(a):"

    removal = language.remove(codes, list(FILES), [twice])
    after = {path: apply(codes[path].data, edits or ()).decode() for path, edits in removal.edits.items()}
    assert after == {
        "pkg/__init__.py": "from pkg.core import add\n\n__all__ = ['add']\n",
        "pkg/core.py": "def add(a, b):\n    return a + b\n",
    }
    (block,) = [block for block in test.tests if block.line == 8]
    reduced = language.remove_tests({**codes, test.path: test}, [block], [twice])
    edits = reduced[test.path]
    assert edits is not None
    assert apply(test.data, edits).decode() == "from pkg import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"


def test_a_python_stub_keeps_the_docstring():
    language = Python()
    code = language.read("pkg/core.py", FILES["pkg/core.py"].encode(), is_test=False)
    (twice,) = [d for d in code.definitions if d.name == "twice"]
    assert apply(code.data, language.stub(code, twice)).decode().endswith("    '''Two times.'''\n    raise NotImplementedError\n")
