"""What tests reach through fixtures that are set up once for many of them: a trace shows it for the test that came first.

In: the index, the function behind each test, traced runs in different orders; out: the same reach, in which what all tests that set a
fixture up have in common is reached by every test that uses it.

Not here: the runs (workshop.py), fixtures that each test sets up for itself, of which a trace shows all.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from etude.synth.names import Index, Key
from etude.synth.source import Definition, FunctionNode

Place = tuple[str, int]
WIDE = {"class", "module", "package", "session"}


def share_fixtures(
    index: Index, tests: Mapping[str, Definition | None], runs: Sequence[Mapping[str, Sequence[Place]]]
) -> list[Mapping[str, Sequence[Place]]]:
    """Where only one test ever sets a fixture up, what is the fixture's and what its own is not known: then nothing is shared."""
    fixtures = _fixtures(index)
    lines = {definition.key: keyword for definition in fixtures if (keyword := _keywords(definition)).get("scope") in WIDE}
    setters: dict[Key, set[tuple[int, str]]] = defaultdict(set)
    for number, run in enumerate(runs):
        for owner, places in run.items():
            for path, line in places if owner in tests else ():
                if path in index.sources and (definition := index.sources[path].enclosing(line)) is not None and definition.key in lines:
                    setters[definition.key].add((number, owner))
    shared: dict[str, set[Place]] = defaultdict(set)
    for definition in fixtures:
        found = setters.get(definition.key, set())
        if len({owner for _, owner in found}) > 1:
            common = set.intersection(*({(path, line) for path, line in runs[number][owner]} for number, owner in found))
            for id in _users(tests, fixtures, definition, bool(lines[definition.key].get("autouse"))):
                shared[id] |= common
    return [{**run, **{id: tuple(sorted({*run.get(id, ()), *places})) for id, places in shared.items()}} for run in runs]


def _fixtures(index: Index) -> list[Definition]:
    found = (each for path in sorted(index.sources) for each in index.sources[path].definitions)
    return [each for each in found if isinstance(each.node, FunctionNode) and any(map(_is_fixture, each.node.decorator_list))]


def _is_fixture(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "fixture"


def _keywords(definition: Definition) -> dict[str, object]:
    """The constants that its decorator is given by name."""
    calls = (each for each in getattr(definition.node, "decorator_list", ()) if isinstance(each, ast.Call) and _is_fixture(each))
    return {word.arg: word.value.value for call in calls for word in call.keywords if word.arg and isinstance(word.value, ast.Constant)}


def _users(tests: Mapping[str, Definition | None], fixtures: Iterable[Definition], fixture: Definition, autouse: bool) -> list[str]:
    """The tests that ask for it, or for one that does, where it can be seen: in its folder if it stands in a conftest, else in its file."""
    names = {fixture.name}
    size = 0
    while size != len(names):
        size = len(names)
        names |= {other.name for other in fixtures if not names.isdisjoint(_asked(other))}
    place = PurePosixPath(fixture.path)
    inside = "" if str(place.parent) == "." else f"{place.parent}/"
    found: list[str] = []
    for id, test in tests.items():
        seen = id.startswith(inside) if place.name == "conftest.py" else id.startswith(f"{fixture.path}::")
        if test is not None and seen and (autouse or not names.isdisjoint(_asked(test))):
            found.append(id)
    return found


def _asked(definition: Definition) -> set[str]:
    """Names of arguments, and what `usefixtures` is told."""
    if not isinstance(definition.node, FunctionNode):
        return set()
    named = {each.arg for each in ast.walk(definition.node.args) if isinstance(each, ast.arg)}
    calls = [*definition.node.decorator_list, *(definition.owner.decorator_list if definition.owner else ())]
    marks = (each for each in calls if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("usefixtures"))
    return named | {str(word.value) for mark in marks for word in mark.args if isinstance(word, ast.Constant)}
