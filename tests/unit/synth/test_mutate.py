"""Mutants of functions: what the rules make, and that every one of them is a program."""

import ast

import pytest

from etude.synth.mutate import apply, is_valid, mutants
from etude.synth.source import parse


def made(text, rule=None, **options):
    """The texts that mutants of the first definition of `text` give, by one rule or by all."""
    source = parse("pkg.py", text if isinstance(text, bytes) else text.encode())
    found = mutants(source, source.definitions[0], **options)
    return {apply(source, [m]).decode(source.encoding) for m in found if rule in (None, m.rule)}


@pytest.mark.parametrize(
    ("rule", "body", "expected"),
    [
        ("negated condition", "if a:\n        b = 1", {"if not a:\n        b = 1"}),
        ("negated condition", "return [x for x in a if x + 1]", {"return [x for x in a if not (x + 1)]"}),
        ("removed not", "return not a", {"return a"}),
        ("swapped comparison", "return a is  not b", {"return a is b"}),
        ("swapped comparison", "return a in b", {"return a not in b"}),
        ("swapped comparison", "return (a) < (b)", {"return (a) > (b)"}),
        ("moved boundary", "return a < b <= c", {"return a <= b <= c", "return a < b < c"}),
        ("swapped and/or", "return a and b", {"return a or b"}),
        ("dropped operand", "return a and (b or 1)", {"return a", "return (b or 1)", "return a and (b)", "return a and (1)"}),
        ("swapped operator", "return a + b", {"return a - b"}),
        ("swapped operator", "return 'x%s' % a", set()),
        ("off by one", "return a[0:2]", {"return a[1:2]", "return a[0:1]", "return a[0:3]"}),
        ("flipped constant", "return f(True)", {"return f(False)"}),
        ("removed minus", "return -a", {"return a"}),
        ("dropped bound", "return a[1:b]", {"return a[:b]", "return a[1:]"}),
        ("swapped arguments", "return f(a,  b, *c)", {"return f(b,  a, *c)"}),
        ("dropped keyword", "return f(a, key=1, **c)", {"return f(a, **c)"}),
        ("dropped keyword", "return f(key=1)", {"return f()"}),
        ("swapped function", "return max(a.lstrip())", {"return min(a.lstrip())", "return max(a.rstrip())"}),
        ("dropped conversion", "return list(a)", {"return a"}),
        ("returns None", "return a", {"return None"}),
        ("dropped call", "a.sort()\n    return a", {"return a"}),
        ("dropped assignment", "a = a or 1\n    return a", {"return a"}),
        ("dropped assignment", "x = a\n    return x", set()),  # x would be undefined
        ("removed guard", "if a:\n        raise ValueError\n    return a", {"return a"}),
        (
            "removed branch",
            "if a:\n        b = 1\n    elif c:\n        b = 2\n    else:\n        b = 3",
            {"if a:\n        b = 1\n    else:\n        b = 3", "if a:\n        b = 1\n    elif c:\n        b = 2"},
        ),
        ("removed break", "for x in a:\n        b = 1\n        break", {"for x in a:\n        b = 1"}),
        ("removed continue", "for x in a:\n        continue", {"for x in a:\n        pass"}),
        ("wrong exception type", "raise ValueError(a)", {"raise TypeError(a)"}),
        ("wrong exception type", "raise OurError(a)", {"raise RuntimeError(a)"}),
        (
            "wrong exception type",
            "try:\n        b = 1\n    except (KeyError, x):\n        b = 2",
            {"try:\n        b = 1\n    except (IndexError, x):\n        b = 2"},
        ),
        ("dropped raise", "raise a", {"pass"}),
    ],
)
def test_each_rule_makes_its_mistake(rule, body, expected):
    head = "def f(a, b, c):\n    "
    assert made(f"{head}{body}\n", rule) == {f"{head}{text}\n" for text in expected}


def test_a_default_is_wrong_in_its_signature_only():
    text = "def f(a, b=1, *, c='x', d=None):\n    return a\n"
    assert made(text, "wrong default") == {text.replace("b=1", "b=2"), text.replace("'x'", "''")}


def test_an_await_is_removed():
    assert made("async def f(a):\n    return await a\n", "removed await") == {"async def f(a):\n    return a\n"}


def test_a_while_loop_keeps_what_ends_it():
    rules = {"off by one", "removed break", "dropped assignment", "swapped operator", "dropped call"}
    source = parse(
        "pkg.py", b"def f(a):\n    while a:\n        a -= 1\n        g(a)\n        if a == 3:\n            break\n    return a\n"
    )
    assert not rules & {mutation.rule for mutation in mutants(source, source.definitions[0])}


def test_annotations_decorators_docstrings_and_fstrings_are_left_alone():
    text = "@deco(1, 2)\ndef f(a: 'x' or 1 = None) -> 1 < 2:\n    'doc'\n    b: 1 < 2\n    return f'{a + 1}'\n"
    assert made(text) == {text.replace("return f'{a + 1}'", "return None")}


BUSY = """\
class A:
\tdef f(self, a, b=2):
\t\t'''Docstring
with two lines.'''
\t\tif not a or (b > 1 and a in b): raise KeyError(a)
\t\tx = [i - 1 for i in sorted(a) if i]; y = x[1:]
\t\tfor i in y:
\t\t\tif i == 3: continue
\t\t\tx[i] = max(i, -b)
\t\telse:
\t\t\tprint('ü', sep='')
\t\ttry:
\t\t\treturn x.index(b, 0)
\t\texcept ValueError:
\t\t\treturn None
"""


@pytest.mark.parametrize("data", [BUSY.encode(), BUSY.replace("\n", "\r\n").encode(), b"# coding: latin-1\n" + BUSY.encode("latin-1")])
def test_every_mutant_is_another_program(data):
    source = parse("pkg.py", data)
    found = mutants(source, source.definitions[0])
    results = [apply(source, [mutation]) for mutation in found]
    assert len(set(results)) == len(results) > 40
    original = ast.dump(source.tree)
    for mutation, result in zip(found, results, strict=True):
        assert is_valid(source, result), mutation.words
        assert ast.dump(parse("pkg.py", result).tree) != original, mutation.words
        assert "\n" not in mutation.words


def test_the_order_depends_on_the_seed_alone_and_rules_take_turns():
    source = parse("pkg.py", BUSY.encode())
    orders = [[mutation.words for mutation in mutants(source, source.definitions[0], seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    few = mutants(source, source.definitions[0], seed=1, limit=6)
    assert len({mutation.rule for mutation in few}) == 6


def test_several_mutations_go_into_one_file_unless_they_touch():
    source = parse("pkg.py", b"def f(a, b):\n    return a + b < 1\n")
    by_rule = {mutation.rule: mutation for mutation in mutants(source, source.definitions[0])}
    both = apply(source, [by_rule["moved boundary"], by_rule["swapped operator"]])
    assert both == b"def f(a, b):\n    return a - b <= 1\n"
    with pytest.raises(ValueError, match=r"touch each other at pkg\.py:2"):
        apply(source, [by_rule["moved boundary"], by_rule["returns None"]])


def test_the_words_say_what_became_of_the_code():
    source = parse("pkg.py", b"class A:\n    def f(self, a):\n        if a:\n            return 1\n        return a\n")
    words = {mutation.rule: mutation.words for mutation in mutants(source, source.definitions[1])}
    assert words["negated condition"] == "pkg.py:3 A.f: negated condition: `a` became `not a`"
    assert words["removed guard"] == "pkg.py:3 A.f: removed guard: `if a: return 1` is gone"
