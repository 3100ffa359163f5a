"""Another algorithm behaves like the one that it was made from, and really is another."""

import ast

import pytest

from benchmarks.other_algorithm import other_algorithm
from benchmarks.rewrites import REWRITES, rewritten

LISTS = "def f(rows):\n    found = [a + b for a, b in rows if a if b for _ in range(2)]\n    return {x for x in found}\n"
LOOP = """\
def f(rows):
    total = 0
    for a, (b, *c) in rows:
        if a == 1:
            continue
        for each in c:
            if each > 5:
                break
            total += each
        total += b
    return a, total
"""
CHOICE = """\
def f(x, y):
    if x and not y:
        return 'a' if y == 0 else ('b' if y is None else 'c')
    elif x:
        z = 2 if y > 1 else 3
    else:
        z = y or x
    return z
"""
CHAIN = "def f(a, b, c):\n    return a and b and (c or [])\n"
EITHER = "def f(a, b, c):\n    return a or (b and c) or c\n"
TEXTS = 'def f(a, b):\n    """f."""\n    return f"{{{a!r}}}|{b:>6}|{a}" + f"{len(b):03d}" + f"{a}{len(b)}"\n'
ELSE = "def f(rows):\n    for row in rows:\n        if row:\n            break\n    else:\n        return 'none'\n    return row\n"
LAST = "def f(rows):\n    x = 9\n    y = [x for x in rows]\n    return x, y\n"
LETS_GO = """\
def f(log):
    def numbers():
        try:
            yield 1
            yield 2
        finally:
            log.append('closed')
    for n in numbers():
        break
    log.append('after')
    return log
"""
TRIED = """\
def f(rows):
    try:
        for row in rows:
            yield 1 / row
    except ZeroDivisionError:
        yield [r for r in rows]
    finally:
        yield 'end'
"""
SAMPLES = {
    "comprehensions": (LISTS, "ListComp SetComp", [([(1, 2), (0, 3), (2, 2)],), ([],), ([(1, 2, 3)],), (None,)]),
    "loops": (LOOP, "For", [([(0, (1, 2, 3)), (1, (9,)), (2, (3, 8, 1))],), ([],), ([(1, ())],), (3,)]),
    "choices": (CHOICE, "IfExp", [(1, 0), (1, None), (1, []), (1, 5), (1, 1), (0, 5), (0, 0), (1, "a")]),
    "chains": (CHAIN, "BoolOp", [(1, 2, 3), (0, 2, 3), (1, "", 3), (1, 2, ())]),
    "either": (EITHER, "", [(1, 2, 3), (0, 2, 3), (0, 0, 3), (0, 0, ())]),
    "texts": (TEXTS, "", [("a{}", "bc"), (1, "x"), (1, 2)]),
    "loops that let go": (LETS_GO, "", [([],)]),
    "generators": (TRIED, "For", [([1, 2],), ([1, 0, 2],), ([],)]),
}
LEFT = {"else of a loop": ELSE, "a name that is used elsewhere": LAST, "variables": "def f(a):\n    return [b for b in locals()]\n"}


def other(source: str) -> tuple[str, bool]:
    module = ast.parse(source)
    done = other_algorithm(module, [each for each in module.body if isinstance(each, ast.FunctionDef)], "")
    return ast.unparse(ast.fix_missing_locations(module)), done


def behaviour(source: str, arguments: tuple) -> object:
    names: dict = {}
    exec(source, names)
    try:
        found = names["f"](*[list(each) if isinstance(each, list) else each for each in arguments])
        return list(found) if hasattr(found, "__next__") else (type(found), found)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", SAMPLES)
def test_it_behaves_the_same(name):
    source, gone, examples = SAMPLES[name]
    new, done = other(source)
    assert done
    assert {type(each).__name__ for each in ast.walk(ast.parse(new))}.isdisjoint(gone.split())
    assert [behaviour(new, each) for each in examples] == [behaviour(source, each) for each in examples]


@pytest.mark.parametrize("name", LEFT)
def test_what_could_be_told_apart_stays(name):
    source = LEFT[name]
    new, _ = other(source)
    kept = {"else of a loop": "else:", "a name that is used elsewhere": "[x for x in rows]", "variables": "[b for b in locals()]"}[name]
    assert kept in new
    assert behaviour(new, ([0, 1],)) == behaviour(source, ([0, 1],))


def test_builtins_of_another_meaning_leave_a_module_alone():
    source = "def next(x):\n    return x\n\ndef f(rows):\n    for row in rows:\n        pass\n    return row"
    assert other(source) == (source, False)


def test_a_solution_in_which_there_is_nothing_to_do_otherwise_gives_no_diff(pocket_store):
    task = pocket_store.get("pocket-slugify")  # one call, of a function with one call
    assert rewritten(task, pocket_store, "other_algorithm") is None
    assert rewritten(task, pocket_store, "inner_function") is not None
    assert REWRITES["other_algorithm"] == (other_algorithm,)
