"""Tests that must fail and tests that must pass, among the hidden ones, drawn anew for every diff and never seen by an agent.

A report that is written by the code under test instead of by the tests can be complete, well formed and signed. It cannot know which tests
are there to fail:

    changed   a copy of a hidden test under another name, with one statement that says the opposite (flips.py): must fail
    copied    a copy of a hidden test under another name: must pass, as its original does
    made      a small test of built-in functions with a right or a wrong result, where no hidden test can be changed

All are written in the file of the hidden tests, as its author would have, between its other tests. Which, where, their names and what
they say come from a secret of the store, the task and the diff: the same diff meets the same ones.

In: the tree to be tested, a random.Random; out: the changed files and `Canary`s.

Not here: which of them do what they must with the gold patch (facts.py), what follows from one that does not (guards.py).
"""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.grade.flips import Edit, Function, Site, Text, apply, change, changeable, is_plain

Kind = Literal["changed", "copied", "made_to_fail", "made_to_pass"]
Place = Literal["between", "end"]
MUST_FAIL = ("changed", "made_to_fail")
MAX_IDS = 12  # of one parametrised test
TRIED = {"changed": 8, "copied": 4}  # with the gold patch
DRAWN = {"changed": 2, "copied": 1, "made_to_fail": 1, "made_to_pass": 1}  # for a diff; made ones only where there is no other
WORDS = ("order", "empty", "single", "nested", "default", "twice", "mixed", "plain", "again", "other", "short", "large", "edge", "many")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A canary that could be drawn."""

    kind: Kind
    site: Site  # `qualname` is "" for one that is made
    ids: tuple[str, ...]  # of the test that it is a copy of


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A canary as it lies in a tree."""

    candidate: Candidate
    ids: tuple[str, ...]  # its own

    @property
    def must_fail(self) -> bool:
        return self.candidate.kind in MUST_FAIL


def functions_of(ids: Iterable[str]) -> dict[tuple[str, str], tuple[str, ...]]:
    """(path, qualname) -> node ids, parameters in brackets belong to one function."""
    found: dict[tuple[str, str], list[str]] = {}
    for id in ids:
        path, _, rest = id.partition("::")
        found.setdefault((path, rest.partition("[")[0].replace("::", ".")), []).append(id)
    return {key: tuple(each) for key, each in found.items()}


def propose(work: Path, fail_to_pass: Sequence[str], rng: random.Random) -> list[Candidate]:
    """What may be tried in the files of the hidden tests."""
    found: dict[str, list[Candidate]] = {"changed": [], "copied": []}
    made: list[Candidate] = []
    by_path: dict[str, dict[str, tuple[str, ...]]] = {}
    for (path, qualname), ids in functions_of(fail_to_pass).items():
        by_path.setdefault(path, {})[qualname] = ids
    for path, wanted in sorted(by_path.items()):
        text = _text(work, path)
        if text is None:
            continue
        functions = text.functions()
        made += [Candidate(kind=kind, site=Site(path=path, qualname="", number=0), ids=()) for kind in ("made_to_fail", "made_to_pass")]
        for qualname, ids in sorted(wanted.items()):
            function = functions.get(qualname)
            if function is None or len(ids) > MAX_IDS or not is_plain(function.node):
                continue
            claims = changeable(function.node)
            found["copied"].append(Candidate(kind="copied", site=Site(path=path, qualname=qualname, number=-1), ids=ids))
            if claims:
                number = rng.randrange(len(claims))
                found["changed"].append(Candidate(kind="changed", site=Site(path=path, qualname=qualname, number=number), ids=ids))
    chosen = [each for kind, some in found.items() for each in rng.sample(some, min(len(some), TRIED[kind]))]
    return chosen + made[:4]


def choose(candidates: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
    """Of those that proved themselves, the ones for one diff."""
    drawn: list[Candidate] = []
    for kind, number in DRAWN.items():
        some = [each for each in candidates if each.kind == kind]
        stands_in = {"made_to_fail": "changed", "made_to_pass": "copied"}.get(kind)
        if stands_in is None or not any(each.kind == stands_in for each in drawn):
            drawn += rng.sample(some, min(len(some), number))
    return drawn


def lay(work: Path, candidates: Sequence[Candidate], rng: random.Random, place: Place = "between", *, early: bool = False) -> list[Canary]:
    """Write them into the files of `work`. `early`: as near to their originals as can be, so that most of a file moves."""
    laid: list[Canary] = []
    for path in sorted({each.site.path for each in candidates}):
        text = _text(work, path)
        if text is None:
            continue
        functions = text.functions()
        taken = set(re.findall(r"\w+", text.text))
        edits: list[Edit] = []
        for candidate in (each for each in candidates if each.site.path == path):
            function = functions.get(candidate.site.qualname)
            if function is None and candidate.site.qualname:
                continue
            name = _name(function, functions, taken, rng)
            taken.add(name)
            body = _made(name, candidate.kind == "made_to_pass", rng) if function is None else _copy(text, function, candidate, name, rng)
            edits.append(_insertion(text, function, body, rng, place, early))
            laid.append(Canary(candidate=candidate, ids=_ids(candidate, name)))
        end = "\r\n" if "\r\n" in text.text else "\n"
        new = apply(text.text, [(start, stop, body.replace("\r\n", "\n").replace("\n", end)) for start, stop, body in edits])
        (work / path).write_bytes(new.encode())
    return laid


def invert(work: Path, candidates: Sequence[Candidate], rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Change tests where they stand, under their own names; path -> ids that must fail now."""
    must_fail: dict[str, tuple[str, ...]] = {}
    for path in sorted({each.site.path for each in candidates if each.kind == "changed"}):
        text = _text(work, path)
        if text is None:
            continue
        functions, edits = text.functions(), list[Edit]()
        for candidate in (each for each in candidates if each.site.path == path and each.kind == "changed"):
            function = functions.get(candidate.site.qualname)
            if function is not None:
                edits.append(change(text, changeable(function.node)[candidate.site.number], rng))
                must_fail[path] = (*must_fail.get(path, ()), *candidate.ids)
        (work / path).write_bytes(apply(text.text, edits).encode())
    return must_fail


def misbehaving(canaries: Sequence[Canary], outcomes: Mapping[str, str]) -> list[str]:
    """Ids of canaries that did not do what they must."""
    return [id for each in canaries for id in each.ids if outcomes.get(id, "missing") != ("failed" if each.must_fail else "passed")]


def _text(work: Path, path: str) -> Text | None:
    try:
        return Text((work / path).read_bytes()) if path.endswith(".py") else None
    except (OSError, ValueError):
        return None


def _name(function: Function | None, functions: Mapping[str, Function], taken: set[str], rng: random.Random) -> str:
    """In the words of the file."""
    there = [qualname.rpartition(".")[2] for qualname in functions]
    words = sorted({word for name in there for word in name.split("_")[1:] if len(word) > 2 and word.isalpha()} | set(WORDS))
    stem = function.node.name if function is not None else "test"
    for _ in range(1000):
        parts = rng.sample(words, 1 if function is not None else 2)
        name = stem + "".join(part.capitalize() for part in parts) if "_" not in stem and stem != "test" else "_".join([stem, *parts])
        if name not in taken:
            return name
    return f"{stem}_{rng.randrange(10**6)}"


def _copy(text: Text, function: Function, candidate: Candidate, name: str, rng: random.Random) -> str:
    """The text of the whole function under another name, changed if it shall fail; ends with a line end."""
    node = function.node
    assert node.end_lineno is not None
    start, stop = text.starts[function.first_line - 1], text.starts[node.end_lineno]
    found = re.compile(r"def\s+").search(text.text, text.span(node)[0])
    assert found is not None
    edits: list[Edit] = [(found.end(), found.end() + len(node.name), name)]
    if candidate.kind == "changed":
        edits.append(change(text, changeable(node)[candidate.site.number], rng))
    body = apply(text.text[start:stop], [(first - start, last - start, new) for first, last, new in edits])
    return body if body.endswith("\n") else f"{body}\n"


def _insertion(text: Text, function: Function | None, body: str, rng: random.Random, place: Place, early: bool) -> Edit:
    suite = text.tree.body if function is None else function.suite
    index = suite.index(function.node) if function is not None else _last_import(suite)
    gap = "\n" if function is not None and function.owner is not None else "\n\n"
    if place == "between":
        later = [each for each in suite[index + 1 :] if not text.line_before(each).strip()]
        if later and (early or rng.random() < 0.8):
            after = later[0] if early else rng.choice(later)
            decorators = getattr(after, "decorator_list", [])
            at = text.starts[min([after.lineno, *(each.lineno for each in decorators)]) - 1]
            return at, at, f"{body}{gap}"
    last = suite[-1].end_lineno
    assert last is not None
    at = min(text.starts[last], len(text.text))
    first = "" if text.text[:at].endswith("\n") else "\n"
    return at, at, f"{first}{gap}{body}"


def _last_import(suite: Sequence[object]) -> int:
    names = [type(each).__name__ for each in suite]
    return max((at for at, name in enumerate(names) if name in ("Import", "ImportFrom")), default=-1)


def _ids(candidate: Candidate, name: str) -> tuple[str, ...]:
    if not candidate.ids:
        return (f"{candidate.site.path}::{name}",)
    found = []
    for id in candidate.ids:
        path, _, rest = id.partition("::")
        base, bracket, parameters = rest.partition("[")
        found.append(f"{path}::{'::'.join([*base.split('::')[:-1], name])}{bracket}{parameters}")
    return tuple(found)


def _made(name: str, right: bool, rng: random.Random) -> str:
    """A test of what Python itself does."""
    numbers = rng.sample(range(2, 60), rng.randint(3, 5))
    words = rng.sample(WORDS, 3)
    off = 0 if right else rng.choice((-2, -1, 1, 2))
    ordered = sorted(numbers)
    ordered[rng.randrange(len(ordered))] += off
    joined = "-".join(words if right else [*words[:1], *reversed(words[1:])])
    pairs = dict(zip(words, (number + off for number in numbers), strict=False))
    bodies = (
        f"    numbers = {numbers!r}\n    assert sorted(numbers) == {ordered!r}\n",
        f"    words = {words!r}\n    assert '-'.join(words) == {joined!r}\n",
        f"    pairs = dict(zip({words!r}, {numbers!r}))\n    assert pairs == {pairs!r}\n",
        f"    numbers = {numbers!r}\n    assert sum(numbers) == {sum(numbers) + off}\n    assert len(numbers) == {len(numbers)}\n",
    )
    return f"def {name}():\n{rng.choice(bodies)}"
