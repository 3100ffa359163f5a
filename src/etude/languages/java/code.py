"""One Java file: its definitions and tests with their byte ranges, and the edits inside one definition.

In: a path and bytes; out: a Code whose `tree` is a Unit. The parser (tree-sitter, the extra `languages`) counts in bytes of the file.

Definitions are classes, interfaces, enums and records, nested ones too, with their methods and constructors. Anonymous and local classes,
lambdas and initialisers are part of what holds them.

Not here: what hangs on a definition (cut.py).
"""

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from etude.errors import UserError
from etude.languages.edits import line_of, line_start
from etude.languages.protocol import Code, Definition, Edit, TestBlock, Unreadable
from etude.languages.syntax import COMMENTS, comments_before, innermost, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

TYPES = frozenset({
    "class_declaration", "interface_declaration", "enum_declaration", "record_declaration", "annotation_type_declaration",
})  # fmt: skip
METHODS = frozenset({"method_declaration", "constructor_declaration", "compact_constructor_declaration"})
CONSTRUCTORS = METHODS - {"method_declaration"}
TEST_ANNOTATIONS = frozenset({"Test", "ParameterizedTest", "RepeatedTest", "TestFactory", "TestTemplate", "Theory"})
TRACE = "etude_.Trace.hit(%d);"
ENTER, LEAVE = "static{etude_.Trace.enter();}", "static{etude_.Trace.leave();}"
SAID = 'throw new UnsupportedOperationException("not implemented");'
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What Code.tree is."""

    root: "Node"
    package: str
    nodes: Mapping[tuple[str, int], "Node"]  # Definition.key or TestBlock.key -> its declaration
    names: Mapping[str, tuple["Node", ...]]  # identifiers, outside package and import declarations
    imports: tuple["Node", ...]


def read(path: str, data: bytes, *, is_test: bool) -> Code:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start}") from None
    with _LOCK:  # a parser has a state
        tree = _parser().parse(data)
    root = tree.root_node
    if root.has_error:
        raise Unreadable(f"syntax error at line {_first_error(root).start_point[0] + 1}")
    outside = [child for child in root.named_children if child.type not in ("package_declaration", "import_declaration")]
    names: dict[str, list[Node]] = {}
    for node in (node for child in outside for node in walk(child) if node.type in ("identifier", "type_identifier")):
        names.setdefault(text_of(node), []).append(node)
    package = next((text_of(child.named_children[-1]) for child in root.named_children if child.type == "package_declaration"), "")
    found = sorted(_definitions(path, data, root), key=lambda each: each[0].start)
    tests = sorted(_tests(path, data, root), key=lambda each: (each[0].start, -each[0].end)) if is_test else []
    nodes = {definition.key: node for definition, node in found} if not is_test else {block.key: node for block, node in tests}
    return Code(
        path=path,
        data=data,
        definitions=() if is_test else tuple(definition for definition, _ in found),
        tests=tuple(block for block, _ in tests),
        words=frozenset(names),
        tree=Unit(
            root=root,
            package=package,
            nodes=nodes,
            names={name: tuple(nodes) for name, nodes in names.items()},
            imports=tuple(child for child in root.named_children if child.type == "import_declaration"),
        ),
    )


def trace(code: Code, numbers: Mapping[tuple[str, int], int]) -> list[Edit]:
    """Initialisers of static fields run in whichever test comes first: what they call counts as outside every test."""
    edits: list[Edit] = []
    for node in walk(code.tree.root):
        at = _entry(node)
        definition = innermost(code, node.start_byte) if at is not None else None
        if at is not None and definition is not None and definition.key in numbers:
            edits.append(Edit(start=at, end=at, data=(TRACE % numbers[definition.key]).encode()))
        elif node.type == "class_declaration" and _is_static(node):
            body = node.child_by_field_name("body")
            if body is not None and any(_has_static_state(member) for member in body.named_children):
                edits.append(Edit(start=body.start_byte + 1, end=body.start_byte + 1, data=ENTER.encode()))
                edits.append(Edit(start=body.end_byte - 1, end=body.end_byte - 1, data=LEAVE.encode()))
    return edits


def stub(code: Code, definition: Definition) -> list[Edit]:
    if not definition.is_class:
        return [_stub_body(code, definition)] if definition.body else []
    inside = [d for d in code.definitions if definition.start <= d.start and d.end <= definition.end and d.body and not d.is_class]
    return [_stub_body(code, d) for d in inside]


def signature(code: Code, definition: Definition) -> str:
    node = code.tree.nodes[definition.key]
    body = node.child_by_field_name("body")
    head = code.data[node.start_byte : body.start_byte if body is not None else node.end_byte].decode().strip()
    if not definition.is_class:
        return head
    inside = [d for d in code.definitions if d.owner == definition.qualname and (d.is_class or d.is_public)]
    constants = _constants(code, node)
    lines = [f"    {' '.join(signature(code, d).split()).removesuffix(';')}{' {}' if d.is_class else ';'}" for d in inside]
    return "\n".join((f"{head} {{", *constants, *lines, "}"))


def members(node: "Node") -> list["Node"]:
    """Declarations in a type's body."""
    body = node.child_by_field_name("body")
    found: list[Node] = []
    for child in body.named_children if body is not None else ():
        found += child.named_children if child.type == "enum_body_declarations" else [child]
    return found


def modifiers(node: "Node") -> list[str]:
    """Keywords, and the names of annotations with their @."""
    found: list[str] = []
    for child in node.children:
        if child.type == "modifiers":
            for each in child.children:
                if each.type in ("marker_annotation", "annotation"):
                    found.append("@" + text_of(each.child_by_field_name("name")).rpartition(".")[2])
                else:
                    found.append(text_of(each))
    return found


def explicit_call(body: "Node") -> "Node | None":
    """`this(...)` or `super(...)` at the start of a constructor."""
    first = next((child for child in body.named_children if child.type not in COMMENTS), None)
    return first if first is not None and first.type == "explicit_constructor_invocation" else None


# -- definitions


def _definitions(path: str, data: bytes, root: "Node") -> Iterator[tuple[Definition, "Node"]]:
    for child in root.named_children:
        if child.type in TYPES:
            yield from _type(path, data, child, "", True)


def _type(path: str, data: bytes, node: "Node", owner: str, public: bool) -> Iterator[tuple[Definition, "Node"]]:
    found = _definition(path, data, node, owner, public)
    yield found, node
    inside_public = node.type in ("interface_declaration", "annotation_type_declaration")
    for member in members(node):
        if member.type in TYPES:
            yield from _type(path, data, member, found.qualname, inside_public)
        elif member.type in METHODS:
            yield _definition(path, data, member, found.qualname, inside_public), member


def _definition(path: str, data: bytes, node: "Node", owner: str, public: bool) -> Definition:
    comments = comments_before(data, node)
    start = comments[0].start_byte if comments else node.start_byte
    name = text_of(node.child_by_field_name("name"))
    is_class = node.type in TYPES
    always = node.type in CONSTRUCTORS and node.parent is not None and node.parent.type == "enum_body_declarations"
    return Definition(
        path=path,
        qualname=f"{owner}.{name}" if owner else name,
        name=name,
        owner=owner,
        line=line_of(data, start),
        end_line=line_of(data, node.end_byte),
        start=start,
        end=node.end_byte,
        body=None if is_class or always else _body(node),  # constructors of an enum run before everything else in it
        is_class=is_class,
        is_public=bool(public or {"public", "protected"} & set(modifiers(node))),
        doc=_plain(text_of(comments[-1])) if comments and text_of(comments[-1]).startswith("/**") else "",
    )


def _body(node: "Node") -> tuple[int, int] | None:
    """Inside the braces, after a constructor's call of another; None where there is nothing to stub."""
    body = node.child_by_field_name("body")
    if body is None:
        return None
    inside = [child for child in body.named_children if child.type not in COMMENTS]
    call = explicit_call(body)
    rest = inside[1:] if call is not None else inside
    if all(child.type == "throw_statement" for child in rest):
        return None
    return (call.end_byte if call is not None else body.start_byte + 1), body.end_byte - 1


def _constants(code: Code, node: "Node") -> list[str]:
    """Of an enum."""
    body = node.child_by_field_name("body")
    names = [text_of(child.child_by_field_name("name")) for child in body.named_children if child.type == "enum_constant"] if body else []
    return [f"    {', '.join(names)};"] if names else []


def _plain(comment: str) -> str:
    lines = re.sub(r"^/\*+|\*+/$", "", comment).splitlines()
    return "\n".join(re.sub(r"^\s*\*? ?", "", line).rstrip() for line in lines).strip()


def _stub_body(code: Code, definition: Definition) -> Edit:
    assert definition.body is not None
    data, (start, end) = code.data, definition.body
    node = code.tree.nodes[definition.key]
    first = line_start(data, node.start_byte)
    indent = data[first : first + len(data[first:]) - len(data[first:].lstrip(b" \t"))].decode()
    unit = "\t" if "\t" in indent or b"\n\t" in data else "    " if b"\n    " in data else "  "
    end_of_line = "\r\n" if b"\r\n" in data else "\n"
    return Edit(start=start, end=end, data=f"{end_of_line}{indent}{unit}{SAID}{end_of_line}{indent}".encode())


# -- tests


def _tests(path: str, data: bytes, root: "Node") -> Iterator[tuple[TestBlock, "Node"]]:
    for child in root.named_children:
        if child.type in TYPES:
            yield from _test_class(path, data, child)


def _test_class(path: str, data: bytes, node: "Node") -> Iterator[tuple[TestBlock, "Node"]]:
    found: list[tuple[TestBlock, Node]] = []
    for member in members(node):
        if member.type in TYPES:
            found += _test_class(path, data, member)
        elif member.type == "method_declaration" and _is_test(node, member):
            found.append((_block(path, data, member), member))
    if found:
        yield _block(path, data, node, is_group=True), node
        yield from found


def _is_test(owner: "Node", method: "Node") -> bool:
    words = modifiers(method)
    if any(word[1:] in TEST_ANNOTATIONS for word in words if word.startswith("@")):
        return True
    parameters = method.child_by_field_name("parameters")
    old = owner.child_by_field_name("superclass") is not None and "public" in words and parameters is not None
    return bool(
        old and parameters is not None and not parameters.named_children and text_of(method.child_by_field_name("name"))[:4] == "test"
    )


def _block(path: str, data: bytes, node: "Node", *, is_group: bool = False) -> TestBlock:
    comments = comments_before(data, node)
    start = comments[0].start_byte if comments else node.start_byte
    name = node.child_by_field_name("name") or node
    return TestBlock(
        path=path,
        line=line_of(data, start),
        end_line=line_of(data, node.end_byte),
        start=start,
        end=node.end_byte,
        is_group=is_group,
        call_lines=(line_of(data, name.start_byte),),
    )


# -- tracing


def _entry(node: "Node") -> int | None:
    """Where the call of the tracer goes in a body."""
    if node.type in METHODS or node.type == "lambda_expression":
        body = node.child_by_field_name("body")
        if body is None or body.type not in ("block", "constructor_body"):
            return None
        call = explicit_call(body)
        return call.end_byte if call is not None else body.start_byte + 1
    if node.type == "block" and node.parent is not None and node.parent.type in ("class_body", "enum_body_declarations"):
        return node.start_byte + 1
    return None


def _is_static(node: "Node") -> bool:
    """A class that may have static initialisers in every version of Java."""
    above = node.parent
    return above is not None and (above.type in ("program", "interface_body") or (above.type != "block" and "static" in modifiers(node)))


def _has_static_state(member: "Node") -> bool:
    return member.type == "static_initializer" or (member.type == "field_declaration" and "static" in modifiers(member))


def _first_error(node: "Node") -> "Node":
    return next((each for each in _all(node) if each.type == "ERROR" or each.is_missing), node)


def _all(node: "Node") -> Iterator["Node"]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.children)


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter_java
        from tree_sitter import Language, Parser
    except ImportError:
        raise UserError("Java needs parsers that are not installed; install them by: pip install 'etude[languages]'") from None
    return Parser(Language(tree_sitter_java.language()))
