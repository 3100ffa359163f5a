"""One JavaScript or TypeScript file: its definitions and tests with their byte ranges, and the edits inside one definition.

In: a path and bytes; out: a Code whose `tree` is a Module (the syntax tree and every identifier). The parser (tree-sitter, the extra
`languages`) counts in bytes of the file, and nothing is ever written back from decoded text.

Definitions are functions, classes and their methods at the top level of a file, functions that are values of top-level variables, of
elements of top-level objects, or assigned to a member there (`exports.x = function`, `A.prototype.m = ...`), also inside a call
(`const f = memoize(() => ...)`). Code inside a definition is that definition's.

Not here: what hangs on a definition (names.py, cut.py).
"""

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from etude.errors import UserError
from etude.languages.edits import line_of, line_start
from etude.languages.protocol import Code, Definition, Edit, TestBlock, Unreadable
from etude.languages.syntax import comments_before, innermost, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

FUNCTIONS = frozenset(
    {"function_declaration", "generator_function_declaration", "function_expression", "generator_function", "arrow_function"}
)
BODIES = FUNCTIONS | {"method_definition"}
CLASSES = frozenset({"class_declaration", "abstract_class_declaration", "class"})
VARIABLES = frozenset({"lexical_declaration", "variable_declaration"})
NAMES = frozenset({
    "identifier", "property_identifier", "private_property_identifier", "shorthand_property_identifier",
    "shorthand_property_identifier_pattern", "type_identifier",
})  # fmt: skip
TEST_CALLS = frozenset({"test", "it", "describe", "suite", "context", "specify"})
GROUP_CALLS = frozenset({"describe", "suite", "context"})
TRACE = "globalThis.__etude?.(%d)"
SAID = "not implemented"
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """One identifier."""

    text: str
    kind: str  # its node's type
    start: int
    end: int
    node: "Node"


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """What Code.tree is."""

    root: "Node"
    names: tuple[Name, ...]
    functions: Mapping[tuple[str, int], tuple["Node", "Node"]]  # Definition.key -> what goes with it, and its function or class
    calls: Mapping[tuple[str, int], "Node"]  # TestBlock.key -> its statement


def read(path: str, data: bytes, *, is_test: bool) -> Code:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start}") from None
    with _LOCK:  # a parser has a state
        tree = _parser(path.rpartition(".")[2]).parse(data)
    root = tree.root_node
    if root.has_error:
        raise Unreadable(f"syntax error at line {_first_error(root).start_point[0] + 1}")
    names = tuple(Name(text_of(node), node.type, node.start_byte, node.end_byte, node) for node in walk(root) if node.type in NAMES)
    found: list[tuple[Definition, Node, Node]] = [] if is_test else sorted(_definitions(path, data, root), key=lambda each: each[0].start)
    tests = sorted(_tests(path, data, root), key=lambda each: (each[0].start, -each[0].end)) if is_test else []
    return Code(
        path=path,
        data=data,
        definitions=tuple(definition for definition, _, _ in found),
        tests=tuple(block for block, _ in tests),
        words=frozenset(name.text.lstrip("#") for name in names),
        tree=Module(
            root=root,
            names=names,
            functions={definition.key: (unit, function) for definition, unit, function in found},
            calls={block.key: node for block, node in tests},
        ),
    )


def trace(code: Code, numbers: Mapping[tuple[str, int], int]) -> list[Edit]:
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for node in walk(code.tree.root):
        body = node.child_by_field_name("body") if node.type in BODIES else None
        definition = innermost(code, node.start_byte) if body is not None else None
        if body is None or definition is None or definition.key not in numbers:
            continue
        call = TRACE % numbers[definition.key]
        if body.type == "statement_block":
            directives = _directives(body)
            at = directives[-1].end_byte if directives else body.start_byte + 1
            before.setdefault(at, []).append(f";{call};" if directives else f"{call};")
        else:
            before.setdefault(body.start_byte, []).append(f"({call}, (")
            after.setdefault(body.end_byte, []).append("))")
    offsets = sorted(before.keys() | after.keys())
    return [Edit(start=at, end=at, data="".join((*after.get(at, ()), *before.get(at, ()))).encode()) for at in offsets]


def stub(code: Code, definition: Definition) -> list[Edit]:
    if not definition.is_class:
        return [_stub_body(code, definition)] if definition.body else []
    inside = [d for d in code.definitions if definition.start <= d.start and d.end <= definition.end and d.body and not d.is_class]
    return [_stub_body(code, d) for d in inside]


def signature(code: Code, definition: Definition) -> str:
    unit, function = code.tree.functions[definition.key]
    if definition.is_class:
        body = function.child_by_field_name("body")
        head = code.data[unit.start_byte : body.start_byte].decode().strip()
        inside = [d for d in code.definitions if d.owner == definition.qualname]
        return "\n".join((f"{head} {{", *(f"  {_one_line(signature(code, d))}" for d in inside), "}"))
    body = function.child_by_field_name("body")
    return code.data[unit.start_byte : body.start_byte].decode().rstrip().removesuffix("=>").rstrip()


# -- definitions


def _definitions(path: str, data: bytes, root: "Node") -> Iterator[tuple[Definition, "Node", "Node"]]:
    for statement in root.named_children:
        inner, public = statement, False
        if statement.type == "export_statement":
            declared = statement.child_by_field_name("declaration") or statement.child_by_field_name("value")
            if declared is None:
                continue
            inner, public = declared, True
        for name, owner, unit, function in _units(statement, inner):
            yield from _with_members(path, data, name, owner, unit, function, public)


def _units(statement: "Node", inner: "Node") -> Iterator[tuple[str, str, "Node", "Node"]]:
    """(name, owner, what goes, function or class) of a top-level statement."""
    if inner.type in FUNCTIONS | CLASSES:
        name = inner.child_by_field_name("name")
        yield (text_of(name) if name else "default"), "", statement, inner
    elif inner.type in VARIABLES:
        declarators = [child for child in inner.named_children if child.type == "variable_declarator"]
        for each in declarators:
            name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
            if name is None or name.type != "identifier" or value is None:
                continue
            unit = statement if len(declarators) == 1 else each
            if function := _function_in(value):
                yield text_of(name), "", unit, function
            elif value.type == "object":
                yield from _elements(value, text_of(name))
    elif inner.type == "expression_statement" and inner.named_children and inner.named_children[0].type == "assignment_expression":
        left, right = (inner.named_children[0].child_by_field_name(side) for side in ("left", "right"))
        if left is None or right is None or left.type != "member_expression":
            return
        place = text_of(left)
        if function := _function_in(right):
            owner, _, member = re.sub(r"^(module\.)?exports\b\.?|\.prototype\b|^this\.", "", place).rpartition(".")
            own = function.child_by_field_name("name")
            yield member or (text_of(own) if own else "module.exports"), owner, statement, function
        elif right.type == "object":
            yield from _elements(right, "" if place in ("module.exports", "exports") else place)


def _elements(value: "Node", owner: str) -> Iterator[tuple[str, str, "Node", "Node"]]:
    for each in value.named_children:
        if each.type == "method_definition":
            name = each.child_by_field_name("name")
            if name is not None and name.type == "property_identifier":
                yield text_of(name), owner, each, each
        elif each.type == "pair":
            key, inner = each.child_by_field_name("key"), each.child_by_field_name("value")
            if key is not None and key.type == "property_identifier" and inner is not None and inner.type in FUNCTIONS:
                yield text_of(key), owner, each, inner


def _function_in(value: "Node") -> "Node | None":
    """The function that a value is, or the only one among the arguments of a call."""
    if value.type in FUNCTIONS | CLASSES:
        return value
    arguments = value.child_by_field_name("arguments") if value.type == "call_expression" else None
    callee = value.child_by_field_name("function") if arguments is not None else None
    if arguments is None or callee is None or callee.type not in ("identifier", "member_expression"):
        return None
    found = [child for child in arguments.named_children if child.type in FUNCTIONS]
    return found[0] if len(found) == 1 else None


def _with_members(
    path: str, data: bytes, name: str, owner: str, unit: "Node", function: "Node", public: bool
) -> Iterator[tuple[Definition, "Node", "Node"]]:
    yield _definition(path, data, name, owner, unit, function, public), unit, function
    body = function.child_by_field_name("body") if function.type in CLASSES else None
    for member in body.named_children if body is not None else ():
        own = member.child_by_field_name("name") or member.child_by_field_name("property")
        if own is None or own.type not in ("property_identifier", "private_property_identifier"):
            continue
        value = member if member.type == "method_definition" else member.child_by_field_name("value")
        if value is not None and value.type in BODIES and value.child_by_field_name("body") is not None:
            yield _definition(path, data, text_of(own), name, member, value, public), member, value


def _definition(path: str, data: bytes, name: str, owner: str, unit: "Node", function: "Node", public: bool) -> Definition:
    comments = comments_before(data, unit)
    start = comments[0].start_byte if comments else _overloads(unit, name)
    body = function.child_by_field_name("body")
    is_class = function.type in CLASSES
    return Definition(
        path=path,
        qualname=f"{owner}.{name}" if owner else name,
        name=name,
        owner=owner,
        line=line_of(data, start),
        end_line=line_of(data, unit.end_byte),
        start=start,
        end=unit.end_byte,
        body=None if body is None or is_class or _does_nothing(body) else _inside(body),
        is_class=is_class,
        is_public=public and not name.startswith(("_", "#")),
        doc="\n".join(filter(None, (_plain(text_of(comment)) for comment in comments))),
    )


def _overloads(unit: "Node", name: str) -> int:
    """TypeScript's signatures of the same function stand before it."""
    start = unit.start_byte
    last = unit.prev_named_sibling
    while last is not None:
        inner = last.child_by_field_name("declaration") if last.type == "export_statement" else last
        own = inner.child_by_field_name("name") if inner is not None and inner.type in ("function_signature", "method_signature") else None
        if own is None or text_of(own) != name:
            break
        start, last = last.start_byte, last.prev_named_sibling
    return start


def _inside(body: "Node") -> tuple[int, int]:
    return (body.start_byte + 1, body.end_byte - 1) if body.type == "statement_block" else (body.start_byte, body.end_byte)


def _does_nothing(body: "Node") -> bool:
    inner = [child for child in body.named_children if child.type not in ("comment", "empty_statement")]
    return body.type == "statement_block" and all(child.type == "throw_statement" for child in inner)


def _plain(comment: str) -> str:
    lines = re.sub(r"^/\*+!?|\*+/$", "", comment).splitlines() if comment.startswith("/*") else [comment.removeprefix("//")]
    return "\n".join(re.sub(r"^\s*\*? ?", "", line).rstrip() for line in lines).strip()


def _stub_body(code: Code, definition: Definition) -> Edit:
    assert definition.body is not None
    data = code.data
    _, function = code.tree.functions[definition.key]
    start, end = definition.body
    quote = '"' if data.count(b'"') > data.count(b"'") else "'"
    semicolon = ";" if data.count(b";\n") * 4 > data.count(b"\n") else ""
    said = f"throw new Error({quote}{SAID}{quote}){semicolon}"
    if data[start - 1 : start] != b"{" or function.child_by_field_name("body").type != "statement_block":
        return Edit(start=start, end=end, data=f"{{ {said} }}".encode())
    first = line_start(data, function.start_byte)
    indent = data[first : first + len(data[first:]) - len(data[first:].lstrip(b" \t"))].decode()
    unit = "\t" if "\t" in indent or b"\n\t" in data else "    " if b"\n  " in data and not re.search(rb"\n  \S", data) else "  "
    end_of_line = "\r\n" if b"\r\n" in data else "\n"
    return Edit(start=start, end=end, data=f"{end_of_line}{indent}{unit}{said}{end_of_line}{indent}".encode())


def _directives(body: "Node") -> list["Node"]:
    found: list[Node] = []
    for child in body.named_children:
        if child.type == "comment":
            continue
        if child.type != "expression_statement" or child.named_children[0].type != "string":
            break
        found.append(child)
    return found


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# -- tests


def _tests(path: str, data: bytes, root: "Node") -> Iterator[tuple[TestBlock, "Node"]]:
    for node in walk(root):
        if node.type != "call_expression" or (name := _test_name(node)) is None:
            continue
        statement = node.parent
        while statement is not None and statement.type in ("await_expression", "parenthesized_expression"):
            statement = statement.parent
        if statement is None or statement.type != "expression_statement":
            continue
        comments = comments_before(data, statement)
        start = comments[0].start_byte if comments else statement.start_byte
        block = TestBlock(
            path=path,
            line=line_of(data, node.start_byte),
            end_line=line_of(data, statement.end_byte),
            start=start,
            end=statement.end_byte,
            is_group=name in GROUP_CALLS,
        )
        yield replace(block, call_lines=(block.line,)), statement


def _test_name(call: "Node") -> str | None:
    """ "it" for `it(...)`, `it.skip(...)`, `it.each(...)(...)`, `t.test(...)`; None for other calls."""
    node = call.child_by_field_name("function")
    arguments = call.child_by_field_name("arguments")
    if node is None or arguments is None or not any(_may_be_test(child) for child in arguments.named_children):
        return None
    while node is not None and node.type in ("call_expression", "member_expression"):
        if node.type == "member_expression":
            member = node.child_by_field_name("property")
            if member is not None and text_of(member) in ("test", "it", "describe"):  # not `pattern.test(text)`
                return text_of(member) if any(child.type in FUNCTIONS for child in arguments.named_children) else None
            node = node.child_by_field_name("object")
        else:
            node = node.child_by_field_name("function")
    return text_of(node) if node is not None and node.type == "identifier" and text_of(node) in TEST_CALLS else None


def _may_be_test(node: "Node") -> bool:
    """An argument that is, names or makes a function."""
    return node.type in FUNCTIONS or (node.type in ("call_expression", "identifier", "member_expression"))


# -- parser


@cache
def _parser(suffix: str) -> "Parser":
    try:
        from tree_sitter import Language, Parser

        if suffix in ("ts", "mts", "cts", "tsx"):
            import tree_sitter_typescript as grammar

            return Parser(Language(grammar.language_tsx() if suffix == "tsx" else grammar.language_typescript()))
        import tree_sitter_javascript

        return Parser(Language(tree_sitter_javascript.language()))
    except ImportError as error:
        raise UserError(f"JavaScript and TypeScript need {error.name}; install the extra: pip install 'etude[languages]'") from None


def _first_error(root: "Node") -> "Node":
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            return node
        stack += [child for child in reversed(node.children) if child.has_error or child.is_missing]
    return root
