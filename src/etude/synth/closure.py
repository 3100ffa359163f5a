"""What goes along when definitions go: the fixed point of a cut.

In: an `Index` and a `Closure` that holds the first nodes to go; `close` extends it until nothing that survives refers to anything gone,
or the reference is listed as blocked. A statement that goes makes its own names dead, which makes other statements go.

Not here: where a cut starts, and what is done about blocked references (cut.py, reduce.py).
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from etude.synth.names import NOBODY, Culprits, Gone, Index, bound_name, is_about_all
from etude.synth.source import DefinitionNode, FunctionNode
from etude.synth.units import IMPORT, Chain, Unit

SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


@dataclass
class Closure:
    """The state of one search."""

    index: Index
    gone: Gone = field(default_factory=Gone)
    covered: set[ast.AST] = field(default_factory=set)  # gone, or inside something gone
    words: set[str] = field(default_factory=set)  # names that may be dead: only units with one of them are looked at
    blocked: dict[str, Culprits] = field(default_factory=dict)  # "path:line" -> why the reference there leads nowhere
    by_path: dict[str, set[ast.AST]] = field(default_factory=lambda: defaultdict(set))

    def drop(self, path: str, node: ast.AST, culprits: Culprits, names: Iterable[str] = ()) -> None:
        """`names` are those that the node binds."""
        self.gone.nodes[node] = culprits
        self.by_path[path].add(node)
        self.covered.update(ast.walk(node))
        self.words.update(names)

    def drop_file(self, path: str, culprits: Culprits) -> None:
        self.gone.files[path] = culprits
        self.words.add(self.index.modules[path].rpartition(".")[2])

    def copy(self) -> "Closure":
        by_path: dict[str, set[ast.AST]] = defaultdict(set, {path: set(nodes) for path, nodes in self.by_path.items()})
        gone = Gone(dict(self.gone.nodes), dict(self.gone.files))
        return Closure(self.index, gone, set(self.covered), set(self.words), dict(self.blocked), by_path)

    @property
    def size(self) -> int:
        return len(self.gone.nodes) + len(self.gone.files)


def close(closure: Closure, paths: Sequence[str], *, tests: bool = False) -> None:
    """Search to the end. With `tests`, functions and classes that refer to something gone go too: they test it, or help to."""
    react = _Reaction(closure, tests)
    size = -1
    while size != closure.size:
        size = closure.size
        for path in paths:
            if path in closure.gone.files or path not in closure.index.scopes:
                continue
            for unit in closure.index.units[path]:
                if unit.node not in closure.covered and not closure.words.isdisjoint(unit.words):
                    react.to(unit)


def unused_names(closure: Closure, path: str, *, imports_only: bool) -> list[tuple[str, ast.stmt | ast.alias]]:
    """Module-level imports (and helpers) that the gone code mentions and nothing else in the file does any more."""
    units = closure.index.units[path]
    users = [unit for unit in units if not isinstance(unit.node, (ast.Import, ast.ImportFrom))]
    lost: set[str] = set().union(*(unit.words for unit in users if unit.node in closure.covered))
    top = set(closure.index.sources[path].tree.body)
    found: list[tuple[str, ast.stmt | ast.alias]] = []
    for unit in units:
        if unit.node in closure.covered or unit.node not in top:
            continue
        for name, node in _named(unit, imports_only):
            if name in lost and node not in closure.covered:
                others = (other for other in users if other.node not in closure.covered and other.node is not node)
                if not any(name in other.words for other in others if node not in _owners(closure.index, other)):
                    found.append((name, node))
    return found


def drop_empty_imports(closure: Closure, path: str, culprits: Culprits) -> None:
    """Import statements whose every alias is gone."""
    for unit in closure.index.units[path]:
        node = unit.node
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or node in closure.covered:
            continue
        if all(alias in closure.covered for alias in node.names):
            closure.drop(path, node, culprits)


def _named(unit: Unit, imports_only: bool) -> list[tuple[str, ast.stmt | ast.alias]]:
    node = unit.node
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(bound_name(alias), alias) for alias in node.names if alias.name != "*"]
    if imports_only or len(unit.bound) != 1 or not isinstance(node, (ast.Assign, ast.AnnAssign, DefinitionNode)):
        return []
    return [(unit.bound[0], node)]


def _owners(index: Index, unit: Unit) -> set[ast.stmt]:
    found: set[ast.stmt] = set()
    owner = unit.owner
    while owner is not None:
        found.add(owner)
        owner = index.owner_of(unit.path, owner)
    return found


class _Reaction:
    """What happens to a unit that may refer to something gone."""

    def __init__(self, closure: Closure, tests: bool) -> None:
        self.closure, self.index, self.gone, self.tests = closure, closure.index, closure.gone, tests

    def to(self, unit: Unit) -> None:
        node = unit.node
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.to_import(unit.path, node)
        elif not unit.header and unit.owner is None and is_about_all(node):
            self.to_exports(unit)
        elif isinstance(node, ast.Delete):
            self.to_delete(unit, node)
        else:
            culprits = self.culprits(unit)
            if not culprits:
                return
            if isinstance(node, SIMPLE):
                if not self.to_display(unit, node):
                    self.closure.drop(unit.path, node, culprits, unit.bound)
            elif self.tests and isinstance(node, DefinitionNode):
                self.closure.drop(unit.path, node, culprits, [node.name])
            else:
                self.closure.blocked[f"{unit.path}:{node.lineno}"] = culprits

    def culprits(self, unit: Unit) -> Culprits:
        found: Culprits = NOBODY
        for chain in unit.now:
            if self.may_be_dead(chain):
                found |= self.index.dead_chain(unit.path, unit.owner, chain, self.gone, before=unit.node.lineno)
        for chain in unit.later:
            if self.may_be_dead(chain):
                found |= self.index.dead_chain(unit.path, unit.owner, chain, self.gone)
        if self.tests and isinstance(unit.node, FunctionNode):
            for argument in ast.walk(unit.node.args):
                if isinstance(argument, ast.arg) and argument.arg in self.closure.words:
                    found |= self.fixture(unit.path, argument.arg)
        return found

    def may_be_dead(self, chain: Chain) -> bool:
        return chain[0] == IMPORT or not self.closure.words.isdisjoint(chain)

    def fixture(self, path: str, name: str) -> Culprits:
        """Why the fixture that a test asks for by this name is gone; NOBODY if it is not."""
        found = self.index.dead(path, name, self.gone)
        for folder in PurePosixPath(path).parents:
            found |= self.index.dead(str(folder / "conftest.py"), name, self.gone)
        return found

    def to_import(self, path: str, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias not in self.closure.covered:
                culprits = self.dead_alias(path, node, alias)
                if culprits:
                    self.closure.drop(path, alias, culprits, [bound_name(alias)])
        reasons = [self.gone.nodes.get(alias, NOBODY) for alias in node.names]
        if all(reasons):
            self.closure.drop(path, node, frozenset().union(*reasons))

    def dead_alias(self, path: str, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Culprits:
        if isinstance(node, ast.Import):
            parts = alias.name.split(".")
            files = [self.index.paths.get(".".join(parts[: stop + 1])) for stop in range(len(parts))]
            return next((self.gone.files[file] for file in files if file in self.gone.files), NOBODY)
        if alias.name == "*":
            target = self.index.paths.get(self.index.absolute(path, node))
            return self.gone.files.get(target, NOBODY) if target else NOBODY
        imported = self.index.scopes[path].imports.get(alias)
        return self.index.dead_import(imported, self.gone) if imported else NOBODY

    def to_exports(self, unit: Unit) -> None:
        strings = [constant for statement, constant in self.index.exports.get(unit.path, ()) if statement is unit.node]
        for constant in strings:
            if constant not in self.closure.covered:
                culprits = self.index.dead(unit.path, str(constant.value), self.gone)
                if culprits:
                    self.closure.drop(unit.path, constant, culprits)
        reasons = [self.gone.nodes.get(constant, NOBODY) for constant in strings]
        if strings and all(reasons) and isinstance(unit.node, (ast.AugAssign, ast.Expr)):
            self.closure.drop(unit.path, unit.node, frozenset().union(*reasons))
            return
        culprits = self.culprits(unit)
        if culprits:
            self.closure.blocked[f"{unit.path}:{unit.node.lineno}"] = culprits

    def to_delete(self, unit: Unit, node: ast.Delete) -> None:
        for target in node.targets:
            culprits = self.dead_expression(unit, target) if target not in self.closure.covered else NOBODY
            if culprits:
                self.closure.drop(unit.path, target, culprits)
        reasons = [self.gone.nodes.get(target, NOBODY) for target in node.targets]
        if all(reasons):
            self.closure.drop(unit.path, node, frozenset().union(*reasons))

    def to_display(self, unit: Unit, statement: ast.stmt) -> bool:
        """Whether what refers to something gone are whole elements of a list, tuple, set or dict: only they go then."""
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) else None
        if isinstance(value, ast.Dict):
            elements = list(value.values)
            fixed: list[ast.expr] = [key for key in value.keys if key is not None]
        elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            elements, fixed = list(value.elts), []
        else:
            return False
        if isinstance(statement, ast.Assign) and any(not isinstance(target, ast.Name) for target in statement.targets):
            return False
        if any(self.dead_expression(unit, node) for node in fixed):
            return False
        for element in elements:
            self.to_element(unit, element, in_dict=isinstance(value, ast.Dict))
        return True

    def to_element(self, unit: Unit, element: ast.expr, *, in_dict: bool) -> None:
        """It goes, or a part of it where it is a display under a key: an element of a list may be a row, whose parts belong together."""
        culprits = self.dead_expression(unit, element)
        if not culprits:
            return
        parts: list[ast.expr] = []
        if isinstance(element, ast.Dict) and not any(self.dead_expression(unit, key) for key in element.keys if key is not None):
            parts = element.values
        elif isinstance(element, (ast.List, ast.Set)):
            parts = element.elts
        if in_dict and any(part not in self.closure.covered and not self.dead_expression(unit, part) for part in parts):
            for part in parts:
                self.to_element(unit, part, in_dict=isinstance(element, ast.Dict))
        else:
            self.closure.drop(unit.path, element, culprits)

    def dead_expression(self, unit: Unit, expression: ast.AST) -> Culprits:
        found: Culprits = NOBODY
        for node in ast.walk(expression):
            chain = _chain(node)
            if chain and node not in self.closure.covered:
                found |= self.index.dead_chain(unit.path, unit.owner, chain, self.gone, before=unit.node.lineno)
        return found


def _chain(node: ast.AST) -> Chain:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store) else ()
