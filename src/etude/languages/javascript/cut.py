"""Take definitions out of JavaScript sources with what hangs on them, and tests out of test files.

In: all Codes, the definitions that shall go; out: edits. A name that is gone takes along the imports of it, the exports of it and their
imports elsewhere. A definition to which surviving code of a source refers is kept (and then stubbed). Names are compared as they are
written: a local variable of the same name counts as a reference, and so does a member of the same name for a method, which errs on the
side of keeping. Imports that nothing uses any more go.

Not here: whether the rest still works (synth/foreign/ measures it).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from etude.languages.edits import line_of, merged, removal
from etude.languages.javascript.code import BODIES
from etude.languages.javascript.names import WHOLE, Import, Links, links_of, resolve
from etude.languages.protocol import Code, Definition, Edit, Removal, TestBlock
from etude.languages.syntax import comments_before

if TYPE_CHECKING:
    from tree_sitter import Node

Key = tuple[str, int]
VALUE_NAMES = frozenset({"identifier", "shorthand_property_identifier", "type_identifier"})
MEMBER_NAMES = frozenset({"property_identifier", "private_property_identifier", "shorthand_property_identifier_pattern"})
NEVER = frozenset({"constructor", "module.exports", "default", "toString", "toJSON", "valueOf", "then", "next", "return", "throw"})


def remove(codes: Mapping[str, Code], sources: Sequence[str], targets: Sequence[Definition]) -> Removal:
    files = {path: codes[path] for path in sources if path in codes}
    links = {path: links_of(code) for path, code in files.items()}
    tops = [each for each in targets if not any(other is not each and _within(each, other) for other in targets)]
    kept: set[Key] = {each.key for each in tops if each.name in NEVER}
    blockers: dict[str, None] = {}
    while True:
        closure = _Closure(files, links)
        for each in tops:
            if each.key not in kept:
                closure.drop(each)
        closure.close()
        if not closure.blocked:
            break
        blockers |= dict.fromkeys(closure.blocked)
        kept |= set(closure.blocked.values())
    removed = tuple(each for each in tops if each.key not in kept)
    edits: dict[str, tuple[Edit, ...] | None] = {}
    for path, ranges in closure.ranges.items():
        if ranges or path in closure.elements:
            found = _edits(files[path], ranges, closure.elements.get(path, []))
            edits[path] = (*found, *_unused_imports(files[path], links[path], found)) if found else ()
    edits = {path: tuple(merged(each)) for path, each in edits.items() if each}
    _drop_empty(files, links, edits)
    return Removal(edits=edits, removed=removed, kept=tuple(each for each in tops if each.key in kept), blockers=tuple(blockers))


def remove_tests(
    codes: Mapping[str, Code], tests: Sequence[TestBlock], removed: Sequence[Definition]
) -> dict[str, tuple[Edit, ...] | None]:
    dead = _dead_exports(codes, removed)
    out: dict[str, tuple[Edit, ...] | None] = {}
    gone_by_path: dict[str, set[Key]] = {}
    for block in tests:
        gone_by_path.setdefault(block.path, set()).add(block.key)
    for path, code in codes.items():
        if not code.tests:
            continue
        gone = _with_empty_groups(code, gone_by_path.get(path, set()))
        if gone and all(block.key in gone for block in code.tests):
            out[path] = None
            continue
        ranges = [(block.start, block.end) for block in code.tests if block.key in gone]
        links = links_of(code)
        lost = [each for each in links.imports if (resolve(path, each.specifier, codes.keys()), each.name) in dead and _is_static(each)]
        found = _edits(code, ranges, [each.element for each in lost])
        if found:
            out[path] = tuple(merged((*found, *_unused_imports(code, links, found))))
    return out


class _Closure:
    """What goes, file by file, and which references stand against it."""

    def __init__(self, files: Mapping[str, Code], links: Mapping[str, Links]) -> None:
        self.files, self.links = files, links
        self.ranges: dict[str, list[tuple[int, int]]] = {path: [] for path in files}
        self.elements: dict[str, list[Node]] = {}
        self.locals: list[tuple[str, str, Key]] = []  # path, name, on whose account
        self.exports: list[tuple[str, str, Key]] = []
        self.members: list[tuple[str, str, Key]] = []
        self.blocked: dict[str, Key] = {}  # "path:line" -> definition

    def drop(self, definition: Definition) -> None:
        path = definition.path
        code = self.files[path]
        unit, _ = code.tree.functions[definition.key]
        if unit.type in ("pair", "variable_declarator") or (unit.type == "method_definition" and unit.parent.type == "object"):
            self.elements.setdefault(path, []).append(unit)
        self.ranges[path].append((definition.start, definition.end))
        declares = unit.type not in ("pair", "method_definition", "field_definition", "public_field_definition")
        if definition.owner or (unit.type == "expression_statement") or not declares:
            self.members.append((path, definition.name, definition.key))
            if not definition.owner:
                self.exports.append((path, definition.name, definition.key))
            return
        self.locals.append((path, definition.name, definition.key))
        if unit.type == "export_statement":
            self.exports.append((path, "default" if unit.child_by_field_name("value") else definition.name, definition.key))
            if code.data[unit.start_byte : unit.end_byte].startswith(b"export default"):
                self.exports.append((path, "default", definition.key))

    def close(self) -> None:
        seen: set[tuple[str, str, str]] = set()
        while self.locals or self.exports:
            while self.locals:
                path, name, key = self.locals.pop()
                if ("local", path, name) not in seen:
                    seen.add(("local", path, name))
                    self._dead_local(path, name, key)
            while self.exports:
                path, name, key = self.exports.pop()
                if ("export", path, name) not in seen:
                    seen.add(("export", path, name))
                    self._dead_export(path, name, key)
        for _, name, key in self.members:
            for path, code in self.files.items():
                self._block(path, code, name, MEMBER_NAMES, key)

    def _dead_local(self, path: str, name: str, key: Key) -> None:
        for export in self.links[path].exports:
            if export.local == name:
                if export.name == WHOLE:  # module.exports = name: the file would be empty
                    self.blocked[f"{path}:{line_of(self.files[path].data, export.statement.start_byte)}"] = key
                    continue
                self._take(path, export.element, export.statement)
                self.exports.append((path, export.name, key))
        self._block(path, self.files[path], name, VALUE_NAMES, key)

    def _dead_export(self, path: str, name: str, key: Key) -> None:
        for other, links in self.links.items():
            for each in links.imports:
                if resolve(other, each.specifier, self.files.keys()) != path:
                    continue
                if each.name == name:
                    self._take(other, each.element, each.statement)
                    self.locals.append((other, each.local, key))
                elif each.name == WHOLE:
                    self._block_member(other, each.local, name, key)
            for export in links.exports:
                if export.specifier and resolve(other, export.specifier, self.files.keys()) == path:
                    if export.name == WHOLE:
                        self.exports.append((other, name, key))
                    elif _imported_name(export.element) == name:
                        self._take(other, export.element, export.statement)
                        self.exports.append((other, export.name, key))

    def _take(self, path: str, element: "Node", statement: "Node") -> None:
        if element == statement:
            self.ranges[path].append(_with_comments(self.files[path], statement))
        else:
            self.ranges[path].append((element.start_byte, element.end_byte))
            self.elements.setdefault(path, []).append(element)

    def _block(self, path: str, code: Code, name: str, kinds: frozenset[str], key: Key) -> None:
        for each in code.tree.names:
            if each.text == name and each.kind in kinds and not self._is_gone(path, each.start):
                self.blocked.setdefault(f"{path}:{line_of(code.data, each.start)}", key)
                return

    def _block_member(self, path: str, local: str, name: str, key: Key) -> None:
        code = self.files[path]
        for each in code.tree.names:
            parent = each.node.parent
            is_member = parent is not None and parent.type in ("member_expression", "nested_identifier")
            if each.text == name and is_member and parent.named_children[0].text == local.encode() and not self._is_gone(path, each.start):
                self.blocked.setdefault(f"{path}:{line_of(code.data, each.start)}", key)

    def _is_gone(self, path: str, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.ranges[path])


def _within(one: Definition, other: Definition) -> bool:
    return one.path == other.path and other.start <= one.start and one.end <= other.end


def _with_comments(code: Code, statement: "Node") -> tuple[int, int]:
    comments = comments_before(code.data, statement)
    return (comments[0] if comments else statement).start_byte, statement.end_byte


def _imported_name(element: "Node") -> str:
    name = element.child_by_field_name("name")
    return (name.text or b"").decode() if name is not None else ""


def _is_static(each: Import) -> bool:
    """An import that fails the whole file if its name is not there."""
    return each.statement.type == "import_statement"


def _edits(code: Code, ranges: Iterable[tuple[int, int]], elements: Sequence["Node"]) -> list[Edit]:
    """Ranges as whole lines; elements of a list with their commas, or the whole statement where none is left."""
    inside = {(node.start_byte, node.end_byte) for node in elements}
    with_comments = {code.tree.functions[d.key][0].id: (d.start, d.end) for d in code.definitions}
    skip = inside | {with_comments[node.id] for node in elements if node.id in with_comments}
    found = [removal(code.data, start, end) for start, end in ranges if (start, end) not in skip]
    by_list: dict[int, tuple[Node, list[Node]]] = {}
    for node in elements:
        if node.parent is not None:
            by_list.setdefault(node.parent.id, (node.parent, []))[1].append(node)
    for container, nodes in by_list.values():
        parts = [child for child in container.named_children if child.type != "comment"]
        whole = {node.id for node in nodes}
        statement = _emptied(container) if all(part.id in whole for part in parts) else None
        if statement is not None:
            found.append(removal(code.data, *_with_comments(code, statement)))
            continue
        for node in nodes:
            start = with_comments[node.id][0] if node.id in with_comments else node.start_byte
            found.append(_element(code.data, start, node.end_byte, is_last=node.id == parts[-1].id))
    return found


def _emptied(container: "Node") -> "Node | None":
    """The statement that goes with the last element of a list."""
    node = container
    if node.type == "object":
        return None
    while node.parent is not None and node.type not in (
        "import_statement", "export_statement", "lexical_declaration", "variable_declaration"
    ):  # fmt: skip
        others = [child for child in node.parent.named_children if child.id != node.id and child.type not in ("string", "comment")]
        if node.parent.type == "import_clause" and others:
            return None
        if node.parent.type in ("lexical_declaration", "variable_declaration") and others:
            return None
        node = node.parent
    return node


def _element(data: bytes, start: int, end: int, *, is_last: bool) -> Edit:
    rest = data[end:]
    gap = len(rest) - len(rest.lstrip())
    if rest[gap : gap + 1] == b",":
        end += gap + 1
        line = removal(data, start, end)
        if line.start < start or line.end > end:  # whole lines
            return line
        return Edit(start=start, end=end + len(data[end:]) - len(data[end:].lstrip(b" \t")))
    if is_last:
        head = data[:start].rstrip()
        if head.endswith(b","):
            return Edit(start=len(head) - 1, end=end)
    return Edit(start=start, end=end)


def _unused_imports(code: Code, links: Links, edits: Sequence[Edit]) -> list[Edit]:
    """Imports whose name stood only in what goes."""

    def is_gone(offset: int) -> bool:
        return any(edit.start <= offset < edit.end for edit in edits)

    before: set[str] = set()
    after: set[str] = set()
    own = {(each.element.start_byte, each.element.end_byte) for each in links.imports}
    for name in code.tree.names:
        if name.kind in VALUE_NAMES and not any(start <= name.start < end for start, end in own if start <= name.start):
            before.add(name.text)
            if not is_gone(name.start):
                after.add(name.text)
    lost = [each for each in links.imports if each.local in before - after and not is_gone(each.element.start_byte)]
    dead = [each.element for each in links.imports if is_gone(each.element.start_byte)]
    return _edits(code, [], [*(each.element for each in lost), *dead]) if lost else []


def _drop_empty(files: Mapping[str, Code], links: Mapping[str, Links], edits: dict[str, tuple[Edit, ...] | None]) -> None:
    """A file in which only imports, directives and an empty export are left goes, if nobody imports it."""
    for path in list(edits):
        found = edits[path] or ()
        rest = [
            node
            for node in files[path].tree.root.named_children
            if not any(e.start <= node.start_byte and node.end_byte <= e.end for e in found)
        ]
        if any(_has_content(node) for node in rest):
            continue
        users = [
            other
            for other, each in links.items()
            for one in each.imports
            if resolve(other, one.specifier, files.keys()) == path and other != path
        ]
        users += [
            other
            for other, each in links.items()
            for one in each.exports
            if one.specifier and resolve(other, one.specifier, files.keys()) == path
        ]
        if not users:
            edits[path] = None


def _has_content(node: "Node") -> bool:
    if node.type in ("comment", "import_statement", "hash_bang_line"):
        return False
    if node.type == "expression_statement":
        return not (node.named_children and node.named_children[0].type == "string")
    return not (node.type in ("lexical_declaration", "variable_declaration") and b"require(" in (node.text or b"") and not _any_body(node))


def _any_body(node: "Node") -> bool:
    return node.type in BODIES or any(_any_body(child) for child in node.named_children)


def _with_empty_groups(code: Code, gone: set[Key]) -> set[Key]:
    """Also the groups all of whose tests go, and everything inside a group that goes."""
    found = set(gone)
    for block in reversed(code.tests):
        inner = [other for other in code.tests if other.key != block.key and block.start <= other.start and other.end <= block.end]
        if block.is_group and inner and all(other.key in found for other in inner):
            found.add(block.key)
    for block in code.tests:
        if block.key in found:
            found |= {other.key for other in code.tests if block.start <= other.start and other.end <= block.end}
    return found


def _dead_exports(codes: Mapping[str, Code], removed: Sequence[Definition]) -> set[tuple[str | None, str]]:
    """(file, name) of every export that is gone with definitions, re-exports included."""
    dead: set[tuple[str | None, str]] = set()
    todo: list[tuple[str, str]] = []
    for each in removed:
        todo.append((each.path, each.name))
        unit = codes[each.path].tree.functions[each.key][0]
        if (unit.text or b"").startswith(b"export default"):
            todo.append((each.path, "default"))
        todo += [(each.path, export.name) for export in links_of(codes[each.path]).exports if export.local == each.name]
    while todo:
        path, name = todo.pop()
        if (path, name) in dead:
            continue
        dead.add((path, name))
        for other, code in codes.items():
            for export in links_of(code).exports if not code.tests else ():
                if export.specifier and resolve(other, export.specifier, codes.keys()) == path and name != "default":
                    if export.name == WHOLE:
                        todo.append((other, name))
                    elif _imported_name(export.element) == name:
                        todo.append((other, export.name))
    return dead
