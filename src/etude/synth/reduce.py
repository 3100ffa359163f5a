"""Take the feature's tests away: the test functions, what hangs on them, and what becomes unused with them.

In: the closure of a source cut and the test definitions that fail without the feature; out: the closure extended over the test files.
A test, helper or fixture that refers to something gone goes too, also one that asks for a gone fixture by name; a class or file
left without tests goes; so do imports and helpers that only gone code used. `locate` finds the function behind a node id, `hold` what
holds a test that is made while the module runs: the assignment `TestX = Machine.TestCase`, a class whose methods are made, else the file.

Not here: which tests are the feature's (prove.py measures them).
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etude.synth.closure import Closure, close, drop_empty_imports, unused_names
from etude.synth.cut import CutError
from etude.synth.names import Culprits, Index, Key
from etude.synth.source import Definition, DefinitionNode, FunctionNode, first_line

NODE_ID = re.compile(r"((?:\w+::)*)(\w+)(\[.*)?", re.DOTALL)
PYTEST_NAMES = re.compile(r"test|Test|pytest|setup|teardown|setUp|tearDown|load_tests|collect_ignore|__")  # found by name, not by use


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What has to go for a test that no function in the sources is."""

    path: str
    node: ast.Assign | ast.ClassDef | None  # None: the whole file
    name: str  # that the node binds
    prefix: str  # of the ids of all tests in it
    functions: tuple[Definition, ...]  # of the same file that its tests are known to be made of

    @property
    def key(self) -> Key:
        return self.path, first_line(self.node) if self.node else 0


def reduce_tests(
    closure: Closure,
    tests: Sequence[str],
    feature: Iterable[Definition],
    culprits: Culprits,
    *,
    holders: Sequence[Holder] = (),
    taken: Iterable[Holder] = (),
) -> frozenset[Key]:
    """Extend the closure in place; returns the keys of all test-file functions and classes that are gone, and of `holders`. `taken`: what
    else goes with the feature. CutError where it cannot be done.
    """
    before = {path for path in tests if _has_tests(closure, path, holders)}
    for definition in feature:
        closure.drop(definition.path, definition.node, culprits, [definition.name])
    for holder in taken:
        if holder.node is not None:
            closure.drop(holder.path, holder.node, culprits, [holder.name])
        elif holder.path not in tests or _is_imported(closure, holder.path, tests):
            raise CutError(f"{holder.path} makes tests while it runs and cannot go as a whole: others need it", "reduce")
        else:
            closure.drop_file(holder.path, culprits)
    size = -1
    while size != closure.size:
        size = closure.size
        close(closure, tests, tests=True)
        if closure.blocked:
            raise CutError(f"the tests cannot be reduced: needed at {', '.join(list(closure.blocked)[:3])}", "reduce")
        for path in tests:
            if path in closure.by_path and path not in closure.gone.files:
                _drop_empty_classes(closure, path, culprits, holders)
                _drop_torn_classes(closure, path, culprits)
                _drop_shadowed(closure, path, culprits)
                _drop_unused(closure, path, culprits)
                if path in before and not _has_tests(closure, path, holders) and not _is_imported(closure, path, tests):
                    closure.drop_file(path, culprits)
    definitions = (
        definition.key
        for path in tests
        for definition in closure.index.sources[path].definitions
        if definition.node in closure.covered or path in closure.gone.files
    )
    return frozenset(definitions) | {each.key for each in holders if each.node in closure.covered or each.path in closure.gone.files}


def path_of(index: Index, node_id: str) -> str:
    """The file of a node id; a parameter may hold "::" too."""
    starts = (node_id[: match.start()] for match in re.finditer("::", node_id))
    return next((path for path in starts if path in index.scopes), "")


def locate(index: Index, node_id: str) -> Definition | None:
    """The function behind a pytest node id, also if it is inherited or imported; None for one made while running."""
    path = path_of(index, node_id)
    match = NODE_ID.fullmatch(node_id[len(path) + 2 :])
    if not path or match is None:
        return None
    name = match[2]
    classes = match[1].split("::")[:-1]
    if not classes:
        where, node = index.resolve(path, name)
        return _definition(index, where, node)
    where, node = index.resolve(path, classes[0])  # defined here, or imported from another test file
    top = _definition(index, where, node)
    if top is None:
        return None
    qualname = ".".join([top.qualname, *classes[1:]])
    owners = [d for d in index.sources[top.path].definitions if d.qualname == qualname and d.is_class]
    return _method(index, owners[-1], name, 0) if owners else None


def hold(index: Index, node_id: str) -> Holder | None:
    """What holds a test that `locate` does not find; None where not even its file is known."""
    path = path_of(index, node_id)
    match = NODE_ID.fullmatch(node_id[len(path) + 2 :])
    if not path:
        return None
    top = (match[1].split("::")[0] or match[2]) if match else ""
    nodes = index.scopes[path].nodes.get(top, [])
    node = nodes[0] if len(nodes) == 1 else None
    if isinstance(node, ast.ClassDef):
        functions = _functions(index, path, node)
    elif isinstance(node, ast.Assign) and [isinstance(target, ast.Name) for target in node.targets] == [True]:
        names = dict.fromkeys(each.id for each in ast.walk(node.value) if isinstance(each, ast.Name))
        found = (index.resolve(path, name) for name in names)
        functions = tuple(each for where, made_of in found if where == path and made_of for each in _functions(index, path, made_of))
    else:
        return Holder(path=path, node=None, name="", prefix=f"{path}::", functions=())
    return Holder(path=path, node=node, name=top, prefix=f"{path}::{top}::", functions=functions)


def behind(index: Index, node_ids: Iterable[str]) -> tuple[dict[str, Definition | None], dict[str, Holder]]:
    """The function behind each test, and what holds those that have none."""
    tests = {id: locate(index, id) for id in sorted(node_ids)}
    return tests, {id: holder for id, test in tests.items() if test is None and (holder := hold(index, id)) is not None}


def heirs(index: Index, tests: Mapping[str, Definition | None]) -> dict[str, Holder]:
    """The class of each test that it inherits, with all tests in it: its function is another class's, whose own tests it is too."""
    found: dict[str, Holder] = {}
    for id, test in tests.items():
        path = path_of(index, id)
        names = id[len(path) + 2 :].partition("[")[0].split("::")
        if test is None or test.owner is None or len(names) != 2:
            continue
        where, node = index.resolve(path, names[0])
        if where == path and isinstance(node, ast.ClassDef) and node is not test.owner:
            found[id] = Holder(path=path, node=node, name=names[0], prefix=f"{path}::{names[0]}::", functions=())
    return found


def functions_of(tests: Mapping[str, Definition | None], holders: Mapping[str, Holder], node_ids: Iterable[str]) -> list[Definition]:
    """The functions behind some of the tests, and those that made ones are made of; in the order of the sources."""
    found = {test.key: test for id in node_ids if (test := tests.get(id)) is not None}
    found |= {test.key: test for id in node_ids if id in holders for test in holders[id].functions}
    return [found[key] for key in sorted(found)]


def _functions(index: Index, path: str, node: DefinitionNode) -> tuple[Definition, ...]:
    """A function, or those of a class."""
    inside = {id(each) for each in ast.walk(node)}
    return tuple(d for d in index.sources[path].definitions if not d.is_class and id(d.node) in inside)


def _method(index: Index, owner: Definition, name: str, depth: int) -> Definition | None:
    assert isinstance(owner.node, ast.ClassDef)
    for node in reversed(index.classes[owner.node].nodes.get(name, [])):
        return _definition(index, owner.path, node)
    for parent in _parents(index, owner) if depth < 10 else ():
        inherited = _method(index, parent, name, depth + 1)
        if inherited is not None:
            return inherited
    return None


def _parents(index: Index, owner: Definition) -> list[Definition]:
    """The bases of a class that stand in these files."""
    bases = index.bases(owner.path, owner.node) if isinstance(owner.node, ast.ClassDef) else []
    return [found for path, node in bases if (found := _definition(index, path, node)) is not None]


def _definition(index: Index, path: str | None, node: object) -> Definition | None:
    if path is None or not isinstance(node, DefinitionNode):
        return None
    return next((d for d in index.sources[path].definitions if d.node is node), None)


def _has_tests(closure: Closure, path: str, holders: Sequence[Holder]) -> bool:
    """Whether pytest may still find a test in the file: a function by its name, a class that inherits some, or what makes some."""
    if any(holder.path == path and holder.node not in closure.covered for holder in holders):
        return True
    for definition in closure.index.sources[path].definitions:
        if definition.node in closure.covered:
            continue
        if isinstance(definition.node, FunctionNode):
            if definition.name.startswith("test"):
                return True
        elif any(
            not (isinstance(base, ast.Name) and base.id == "object") and "TestCase" not in ast.unparse(base)
            for base in definition.node.bases
        ):
            return True
    return False


def _inherits(definition: Definition) -> bool:
    """Whether a class may have tests from a base."""
    bases = definition.node.bases if isinstance(definition.node, ast.ClassDef) else []
    return any(ast.unparse(base).rpartition(".")[2] not in ("object", "TestCase") for base in bases)


def _drop_empty_classes(closure: Closure, path: str, culprits: Culprits, holders: Sequence[Holder]) -> None:
    definitions = closure.index.sources[path].definitions
    for owner in definitions:
        if not owner.is_class or owner.node in closure.covered:
            continue
        inner = [d for d in definitions if owner.line < d.line <= owner.end_line and d.name.startswith("test") and not d.is_class]
        if not inner or any(d.node not in closure.covered for d in inner):
            continue
        if _inherits(owner) or any(holder.node is owner.node for holder in holders):
            continue
        users = (unit for units in closure.index.units.values() for unit in units if owner.name in unit.words)
        if not any(unit.node not in closure.covered and unit.node is not owner.node for unit in users):
            closure.drop(path, owner.node, culprits, [owner.name])


def _drop_torn_classes(closure: Closure, path: str, culprits: Culprits) -> None:
    """Classes that have lost a fixture or helper in place of an inherited one: with that one, inherited tests would be others."""
    for definition in closure.index.sources[path].definitions:
        owner = _definition(closure.index, path, definition.owner)
        if owner is None or owner.node in closure.covered or definition.node not in closure.covered or definition.name.startswith("test"):
            continue
        if any(_method(closure.index, parent, definition.name, 0) for parent in _parents(closure.index, owner)):
            closure.drop(path, owner.node, culprits, [owner.name])


def _drop_shadowed(closure: Closure, path: str, culprits: Culprits) -> None:
    """Earlier tests of the same name, which nobody ran so far."""
    definitions = closure.index.sources[path].definitions
    lost = {(d.owner, d.name) for d in definitions if d.node in closure.covered and d.name.startswith(("test", "Test"))}
    for each in definitions:
        if (each.owner, each.name) in lost and each.node not in closure.covered and each.owner not in closure.covered:
            closure.drop(path, each.node, culprits, [each.name])


def _drop_unused(closure: Closure, path: str, culprits: Culprits) -> None:
    for name, node in unused_names(closure, path, imports_only=False):
        if not PYTEST_NAMES.match(name) and not _is_fixture(node) and not closure.index.is_taken(path, name):
            closure.drop(path, node, culprits, [name])
    drop_empty_imports(closure, path, culprits)


def _is_fixture(node: ast.AST) -> bool:
    """One that applies by itself; every other fixture has its name in the tests that use it."""
    decorators = node.decorator_list if isinstance(node, FunctionNode) else []
    return any("fixture" in ast.unparse(decorator) and "autouse" in ast.unparse(decorator) for decorator in decorators)


def _is_imported(closure: Closure, path: str, tests: Sequence[str]) -> bool:
    module = closure.index.modules[path]
    names = {module, module.rpartition(".")[2]}
    for other in tests:
        if other == path or other in closure.gone.files:
            continue
        for alias, imported in closure.index.scopes[other].imports.items():
            if alias not in closure.covered and imported.module in names:
                return True
        if any(target in names for _, target in closure.index.scopes[other].stars):
            return True
    return False
