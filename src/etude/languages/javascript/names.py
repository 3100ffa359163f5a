"""How the files of a JavaScript project hang together: imports, exports, and which names refer to what.

In: Codes; out: `links_of(code)`, its imports and exports with the nodes that can be taken out, and `resolve`, the file that a specifier
means. CommonJS (`require`, `module.exports`, `exports.x`) and ES modules are both read. Nothing is executed: a computed name or a name
in a string is not seen, and the gates that run the tests tell.

Not here: what is removed (cut.py).
"""

import posixpath
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.languages.javascript.code import VARIABLES
from etude.languages.protocol import Code
from etude.languages.syntax import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

WHOLE = "*"  # an import or export of the whole module
ENDINGS = (
    "",
    ".js",
    ".ts",
    ".mjs",
    ".cjs",
    ".mts",
    ".cts",
    ".jsx",
    ".tsx",
    "/index.js",
    "/index.ts",
    "/index.mjs",
    "/index.cjs",
    "/index.tsx",
)
SWAPS = ((".js", ".ts"), (".mjs", ".mts"), (".cjs", ".cts"), (".js", ".tsx"), (".jsx", ".tsx"))


@dataclass(frozen=True, slots=True, eq=False)
class Import:
    local: str
    name: str  # as exported there; WHOLE: the module
    specifier: str
    element: "Node"  # can be taken out of its container
    statement: "Node"


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    name: str  # WHOLE: everything of `specifier`
    local: str  # "" for one that comes from elsewhere
    specifier: str
    element: "Node"
    statement: "Node"


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    imports: tuple[Import, ...]
    exports: tuple[Export, ...]


def links_of(code: Code) -> Links:
    imports: list[Import] = []
    exports: list[Export] = []
    for statement in code.tree.root.named_children:
        if statement.type == "import_statement":
            imports += _imported(statement)
        elif statement.type == "export_statement":
            exports += _exported(statement)
        elif statement.type in VARIABLES:
            imports += _required(statement)
        elif statement.type == "expression_statement" and statement.named_children:
            exports += _assigned(statement, statement.named_children[0])
    return Links(tuple(imports), tuple(exports))


def resolve(path: str, specifier: str, paths: Collection[str]) -> str | None:
    """The file among `paths` that a relative specifier in the file `path` means."""
    if not specifier.startswith("."):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), specifier))
    target = "" if target == "." else target
    tried = [f"{target}{ending}".removeprefix("/") for ending in ENDINGS]
    tried += [target.removesuffix(old) + new for old, new in SWAPS if target.endswith(old)]
    return next((each for each in tried if each in paths), None)


def specifier_of(node: "Node | None") -> str:
    """Of `require("...")` or a string node; "" for anything else."""
    if node is not None and node.type == "call_expression":
        callee, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if callee is None or text_of(callee) != "require" or arguments is None or len(arguments.named_children) != 1:
            return ""
        node = arguments.named_children[0]
    return text_of(node)[1:-1] if node is not None and node.type == "string" else ""


def _imported(statement: "Node") -> Iterator[Import]:
    specifier = specifier_of(statement.child_by_field_name("source"))
    clause = next((child for child in statement.named_children if child.type == "import_clause"), None)
    for child in clause.named_children if clause is not None else ():
        if child.type == "identifier":
            yield Import(text_of(child), "default", specifier, child, statement)
        elif child.type == "namespace_import":
            yield Import(text_of(child.named_children[0]), WHOLE, specifier, child, statement)
        elif child.type == "named_imports":
            for each in child.named_children:
                name = each.child_by_field_name("name")
                if name is not None:
                    alias = each.child_by_field_name("alias") or name
                    yield Import(text_of(alias), text_of(name), specifier, each, statement)


def _required(statement: "Node") -> Iterator[Import]:
    for each in statement.named_children:
        if each.type != "variable_declarator":
            continue
        name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
        member = WHOLE
        if value is not None and value.type == "member_expression":
            inner, key = value.child_by_field_name("object"), value.child_by_field_name("property")
            value, member = inner, text_of(key) if key is not None else WHOLE
        specifier = specifier_of(value) if value is not None and value.type == "call_expression" else ""
        if not specifier or name is None:
            continue
        if name.type == "identifier":
            yield Import(text_of(name), member, specifier, each, statement)
        elif name.type == "object_pattern" and member == WHOLE:
            for part in name.named_children:
                if part.type == "shorthand_property_identifier_pattern":
                    yield Import(text_of(part), text_of(part), specifier, part, statement)
                elif part.type == "pair_pattern":
                    key, inner = part.child_by_field_name("key"), part.child_by_field_name("value")
                    if key is not None and inner is not None and inner.type == "identifier":
                        yield Import(text_of(inner), text_of(key), specifier, part, statement)


def _exported(statement: "Node") -> Iterator[Export]:
    specifier = specifier_of(statement.child_by_field_name("source"))
    clause = next((child for child in statement.named_children if child.type == "export_clause"), None)
    value = statement.child_by_field_name("value")
    if clause is not None:
        for each in clause.named_children:
            name = each.child_by_field_name("name")
            if name is not None:
                alias = each.child_by_field_name("alias") or name
                yield Export(text_of(alias), "" if specifier else text_of(name), f"{specifier}" if specifier else "", each, statement)
    elif specifier:
        yield Export(WHOLE, "", specifier, statement, statement)
    elif value is not None and value.type == "identifier":
        yield Export("default", text_of(value), "", statement, statement)


def _assigned(statement: "Node", expression: "Node") -> Iterator[Export]:
    """`module.exports = {...}`, `module.exports = x`, `exports.x = y`, `main.x = y`."""
    if expression.type != "assignment_expression":
        return
    left, right = expression.child_by_field_name("left"), expression.child_by_field_name("right")
    while right is not None and right.type == "assignment_expression":
        right = right.child_by_field_name("right")
    if left is None or right is None or left.type != "member_expression":
        return
    place = text_of(left)
    if place == "module.exports":
        if right.type == "object":
            yield from _elements(statement, right)
        elif right.type == "identifier":
            yield Export(WHOLE, text_of(right), "", statement, statement)
        elif specifier := specifier_of(right):
            yield Export(WHOLE, "", specifier, statement, statement)
    elif right.type == "identifier":
        yield Export(place.rpartition(".")[2], text_of(right), "", statement, statement)


def _elements(statement: "Node", value: "Node") -> Iterator[Export]:
    for each in value.named_children:
        if each.type == "shorthand_property_identifier":
            yield Export(text_of(each), text_of(each), "", each, statement)
        elif each.type == "pair":
            key, inner = each.child_by_field_name("key"), each.child_by_field_name("value")
            if key is not None and inner is not None and inner.type == "identifier":
                yield Export(text_of(key).strip("'\""), text_of(inner), "", each, statement)
