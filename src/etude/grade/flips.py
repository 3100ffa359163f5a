"""Tests that say the opposite: where the text of a test function can be changed so that it must fail for all that pass it.

One statement is changed: a constant that a result is compared with becomes another, or the comparison becomes its contrary. Both look like
any test, and who wants to tell a changed one from its original has to know the right answer. Whether it does fail is tried with the gold
patch before it is relied on (facts.py).

In: the text of a test file and the names of functions in it; out: `Site`s, and the text of a changed function.

Not here: where such functions are put (canary.py).
"""

import ast
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTRARY: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Lt: ">=", ast.GtE: "<",
    ast.Gt: "<=", ast.LtE: ">",
}  # fmt: skip
OPPOSITE = {
    "assertEqual": "assertNotEqual", "assertNotEqual": "assertEqual", "assertTrue": "assertFalse", "assertFalse": "assertTrue",
    "assertIn": "assertNotIn", "assertNotIn": "assertIn", "assertIs": "assertIsNot", "assertIsNot": "assertIs",
    "assertIsNone": "assertIsNotNone", "assertIsNotNone": "assertIsNone",
}  # fmt: skip
EQUALITIES = ("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSequenceEqual")
HELPER = re.compile(r"_?(assert|check|expect)(?!.*not).*(equal|eq$|close|same)", re.IGNORECASE)  # of the tests, or of a package
WRAPPERS = frozenset({"approx", "array", "tensor", "Decimal", "Fraction", "list", "tuple", "set", "frozenset", "dict"})
LETTERS = "abcdefghijklmnoprstuvwxyz"
Edit = tuple[int, int, str]  # character range of the text, and what comes there


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A statement of a test function that can be changed."""

    path: str
    qualname: str  # "test_x" or "Class.test_x"
    number: int  # which of the function's statements that can be changed


@dataclass(frozen=True, slots=True)
class Function:
    """A test function in its file."""

    node: ast.FunctionDef
    suite: Sequence[ast.stmt]  # that it stands in
    owner: ast.ClassDef | None

    @property
    def first_line(self) -> int:
        return min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)])


class Text:
    """A file's text with the places of its syntax tree as character positions. ValueError where it cannot be worked on."""

    def __init__(self, data: bytes) -> None:
        try:
            self.text = data.decode("utf-8")
            self.tree = ast.parse(self.text)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot be read: {type(error).__name__}") from None
        if self.text.startswith("\ufeff") or "\f" in self.text or "\r" in self.text.replace("\r\n", ""):
            raise ValueError("has marks that ast does not count as this does")
        self.lines = self.text.split("\n")  # a "\r" stays at the end of its line
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def at(self, line: int, column: int) -> int:
        """ast's place (column in UTF-8 bytes) as a position in `text`."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def functions(self) -> dict[str, Function]:
        """The functions at the top and in classes at the top, that take their whole lines; of equal names none."""
        found: dict[str, Function | None] = {}
        tops: list[tuple[str, Sequence[ast.stmt], ast.ClassDef | None]] = [("", self.tree.body, None)]
        tops += [(f"{node.name}.", node.body, node) for node in self.tree.body if isinstance(node, ast.ClassDef)]
        for prefix, suite, owner in tops:
            for node in suite:
                if isinstance(node, ast.FunctionDef) and not self.line_before(node).strip():
                    name = prefix + node.name
                    found[name] = None if name in found else Function(node, suite, owner)
        return {name: function for name, function in found.items() if function is not None}

    def line_before(self, node: ast.stmt) -> str:
        """What stands before a statement on its line."""
        start = self.starts[node.lineno - 1]
        return self.text[start : self.span(node)[0]]


def is_plain(node: ast.FunctionDef) -> bool:
    """Decorated with nothing but parametrize: others may run it many times, or not at all."""
    return all("parametrize" in ast.unparse(each) for each in node.decorator_list)


def changeable(node: ast.FunctionDef) -> list[ast.Assert | ast.Call]:
    """The statements that can be changed, in order: where a function gets to if it passes."""
    return [each for statement in _straight(node.body) if (each := _claim(statement)) is not None]


def change(text: Text, claim: ast.Assert | ast.Call, rng: random.Random) -> Edit:
    """An edit after which the claim does not hold where it held."""
    literal = _literal_side(claim)
    leaves = _leaves(literal) if literal is not None else []
    if leaves:
        leaf = leaves[rng.randrange(len(leaves))]
        known = {repr(each.value) for each in ast.walk(claim) if isinstance(each, ast.Constant)}
        return (*text.span(leaf), repr(_other(leaf.value, known, rng)))
    if isinstance(claim, ast.Call):
        assert isinstance(claim.func, ast.Attribute)  # of OPPOSITE, see _claim
        end = text.span(claim.func)[1]
        return end - len(claim.func.attr), end, OPPOSITE[claim.func.attr]
    test = claim.test
    start, end = text.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner_start, inner_end = text.span(test.operand)
        return start, end, f"({text.text[inner_start:inner_end]})"
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = text.span(test.left), text.span(test.comparators[0])
        between = text.text[left[1] : right[0]]
        plain = {ast.NotIn: r"not\s+in", ast.IsNot: r"is\s+not", ast.In: "in", ast.Is: "is"}.get(type(test.ops[0]), r"[=!<>]=?")
        found = re.search(plain, between)
        if found:
            return left[1] + found.start(), left[1] + found.end(), CONTRARY[type(test.ops[0])]
    return start, end, f"not ({text.text[start:end]})"


def apply(text: str, edits: Sequence[Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _straight(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in order, also inside `with`, not inside what may be left out or is expected to raise."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With) and not any("raises" in ast.unparse(item).lower() for item in statement.items):
            yield from _straight(statement.body)


def _claim(statement: ast.stmt) -> ast.Assert | ast.Call | None:
    if isinstance(statement, ast.Assert):
        return statement
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        own = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "self"
        if own and not call.keywords and _name(call) in OPPOSITE:
            return call
        literal = _literal_side(call)
        if literal is not None and _leaves(literal):
            return call
    return None


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _literal_side(claim: ast.Assert | ast.Call) -> ast.expr | None:
    """The side of an equality that is written out, if the other is not."""
    if isinstance(claim, ast.Call):
        equality = _name(claim) in EQUALITIES or HELPER.match(_name(claim))
        sides = list(claim.args[:2]) if equality and len(claim.args) >= 2 else []
    else:
        test = claim.test
        equal = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
        sides = [test.left, test.comparators[0]] if equal and isinstance(test, ast.Compare) else []
    written = [inner for side in sides if _is_literal(inner := _unwrapped(side))]
    return written[0] if len(written) == 1 else None


def _unwrapped(node: ast.expr) -> ast.expr:
    """What approx(...) and the like are given: who replaces them has to be asked with another value too."""
    return node.args[0] if isinstance(node, ast.Call) and _name(node) in WRAPPERS and node.args else node


def _is_literal(node: ast.expr) -> bool:
    kinds = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.USub, ast.Load)
    return all(isinstance(each, kinds) for each in ast.walk(node))


def _leaves(node: ast.expr) -> list[ast.Constant]:
    """The constants that can be made others. Parts of an implicitly joined string are one constant in several places: left alone."""
    if isinstance(node, ast.Constant):
        joined = isinstance(node.value, str) and (node.end_lineno != node.lineno or (node.end_col_offset or 0) - node.col_offset > 200)
        simple = isinstance(node.value, (bool, int, float, str)) and not joined
        return [node] if simple and not (isinstance(node.value, float) and not math.isfinite(node.value)) else []
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [leaf for each in node.elts for leaf in _leaves(each)]
    if isinstance(node, ast.Dict):
        return [leaf for each in node.values for leaf in _leaves(each)]
    return []


def _other(value: object, known: set[str], rng: random.Random) -> object:
    """Another value of the same kind, as a careful author might have written it."""
    for _ in range(100):
        new = _try(value, rng)
        if repr(new) not in known and new != value:
            return new
    return not value if isinstance(value, bool) else f"{value}{rng.choice(LETTERS)}" if isinstance(value, str) else 7919


def _try(value: object, rng: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-3, -2, -1, 1, 2, 3, 10)) if value > 3 else value + rng.choice((1, 2, 3, 4))
    if isinstance(value, float):
        return value + rng.choice((0.5, 1.0, 1.5, 2.0)) * max(1.0, abs(value) / 2)
    text = str(value)
    letters = [at for at, c in enumerate(text) if c.isalnum()]
    if not letters:
        return text + rng.choice(LETTERS)
    at = rng.choice(letters)
    new = rng.choice("0123456789" if text[at].isdigit() else LETTERS)
    new = new.upper() if text[at].isupper() else new
    return text[:at] + new + text[at + 1 :] if new.casefold() != text[at].casefold() else text + new
