"""Which name means what in a repository, read from the syntax trees alone: no code runs.

In: parsed sources and the import roots; out: an `Index` that follows imports, re-exports, `import *` and `__all__` between them.
`dead` and `dead_chain` answer the question that a cut turns on: with these nodes gone, what does a name or a chain no longer
reach, and because of which definitions? A name is dead when every one of its bindings is.

Not here: what to do about it (cut.py).
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from etude.synth.source import Definition, DefinitionNode, Source, first_line
from etude.synth.units import IMPORT, SELF, Chain, Unit, units

Key = tuple[str, int]  # path and first line of a definition
Culprits = frozenset[Key]
Binding = ast.stmt | ast.alias
NOBODY: Culprits = frozenset()


@dataclass(frozen=True, slots=True)
class Import:
    """What an import alias binds: a module, or a name of one."""

    node: ast.alias
    module: str
    name: str | None  # None: the module itself


@dataclass
class Scope:
    """The bindings of a module or class: each name with the nodes that bind it."""

    nodes: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[Binding, Import] = field(default_factory=dict)
    stars: list[tuple[ast.ImportFrom, str]] = field(default_factory=list)


@dataclass
class Gone:
    """Nodes and files that a cut takes away, each with the definitions that are the reason."""

    nodes: dict[ast.AST, Culprits] = field(default_factory=dict)
    files: dict[str, Culprits] = field(default_factory=dict)


class Index:
    def __init__(self, sources: Mapping[str, Source], roots: Sequence[str]) -> None:
        self.sources = dict(sources)
        self.modules = {path: module_name(path, roots) for path in sources if path.endswith(".py")}
        self.paths: dict[str, str] = {}
        for path, module in self.modules.items():
            self.paths.setdefault(module, path)
        for path in self.modules:  # pytest puts the folder above a test's packages on the path
            root = PurePosixPath(path).parent
            while str(root / "__init__.py") in sources:
                root = root.parent
            self.paths.setdefault(module_name(path, [str(root)]), path)
        for module in list(self.paths):  # namespace packages: folders without __init__.py, each with a path of its own kind
            parts = module.split(".")
            for stop in range(1, len(parts)):
                package = ".".join(parts[:stop])
                if package not in self.paths:
                    self.paths[package] = f"<{package}>"
                    self.modules[f"<{package}>"] = package
        self.units: dict[str, list[Unit]] = {path: [] for path in self.modules}
        self.units.update({path: units(source) for path, source in self.sources.items()})
        self.scopes = {path: Scope() for path in self.modules}
        self.classes: dict[ast.ClassDef, Scope] = {}
        for path, source in self.sources.items():
            if path in self.modules:
                self.scopes[path] = self._scope(path, None)
                for definition in source.definitions:
                    if isinstance(definition.node, ast.ClassDef):
                        self.classes[definition.node] = self._scope(path, definition.node)

    def _scope(self, path: str, owner: ast.ClassDef | None) -> Scope:
        scope = Scope()
        for unit in self.units[path]:
            if unit.owner is not owner:
                continue
            if isinstance(unit.node, (ast.Import, ast.ImportFrom)):
                for alias, imported in self._imports(path, unit.node):
                    if alias.name == "*":
                        assert isinstance(unit.node, ast.ImportFrom)
                        scope.stars.append((unit.node, imported.module))
                        continue
                    scope.imports[alias] = imported
                    scope.nodes[bound_name(alias)].append(alias)
            else:
                for name in unit.bound:
                    scope.nodes[name].append(unit.node)
        return scope

    def _imports(self, path: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.alias, Import]]:
        for alias in node.names:
            if isinstance(node, ast.Import):
                module = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias, Import(alias, module, None)
            else:
                module = self.absolute(path, node)
                if module + "." + alias.name in self.paths and alias.name not in self._plain_names(module):
                    yield alias, Import(alias, f"{module}.{alias.name}", None)
                else:
                    yield alias, Import(alias, module, alias.name)

    def _plain_names(self, module: str) -> set[str]:
        """Names that a package binds itself, other than by importing the submodule of that name: these hide a submodule."""
        path = self.paths.get(module, "")
        found: set[str] = set()
        for unit in self.units.get(path, ()):
            if unit.owner is None:
                found.update(unit.bound)
            if unit.owner is None and isinstance(unit.node, ast.ImportFrom):
                itself = self.absolute(path, unit.node) == module
                found.update(bound_name(alias) for alias in unit.node.names if not (itself and bound_name(alias) == alias.name))
        return found

    def absolute(self, path: str, node: ast.ImportFrom) -> str:
        """The module that a `from` import names."""
        if not node.level:
            return node.module or ""
        parts = self.modules.get(path, "").split(".")
        if PurePosixPath(path).name != "__init__.py":
            parts = parts[:-1]
        parts = parts[: len(parts) - (node.level - 1)]
        return ".".join([*parts, node.module] if node.module else parts)

    @cached_property
    def exports(self) -> dict[str, list[tuple[ast.stmt, ast.Constant]]]:
        """path -> the string constants in statements about `__all__`."""
        found: dict[str, list[tuple[ast.stmt, ast.Constant]]] = {}
        for path, found_units in self.units.items():
            entries = [
                (unit.node, node)
                for unit in found_units
                if unit.owner is None and not unit.header and is_about_all(unit.node)
                for node in ast.walk(unit.node)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            if entries or any("__all__" in unit.bound for unit in found_units):
                found[path] = entries
        return found

    def star_names(self, path: str, _seen: frozenset[str] = frozenset()) -> set[str]:
        """What `from module import *` takes."""
        if path in self.exports:
            return {str(constant.value) for _, constant in self.exports[path]}
        scope = self.scopes[path]
        names = {name for name in scope.nodes if not name.startswith("_")}
        for _, module in scope.stars:
            target = self.paths.get(module)
            if target and target not in _seen:
                names |= self.star_names(target, _seen | {path})
        return names

    # -- what is dead

    def dead(
        self, path: str, name: str, gone: Gone, before: int | None = None, _seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Culprits:
        """The reason why module `path` no longer has `name`; NOBODY if it still has it, or never had.

        `before`: only bindings above this line count, as for code that runs during the import.
        """
        if (path, name) in _seen or path not in self.scopes:
            return NOBODY
        seen = _seen | {(path, name)}
        scope = self.scopes[path]
        culprits: Culprits = NOBODY
        for node in _above(scope.nodes.get(name, []), before):
            reason = self._dead_node(scope, node, gone, seen)
            if not reason:
                return NOBODY
            culprits |= reason
        for statement, module in scope.stars:
            target = self.paths.get(module)
            if target is None or name not in self.star_names(target):
                continue
            reason = gone.nodes.get(statement, NOBODY) or gone.files.get(target, NOBODY) or self.dead(target, name, gone, None, seen)
            if not reason:
                return NOBODY
            culprits |= reason
        submodule = self.paths.get(f"{self.modules[path]}.{name}")
        if not culprits and submodule and (path.startswith("<") or PurePosixPath(path).name == "__init__.py"):
            return gone.files.get(submodule, NOBODY)
        return culprits

    def _dead_node(self, scope: Scope, node: Binding, gone: Gone, seen: frozenset[tuple[str, str]]) -> Culprits:
        if node in gone.nodes:
            return gone.nodes[node]
        imported = scope.imports.get(node)
        return self.dead_import(imported, gone, seen) if imported else NOBODY

    def dead_import(self, imported: Import, gone: Gone, seen: frozenset[tuple[str, str]] = frozenset()) -> Culprits:
        target = self.paths.get(imported.module)
        if target is None:
            return NOBODY
        if target in gone.files:
            return gone.files[target]
        return self.dead(target, imported.name, gone, None, seen) if imported.name else NOBODY

    def dead_chain(self, path: str, owner: ast.ClassDef | None, chain: Chain, gone: Gone, before: int | None = None) -> Culprits:
        """The reason why a reference in module `path`, read in the body of class `owner` if given, leads nowhere now."""
        if owner is not None and chain[0] == SELF:
            return self.dead_member(owner, chain[1], gone)
        if owner is not None and before is not None and chain[0] in self.classes[owner].nodes:
            return self.dead_member(owner, chain[0], gone, before)
        where: str | None = path
        if chain[0] == IMPORT:
            module = chain[1].lstrip(".")
            level = len(chain[1]) - len(module)
            where = self.paths.get(self.absolute(path, ast.ImportFrom(module=module or None, names=[], level=level)))
            chain = chain[2:]
        for position, name in enumerate(chain):
            if where is None:
                return NOBODY
            reason = gone.files.get(where) or self.dead(where, name, gone, None if position else before)
            if reason:
                return reason
            where, definition = self.resolve(where, name)
            if definition is not None:
                member = isinstance(definition, ast.ClassDef) and position + 1 < len(chain)
                return self.dead_member(definition, chain[position + 1], gone) if member else NOBODY
        return gone.files.get(where, NOBODY) if where else NOBODY

    def dead_member(self, owner: ast.stmt, name: str, gone: Gone, before: int | None = None) -> Culprits:
        """The reason why a class no longer has a member of its own; NOBODY if it still has it, or never had."""
        nodes = self.classes[owner].nodes.get(name, []) if isinstance(owner, ast.ClassDef) and owner in self.classes else []
        nodes = _above(nodes, before)
        reasons = [gone.nodes.get(node, NOBODY) for node in nodes]
        return frozenset().union(*reasons) if reasons and all(reasons) else NOBODY

    def owner_of(self, path: str, node: DefinitionNode) -> ast.ClassDef | None:
        """The class that a definition stands in."""
        definition = self.sources[path].by_line.get(first_line(node))
        return definition.owner if definition else None

    def unit_of(self, definition: Definition) -> Unit:
        return next(unit for unit in self.units[definition.path] if unit.node is definition.node)

    def is_taken(self, path: str, name: str) -> bool:
        """Whether `__all__` or another file takes `name` from module `path`."""
        if any(constant.value == name for _, constant in self.exports.get(path, ())):
            return True
        module = self.modules[path]
        for other, scope in self.scopes.items():
            if other == path:
                continue
            if any(target == module for _, target in scope.stars) and name in self.star_names(path):
                return True
            imported = {each.name for each in scope.imports.values() if each.module == module}
            if name in imported:
                return True
            if None in imported and any(name in chain[1:] for unit in self.units[other] for chain in unit.now | unit.later):
                return True
        return False

    def bases(self, path: str, owner: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
        """Those of a class that stand in these files."""
        found: list[tuple[str, ast.ClassDef]] = []
        for base in owner.bases:
            where: str | None = path
            node: DefinitionNode | None = None
            for part in ast.unparse(base).split("."):
                where, node = self.resolve(where, part) if where else (None, None)
            if where is not None and isinstance(node, ast.ClassDef):
                found.append((where, node))
        return found

    def resolve(self, path: str, name: str, _depth: int = 0) -> tuple[str | None, DefinitionNode | None]:
        """What a module-level name leads to: (path of a module, None), (path, definition) or (None, None)."""
        scope = self.scopes.get(path)
        if scope is None or _depth > 20:
            return None, None
        for node in reversed(scope.nodes.get(name, [])):
            imported = scope.imports.get(node)
            if imported is None:
                return (path, node) if isinstance(node, DefinitionNode) else (None, None)
            target = self.paths.get(imported.module)
            if target is None:
                return None, None
            return self.resolve(target, imported.name, _depth + 1) if imported.name else (target, None)
        for _, module in reversed(scope.stars):
            target = self.paths.get(module)
            if target and name in self.star_names(target):
                return self.resolve(target, name, _depth + 1)
        return self.paths.get(f"{self.modules[path]}.{name}"), None


def module_name(path: str, roots: Sequence[str]) -> str:
    """ "src/pkg/mod.py" -> "pkg.mod", by the longest import root that holds it."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    best = 0
    for root in roots:
        head = [part for part in PurePosixPath(root).parts if part != "."]
        if parts[: len(head)] == head:
            best = max(best, len(head))
    parts = parts[best:]
    if parts and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def _above(nodes: list[Binding], line: int | None) -> list[Binding]:
    return [node for node in nodes if node.lineno < line] or nodes if line is not None else nodes


def is_about_all(node: ast.stmt) -> bool:
    """`__all__ = ...`, `__all__ += ...`, `__all__.append(...)` and the like."""
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return isinstance(node.target, ast.Name) and node.target.id == "__all__"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return isinstance(node.value.func.value, ast.Name) and node.value.func.value.id == "__all__"
    return False
