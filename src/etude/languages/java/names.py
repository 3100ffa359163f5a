"""What refers to a declaration of Java, told from names: no types are resolved, as javac does that when the cut is tried.

In: Codes and a Target (a method, constructor, type or field that goes); out: the identifiers that refer to it. A call counts if its number
of arguments fits and its receiver may be of the right family: that of a static call by the name before the dot, that of a variable by the
types with which the file declares variables of that name. Of a receiver of which nothing is known `unknown` decides.

Not here: what is removed (cut.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from etude.languages.java.code import CONSTRUCTORS, METHODS, TYPES, explicit_call, members, modifiers
from etude.languages.protocol import Code
from etude.languages.syntax import COMMENTS, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

Kind = Literal["method", "constructor", "type", "field"]
MANY = 999  # arguments
OF_OBJECT = frozenset({"toString", "equals", "hashCode"})  # gone, Object's are there


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    kind: Kind
    name: str
    owner: str  # simple name of the type that holds it; of a type: its own
    path: str
    low: int = 0  # numbers of arguments
    high: int = MANY
    is_static: bool = False
    is_private: bool = False

    def takes(self, count: int) -> bool:
        return self.low <= count <= self.high


class Hierarchy:
    """Names of types and of what they extend, over all Codes."""

    def __init__(self, codes: Iterable[Code]) -> None:
        self.above: dict[str, set[str]] = {}
        self.types: dict[str, list[Node]] = {}
        for code in codes:
            for node in _types(code.tree.root):
                name = text_of(node.child_by_field_name("name"))
                self.types.setdefault(name, []).append(node)
                self.above.setdefault(name, set()).update(supers(node))

    def ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        todo = [name]
        while todo:
            for each in self.above.get(todo.pop(), ()):
                if each not in found:
                    found.add(each)
                    todo.append(each)
        return found

    def descends(self, name: str, owner: str) -> bool:
        return name == owner or owner in self.ancestors(name)

    def may_be(self, name: str, owner: str) -> bool:
        """May a variable of this type hold an `owner`?"""
        return self.descends(name, owner) or self.descends(owner, name) or name in ("var", "Object") or len(name) == 1

    def methods(self, name: str) -> Iterator["Node"]:
        for node in self.types.get(name, ()):
            yield from (member for member in members(node) if member.type in METHODS)


def target_of(node: "Node", path: str) -> Target:
    """Of a declaration."""
    owner = _owner(node)
    words = modifiers(node)
    if node.type in TYPES:
        name = text_of(node.child_by_field_name("name"))
        return Target(kind="type", name=name, owner=name, path=path, is_private="private" in words)
    if node.type == "variable_declarator":
        above = modifiers(node.parent) if node.parent is not None else []
        name = text_of(node.child_by_field_name("name"))
        return Target(kind="field", name=name, owner=owner, path=path, is_static="static" in above, is_private="private" in above)
    low, high = _arity(node)
    return Target(
        kind="constructor" if node.type in CONSTRUCTORS else "method",
        name=text_of(node.child_by_field_name("name")),
        owner=owner,
        path=path,
        low=low,
        high=high,
        is_static="static" in words,
        is_private="private" in words,
    )


def references(code: Code, target: Target, kin: Hierarchy, *, unknown: bool) -> Iterator["Node"]:
    """Identifiers (or calls of `this(...)`) in a file that refer to the target."""
    if target.is_private and code.path != target.path:
        return
    for node in code.tree.names.get(target.name, ()):
        parent = node.parent
        if parent is None:
            continue
        if target.kind == "type":
            if _names_a_type(node, parent):
                yield node
        elif target.kind == "field":
            if _names_a_field(code, node, parent, target, kin):
                yield node
        elif target.kind == "constructor":
            if _makes(node, target):
                yield node
        elif _calls(code, node, parent, target, kin, unknown):
            yield node
    if target.kind == "constructor":
        yield from _explicit(code, target, kin)


def supers(node: "Node") -> set[str]:
    """Simple names of what a type extends and implements."""
    found: set[str] = set()
    for child in node.named_children:
        if child.type in ("superclass", "super_interfaces", "extends_interfaces"):
            found |= {_simple(each) for each in _listed(child)}
    return found


def enclosing(node: "Node") -> Iterator[tuple[str, set[str]]]:
    """The types around a node, inside out: name ("" of an anonymous one), what it extends."""
    at = node.parent
    while at is not None:
        if at.type in TYPES:
            yield text_of(at.child_by_field_name("name")), supers(at)
        elif at.type == "class_body" and at.parent is not None and at.parent.type == "object_creation_expression":
            yield "", {_simple(at.parent.child_by_field_name("type"))}
        at = at.parent


def is_abstract(method: "Node") -> bool:
    return method.child_by_field_name("body") is None


def same_method(node: "Node", target: Target) -> bool:
    return text_of(node.child_by_field_name("name")) == target.name and _arity(node) == (target.low, target.high)


# -- one identifier


def _names_a_type(node: "Node", parent: "Node") -> bool:
    if parent.type in ("method_invocation", "method_declaration", "variable_declarator", "formal_parameter", "labeled_statement"):
        return node != parent.child_by_field_name("name")
    if parent.type in TYPES or parent.type in CONSTRUCTORS:
        return node != parent.child_by_field_name("name")
    return not (parent.type == "field_access" and node == parent.child_by_field_name("field") and parent.named_children[0].type == "this")


def _names_a_field(code: Code, node: "Node", parent: "Node", target: Target, kin: Hierarchy) -> bool:
    if parent.type == "method_invocation" and node == parent.child_by_field_name("name"):
        return False
    if parent.type in ("variable_declarator", "formal_parameter", "method_declaration"):
        return node != parent.child_by_field_name("name")
    if parent.type == "field_access" and node == parent.child_by_field_name("field"):
        before = parent.child_by_field_name("object")
        return before is not None and (before.type == "this" or kin.descends(text_of(before).rpartition(".")[2], target.owner))
    return _is_inside(node, target.owner, kin)


def _makes(node: "Node", target: Target) -> bool:
    at = node.parent
    while at is not None and at.type in ("generic_type", "scoped_type_identifier"):
        at = at.parent
    if at is None:
        return False
    if at.type == "object_creation_expression":
        kind = at.child_by_field_name("type")
        return kind is not None and _simple(kind) == target.owner and _contains(kind, node) and target.takes(_count(at))
    return at.type == "method_reference" and at.children[-1].type == "new" and _simple(at.named_children[0]) == target.owner


def _explicit(code: Code, target: Target, kin: Hierarchy) -> Iterator["Node"]:
    """`this(...)` and `super(...)`, and constructors that call the one without arguments by saying nothing."""
    for node in _types(code.tree.root):
        name = text_of(node.child_by_field_name("name"))
        is_own, is_below = name == target.owner, target.owner in supers(node)
        if not (is_own or is_below):
            continue
        own = [member for member in members(node) if member.type == "constructor_declaration"]
        for member in own:
            body = member.child_by_field_name("body")
            call = explicit_call(body) if body is not None else None
            word = call.child_by_field_name("constructor") if call is not None else None
            if call is not None and word is not None and word.type == ("this" if is_own else "super") and target.takes(_count(call)):
                yield call
            elif call is None and is_below and target.takes(0):
                yield member
        if not own and is_below and target.takes(0):
            yield node


def _calls(code: Code, node: "Node", parent: "Node", target: Target, kin: Hierarchy, unknown: bool) -> bool:
    if parent.type == "method_declaration":  # an override of what is gone
        if node != parent.child_by_field_name("name") or "@Override" not in modifiers(parent) or not same_method(parent, target):
            return False
        return any(kin.descends(name, target.owner) for name in _first_above(parent))
    if parent.type == "method_reference":
        return node == parent.named_children[-1] and _may_receive(code, parent.named_children[0], target, kin, unknown)
    if parent.type != "method_invocation" or node != parent.child_by_field_name("name") or not target.takes(_count(parent)):
        return False
    before = parent.child_by_field_name("object")
    if before is None:
        return _is_inside(node, target.owner, kin) or _is_statically_imported(code, target)
    return _may_receive(code, before, target, kin, unknown)


def _may_receive(code: Code, before: "Node", target: Target, kin: Hierarchy, unknown: bool) -> bool:
    if before.type in ("this", "super"):
        return _is_inside(before, target.owner, kin)
    if before.type == "object_creation_expression":
        return kin.may_be(_simple(before.child_by_field_name("type")), target.owner)
    if before.type in ("string_literal", "class_literal"):
        return False
    last = _simple(before)
    if before.type in ("identifier", "field_access", "scoped_identifier", "type_identifier", "generic_type", "scoped_type_identifier"):
        if last in kin.types or (last[:1].isupper() and not last.isupper()):  # a type
            return kin.descends(last, target.owner) or (not target.is_static and kin.may_be(last, target.owner))
        kinds = _declared(code, last)
        if kinds:
            return any(kin.may_be(kind, target.owner) for kind in kinds)
    return unknown and not target.is_static


def _is_inside(node: "Node", owner: str, kin: Hierarchy) -> bool:
    return any(name == owner or any(kin.descends(each, owner) for each in above) for name, above in enclosing(node))


def _first_above(method: "Node") -> set[str]:
    return next((above for _, above in enclosing(method)), set())


def _declared(code: Code, name: str) -> set[str]:
    """Types with which the file declares variables, parameters and fields of a name."""
    found: set[str] = set()
    for node in code.tree.names.get(name, ()):
        parent = node.parent
        if parent is None or node != parent.child_by_field_name("name"):
            continue
        above = parent.parent if parent.type == "variable_declarator" else parent
        kind = above.child_by_field_name("type") if above is not None else None
        if kind is not None and above is not None and above.type != "method_declaration":
            found.add("array[]" if kind.type == "array_type" else _simple(kind))
        elif parent.type in ("inferred_parameters", "lambda_expression"):
            found.add("var")
    return found


def _is_statically_imported(code: Code, target: Target) -> bool:
    for node in code.tree.imports:
        text = text_of(node).rstrip("; \t")
        if text.split()[1] == "static" and text.endswith((f".{target.owner}.{target.name}", f".{target.owner}.*")):
            return True
    return False


# -- shapes


def _types(root: "Node") -> Iterator["Node"]:
    stack = [child for child in root.named_children if child.type in TYPES]
    while stack:
        node = stack.pop()
        yield node
        stack += [member for member in members(node) if member.type in TYPES]


def _owner(node: "Node") -> str:
    return next((name for name, _ in enclosing(node)), "")


def _arity(node: "Node") -> tuple[int, int]:
    parameters = node.child_by_field_name("parameters")
    inside = [child for child in parameters.named_children if child.type.endswith("parameter")] if parameters is not None else []
    inside = [child for child in inside if child.type != "receiver_parameter"]
    if any(child.type == "spread_parameter" for child in inside):
        return len(inside) - 1, MANY
    return len(inside), len(inside)


def _count(call: "Node") -> int:
    arguments = call.child_by_field_name("arguments")
    return len([child for child in arguments.named_children if child.type not in COMMENTS]) if arguments is not None else 0


def _contains(outer: "Node", inner: "Node") -> bool:
    return outer.start_byte <= inner.start_byte and inner.end_byte <= outer.end_byte


def _simple(node: "Node | None") -> str:
    """a.b.Name<T>[] -> Name"""
    return text_of(node).partition("<")[0].partition("[")[0].strip().rpartition(".")[2].strip()


def _listed(node: "Node") -> Iterator["Node"]:
    for child in node.named_children:
        if child.type in ("type_list", "interface_type_list"):
            yield from child.named_children
        else:
            yield child


def declared_names(node: "Node") -> Mapping[str, "Node"]:
    """Of a field declaration: its variables."""
    found = {}
    for child in walk(node):
        if child.type == "variable_declarator" and child.parent == node:
            found[text_of(child.child_by_field_name("name"))] = child
    return found
