"""Take definitions out of Java sources with what hangs on them, and tests out of test files.

In: all Codes, the definitions that shall go; out: edits. A definition to which surviving code of a source refers, or which a type must
have, is kept (and then stubbed). Imports of what is gone go, and those that a changed file no longer uses. A type that is all of its file
takes the file along. In test files everything that names what is gone goes too, as the file would not compile: tests, helpers, fields,
and what names those.

Not here: what refers to what (names.py), whether the rest still works (synth/foreign measures it).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from etude.languages.edits import line_of, merged, removal
from etude.languages.java.code import CONSTRUCTORS, METHODS, TYPES, modifiers
from etude.languages.java.names import (
    OF_OBJECT,
    Hierarchy,
    Target,
    declared_names,
    is_abstract,
    references,
    same_method,
    target_of,
)
from etude.languages.protocol import Code, Definition, Edit, Removal, TestBlock
from etude.languages.syntax import comments_before, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

Key = tuple[str, int]
Ranges = dict[str, list[tuple[int, int]]]
PARTS = METHODS | TYPES | {"field_declaration", "static_initializer", "block", "enum_constant"}


def remove(codes: Mapping[str, Code], sources: Sequence[str], targets: Sequence[Definition]) -> Removal:
    files = {path: codes[path] for path in sources if path in codes}
    kin = Hierarchy(files.values())
    tops = [each for each in targets if not any(other is not each and _within(each, other) for other in targets)]
    goals = {each.key: target_of(files[each.path].tree.nodes[each.key], each.path) for each in tops}
    kept = {each.key for each in tops if _is_needed(files[each.path].tree.nodes[each.key], goals[each.key], kin, tops)}
    blockers: dict[str, None] = {}
    while True:
        ranges: Ranges = {path: [(d.start, d.end) for d in tops if d.path == path and d.key not in kept] for path in files}
        blocked: dict[str, Key] = {}
        for each in tops:
            if each.key in kept or each.name in OF_OBJECT:
                continue
            for path, code in files.items():
                for node in references(code, goals[each.key], kin, unknown=True):
                    if not _is_gone(ranges[path], node.start_byte):
                        blocked.setdefault(f"{path}:{line_of(code.data, node.start_byte)}", each.key)
        if not blocked:
            break
        blockers |= dict.fromkeys(blocked)
        kept |= set(blocked.values())
    removed = tuple(each for each in tops if each.key not in kept)
    gone = [goals[each.key] for each in removed]
    edits: dict[str, tuple[Edit, ...] | None] = {}
    for path, code in files.items():
        imports = _dead_imports(code, gone, files)
        if ranges[path] or imports:
            types = [child for child in code.tree.root.named_children if child.type in TYPES]
            whole = bool(types) and all(_is_gone(ranges[path], node.start_byte) for node in types)
            edits[path] = None if whole else _edits(code, [*ranges[path], *imports, *_unused_imports(code, ranges[path])])
    return Removal(edits=edits, removed=removed, kept=tuple(each for each in tops if each.key in kept), blockers=tuple(blockers))


def remove_tests(
    codes: Mapping[str, Code], tests: Sequence[TestBlock], removed: Sequence[Definition]
) -> dict[str, tuple[Edit, ...] | None]:
    files = {path: code for path, code in codes.items() if not code.definitions}
    kin = Hierarchy(codes.values())
    ranges: Ranges = {path: [(block.start, block.end) for block in tests if block.path == path] for path in files}
    gone = [target_of(codes[each.path].tree.nodes[each.key], each.path) for each in removed]
    _take_along(files, kin, gone, ranges)
    for path, code in files.items():
        ranges[path] += [(group.start, group.end) for group in _empty_groups(code, ranges[path])]
    out: dict[str, tuple[Edit, ...] | None] = {}
    for path, code in files.items():
        types = [child for child in code.tree.root.named_children if child.type in TYPES]
        if ranges[path] and all(_is_gone(ranges[path], node.start_byte) for node in types):
            out[path] = None
    for path in list(out):  # a class that others name stays, without its tests
        if _is_named_elsewhere(files, path, out, ranges):
            del out[path]
            inside = _inside_types(files[path])
            ranges[path] = [(start, end) for start, end in ranges[path] if (start, end) not in inside]
    for path, code in files.items():
        if path in out:
            continue
        imports = _dead_imports(code, gone, codes)
        if ranges[path] or imports:
            out[path] = _edits(code, [*ranges[path], *imports, *_unused_imports(code, ranges[path])])
    return out


def _edits(code: Code, ranges: Iterable[tuple[int, int]]) -> tuple[Edit, ...]:
    """Whole lines; ranges with nothing but space between them are one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and (start <= joined[-1][1] or not code.data[joined[-1][1] : start].strip()):
            start, end = joined[-1][0], max(end, joined[-1][1])
            joined.pop()
        joined.append((start, end))
    return tuple(merged(removal(code.data, start, end) for start, end in joined))


# -- sources


def _is_needed(node: "Node", target: Target, kin: Hierarchy, tops: Sequence[Definition]) -> bool:
    """Must its type have it, whoever calls it?"""
    if target.kind == "constructor":
        others = [each for each in kin.methods(target.owner) if each.type in CONSTRUCTORS]
        goes = sum(each.name == target.owner and not each.is_class for each in tops)
        return len(others) <= goes  # without any, a class gets one that takes nothing
    if target.kind != "method" or target.name in OF_OBJECT:
        return False
    above = kin.ancestors(target.owner)
    inherited = [each for name in above for each in kin.methods(name) if same_method(each, target)]
    if any(is_abstract(each) for each in inherited):
        return True
    return "@Override" in modifiers(node) and not inherited


def _within(one: Definition, other: Definition) -> bool:
    return one.path == other.path and other.start <= one.start and one.end <= other.end


def _is_gone(ranges: Iterable[tuple[int, int]], offset: int) -> bool:
    return any(start <= offset < end for start, end in ranges)


def _dead_imports(code: Code, gone: Sequence[Target], files: Mapping[str, Code]) -> list[tuple[int, int]]:
    """Imports of types that are gone, and static ones of methods of which none of that name is left."""
    found: list[tuple[int, int]] = []
    for node in code.tree.imports:
        parts = text_of(node).removeprefix("import").strip().rstrip(";").split()
        path = [part.strip() for part in parts[-1].split(".")]
        for target in gone:
            package = files[target.path].tree.package.split(".") if target.path in files else []
            if path[: len(package)] != package:
                continue
            is_type = target.kind == "type" and target.name in path[len(package) :]
            is_member = parts[0] == "static" and target.kind in ("method", "field") and path[-2:] == [target.owner, target.name]
            if is_type or (is_member and not _is_left(files[target.path], target, gone)):
                found.append((node.start_byte, node.end_byte))
                break
    return found


def _is_left(code: Code, target: Target, gone: Sequence[Target]) -> bool:
    """Is there another method of that name, which the import still means?"""
    same = [d for d in code.definitions if d.name == target.name and d.owner.rpartition(".")[2] == target.owner]
    return len(same) > sum((each.path, each.owner, each.name) == (target.path, target.owner, target.name) for each in gone)


def _unused_imports(code: Code, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Imports whose name stood only in what goes; one that a comment still names stays."""
    found: list[tuple[int, int]] = []
    if not ranges:
        return found
    rest = code.data
    for start, end in sorted(ranges, reverse=True):
        rest = rest[:start] + rest[end:]
    after_imports = rest[max((node.end_byte for node in code.tree.imports), default=0) :]
    for node in code.tree.imports:
        name = text_of(node).rstrip("; \t").rpartition(".")[2].strip()
        nodes = code.tree.names.get(name, ())
        unused = nodes and all(_is_gone(ranges, each.start_byte) for each in nodes)
        if unused and not re.search(rb"\b" + re.escape(name.encode()) + rb"\b", after_imports):
            found.append((node.start_byte, node.end_byte))
    return found


# -- tests


def _take_along(files: Mapping[str, Code], kin: Hierarchy, gone: Iterable[Target], ranges: Ranges) -> None:
    todo = list(gone)
    seen = set(todo)
    while todo:
        target = todo.pop()
        for path, code in files.items():
            for node in references(code, target, kin, unknown=False):
                if _is_gone(ranges[path], node.start_byte):
                    continue
                part = _part(node)
                ranges[path].append(_with_comments(code, part))
                for helper in _declares(part, path):
                    if helper not in seen:
                        seen.add(helper)
                        todo.append(helper)


def _part(node: "Node") -> "Node":
    """The declaration that an identifier stands in: the innermost member of a named type."""
    at = node
    while at.parent is not None:
        holder = at.parent.parent
        is_member = at.type in PARTS and at.parent.type.endswith(("_body", "_declarations")) and holder is not None
        if at.type in TYPES and at.parent.type in ("program", "class_body", "interface_body", "enum_body_declarations"):
            return at
        if is_member and holder is not None and holder.type != "object_creation_expression" and not _is_local(at):
            return at
        at = at.parent
    return node


def _is_local(node: "Node") -> bool:
    """In a class inside a method."""
    at = node.parent
    while at is not None:
        if at.type in TYPES and at.parent is not None and at.parent.type == "block":
            return True
        if at.type == "object_creation_expression":
            return True
        at = at.parent
    return False


def _declares(part: "Node", path: str) -> list[Target]:
    if part.type == "field_declaration":
        return [target_of(each, path) for each in declared_names(part).values()]
    if part.type in METHODS or part.type in TYPES:
        is_called = not any(word.startswith("@") and word != "@Override" for word in modifiers(part))  # by nobody but JUnit otherwise
        return [target_of(part, path)] if is_called or part.type in TYPES else []
    return []


def _with_comments(code: Code, node: "Node") -> tuple[int, int]:
    comments = comments_before(code.data, node)
    return (comments[0] if comments else node).start_byte, node.end_byte


def _empty_groups(code: Code, ranges: list[tuple[int, int]]) -> list[TestBlock]:
    """Classes all of whose tests go."""
    found = []
    for group in (block for block in code.tests if block.is_group):
        inner = [each for each in code.tests if not each.is_group and group.start <= each.start and each.end <= group.end]
        if not _is_gone(ranges, group.start) and all(_is_gone(ranges, code.tree.nodes[each.key].start_byte) for each in inner):
            found.append(group)
    return found


def _is_named_elsewhere(files: Mapping[str, Code], path: str, out: Mapping[str, object], ranges: Ranges) -> bool:
    names = [text_of(node.child_by_field_name("name")) for node in files[path].tree.root.named_children if node.type in TYPES]
    for other, code in files.items():
        if other == path or other in out:
            continue
        if any(not _is_gone(ranges[other], node.start_byte) for name in names for node in code.tree.names.get(name, ())):
            return True
    return False


def _inside_types(code: Code) -> set[tuple[int, int]]:
    """Ranges of whole top-level types."""
    return {_with_comments(code, node) for node in code.tree.root.named_children if node.type in TYPES}
