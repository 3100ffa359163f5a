"""Small wrong versions of a function, by rules that JavaScript, TypeScript and Java share, read from the syntax tree.

In: a Code whose `tree` has a `root` of tree-sitter, and a Definition; out: Mutants, each with the edits of one place, in an order that
depends on the code alone, rules taking turns.

    moved boundary, swapped comparison     < <=  > >=  == !=  === !==
    swapped and/or                         && ||
    negated condition                      of `if` and `?:`
    off by one, flipped constant           decimal numbers, true and false
    dropped call                           a statement that is a call
    returns nothing                        `return x` becomes undefined, null, 0 or false

Left alone: what would make a loop run for ever more often than not, and constructors' calls of another. A mutant may still not
compile (Java: a variable that is not always set any more); who runs it must see to that.

Not here: which mutants tests notice (synth/foreign/gates.py).
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.languages.edits import line_of
from etude.languages.protocol import Code, Definition, Edit
from etude.languages.syntax import text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
COMPARISONS = {"==": "!=", "!=": "==", "===": "!==", "!==": "==="}
JUNCTIONS = {"&&": "||", "||": "&&"}
CONSTANTS = {"true": "false", "false": "true"}
NUMBERS = frozenset({"number", "decimal_integer_literal"})
CALLS = frozenset({"call_expression", "method_invocation"})
LOOPS = frozenset({"while_statement", "do_statement", "for_statement"})
NOTHING = {"boolean_type": "false", "integral_type": "0", "floating_point_type": "0"}  # else null
JAVA_METHOD = "method_declaration"
FUNCTIONS = frozenset({
    "function_declaration", "generator_function_declaration", "function_expression", "generator_function", "arrow_function",
    "method_definition", "lambda_expression", JAVA_METHOD, "constructor_declaration",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    rule: str
    line: int
    edits: tuple[Edit, ...]


def mutants(code: Code, definition: Definition, *, limit: int | None = None) -> list[Mutant]:
    """At most `limit` of a definition, what stands inside it included; those of a class are its methods'."""
    lanes: dict[str, list[Mutant]] = defaultdict(list)
    for rule, edits in _all(code, definition):
        lanes[rule].append(Mutant(rule=rule, line=line_of(code.data, edits[0].start), edits=edits))
    ordered = sorted((sorted(lane, key=_rank) for lane in lanes.values()), key=lambda lane: _rank(lane[0]))
    found = [lane[turn] for turn in range(max(map(len, ordered), default=0)) for lane in ordered if turn < len(lane)]
    return found[:limit]


def _all(code: Code, definition: Definition) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    inside = [d for d in code.definitions if definition.start <= d.start and d.end <= definition.end and d.body is not None]
    bodies = [d.body for d in inside if d.body is not None]
    for node in walk(code.tree.root):
        if any(start <= node.start_byte and node.end_byte <= end for start, end in bodies):
            yield from _of_node(node)


def _of_node(node: "Node") -> Iterator[tuple[str, tuple[Edit, ...]]]:
    if node.type == "binary_expression" and (operator := node.child_by_field_name("operator")) is not None:
        text, loop = text_of(operator), _loop_head(node)
        if text in BOUNDARIES and loop != "while":
            yield "moved boundary", (_put(operator, BOUNDARIES[text]),)
        elif text in COMPARISONS and not loop:
            yield "swapped comparison", (_put(operator, COMPARISONS[text]),)
        elif text in JUNCTIONS and not loop:
            yield "swapped and/or", (_put(operator, JUNCTIONS[text]),)
    elif node.type in ("if_statement", "ternary_expression"):
        condition = node.child_by_field_name("condition")
        if condition is not None and text_of(condition).strip("()") not in CONSTANTS:
            yield "negated condition", _around(condition, "(!", ")") if node.type == "if_statement" else _around(condition, "!(", ")")
    elif node.type in NUMBERS and text_of(node).isdecimal() and not _loop_head(node):
        yield "off by one", (_put(node, str(int(text_of(node)) + 1)),)
    elif node.type in CONSTANTS and not _loop_head(node):
        yield "flipped constant", (_put(node, CONSTANTS[node.type]),)
    elif node.type == "expression_statement" and node.named_children and node.named_children[0].type in CALLS:
        called = node.named_children[0].child_by_field_name("function")
        if not _in_loop(node) and (called is None or called.type != "super"):
            yield "dropped call", (_put(node, "{}"),)
    elif node.type == "return_statement" and node.named_children:
        value, nothing = node.named_children[0], _nothing(node)
        if nothing and text_of(value) not in (nothing, "null", "undefined", "false", "0") and value.type != "comment":
            yield "returns nothing", (_put(value, nothing),)


def _put(node: "Node", text: str) -> Edit:
    return Edit(start=node.start_byte, end=node.end_byte, data=text.encode())


def _around(node: "Node", before: str, after: str) -> tuple[Edit, ...]:
    at, end = node.start_byte, node.end_byte
    return Edit(start=at, end=at, data=before.encode()), Edit(start=end, end=end, data=after.encode())


def _loop_head(node: "Node") -> str:
    """ "for" or "while" where a node decides how often a loop runs."""
    inner, above = node, node.parent
    while above is not None and above.type not in FUNCTIONS:
        if above.type in LOOPS and inner != above.child_by_field_name("body"):
            return "for" if above.type == "for_statement" else "while"
        inner, above = above, above.parent
    return ""


def _in_loop(node: "Node") -> bool:
    above = node.parent
    while above is not None and above.type not in FUNCTIONS:
        if above.type in LOOPS:
            return True
        above = above.parent
    return False


def _nothing(node: "Node") -> str:
    """What a function of this kind returns where it has nothing to say; "" where that is not known."""
    above = node.parent
    while above is not None and above.type not in FUNCTIONS:
        above = above.parent
    if above is None or above.type == "lambda_expression":
        return ""
    kind = above.child_by_field_name("type") if above.type == JAVA_METHOD else None
    return "undefined" if above.type != JAVA_METHOD else NOTHING.get(kind.type if kind is not None else "", "null")


def _rank(mutant: Mutant) -> bytes:
    at = mutant.edits[0]
    return hashlib.sha256(f"{mutant.rule}\0{at.start}\0{at.data!r}".encode()).digest()
