"""Byte-range edits on awkward files. Every expectation is the exact new text."""

import ast
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.synth import edit
from etude.synth.edit import Edits
from etude.synth.source import FunctionNode, Unreadable, parse


def edited(text, delete=(), elements=(), stub=()):
    """`text` without the statements that bind these names, without these list elements, with these functions stubbed."""
    data = text if isinstance(text, bytes) else text.encode()
    source = parse("file.py", data)
    edits = Edits()
    for node in ast.walk(source.tree):
        names = {getattr(node, "name", None), *(getattr(target, "id", None) for target in getattr(node, "targets", []))}
        if isinstance(node, ast.stmt) and names & set(delete):
            edits.statements.add(node)
        if isinstance(node, FunctionNode) and node.name in stub:
            edits.stubs.add(node)
        if isinstance(node, ast.alias) and (node.asname or node.name) in elements:
            edits.elements.add(node)
        if isinstance(node, ast.Constant) and node.value in elements:
            edits.elements.add(node)
        if isinstance(node, ast.Name) and node.id in elements:
            edits.elements.add(node)
    out = edit.apply(source, edits)
    parse("file.py", out)
    return out if isinstance(text, bytes) else out.decode()


CASES = {
    "a function between others leaves one gap": (
        "import a\n\n\n@deco(\n    1\n)\ndef gone():\n    return 1\n\n\ndef kept():\n    pass\n",
        "import a\n\n\ndef kept():\n    pass\n",
    ),
    "the comments right above and at the end of the body belong to it": (
        "a = 1\n\n# about gone\n# more\ndef gone():\n    return 1\n    # end\n\n# about kept\ndef kept(): pass\n",
        "a = 1\n\n# about kept\ndef kept(): pass\n",
    ),
    "a comment with a blank line below stays": ("# section\n\ndef gone(): pass\n\nb = 1\n", "# section\n\nb = 1\n"),
    "the head of a file is not about its first definition": (
        "#!/usr/bin/python\n# licence\ndef gone(): pass\nb = 1\n",
        "#!/usr/bin/python\n# licence\nb = 1\n",
    ),
    "the first method": ("class A:\n    def gone(self): pass\n\n    def kept(self): pass\n", "class A:\n    def kept(self): pass\n"),
    "the last method": (
        "class A:\n    def kept(self): pass\n\n    def gone(self): pass\n\n\nb = 1\n",
        "class A:\n    def kept(self): pass\n\n\nb = 1\n",
    ),
    "a method below a docstring": (
        'class A:\n    """Doc."""\n\n    def gone(self): pass\n\n    x = 1\n',
        'class A:\n    """Doc."""\n\n    x = 1\n',
    ),
    "a class body left empty": ("class A:\n    def gone(self):\n        pass\n\n\nb = 1\n", "class A:\n    pass\n\n\nb = 1\n"),
    "a class body left with its docstring": ('class A:\n    "Doc."\n\n    def gone(self): pass\n', 'class A:\n    "Doc."\n'),
    "a class body on one line": ("class A: gone = 1\nb = 1\n", "class A: pass\nb = 1\n"),
    "an if left empty": ("if a:\n    def gone(): pass\nelse:\n    b = 1\n", "if a:\n    pass\nelse:\n    b = 1\n"),
    "an else on one line": ("if a: b = 1\nelse: gone = 1\n", "if a: b = 1\nelse: pass\n"),
    "the first of a line": ("gone = 1; a = 2; b = 3\n", "a = 2; b = 3\n"),
    "the middle of a line": ("a = 1; gone = 2; b = 3\n", "a = 1; b = 3\n"),
    "the last of a line": ("a = 1; gone = 2;\n", "a = 1;\n"),
    "a line continued behind a semicolon": ("a = 1; \\\n  gone = 2\nb = 3\n", "a = 1\nb = 3\n"),
    "a whole shared line": ("a = 1\ngone = 2; gone = 3\nb = 3\n", "a = 1\nb = 3\n"),
    "the last line without its end": ("a = 1\n\n\ndef gone():\n    return 2", "a = 1\n"),
    "everything": ("def gone():\n    pass\n", ""),
    "a nested function stays with its outer one": ("def kept():\n    x = 1\n    return x\n", "def kept():\n    x = 1\n    return x\n"),
    "a statement in the middle keeps the larger gap": ("a = 1\n\ngone = 2\n\n\n\nb = 3\n", "a = 1\n\n\n\nb = 3\n"),
    "a statement without blank lines leaves none": ("a = 1\ngone = 2\nb = 3\n", "a = 1\nb = 3\n"),
    "a comment in a block of assignments stays": ("# both\ngone = 1\nb = 2\n\nc = 3\n", "# both\nb = 2\n\nc = 3\n"),
    "an async function": ("async def gone():\n    await x\n\n\nb = 1\n", "b = 1\n"),
    "a string that looks like code": ('def gone():\n    return """\ndef kept(): pass\n"""\n\nb = 1\n', "b = 1\n"),
    "tabs": ("class A:\n\tdef gone(self):\n\t\tpass\n\tdef kept(self):\n\t\tpass\n", "class A:\n\tdef kept(self):\n\t\tpass\n"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_deleted_statement_leaves_no_trace(name):
    before, after = CASES[name]
    assert edited(before, delete=["gone"]) == after


ELEMENTS = {
    "one of a line": ("from x import a, gone, b\n", "from x import a, b\n"),
    "the first": ("from x import gone, b\n", "from x import b\n"),
    "the last": ("from x import a, gone\n", "from x import a\n"),
    "one a line": ("from x import (\n    a,\n    gone,\n    b,\n)\n", "from x import (\n    a,\n    b,\n)\n"),
    "the last one a line": ("from x import (\n    a,\n    gone,\n)\n", "from x import (\n    a,\n)\n"),
    "the last of a full line": ("from x import (a, gone,\n               b)\n", "from x import (a,\n               b)\n"),
    "with a new name": ("from x import a, y as gone, b\n", "from x import a, b\n"),
    "a list": ("__all__ = ['a', 'gone', 'b']\n", "__all__ = ['a', 'b']\n"),
    "a list's only one": ("__all__ = ['gone']\n", "__all__ = []\n"),
    "a tuple of two": ("__all__ = ('a', 'gone')\n", "__all__ = ('a',)\n"),
    "a tuple of two over lines": ("__all__ = (\n    'gone',\n    'b',\n)\n", "__all__ = ('b',)\n"),
    "a tuple without parentheses": ("__all__ = 'a', 'gone'\n", "__all__ = ('a',)\n"),
    "a tuple's only one": ("__all__ = ('gone',)\n", "__all__ = ()\n"),
    "an augmented list": ("__all__ += ['a', 'gone']\n", "__all__ += ['a']\n"),
    "a set": ("x = {'gone', 'b'}\n", "x = {'b'}\n"),
    "a dict": ("x = {'k': gone, 'l': a, 'm': gone}\n", "x = {'l': a}\n"),
    "a dict over lines": ("x = {\n    'k': a,\n    'l': gone,\n}\n", "x = {\n    'k': a,\n}\n"),
    "a dict's only one": ("x = {'k': gone}\n", "x = {}\n"),
    "two in a row": ("x = [a, gone, gone, b]\n", "x = [a, b]\n"),
    "del": ("del a, gone\n", "del a\n"),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_element_goes_with_its_comma(name):
    before, after = ELEMENTS[name]
    assert edited(before, elements=["gone"]) == after


STUBS = {
    "signature and docstring stay": (
        'def gone(\n    x: int = 1,\n) -> int:\n    """Doc."""\n\n    # how\n    y = x\n\n    return y\n    # end\n\n\nb = 1\n',
        'def gone(\n    x: int = 1,\n) -> int:\n    """Doc."""\n    raise NotImplementedError\n\n\nb = 1\n',
    ),
    "no docstring": ("def gone():\n    # how\n\n    return 1\n", "def gone():\n    raise NotImplementedError\n"),
    "on one line": ("def gone(): return 1\n", "def gone(): raise NotImplementedError\n"),
    "docstring and body on one line": ('def gone(): "Doc."; return 1\n', 'def gone(): "Doc."; raise NotImplementedError\n'),
    "docstring only": ('def gone():\n    "Doc."\n', 'def gone():\n    "Doc."\n    raise NotImplementedError\n'),
    "nested functions go": (
        "@deco\n\ndef gone():\n    @wraps\n    def inner(): pass\n    return inner\n",
        "@deco\n\ndef gone():\n    raise NotImplementedError\n",
    ),
    "no line end": ("def gone():\n    x = 1\n    return x", "def gone():\n    raise NotImplementedError"),
    "a method before another": (
        "class A:\n    def gone(self):\n        return '''\nx\n'''\n\n    def kept(self): pass\n",
        "class A:\n    def gone(self):\n        raise NotImplementedError\n\n    def kept(self): pass\n",
    ),
    "async": ("async def gone():\n    return await x\n", "async def gone():\n    raise NotImplementedError\n"),
}


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_keeps_signature_and_docstring(name):
    before, after = STUBS[name]
    assert edited(before, stub=["gone"]) == after


def test_a_byte_order_mark_survives_the_removal_of_the_first_line():
    assert edited(b"\xef\xbb\xbfdef gone(): pass\r\nb = 1\r\n", delete=["gone"]) == b"\xef\xbb\xbfb = 1\r\n"


def test_crlf_and_lone_cr_stay_as_they_are():
    text = b"class A:\r\n    def gone(self):\r\n        return 1\r\n\r\n\r\nb = 1\r\n"
    assert edited(text, delete=["gone"]) == b"class A:\r\n    pass\r\n\r\n\r\nb = 1\r\n"
    assert edited(text, stub=["gone"]) == text.replace(b"return 1", b"raise NotImplementedError")
    assert edited(b"a = 1\rdef gone():\r    return 1\rb = 2\r", delete=["gone"]) == b"a = 1\rb = 2\r"


def test_a_latin_1_file_is_cut_at_characters_not_at_utf_8_columns():
    text = '# -*- coding: latin-1 -*-\nx = "éé"; gone = "ü"; y = "ö"\n__all__ = ["é", "gone", "ö"]\n'.encode("latin-1")
    expected = '# -*- coding: latin-1 -*-\nx = "éé"; y = "ö"\n__all__ = ["é", "ö"]\n'.encode("latin-1")
    assert edited(text, delete=["gone"], elements=["gone"]) == expected


def test_utf_8_columns_are_bytes():
    assert edited('x = "日本"; gone = 1; y = "語"\n', delete=["gone"]) == 'x = "日本"; y = "語"\n'


def test_a_form_feed_is_no_line_end_and_stays():
    text = "def kept(): pass\n\x0c\ndef gone(): pass\n\x0c\nb = 1\n"
    assert edited(text, delete=["gone"]) == "def kept(): pass\n\x0c\n\x0c\nb = 1\n"


def test_a_mixed_file_keeps_each_line_end():
    assert edited(b"a = 1\r\ndef gone(): pass\nb = 2\r\n", delete=["gone"]) == b"a = 1\r\nb = 2\r\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x = (\n", "syntax error at line 1"),
        (b"x = '\xe9'\n", "not utf-8 at byte 5"),
        (b"# coding: martian\n", "unknown encoding"),
        (b"x = 1\0\n", "null bytes"),
    ],
)
def test_a_file_that_cannot_be_worked_on_says_why_in_one_line(data, why):
    with pytest.raises(Unreadable) as error:
        parse("file.py", data)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


BLOCKS = [
    "def {}(a, b=2):\n    return a\n",
    "@deco\ndef {}(self):\n    'Doc.'\n    return 1\n    # end\n",
    "class {}:\n    x = 1\n\n    def m(self):\n        return 1\n",
    "{} = [\n    1,\n]\n",
    "# about it\n{} = 1\n",
    "async def {}(): pass\n",
]


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(st.tuples(st.sampled_from(BLOCKS), st.integers(0, 3), st.booleans()), min_size=1, max_size=7),
    line_end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_stays_is_what_an_untouched_file_would_have(blocks, line_end):
    """Deleting statements leaves exactly the syntax tree of the others, every byte of them, and no larger gap than there was."""
    parts = [("\n" * gap + text.format(f"name{i}"), gone, f"name{i}") for i, (text, gap, gone) in enumerate(blocks)]
    whole = "".join(part for part, _, _ in parts).replace("\n", line_end).encode()
    rest = "".join(part for part, gone, _ in parts if not gone)
    out = edited(whole, delete=[name for _, gone, name in parts if gone])
    assert ast.dump(ast.parse(out)) == ast.dump(ast.parse(rest))
    assert b"\r" not in out.replace(b"\r\n", b"")
    assert largest_gap(out) <= largest_gap(whole)


def largest_gap(data):
    return max(len(run) for run in re.findall(r"\n*", data.decode().replace("\r\n", "\n")))
