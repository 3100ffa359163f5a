"""What counts as a pure deletion of a file, and what does not."""

import pytest

from etude.synth.agentic.purity import Impure, compare, refuse_partial, whole_file
from etude.synth.source import parse

MODULE = '''\
"""Shapes."""

import json
import math
from os import path, sep

__all__ = ["Circle", "area", "load"]
LIMIT = 10


@staticmethod
def area(radius):
    # the usual
    return math.pi * radius**2


class Circle:
    """Round."""

    unit: str

    def __init__(self, radius):
        self.radius = radius

    def area(self):
        if self.radius > LIMIT:
            raise ValueError("too large")
        elif self.radius < 0:
            return area(-self.radius)
        else:
            return 0

    def grow(self, by):
        self.radius += by
        self.check(by)
        return self

    def check(self, by):
        for _ in [area(by), by]:
            pass


def load(name):
    try:
        return json.loads(name)
    except ValueError:
        return area(2)
    except TypeError:
        return None


SHAPES = {"circle": Circle, "load": load, **{}}
'''


def loss_of(after, before=MODULE):
    return compare(parse("shapes.py", before.encode()), parse("shapes.py", after.encode()))


def gone(loss):
    return [definition.qualname for definition in loss.definitions]


def without(*texts, before=MODULE):
    for text in texts:
        assert before.count(text) == 1, text
        before = before.replace(text, "")
    return before


def never(path, name):
    return False


AREA = "@staticmethod\ndef area(radius):\n    # the usual\n    return math.pi * radius**2\n\n\n"
CHECK = "    def check(self, by):\n        for _ in [area(by), by]:\n            pass\n"
LOAD = MODULE[MODULE.index("def load(name)") : MODULE.index("SHAPES")]


def test_a_definition_with_its_export_import_and_uses_may_go():
    after = without(AREA, "import math\n", "        elif self.radius < 0:\n            return area(-self.radius)\n", "area(by), ")
    after = after.replace('"Circle", "area", ', '"Circle", ')
    after = after.replace("    except ValueError:\n        return area(2)\n", "")
    loss = loss_of(after)
    assert gone(loss) == ["area"]
    assert [d.qualname for d in refuse_partial([loss], never)] == ["Circle.area", "Circle.check", "load"]
    assert loss.added_lines == 2  # __all__ and the loop's list


def test_methods_entries_and_constants_may_go():
    loss = loss_of(without(CHECK, "        self.check(by)\n", LOAD, '"load": load, ', ', "load"', "import json\n"))
    assert gone(loss) == ["Circle.check", "load"]
    assert [d.qualname for d in refuse_partial([loss], never)] == ["Circle.grow"]


def test_a_class_that_loses_all_its_statements_keeps_pass():
    before = "class A:\n    def f(self):\n        return 1\n\n\nif True:\n    def g():\n        return 2\n"
    loss = loss_of("class A:\n    pass\n\n\nif True:\n    pass\n", before)
    assert gone(loss) == ["A.f", "g"]
    assert refuse_partial([loss], never) == []
    assert loss.added_lines == 2


def test_a_whole_file_may_go():
    loss = whole_file(parse("shapes.py", MODULE.encode()))
    assert gone(loss) == ["area", "Circle", "load"]
    assert refuse_partial([loss], never) == []


def test_what_a_file_that_is_gone_was_called_counts_as_gone():
    user = compare(parse("user.py", b"from .shapes import *\nx = 1\n"), parse("user.py", b"x = 1\n"))
    with pytest.raises(Impure, match="nothing to do with"):
        refuse_partial([user], never)
    assert refuse_partial([user, whole_file(parse("shapes.py", MODULE.encode()))], never) == []


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return math.pi * radius**2", "return math.pi * radius", "`return math.pi \\* radius` is not in the original"),
        ("self.radius > LIMIT", "self.radius >= LIMIT", "`if self.radius >= LIMIT:` is not in the original"),
        ("    return math.pi * radius**2\n", "    raise NotImplementedError\n", "`raise NotImplementedError` is not"),
        ("    return math.pi * radius**2\n", "    pass\n", "`pass` is not|the order or the indentation"),
        ("LIMIT = 10\n", "LIMIT = 10\nEXTRA = 1\n", "`EXTRA = 1` is not in the original"),
        ("    # the usual\n", "    # another\n", "the line `# another` is new"),
        ('"""Round."""', '"""Square."""', "is not in the original"),
        ("        self.radius += by\n        self.check(by)\n", "        self.check(by)\n        self.radius += by\n", "the order or"),
        ("class Circle:", "class Circle(dict):", "`class Circle\\(dict\\):` is not"),
        ("import json\nimport math\n", "import json as math\n", "`import json as math` is not"),
        ("(self, by):\n        self.radius", "(self):\n        self.radius", "is not in the original"),
    ],
)  # fmt: skip
def test_anything_new_or_changed_is_refused(old, new, why):
    assert MODULE.count(old) == 1
    with pytest.raises(Impure, match=why):
        loss_of(MODULE.replace(old, new))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("        self.radius += by\n", "shapes.py:34: `self.radius \\+= by` in Circle.grow, which stays, is gone"),
        ("        if self.radius > LIMIT:\n            raise ValueError(\"too large\")\n        elif", None),
        ("LIMIT = 10\n", "`LIMIT = 10` outside of functions is gone"),
        ("import math\n", "`import math` outside of functions is gone"),
        ('"Circle", ', "`'Circle'` outside of functions"),
        ('"circle": Circle, ', "'circle': Circle"),
        ("@staticmethod\n", "`staticmethod` in area"),
        ("    except TypeError:\n        return None\n", "except TypeError"),
    ],
)  # fmt: skip
def test_sabotage_beside_a_deletion_is_refused(text, why):
    after = without(CHECK, text)
    if why is None:
        with pytest.raises((Impure, ValueError)):
            loss_of(after.replace(" self.radius < 0", "if self.radius < 0", 1))
        return
    loss = loss_of(after)
    with pytest.raises(Impure, match=why):
        refuse_partial([loss], never)


def test_an_import_that_another_file_takes_from_here_stays():
    after = without(CHECK, "from os import path, sep\n")
    assert refuse_partial([loss_of(after)], never) == []
    with pytest.raises(Impure, match="from os import path, sep"):
        refuse_partial([loss_of(after)], lambda path, name: name == "sep")


def test_odd_bytes_survive_the_comparison():
    before = "# -*- coding: latin-1 -*-\r\nA = 'é'\r\n\x0c\r\ndef f():\r\n    return 'ü'\r\n\r\n\r\ndef g():\r\n    return 1\r\n".encode(
        "latin-1"
    )
    after = before.replace(b"\r\ndef f():\r\n    return '\xfc'\r\n\r\n", b"")
    loss = compare(parse("a.py", before), parse("a.py", after))
    assert gone(loss) == ["f"]
    assert loss.added_lines == 0


def test_many_alike_branches_are_compared_in_bounded_time():
    chain = "def f(x):\n    if x:\n        return a()\n" + "".join("    elif x:\n        return a()\n" for _ in range(120))
    loss = loss_of(chain.replace("    elif x:\n        return a()\n", "", 1), chain)
    assert gone(loss) == []
    with pytest.raises(Impure):
        loss_of(chain.replace("return a()", "return b()", 1).replace("    elif x:\n        return a()\n", "", 1), chain)
