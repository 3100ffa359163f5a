"""Move functions between modules of a package, in the text: the function, the imports that it needs, and everybody's imports of it.

In: an `Index`, which files are sources and which tests, `Move`s; out: the new bytes of every file that changes. A source file that imports
the function from its old module imports it from the new one, also where it came by `import *`; so does a test that imports it by any
way. A file that takes it as an attribute of its old module, a use while its module is imported, or a name that is bound
twice makes a function unmovable.

Not here: whether the moved repository works (kinds/refactor.py runs it).
"""

import ast
import builtins
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from etude.synth import edit
from etude.synth.cut import CutError
from etude.synth.edit import Edits
from etude.synth.names import Index, bound_name, module_name
from etude.synth.source import Definition, Source, Unreadable, parse
from etude.synth.units import IMPORT

MAX_DESTINATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    name: str
    old: str  # paths
    new: str


def move(
    index: Index, sources: Sequence[str], tests: Sequence[str], moves: Sequence[Move], roots: Sequence[str]
) -> dict[str, bytes | None]:
    """All moves, one after the other. CutError where one is not possible any more."""
    current = dict(index.sources)
    for each in moves:
        here = Index(current, roots)
        changed = _one(here, [*sources, each.new], tests, each, roots)
        for path, data in changed.items():
            try:
                current[path] = parse(path, data)
            except Unreadable as error:
                raise CutError(f"moving {each.name} leaves {path} broken: {error}", "parse") from None
    return {
        path: source.data
        for path, source in sorted(current.items())
        if path not in index.sources or index.sources[path].data != source.data
    }


def is_movable(index: Index, sources: Sequence[str], tests: Sequence[str], definition: Definition) -> bool:
    path, name, node = definition.path, definition.name, definition.node
    source, scope = index.sources[path], index.scopes.get(path)
    if scope is None or PurePosixPath(path).stem.startswith("__") or f"{path}i" in sources or not _is_plain(source):
        return False
    if node not in source.tree.body or len(scope.nodes[name]) != 1 or any(isinstance(part, ast.Global) for part in ast.walk(node)):
        return False
    if _needed(index, definition) is None or any(name == chain[0] for unit in index.units[path] for chain in unit.now):
        return False
    dotted = f"{index.modules[path]}.{name}".encode()
    if any(dotted in index.sources[test].data for test in tests) or _is_taken_as_attribute(index, definition):
        return False
    return any(_imports_it(index, test, definition) for test in tests if test in index.scopes)


def destinations(index: Index, sources: Sequence[str], definition: Definition) -> list[str]:
    """Modules beside its own that could hold it, then one that does not exist yet."""
    path = PurePosixPath(definition.path)
    needed = _needed(index, definition) or []
    names = {definition.name, *(bound_name(alias) for _, alias in needed)}
    edges = _edges(index)
    users = {user for user in index.scopes if _imports_it(index, user, definition)} | {definition.path}
    found: list[str] = []
    for other in sources:
        place = PurePosixPath(other)
        if place.parent != path.parent or place == path or place.stem.startswith("_") or other not in index.scopes:
            continue
        source, scope = index.sources[other], index.scopes[other]
        taken = any(name in scope.nodes and not _binds_alike(index, definition.path, other, name) for name in names)
        same = _is_plain(source) and _future(source) == _future(index.sources[definition.path]) and not scope.stars
        if not taken and same and not users & _reach(edges, other):
            found.append(other)
    found.sort(key=lambda each: hashlib.sha256(f"{definition.name}\0{each}".encode("utf-8", "surrogateescape")).digest())
    fresh = str(path.parent / f"{path.stem.strip('_')}_{definition.name.strip('_')}.py")
    return [*found[:MAX_DESTINATIONS], *([] if fresh in index.sources else [fresh])]


# -- one move


def _one(index: Index, sources: Sequence[str], tests: Sequence[str], each: Move, roots: Sequence[str]) -> dict[str, bytes]:
    definition = next((d for d in index.sources[each.old].definitions if d.qualname == each.name), None)
    needed = _needed(index, definition) if definition else None
    if definition is None or needed is None:
        raise CutError(f"{each.name} cannot be moved from {each.old}")
    module = module_name(each.new, roots)
    source = index.sources[each.old]
    text = source.data[source.starts[definition.line - 1] : source.starts[definition.end_line]].rstrip(b"\r\n")
    changed = {each.new: _with_function(index, definition, needed, each.new, text)}
    for path in sorted({*sources, *tests} & index.scopes.keys() - {each.old, each.new}):
        data = _importing_from(index, path, definition, each.new, module, path in tests)
        if data is not None:
            changed[path] = data
    edits = Edits(statements={definition.node})
    edits.elements |= {constant for _, constant in index.exports.get(each.old, ()) if constant.value == each.name}
    data = edit.apply(source, edits)
    if any(each.name == chain[0] for unit in index.units[each.old] if unit.node is not definition.node for chain in unit.later):
        left = parse(each.old, data)
        data = _inserted(left, _import_block_end(left), _import_line(left, each.new, module, each.name, None))
    return changed | {each.old: data}


def _with_function(index: Index, definition: Definition, needed: Sequence[tuple[ast.stmt, ast.alias]], new: str, text: bytes) -> bytes:
    """The new module with the function at its end and the imports that it needs."""
    end = _line_end(index.sources[definition.path])
    lines = [ast.unparse(_single(statement, alias)) for statement, alias in needed]
    if new not in index.sources:
        head = [*_future(index.sources[definition.path]), *lines]
        return (end.join(line.encode() for line in head) + (end * 3 if head else b"")) + text + end
    source = index.sources[new]
    missing = [line for (_, alias), line in zip(needed, lines, strict=True) if bound_name(alias) not in index.scopes[new].nodes]
    data = _inserted(source, _import_block_end(source), *missing) if missing else source.data
    return data.rstrip() + end * 3 + text + end


def _importing_from(index: Index, path: str, definition: Definition, new: str, module: str, is_test: bool) -> bytes | None:
    """A file that imports the function, from the new module; None if it does not."""
    source, scope = index.sources[path], index.scopes[path]
    doomed: dict[tuple[str, int, str, str | None], None] = {}
    inserted: dict[int, list[str]] = {}
    is_starred = definition.name in index.star_names(definition.path)
    for unit in index.units[path]:
        statement = unit.node
        if unit.owner is not None or not isinstance(statement, ast.ImportFrom):
            continue
        assert statement.end_lineno is not None
        indent = " " * statement.col_offset
        for alias in statement.names:
            imported = scope.imports.get(alias)
            if imported is not None and imported.name and _leads_to(index, imported.module, imported.name, definition, any_way=is_test):
                doomed[statement.module or "", statement.level, alias.name, alias.asname] = None
                line = _import_line(
                    source, new, module, definition.name, alias.asname or (alias.name if alias.name != definition.name else None)
                )
                inserted.setdefault(statement.end_lineno, []).append(indent + line)
            elif alias.name == "*" and index.paths.get(index.absolute(path, statement)) == definition.path and is_starred:
                inserted.setdefault(statement.end_lineno, []).append(indent + _import_line(source, new, module, definition.name, None))
    if not inserted:
        return None
    data = source.data
    for number in sorted(inserted, reverse=True):
        data = _inserted(parse(path, data), number, *dict.fromkeys(inserted[number]))
    again = parse(path, data)
    edits = Edits()
    for node in ast.walk(again.tree):
        if isinstance(node, ast.ImportFrom):
            gone = {alias for alias in node.names if (node.module or "", node.level, alias.name, alias.asname) in doomed}
            if len(gone) == len(node.names):
                edits.statements.add(node)
            else:
                edits.elements |= gone
    return edit.apply(again, edits)


# -- what an index says


def _needed(index: Index, definition: Definition) -> list[tuple[ast.stmt, ast.alias]] | None:
    """The imports that a function needs, in the order of the file; None if it needs anything else of its module."""
    scope, source = index.scopes[definition.path], index.sources[definition.path]
    unit = index.unit_of(definition)
    by_alias = {alias: s for s in source.tree.body if isinstance(s, (ast.Import, ast.ImportFrom)) for alias in s.names}
    found: dict[ast.alias, ast.stmt] = {}
    for chain in unit.now | unit.later:
        name = chain[0]
        if name in (definition.name, IMPORT):
            continue
        nodes = scope.nodes.get(name, [])
        if not nodes:
            if hasattr(builtins, name) and not scope.stars:
                continue
            return None
        alias = nodes[0]
        if len(nodes) > 1 or not isinstance(alias, ast.alias) or alias not in by_alias:
            return None
        found[alias] = by_alias[alias]
    return [(found[alias], alias) for alias in by_alias if alias in found]


def _is_taken_as_attribute(index: Index, definition: Definition) -> bool:
    """Somebody reaches it through its module, or imports it inside a function."""
    for path in index.scopes:
        for unit in index.units[path]:
            for chain in unit.now | unit.later:
                if definition.name not in chain[1:]:
                    continue
                if chain[0] == IMPORT:
                    return True
                where: str | None = path
                for position, name in enumerate(chain):
                    if position and name == definition.name and where == definition.path:
                        return True
                    where = index.resolve(where, name)[0] if where else None
    return False


def _imports_it(index: Index, path: str, definition: Definition) -> bool:
    return any(
        imported.name and _leads_to(index, imported.module, imported.name, definition, any_way=True)
        for imported in index.scopes[path].imports.values()
    )


def _leads_to(index: Index, module: str, name: str, definition: Definition, *, any_way: bool) -> bool:
    path = index.paths.get(module)
    if path is None or (path != definition.path and not any_way):
        return False
    return index.resolve(path, name) == (definition.path, definition.node)


def _binds_alike(index: Index, one: str, other: str, name: str) -> bool:
    """The same import in both modules."""
    pairs = []
    for path in (one, other):
        nodes = index.scopes[path].nodes.get(name, [])
        imported = index.scopes[path].imports.get(nodes[0]) if len(nodes) == 1 else None
        pairs.append((imported.module, imported.name) if imported else None)
    return pairs[0] is not None and pairs[0] == pairs[1]


def _edges(index: Index) -> dict[str, set[str]]:
    """Which file imports which, at module level."""
    found: dict[str, set[str]] = {}
    for path, scope in index.scopes.items():
        modules = [imported.module for imported in scope.imports.values()] + [module for _, module in scope.stars]
        found[path] = {index.paths[module] for module in modules if module in index.paths}
    return found


def _reach(edges: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


# -- text


def _single(statement: ast.stmt, alias: ast.alias) -> ast.stmt:
    if isinstance(statement, ast.ImportFrom):
        return ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
    return ast.Import(names=[alias])


def _import_line(source: Source, new: str, module: str, name: str, asname: str | None) -> str:
    """Relative where the file's own imports are, and it lies in the same package."""
    beside = PurePosixPath(source.path).parent == PurePosixPath(new).parent
    relative = beside and any(isinstance(node, ast.ImportFrom) and node.level for node in source.tree.body)
    renamed = f" as {asname}" if asname and asname != name else ""
    return f"from {'.' + PurePosixPath(new).stem if relative else module} import {name}{renamed}"


def _inserted(source: Source, line: int, *texts: str) -> bytes:
    """With lines after line number `line`."""
    end = _line_end(source)
    place = source.starts[line]
    before = source.data[:place]
    glue = b"" if not before or before.endswith((b"\n", b"\r")) else end
    return before + glue + b"".join(text.encode() + end for text in texts) + source.data[place:]


def _import_block_end(source: Source) -> int:
    """The last line of the imports at the top, else of the docstring; 0 where there is neither."""
    last = 0
    for position, statement in enumerate(source.tree.body):
        doc = position == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not doc and not isinstance(statement, (ast.Import, ast.ImportFrom)):
            break
        last = statement.end_lineno or last
    return last


def _future(source: Source) -> list[str]:
    return [ast.unparse(s) for s in source.tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]


def _is_plain(source: Source) -> bool:
    """UTF-8 with one kind of line end, so that text can go from one file to another."""
    ends = {match for match in (b"\r\n", b"\r") if match in source.data}
    return source.encoding == "utf-8" and not ends


def _line_end(source: Source) -> bytes:
    return b"\r\n" if b"\r\n" in source.data else b"\n"
