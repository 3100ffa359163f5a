"""Take the feature's tests away: the test functions, what hangs on them, and what becomes unused with them.

In: the closure of a source cut and the test definitions that fail without the feature; out: the closure extended over the test files.
A test, helper or fixture that refers to something gone goes too, also one that asks for a gone fixture by name; a class or file
left without tests goes; so do imports and helpers that only gone code used. `locate` finds the definition behind a node id.

Not here: which tests are the feature's (prove.py measures them).
"""

import ast
import re
from collections.abc import Iterable, Sequence

from etude.synth.closure import Closure, close, drop_empty_imports, unused_names
from etude.synth.cut import CutError
from etude.synth.names import Culprits, Index, Key
from etude.synth.source import Definition, DefinitionNode, FunctionNode

NODE_ID = re.compile(r"((?:\w+::)*)(\w+)(\[.*)?", re.DOTALL)
PYTEST_NAMES = re.compile(r"test|Test|pytest|setup|teardown|setUp|tearDown|load_tests|collect_ignore|__")  # found by name, not by use


def reduce_tests(closure: Closure, tests: Sequence[str], feature: Iterable[Definition], culprits: Culprits) -> frozenset[Key]:
    """Extend the closure in place; returns the keys of all test-file functions that are gone. CutError where it cannot be done."""
    before = {path for path in tests if _has_tests(closure, path)}
    for definition in feature:
        closure.drop(definition.path, definition.node, culprits, [definition.name])
    size = -1
    while size != closure.size:
        size = closure.size
        close(closure, tests, tests=True)
        if closure.blocked:
            raise CutError(f"the tests cannot be reduced: needed at {', '.join(list(closure.blocked)[:3])}")
        for path in tests:
            if path in closure.by_path and path not in closure.gone.files:
                _drop_empty_classes(closure, path, culprits)
                _drop_unused(closure, path, culprits)
                if path in before and not _has_tests(closure, path) and not _is_imported(closure, path, tests):
                    closure.drop_file(path, culprits)
    return frozenset(
        definition.key
        for path in tests
        for definition in closure.index.sources[path].definitions
        if isinstance(definition.node, FunctionNode) and (definition.node in closure.covered or path in closure.gone.files)
    )


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


def _method(index: Index, owner: Definition, name: str, depth: int) -> Definition | None:
    assert isinstance(owner.node, ast.ClassDef)
    for node in reversed(index.classes[owner.node].nodes.get(name, [])):
        return _definition(index, owner.path, node)
    for base in owner.node.bases if depth < 10 else ():
        where: str | None = owner.path
        found: DefinitionNode | None = None
        for part in ast.unparse(base).split("."):
            where, found = index.resolve(where, part) if where else (None, None)
        parent = _definition(index, where, found)
        if parent is not None and parent.is_class:
            inherited = _method(index, parent, name, depth + 1)
            if inherited is not None:
                return inherited
    return None


def _definition(index: Index, path: str | None, node: object) -> Definition | None:
    if path is None or not isinstance(node, DefinitionNode):
        return None
    return next((d for d in index.sources[path].definitions if d.node is node), None)


def _has_tests(closure: Closure, path: str) -> bool:
    """Whether pytest may still find a test in the file: a function by its name, or a class that inherits some."""
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


def _drop_empty_classes(closure: Closure, path: str, culprits: Culprits) -> None:
    definitions = closure.index.sources[path].definitions
    for owner in definitions:
        if not owner.is_class or owner.node in closure.covered:
            continue
        inner = [d for d in definitions if owner.line < d.line <= owner.end_line and d.name.startswith("test") and not d.is_class]
        if not inner or any(d.node not in closure.covered for d in inner):
            continue
        if _inherits(owner):
            continue
        users = (unit for units in closure.index.units.values() for unit in units if owner.name in unit.words)
        if not any(unit.node not in closure.covered and unit.node is not owner.node for unit in users):
            closure.drop(path, owner.node, culprits, [owner.name])


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
