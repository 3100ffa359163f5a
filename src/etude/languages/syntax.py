"""What every adapter with a syntax tree of tree-sitter asks of it.

Not here: what a language's nodes mean (its code.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from etude.languages.edits import line_start
from etude.languages.protocol import Code, Definition

if TYPE_CHECKING:
    from tree_sitter import Node

COMMENTS = frozenset({"comment", "line_comment", "block_comment"})  # JavaScript's, then Java's


def innermost(code: Code, offset: int) -> Definition | None:
    best: Definition | None = None
    for definition in code.definitions:
        if definition.start <= offset < definition.end and (best is None or definition.end - definition.start <= best.end - best.start):
            best = definition
    return best


def walk(node: "Node") -> Iterator["Node"]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.named_children)


def tokens(root: "Node", start: int, end: int) -> Iterator[str]:
    """The words and signs of a byte range, in order, without comments and space."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.end_byte <= start or end <= node.start_byte or node.type in COMMENTS:
            continue
        if node.children:
            stack += reversed(node.children)
        elif start <= node.start_byte and node.end_byte <= end:
            yield text_of(node)


def text_of(node: "Node | None") -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


def comments_before(data: bytes, node: "Node") -> list["Node"]:
    """The comments that stand right above a node, first to last."""
    found: list[Node] = []
    at = node
    while (last := at.prev_sibling) is not None and last.type in COMMENTS:
        gap = data[last.end_byte : at.start_byte]
        own_line = not data[line_start(data, last.start_byte) : last.start_byte].strip()
        if gap.count(b"\n") != 1 or gap.strip() or not own_line:
            break
        found.insert(0, last)
        at = last
    return found
