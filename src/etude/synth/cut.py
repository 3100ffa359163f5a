"""Take definitions out of a repository: the definitions themselves and everything that hangs on them.

In: an `Index` of all Python files, the sources among them, the definitions that shall go; out: a `Cut`. Two modes:

- remove: the definition with its decorators, imports of it, re-exports, `__all__` entries, module-level statements that use it
  (`x = curry(x)`, `x.__doc__ = ...`, entries of lists and dicts), imports that only it needed, its part of a .pyi file, its whole
  file if nothing is left. Where surviving code refers to it (a body, a base class, a decorator), the definition is stubbed instead.
- stub: the body becomes `raise NotImplementedError`; signature and docstring stay, and so does everything else.

In both modes the feature's tests go afterwards (reduce.py).

Not here: which definitions (candidates.py), whether the rest still works (prove.py).
"""

import ast
import collections.abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from etude.synth import edit
from etude.synth.closure import Closure, close, drop_empty_imports, unused_names
from etude.synth.edit import Edits
from etude.synth.names import Culprits, Index, Key, is_about_all
from etude.synth.refusal import Gate
from etude.synth.source import Definition, DefinitionNode, FunctionNode, Unreadable, is_trivial, parse
from etude.synth.units import Unit

Mode = Literal["remove", "stub"]


class CutError(ValueError):
    """This cut cannot be made; the message says why in one line, and `gate` where it was found."""

    def __init__(self, message: str, gate: Gate = "proposal") -> None:
        super().__init__(message)
        self.gate: Gate = gate


class NothingToRemove(CutError):
    """Every definition is needed by code that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    mode: Mode
    removed: tuple[Definition, ...]  # sorted by key
    stubbed: tuple[Definition, ...]
    blockers: tuple[str, ...]  # "path:line" of the references that turned a removal into a stub
    closure: Closure

    @property
    def culprits(self) -> Culprits:
        return frozenset(definition.key for definition in (*self.removed, *self.stubbed))


def cut_sources(index: Index, sources: Sequence[str], targets: Sequence[Definition], mode: Mode) -> Cut:
    """CutError where there is nothing to remove, or no body to stub."""
    if mode == "stub":
        stubs = stub_targets(index, targets)
        if not stubs:
            raise CutError("no body to stub")
        return Cut(mode="stub", removed=(), stubbed=stubs, blockers=(), closure=Closure(index))
    classes = {definition.node for definition in targets if definition.is_class}
    tops = sorted((d for d in targets if not _is_inside(index, d, classes)), key=lambda d: d.key)
    kept: set[Key] = {definition.key for definition in tops if is_protected(definition) or is_demanded(index, definition)}
    blockers: dict[str, None] = {}
    while True:
        closure = Closure(index)
        for definition in tops:
            if definition.key not in kept:
                for node in [definition.node, *alternatives(index, definition)]:
                    closure.drop(definition.path, node, frozenset([definition.key]), [definition.name])
        close(closure, sources)
        if not closure.blocked:
            break
        blockers |= dict.fromkeys(closure.blocked)
        kept |= frozenset().union(*closure.blocked.values())
    removed = tuple(definition for definition in tops if definition.key not in kept)
    if not removed:
        raise NothingToRemove(f"nothing can be removed: needed at {', '.join(list(blockers)[:3]) or 'special methods only'}")
    culprits = frozenset(definition.key for definition in removed)
    closure = _drop_empty_files(closure, sources)
    _drop_unused_imports(closure, sources, culprits)
    _drop_declarations(closure, sources, culprits)
    rest = [d for d in targets if d.key in kept]
    return Cut(mode="remove", removed=removed, stubbed=stub_targets(index, rest), blockers=tuple(blockers), closure=closure)


def alternatives(index: Index, definition: Definition) -> list[ast.AST]:
    """Other bindings of the same name that go along: overloads, the other branch of an `if`. Not the parts of a property."""
    scope = index.classes[definition.owner] if definition.owner else index.scopes[definition.path]
    nodes = [node for node in scope.nodes[definition.name] if node is not definition.node]
    group = [definition.node, *(node for node in nodes if isinstance(node, DefinitionNode))]
    if definition.name == "_" or any(_extends(node, definition.name) for node in group):
        return []
    return [node for node in nodes if not _rebinds(node, definition.name)]


def is_protected(definition: Definition) -> bool:
    """A special method of a class with bases: without it the class may turn abstract, or mean something else."""
    dunder = definition.name.startswith("__") and definition.name.endswith("__")
    bases = [*definition.owner.bases, *definition.owner.keywords] if definition.owner else []
    return dunder and any(not (isinstance(base, ast.Name) and base.id == "object") for base in bases)


def is_demanded(index: Index, definition: Definition) -> bool:
    """An abstract method of a base, also of collections.abc, that it stands for: without it there are no objects of the class."""
    classes = [(definition.path, definition.owner)] if definition.owner else []
    for path, owner in classes:  # grows while it is read
        names = (ast.unparse(base).rpartition(".")[2].partition("[")[0] for base in owner.bases)
        if any(definition.name in getattr(getattr(collections.abc, name, None), "__abstractmethods__", ()) for name in names):
            return True
        for where, node in index.bases(path, owner):
            for each in index.classes[node].nodes.get(definition.name, []):
                if isinstance(each, FunctionNode) and any("abstract" in ast.unparse(decorator) for decorator in each.decorator_list):
                    return True
            classes += [(where, node)] if (where, node) not in classes else []
    return False


def render(closure: Closure, stubs: Iterable[Definition] = (), *, paths: Iterable[str] | None = None) -> dict[str, bytes | None]:
    """path -> new bytes, None for a removed file; only files that change, of `paths` if given. CutError where an edit would not parse."""
    chosen = closure.by_path.keys() | closure.gone.files.keys() if paths is None else set(paths)
    edits: dict[str, Edits] = {path: Edits() for path in closure.by_path if path in chosen}
    for path in edits:
        for node in closure.by_path[path]:
            (edits[path].statements if isinstance(node, ast.stmt) else edits[path].elements).add(node)  # type: ignore[arg-type]
    for definition in stubs:
        if isinstance(definition.node, FunctionNode):
            edits.setdefault(definition.path, Edits()).stubs.add(definition.node)
    out: dict[str, bytes | None] = {}
    for path in sorted(edits.keys() | (closure.gone.files.keys() & chosen)):
        if path in closure.gone.files:
            out[path] = None
            continue
        source = closure.index.sources[path]
        data = edit.apply(source, edits[path])
        try:
            parse(path, data)
        except Unreadable as error:
            raise CutError(f"the cut leaves {path} broken: {error}", "parse") from None
        if data != source.data:
            out[path] = data
    return out


def _extends(node: DefinitionNode, name: str) -> bool:
    """Decorated with @name.setter, @name.register and the like: one of several parts, each its own definition."""
    for decorator in node.decorator_list:
        base = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id == name:
            return True
    return False


def _rebinds(node: ast.AST, name: str) -> bool:
    """`name = wrap(name)`: refers to the definition, so the closure decides about it."""
    return isinstance(node, ast.Assign) and any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value))


def _is_inside(index: Index, definition: Definition, classes: set[DefinitionNode]) -> bool:
    owner = definition.owner
    while owner is not None:
        if owner in classes:
            return True
        owner = index.owner_of(definition.path, owner)
    return False


def stub_targets(index: Index, targets: Iterable[Definition]) -> tuple[Definition, ...]:
    """The functions with a body to replace: the targets, and the methods of classes among them."""
    found: dict[Key, Definition] = {}
    for target in targets:
        inner = index.sources[target.path].definitions if target.is_class else (target,)
        for definition in inner:
            within = target.line <= definition.line <= target.end_line
            if within and isinstance(definition.node, FunctionNode) and not is_trivial(definition.node):
                found[definition.key] = definition
    return tuple(found[key] for key in sorted(found))


def _drop_empty_files(closure: Closure, sources: Sequence[str]) -> Closure:
    """Remove source files in which only imports and a docstring are left, if nothing else needs the module."""
    for path in sources:
        units = closure.index.units[path]
        definitions = [unit.node for unit in units if isinstance(unit.node, DefinitionNode) and unit.node in closure.gone.nodes]
        if not definitions or path not in closure.index.scopes or PurePosixPath(path).stem.startswith("__"):
            continue
        if all(unit.node in closure.covered or _is_harmless(unit) for unit in units):
            trial = closure.copy()
            trial.drop_file(path, frozenset().union(*(closure.gone.nodes[node] for node in definitions)))
            close(trial, sources)
            if not trial.blocked:
                closure = trial
    return closure


def _is_harmless(unit: Unit) -> bool:
    node = unit.node
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)) or (is_about_all(node) and not unit.header)


def _drop_unused_imports(closure: Closure, sources: Sequence[str], culprits: Culprits) -> None:
    """Imports that only the removed code used. Not in a package's __init__, where an import is an export."""
    for path in sources:
        if path in closure.by_path and path in closure.index.scopes and PurePosixPath(path).name != "__init__.py":
            for name, node in unused_names(closure, path, imports_only=True):
                if not closure.index.is_taken(path, name):
                    closure.drop(path, node, culprits)
            drop_empty_imports(closure, path, culprits)


def _drop_declarations(closure: Closure, sources: Sequence[str], culprits: Culprits) -> None:
    """The part of a .pyi file that declares what is gone from the .py file beside it."""
    index, gone = closure.index, closure.gone
    for path in sources:
        module = path.removesuffix("i")
        if path == module or module not in index.scopes:
            continue
        if module in gone.files:
            gone.files[path] = culprits
            continue
        dead_classes = {d.qualname: d.node for d in index.sources[module].definitions if isinstance(d.node, ast.ClassDef)}
        for unit in index.units[path]:
            node = unit.node
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    if index.dead(module, alias.asname or alias.name, gone):
                        closure.drop(path, alias, culprits)
            elif is_about_all(node) and not unit.header:
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and index.dead(module, part.value, gone):
                        closure.drop(path, part, culprits)
            elif unit.owner is None:
                if unit.bound and all(index.dead(module, name, gone) for name in unit.bound):
                    closure.drop(path, node, culprits)
            elif unit.node not in closure.covered and unit.owner.name in dead_classes:
                owner = dead_classes[unit.owner.name]
                if unit.bound and all(index.dead_member(owner, name, gone) for name in unit.bound):
                    closure.drop(path, node, culprits)
        drop_empty_imports(closure, path, culprits)
