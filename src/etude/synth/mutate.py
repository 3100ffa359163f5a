"""Small wrong versions of a function, by rules: the bugs that people write.

In: a `Source` and a definition in it; out: `Mutation`s, each one byte range with its new bytes, the rule and one line of words. `mutants`
gives them in an order that depends on the seed alone, rules taking turns and the crude ones last in each turn; every one parses,
compiles and has another syntax tree. `apply` puts several into one file.

Left alone: annotations, decorators, docstrings, f-strings (their columns are unknown before Python 3.12), and what would make a `while`
loop run for ever more often than not: steps of counters, `break` and dropped statements inside one.

    conditions  negated condition, removed not, swapped comparison, moved boundary, swapped and/or, dropped operand
    values      swapped operator, off by one, flipped constant, removed minus, dropped bound of a slice, wrong default
    calls       swapped arguments, dropped keyword, swapped function, dropped conversion, removed await
    statements  dropped call, dropped assignment, removed guard, removed branch, removed break or continue, returns None
    exceptions  wrong exception type, dropped raise

Not here: which mutants tests notice (kinds/bug.py, the gates).
"""

import ast
import builtins
import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from etude.synth import edit
from etude.synth.source import Definition, DefinitionNode, FunctionNode, Source, Unreadable, docstring, parse

COMPARISONS: dict[type[ast.cmpop], tuple[tuple[str, str], ...]] = {
    ast.Lt: (("moved boundary", "<="), ("swapped comparison", ">")),
    ast.LtE: (("moved boundary", "<"), ("swapped comparison", ">=")),
    ast.Gt: (("moved boundary", ">="), ("swapped comparison", "<")),
    ast.GtE: (("moved boundary", ">"), ("swapped comparison", "<=")),
    ast.Eq: (("swapped comparison", "!="),),
    ast.NotEq: (("swapped comparison", "=="),),
    ast.Is: (("swapped comparison", "is not"),),
    ast.IsNot: (("swapped comparison", "is"),),
    ast.In: (("swapped comparison", "not in"),),
    ast.NotIn: (("swapped comparison", "in"),),
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "|",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
PAIRS = (
    ("min", "max"), ("any", "all"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("lower", "upper"), ("split", "rsplit"),
    ("partition", "rpartition"), ("find", "rfind"), ("keys", "values"), ("union", "intersection"), ("floor", "ceil"),
    ("append", "appendleft"), ("issubset", "issuperset"), ("ljust", "rjust"), ("removeprefix", "removesuffix"),
)  # fmt: skip
OTHER_NAME = dict(PAIRS) | {second: first for first, second in PAIRS}
CONVERSIONS = frozenset(("list", "tuple", "set", "frozenset", "sorted", "dict", "reversed", "str", "int", "abs", "bool", "iter"))
OTHER_ERROR = {
    "ValueError": "TypeError", "TypeError": "ValueError", "KeyError": "IndexError", "IndexError": "KeyError",
    "AttributeError": "TypeError", "StopIteration": "ValueError", "NotImplementedError": "TypeError", "OSError": "ValueError",
}  # fmt: skip
CRUDE = ("returns None", "swapped arguments", "dropped conversion", "dropped raise", "wrong exception type", "removed minus")  # come last
MAX_NUMBER = 10**6  # larger ones are magic: one more changes a table, not a limit
EXCERPT = 100  # characters of code in the words


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    path: str
    qualname: str  # of the definition it was asked for
    line: int
    rule: str
    before: str  # code as it was, on one line
    after: str  # code as it is, "" where it is dropped
    start: int  # byte range in the original file
    end: int
    new: bytes

    @property
    def words(self) -> str:
        change = f"`{self.before}` became `{self.after}`" if self.after else f"`{self.before}` is gone"
        return f"{self.path}:{self.line} {self.qualname}: {self.rule}: {change}"


def mutants(source: Source, definition: Definition, *, seed: int = 0, limit: int | None = None) -> list[Mutation]:
    """At most `limit` mutations of a definition, nested functions and methods included."""
    lanes: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in _Proposals(source, definition).all():
        lanes[mutation.rule].append(mutation)
    ordered = [sorted(lane, key=lambda mutation: _rank(seed, mutation)) for lane in lanes.values()]
    ordered.sort(key=lambda lane: (lane[0].rule in CRUDE, _rank(seed, lane[0])))
    found: list[Mutation] = []
    seen: set[tuple[int, int, bytes]] = set()
    for turn in range(max(map(len, ordered), default=0)):
        for lane in ordered:
            if limit is not None and len(found) >= limit:
                return found
            if turn < len(lane):
                place = lane[turn].start, lane[turn].end, lane[turn].new
                if place not in seen and _differs(source, definition, lane[turn]):
                    found.append(lane[turn])
                seen.add(place)
    return found


def apply(source: Source, mutations: Iterable[Mutation]) -> bytes:
    """The file with these mutations. ValueError where two of them touch each other."""
    out: list[bytes] = []
    position = 0
    for mutation in sorted(mutations, key=lambda each: (each.start, each.end)):
        if mutation.start < position or (out and mutation.start == position):
            raise ValueError(f"mutations touch each other at {mutation.path}:{mutation.line}")
        out += [source.data[position : mutation.start], mutation.new]
        position = mutation.end
    return b"".join([*out, source.data[position:]])


def is_valid(source: Source, data: bytes) -> bool:
    """Parses, compiles, and is not the same program."""
    try:
        tree = parse(source.path, data).tree
    except Unreadable:
        return False
    return _compiles(tree) and ast.dump(tree) != ast.dump(source.tree)


def _differs(source: Source, definition: Definition, mutation: Mutation) -> bool:
    """As is_valid, of the definition alone: a file has hundreds of mutants."""
    start, end = source.starts[definition.line - 1], source.starts[definition.end_line]
    if not start <= mutation.start <= mutation.end <= end:
        return is_valid(source, apply(source, [mutation]))
    new = source.data[start : mutation.start] + mutation.new + source.data[mutation.end : end]
    try:
        before, after = (
            ast.parse("if 1:\n" + text if text[:1] in " \t" else text)
            for text in (data.decode(source.encoding) for data in (source.data[start:end], new))
        )
    except (SyntaxError, ValueError):
        return False
    return _compiles(after) and ast.dump(before) != ast.dump(after)


def _compiles(tree: ast.Module) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "<mutant>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _rank(seed: int, mutation: Mutation) -> bytes:
    text = f"{seed}\0{mutation.path}\0{mutation.start}\0{mutation.end}\0{mutation.rule}\0".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text + mutation.new).digest()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node stands."""

    parent: ast.AST
    in_while: bool
    function: FunctionNode | None


class _Proposals:
    """All that the rules offer for one definition, checked by nobody yet."""

    def __init__(self, source: Source, definition: Definition) -> None:
        self.source, self.definition = source, definition

    def all(self) -> Iterator[Mutation]:
        node = self.definition.node
        for child, place in _walk(node, _Place(node, False, None)):
            if isinstance(child, ast.Slice):
                yield from self.slices(child)
            elif isinstance(child, ast.expr):
                yield from self.conditions(child, place)
                yield from self.values(child, place)
                yield from self.calls(child)
            elif isinstance(child, ast.stmt):
                yield from self.statements(child, place)
                yield from self.exceptions(child)
            elif isinstance(child, ast.ExceptHandler) and child.type is not None:
                for name in child.type.elts if isinstance(child.type, ast.Tuple) else [child.type]:
                    yield from self.error(name)
            elif isinstance(child, ast.arguments):
                yield from self.defaults(child)

    # -- rules

    def conditions(self, node: ast.expr, place: _Place) -> Iterator[Mutation]:
        parent = place.parent
        tested = isinstance(parent, (ast.If, ast.IfExp)) and parent.test is node
        tested |= isinstance(parent, ast.comprehension) and node in parent.ifs
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self.replaced("removed not", node, self.text(node.operand))
        elif tested and not isinstance(node, ast.Compare):
            simple = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
            yield self.replaced("negated condition", node, b"not " + self.text(node) if simple else b"not (" + self.text(node) + b")")
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                for rule, new in COMPARISONS[type(op)]:
                    yield from self.between(rule, node, left, right, new)
        elif isinstance(node, ast.BoolOp):
            new = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in pairwise(node.values):
                yield from self.between("swapped and/or", node, left, right, new)
                yield from self.operands(node, left, right)

    def operands(self, node: ast.BoolOp, left: ast.expr, right: ast.expr) -> Iterator[Mutation]:
        """Without the left one, if it is the first, and without the right one; with the parentheses around each at the ends."""
        start, end = self.source.span(left)[1], self.source.span(right)[0]
        operator = re.search(rb"\s*\b(and|or)\b\s*", self.source.data[start:end])
        if operator is None:
            return
        first, last = self.source.span(node)
        if left is node.values[0]:
            yield self.within("dropped operand", node, first, start + operator.end(), b"")
        last = last if right is node.values[-1] else self.source.span(right)[1]
        yield self.within("dropped operand", node, start + operator.start(), last, b"")

    def values(self, node: ast.expr, place: _Place) -> Iterator[Mutation]:
        if isinstance(node, ast.BinOp):
            texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict)
            if not any(isinstance(side, texts) or _is_text(side) for side in (node.left, node.right)):
                yield from self.between("swapped operator", node, node.left, node.right, OPERATORS.get(type(node.op), "+"))
        elif isinstance(node, ast.Constant) and not isinstance(place.parent, ast.Expr):
            if isinstance(node.value, bool):
                yield self.replaced("flipped constant", node, str(not node.value).encode())
            elif isinstance(node.value, (int, float)) and abs(node.value) < MAX_NUMBER and not place.in_while:
                yield self.replaced("off by one", node, repr(node.value + 1).encode())
                if node.value >= 1:
                    yield self.replaced("off by one", node, repr(node.value - 1).encode())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not place.in_while:
            yield self.replaced("removed minus", node, self.text(node.operand))

    def slices(self, node: ast.Slice) -> Iterator[Mutation]:
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield self.within("dropped bound", node, *self.source.span(bound), b"")

    def calls(self, node: ast.expr) -> Iterator[Mutation]:
        if isinstance(node, ast.Await):
            yield self.replaced("removed await", node, self.text(node.value))
        if not isinstance(node, ast.Call):
            return
        for first, second in pairwise(node.args):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred) and self.text(first) != self.text(second):
                start, end = self.source.span(first)[0], self.source.span(second)[1]
                middle = self.source.data[self.source.span(first)[1] : self.source.span(second)[0]]
                yield self.within("swapped arguments", node, start, end, self.text(second) + middle + self.text(first))
        for position, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                before: list[ast.expr] = [*node.args, *(each.value for each in node.keywords[:position])]
                end = self.source.span(keyword.value)[1]
                start = self.source.span(before[-1])[1] if before else self.source.offset(keyword.lineno, keyword.col_offset)
                yield self.within("dropped keyword", node, start, end, b"")
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in OTHER_NAME and (isinstance(node.func, ast.Attribute) or hasattr(builtins, name)):
            end = self.source.span(node.func)[1]
            yield self.within("swapped function", node, end - len(name.encode()), end, OTHER_NAME[name].encode())
        single = len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], (ast.GeneratorExp, ast.Starred))
        if isinstance(node.func, ast.Name) and name in CONVERSIONS and single:
            yield self.replaced("dropped conversion", node, self.text(node.args[0]))

    def defaults(self, node: ast.arguments) -> Iterator[Mutation]:
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            value = default.value if isinstance(default, ast.Constant) else None
            if isinstance(value, bool):
                yield self.replaced("wrong default", default, str(not value).encode())
            elif isinstance(value, (int, float)):
                yield self.replaced("wrong default", default, repr(value + 1).encode())
            elif isinstance(value, str) and value:
                yield self.replaced("wrong default", default, b"''")

    def statements(self, node: ast.stmt, place: _Place) -> Iterator[Mutation]:
        if isinstance(node, ast.Return):
            empty = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value in (None, True, False))
            if not empty:
                yield self.replaced("returns None", node, b"return None")
        elif isinstance(node, ast.If):
            leaves = isinstance(node.body[-1], (ast.Raise, ast.Return, ast.Continue, ast.Break))
            if not node.orelse and leaves and not (place.in_while and isinstance(node.body[-1], (ast.Return, ast.Break, ast.Raise))):
                yield from self.dropped("removed guard", node)
            yield from self.branches(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)) and node.orelse:
            yield from self.else_part(node, node.body[-1], node.orelse)
        elif place.in_while:
            return
        elif isinstance(node, (ast.Break, ast.Continue)):
            yield from self.dropped(f"removed {type(node).__name__.lower()}", node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
            yield from self.dropped("dropped call", node)
        elif isinstance(node, ast.AugAssign):
            yield from self.dropped("dropped assignment", node)
            if not _is_text(node.value) and type(node.op) in OPERATORS:
                yield from self.between("swapped operator", node, node.target, node.value, OPERATORS[type(node.op)] + "=")
        elif isinstance(node, ast.Assign) and all(_may_go(target, place.function) for target in node.targets):
            yield from self.dropped("dropped assignment", node)

    def branches(self, node: ast.If) -> Iterator[Mutation]:
        if not node.orelse:
            return
        following = node.orelse[0]
        if isinstance(following, ast.If) and self.source.line(following.lineno).lstrip().startswith(b"elif"):
            end = following.body[-1].end_lineno
            assert end is not None
            yield self.lines("removed branch", following.lineno, end, f"elif {ast.unparse(following.test)}: ...")
        else:
            yield from self.else_part(node, node.body[-1], node.orelse)

    def else_part(self, node: ast.stmt, last: ast.stmt, orelse: Sequence[ast.stmt]) -> Iterator[Mutation]:
        assert last.end_lineno is not None
        end = orelse[-1].end_lineno
        assert end is not None
        for line in range(orelse[0].lineno, last.end_lineno, -1):
            text = self.source.line(line)
            if re.match(rb"\s*else\b", text) and len(text) - len(text.lstrip(b" \t")) == node.col_offset:
                yield self.lines("removed branch", line, end, f"else: {_squeeze(ast.unparse(orelse[0]))}")
                return

    def exceptions(self, node: ast.stmt) -> Iterator[Mutation]:
        if isinstance(node, ast.Raise):
            if node.exc is not None:
                yield from self.error(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
            yield from self.dropped("dropped raise", node)

    def error(self, node: ast.expr) -> Iterator[Mutation]:
        if isinstance(node, ast.Name) and node.id in OTHER_ERROR:
            yield self.replaced("wrong exception type", node, OTHER_ERROR[node.id].encode())
        elif isinstance(node, ast.Name) and node.id.endswith(("Error", "Exception")):
            yield self.replaced("wrong exception type", node, b"RuntimeError")

    # -- how a change is made

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        start, end = self.source.span(node)
        return self.source.data[start:end]

    def replaced(self, rule: str, node: ast.expr | ast.stmt, new: bytes) -> Mutation:
        return self.within(rule, node, *self.source.span(node), new)

    def within(self, rule: str, node: ast.expr | ast.stmt, start: int, end: int, new: bytes) -> Mutation:
        """A change inside of a node, which the words show whole."""
        first, last = self.source.span(node)
        data = self.source.data
        first, last = min(first, start), max(last, end)
        after = data[first:start] + new + data[end:last]
        return self.make(rule, node.lineno, self.decode(data[first:last]), self.decode(after), start, end, new)

    def between(self, rule: str, node: ast.expr | ast.stmt, left: ast.expr, right: ast.expr, operator: str) -> Iterator[Mutation]:
        start, end = self.source.span(left)[1], self.source.span(right)[0]
        middle = self.source.data[start:end]
        new, count = re.subn(rb"(?<=[\s)])(?:is\s+not|not\s+in|is|in|and|or)(?=[\s(])|[<>=!+\-*/%&|^]+", operator.encode(), middle, count=1)
        if count and b"#" not in middle:
            yield self.within(rule, node, start, end, new)

    def dropped(self, rule: str, node: ast.stmt) -> Iterator[Mutation]:
        """The statement goes as it does in a cut: with its comments, without a ghost."""
        old, new = self.source.data, edit.apply(self.source, edit.Edits(statements={node}))
        start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        same = 0
        while same < min(len(old), len(new)) - start and old[-1 - same] == new[-1 - same]:
            same += 1
        before = _squeeze(ast.unparse(node))
        yield self.make(rule, node.lineno, before, "", start, len(old) - same, new[start : len(new) - same])

    def lines(self, rule: str, first: int, last: int, before: str) -> Mutation:
        return self.make(rule, first, before, "", self.source.starts[first - 1], self.source.starts[last], b"")

    def make(self, rule: str, line: int, before: str, after: str, start: int, end: int, new: bytes) -> Mutation:
        where = self.definition
        return Mutation(
            path=where.path, qualname=where.qualname, line=line, rule=rule, before=_squeeze(before), after=_squeeze(after),
            start=start, end=end, new=new,
        )  # fmt: skip

    def decode(self, data: bytes) -> str:
        return data.decode(self.source.encoding, "replace")


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """Every node that a rule may change, with where it stands, in the order of the text."""
    yield node, place
    if isinstance(node, ast.JoinedStr):
        return
    function = node if isinstance(node, FunctionNode) else place.function
    doc = docstring(node) if isinstance(node, DefinitionNode) else None
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords", "type_params") and not isinstance(node, ast.Call):
            continue
        if isinstance(node, ast.arguments):  # defaults are a rule of their own
            continue
        in_while = (place.in_while or (isinstance(node, ast.While) and name == "body")) and not isinstance(node, FunctionNode)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and child is not doc:
                yield from _walk(child, _Place(node, in_while, function))


def _may_go(target: ast.expr, function: FunctionNode | None) -> bool:
    """An assignment that can be dropped without leaving its name undefined."""
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        return True
    if not isinstance(target, ast.Name) or function is None:
        return False
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if any(argument.arg == target.id for argument in every):
        return True
    stores = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Store)]
    return any(other.lineno < target.lineno for other in stores)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _squeeze(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 3] + "..."
