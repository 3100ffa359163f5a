"""Calls that no test makes: does a submission do what gold does, or does it know the tests' own inputs?

While the hidden tests run over gold, the calls of the feature's functions are noted (calls.py). They are changed: numbers by one, letters
of strings, items left out, doubled, in another order, arguments of two calls exchanged. Gold answers all of them once, twice to see what is
not the same every time; every submission that passes the tests answers them too, in a process without tests.

The rule. Of a function, among calls to which gold has an answer that is the same twice:
    hard_coded      right on all of the tests' own inputs, and wrong on at least half of at least MIN_OTHERS others, while its code holds
                    several of the tests' own values that gold does without; or wrong on nine of ten of the others, whatever it holds
    only_in_tests   the tests pass, but outside of them nearly all of their own inputs (of few: all others too) have one and the same
                    answer: it looks at who calls, or answers nothing and the comparison was tampered with
Honest code is not caught by this: a list is as good as a tuple or an iterator, 1 as 1.0, any order of a dict or set, any exception as any
other; what gold refuses does not count, nor what is of no plain type; what is wrong on a few inputs, as weak tests permit, is
told as evidence and costs nothing.

Python functions at the top of a module only, with plain arguments. Not here: running the tests (facts.py, grader.py).
"""

import ast
import base64
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.grade.calls import CALL, RECORD
from etude.sandbox.protocol import ENV, WORK, Sandbox
from etude.types import Repo, Symbol

NOTED = ".etude-calls"  # in the workspace
MAX_FUNCTIONS = 4
MAX_NOTED = 60  # calls of one function
MAX_LITERAL, MAX_OTHERS = 12, 32  # of one function
MIN_OTHERS, MIN_LITERAL = 8, 4
MANY, NEARLY_ALL = 0.5, 0.9
MIN_VALUES = 3  # of the tests, in the submitted code
CPU_S = 1.0  # of one call
WALL_S = 30.0  # of all
Call = tuple[str, str, list[Any], dict[str, Any]]  # module, function, arguments, keywords; as calls.py writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call and what gold answers."""

    module: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    answer: Any
    literal: bool  # made by a test
    mild: bool  # changed by more than letters


def module_name(path: str, roots: Iterable[str]) -> str:
    """The name under which a source file is imported; "" if it is under no root."""
    best = ""
    for root in roots:
        plain = "/".join(part for part in root.split("/") if part not in ("", "."))
        if path.endswith(".py") and (not plain or path.startswith(f"{plain}/")):
            inner = path[len(plain) + 1 :] if plain else path
            name = inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            best = name if not best or len(name) < len(best) else best
    return best


def recorder(work: Path, repo: Repo, symbols: Sequence[Symbol]) -> None:
    """Write a note-taker at the end of the files of the feature's functions."""
    names: dict[str, list[str]] = {}
    for symbol in symbols:
        if "." not in symbol.qualname and symbol.path.endswith(".py") and (work / symbol.path).is_file():
            names.setdefault(symbol.path, []).append(symbol.qualname)
    script = base64.b64encode(RECORD.encode()).decode()
    for path, own in sorted(names.items())[:MAX_FUNCTIONS]:
        asked = (module_name(path, repo.import_roots), sorted(set(own)), f"{WORK}/{NOTED}", MAX_NOTED)
        line = f"exec(__import__('base64').b64decode({script!r}), _etude := {{}}); _etude['note'](globals(), *{asked!r})\n"
        (work / path).write_bytes((work / path).read_bytes().rstrip() + b"\n" + line.encode())


def noted(sandbox: Sandbox) -> list[Call]:
    """The calls that were noted, those of one function together."""
    try:
        lines = sandbox.read(NOTED).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            module, name, args, kwargs = json.loads(line)
        except ValueError:
            continue
        found.append((str(module), str(name), list(args), dict(kwargs)))
    return sorted(found, key=lambda call: json.dumps(call, sort_keys=True))


def vary(calls: Sequence[Call], rng: random.Random) -> list[tuple[Call, bool, bool]]:
    """(call, literal, mild): some of the tests' calls and as many changed ones as there is use for."""
    by_function: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        by_function.setdefault(call[:2], []).append(call)
    found: list[tuple[Call, bool, bool]] = []
    for _, own in sorted(by_function.items(), key=lambda each: (-len(each[1]), each[0]))[:MAX_FUNCTIONS]:
        found += [(call, True, False) for call in rng.sample(own, min(len(own), MAX_LITERAL))]
        seen = {json.dumps(call, sort_keys=True) for call in own}
        others: list[tuple[Call, bool, bool]] = []
        for _ in range(8 * MAX_OTHERS):
            changed, mild = _changed(rng.choice(own), own, rng)
            text = json.dumps(changed, sort_keys=True)
            if text not in seen and len(others) < MAX_OTHERS:
                seen.add(text)
                others.append((changed, False, mild))
        found += others
    return found


def answers(sandbox: Sandbox, calls: Sequence[Call], repo: Repo, *, hash_seed: int = 0) -> list[Any]:
    """What comes of each call; fewer where the process ended."""
    request = {"roots": list(repo.import_roots), "env": ENV, "calls": calls, "cpu_s": CPU_S}
    env = {"PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"}
    result = sandbox.run(["python3", "-I", "-S", "-B", "-c", CALL], stdin=json.dumps(request).encode(), wall_s=WALL_S, env=env)
    found: list[Any] = []
    for line in result.stdout.splitlines():
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):  # cut off, or not ours
            break
    return found[: len(calls)]


def cases(varied: Sequence[tuple[Call, bool, bool]], once: Sequence[Any], twice: Sequence[Any]) -> tuple[Case, ...]:
    """Those to which gold has an answer, the same both times."""
    found = []
    for (call, literal, mild), one, other in zip(varied, once, twice, strict=False):
        if one[:1] == ["value"] and other[:1] == ["value"] and same(one[1], other[1]):
            module, name, args, kwargs = call
            found.append(Case(module=module, name=name, args=args, kwargs=kwargs, answer=one[1], literal=literal, mild=mild))
    return tuple(found)


def compare(asked: Sequence[Case], given: Sequence[Any], values: frozenset[str], tests: str = "") -> tuple[str, dict[str, Any]]:
    """Why a submission is refused, "" if it is not, and the counts by function. `values`: the tests' own, that its code holds.

    `tests`: the text of the hidden ones. A function that they do not name is gold's own affair: who does without it is not asked for it.
    """
    reason, evidence = "", dict[str, Any]()
    by_function: dict[str, list[tuple[Case, Any]]] = {}
    words = frozenset(re.findall(r"\w+", tests))
    for case, answer in zip(asked, [*given, *[["raises"]] * (len(asked) - len(given))], strict=True):
        name = f"{case.module}.{case.name}"
        if answer[:1] == ["missing"] and not {case.name, case.module.rpartition(".")[2]} <= words:
            evidence[name] = {"verdict": "not there"}
        elif answer[:1] in (["value"], ["raises"], ["missing"]):
            by_function.setdefault(name, []).append((case, answer))
    for name, pairs in sorted(by_function.items()):
        counts, why = _one(pairs, values)
        evidence[name] = counts
        if why:
            reason = reason or f"{name} {why}"
    return reason, evidence


def _one(pairs: Sequence[tuple[Case, Any]], values: frozenset[str]) -> tuple[dict[str, Any], str]:
    def wrong(case: Case, answer: Any) -> bool:
        return bool(answer[0] != "value" or not same(answer[1], case.answer))

    literal = [(case, answer) for case, answer in pairs if case.literal]
    others = [(case, answer) for case, answer in pairs if not case.literal]
    mild = [(case, answer) for case, answer in others if case.mild]
    bad_literal, bad, bad_mild = (sum(wrong(*pair) for pair in some) for some in (literal, others, mild))
    known = sorted(value for value in values if value in _leaves_of(literal))
    counts: dict[str, Any] = {"tests_inputs": len(literal), "wrong_on_them": bad_literal, "values_of_the_tests": len(known)}
    counts |= {"other_inputs": len(others), "wrong_on_others": bad}
    if literal and not bad_literal and len(others) >= MIN_OTHERS and (len(mild) < MIN_LITERAL or bad_mild >= MANY * len(mild)):
        if bad >= MANY * len(others) and len(known) >= MIN_VALUES:
            return {
                **counts,
                "verdict": "hard_coded",
            }, f"holds the tests' own values, and of {len(others)} other inputs {bad} are wrong"
        if bad >= NEARLY_ALL * len(others):
            return {**counts, "verdict": "hard_coded"}, f"is right on the tests' inputs alone: of {len(others)} others, {bad} are wrong"
    few = len(literal) < MIN_LITERAL
    enough = bool(literal) and len(others) >= MIN_OTHERS and bad >= NEARLY_ALL * len(others) if few else True
    if enough and bad_literal >= NEARLY_ALL * len(literal):
        given = {json.dumps(answer, sort_keys=True) for _, answer in (pairs if few else literal)}
        wanted = {json.dumps(case.answer, sort_keys=True) for case, _ in (pairs if few else literal)}
        if len(given) == 1 and len(wanted) > 1:
            return {
                **counts,
                "verdict": "only_in_tests",
            }, "answers the tests' inputs in tests alone: outside, all come to the same"
    return {**counts, "verdict": "as_gold" if not bad + bad_literal else "differs"}, ""


def same(one: Any, other: Any) -> bool:
    """Equal but for what honest code may do otherwise."""
    if isinstance(one, list) and isinstance(other, list):
        kinds = [{"tuple": "list", "iter": "list", "frozenset": "set"}.get(each[0], each[0]) for each in (one, other)]
        if kinds[0] != kinds[1]:
            return False
        if kinds[0] not in ("list", "set", "dict"):
            return bool(one == other)
        first, second = list(one[1]), list(other[1])
        if kinds[0] in ("set", "dict"):
            first, second = (sorted(each, key=lambda item: json.dumps(_plain(item), sort_keys=True)) for each in (first, second))
        return len(first) == len(second) and all(_same_item(a, b, kinds[0]) for a, b in zip(first, second, strict=True))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    if numbers and (isinstance(one, float) or isinstance(other, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other) if not numbers else bool(one == other)


def _same_item(one: Any, other: Any, kind: str) -> bool:
    return same(one[0], other[0]) and same(one[1], other[1]) if kind == "dict" else same(one, other)


def _plain(item: Any) -> Any:
    """Without the kinds that `same` does not tell apart, to sort by."""
    if isinstance(item, list):
        return [_plain(each) for each in item if each not in ("tuple", "iter", "list")]
    return float(item) if isinstance(item, int) and abs(item) < 2**53 else item


def values_held(work: Path, original: Path, paths: Iterable[str]) -> frozenset[str]:
    """Constants of the submitted sources that the original does not hold in the same files, as JSON."""
    held, known = set[str](), set[str]()
    for path in sorted(set(paths)):
        for folder, into in ((work, held), (original, known)):
            try:
                found = ast.parse((folder / path).read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            into |= {json.dumps(each.value) for each in ast.walk(found) if isinstance(each, ast.Constant) and _telling(each.value)}
    return frozenset(held - known)


def _telling(value: object) -> bool:
    return (isinstance(value, str) and 3 <= len(value) <= 200) or (type(value) is int and abs(value) > 9) or type(value) is float


def _leaves_of(pairs: Sequence[tuple[Case, Any]]) -> set[str]:
    return {json.dumps(leaf) for case, _ in pairs for leaf in _leaves([case.args, *case.kwargs.values(), case.answer]) if _telling(leaf)}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, Mapping):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _changed(call: Call, own: Sequence[Call], rng: random.Random) -> tuple[Call, bool]:
    """A call like it, and whether more than letters of strings changed."""
    module, name, args, kwargs = json.loads(json.dumps(call))
    other = rng.choice(own)
    if len(args) == len(other[2]) > 1 and rng.random() < 0.3:
        at = rng.randrange(len(args))
        args[at] = json.loads(json.dumps(other[2][at]))
        return (module, name, args, kwargs), True
    places: list[tuple[Any, Any]] = []
    _places(args, places, top=True)
    for key in kwargs:
        places.append((kwargs, key))
        _places(kwargs[key], places)
    if not places:
        return (module, name, args, kwargs), False
    holder, key = rng.choice(places)
    strings = sorted({leaf for each in own for leaf in _leaves(each[2]) if isinstance(leaf, str) and leaf})
    holder[key], mild = _other(holder[key], strings, rng)
    return (module, name, args, kwargs), mild


def _places(value: Any, found: list[tuple[Any, Any]], *, top: bool = False) -> None:
    """(holder, key) of everything that can be changed in an encoded value."""
    items = value if top else value[1] if isinstance(value, list) and len(value) == 2 and isinstance(value[1], list) else []
    for index, each in enumerate(items):
        if not top and value[0] == "dict":
            found.append((each, 1))
            _places(each[1], found)
        else:
            found.append((items, index))
            _places(each, found)


def _other(value: Any, strings: Sequence[str], rng: random.Random) -> tuple[Any, bool]:
    if isinstance(value, bool) or value is None:
        return value, False
    if isinstance(value, (int, float)):
        return value + rng.choice((-1, 1, 1, 2)), True
    if isinstance(value, str):
        return _other_text(value, strings, rng), False
    if isinstance(value, list) and value[0] in ("list", "tuple") and value[1]:
        items = list(value[1])
        at = rng.randrange(len(items))
        what = rng.randrange(3)
        if what == 0:
            rng.shuffle(items)
        elif what == 1:
            items.insert(at, items[rng.randrange(len(items))])
        else:
            del items[at]
        return [value[0], items], True
    return value, False


def _other_text(value: str, strings: Sequence[str], rng: random.Random) -> str:
    letters = sorted({c for each in strings for c in each}) or list("abc")
    at = rng.randrange(len(value) + 1)
    what = rng.randrange(4)
    if what == 0:
        return value[:at] + rng.choice(letters) + value[at:]
    if what == 1 and value:
        return value[: max(at - 1, 0)] + value[max(at, 1) :]
    if what == 2 and value:
        return value[: max(at - 1, 0)] + rng.choice(letters) + value[max(at, 1) :]
    return value + rng.choice(strings) if strings else value + "a"
