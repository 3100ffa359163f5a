"""What tests and doctests show, as sentences: a call and what comes of it.

In: the functions of tests, or a docstring; out: `Example`s. A test's local values are put in place of their names, also the first rows of
a parametrised test, until a call stands for itself; one that does not (a fixture, a loop variable, what a helper changed) is left
out. Helpers of the test file with a single return are told along.

    assert first('ABC') == 'A'                 `first('ABC')` gives `'A'`
    assert not isdistinct([1, 1])              `isdistinct([1, 1])` is false
    with raises(ValueError, match='n'): f(0)   `f(0)` raises `ValueError` with a message that matches `n`

Not here: which of them are told (instruct.py).
"""

import ast
import builtins
import copy
import doctest
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from etude.synth.names import Index
from etude.synth.source import Definition, FunctionNode
from etude.synth.write import identifiers

MAX_CODE = 110  # characters of a call, and of a value
MAX_ROWS = 3  # of a parametrised test
MAX_STEPS = 40  # of putting values in place of names
EQUAL = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertSequenceEqual", "assert_equal", "eq_", "assertIs")
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
Values = Mapping[str, ast.expr | None]  # None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    call: str
    relation: str  # gives | raises | is true | is false | "is in", "<" and the like
    value: str  # "" for is true, is false
    match: str = ""  # pattern that the message of what is raised matches
    helpers: tuple[str, ...] = ()  # sentences about functions of the test file
    names: frozenset[str] = frozenset()  # identifiers of the call
    test: str = ""  # the test's function

    @property
    def sentence(self) -> str:
        match self.relation:
            case "is true" | "is false":
                told = f"{code(self.call)} {self.relation}"
            case "gives" | "raises":
                told = f"{code(self.call)} {self.relation} {code(self.value)}"
            case _:
                told = f"{code(f'{self.call} {self.relation} {self.value}')} holds"
        if self.match:
            told += f" with a message that matches {code(self.match)}"
        return told


def code(text: str) -> str:
    """In backticks; a text that has some in it gets two."""
    text = " ".join(text.split()) if "\n" in text else text
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def test_examples(index: Index, test: Definition) -> list[Example]:
    """In the order of the text; those that name nothing but values are left out by the caller."""
    node = test.node
    if not isinstance(node, FunctionNode):
        return []
    reader = _Reader(index, test)
    found: list[Example] = []
    for row in _rows(node):
        fixtures: dict[str, ast.expr | None] = dict.fromkeys((argument.arg for argument in [*node.args.posonlyargs, *node.args.args]), None)
        found += reader.suite(node.body, {**fixtures, **row})
    return list({(e.call, e.relation, e.value): e for e in found}.values())


test_examples.__test__ = False  # type: ignore[attr-defined]  # for pytest, where a test imports it


def doc_examples(text: str) -> list[Example]:
    """Of the `>>>` lines of a docstring: expressions with a value or an exception, as long as nothing before them changed a name."""
    try:
        parts = doctest.DocTestParser().get_examples(text)
    except ValueError:
        return []
    found: list[Example] = []
    values: dict[str, ast.expr | None] = {}
    for part in parts:
        try:
            tree = ast.parse(textwrap.dedent(part.source))
        except SyntaxError:
            continue
        statement = tree.body[-1] if tree.body else None
        _remember(tree.body, values)
        if not isinstance(statement, ast.Expr) or len(tree.body) != 1:
            continue
        call = _inline(statement.value, values)
        want = part.want.strip()
        if call is None or not want or len(want) > MAX_CODE or "..." in want or "<" in want:
            continue
        if want.startswith("Traceback"):
            raised = part.exc_msg.split(":")[0].strip() if part.exc_msg else ""
            if raised:
                found.append(Example(call=call, relation="raises", value=raised))
        elif "\n" not in want:
            relation = {"True": "is true", "False": "is false"}.get(want, "gives")
            found.append(Example(call=call, relation=relation, value="" if relation != "gives" else want))
    unsteady = {one.call for one in found for other in found if one.call == other.call and one.sentence != other.sentence}
    return [example for example in found if example.call not in unsteady]


def _rows(node: FunctionNode) -> list[dict[str, ast.expr | None]]:
    """What parametrize gives to the arguments, in the first rows; one empty row where there is none, or one that cannot be read."""
    rows: list[dict[str, ast.expr | None]] = [{}]
    for decorator in node.decorator_list:
        if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize") and len(decorator.args) >= 2):
            continue
        names = _argument_names(decorator.args[0])
        cases = decorator.args[1].elts if isinstance(decorator.args[1], (ast.List, ast.Tuple)) else []
        read: list[dict[str, ast.expr | None]] = []
        for case in cases[:MAX_ROWS]:
            if isinstance(case, ast.Call) and ast.unparse(case.func).endswith("param"):
                values = list(case.args)
            elif len(names) > 1:
                values = list(case.elts) if isinstance(case, (ast.Tuple, ast.List)) else []
            else:
                values = [case]
            if len(values) == len(names):
                read.append(dict(zip(names, values, strict=True)))
        rows = [{**row, **more} for row in rows for more in read or [dict.fromkeys(names, None)]][: 2 * MAX_ROWS]
    return rows


def _argument_names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, (ast.Tuple, ast.List)):
        return [str(part.value) for part in node.elts if isinstance(part, ast.Constant)]
    return []


class _Reader:
    """One test function, statement by statement."""

    def __init__(self, index: Index, test: Definition) -> None:
        self.index, self.test = index, test
        self.scope = index.scopes[test.path]

    def suite(self, body: Sequence[ast.stmt], values: Mapping[str, ast.expr | None]) -> list[Example]:
        known = dict(values)
        found: list[Example] = []
        for statement in body:
            if isinstance(statement, ast.Assert):
                found += self.claims(statement.test, known)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                found += self.asserted(statement.value, known)
            elif isinstance(statement, (ast.With, ast.AsyncWith)):
                found += self.block(statement, known)
            _remember([statement], known)
        return found

    def claims(self, test: ast.expr, values: Values) -> Iterator[Example]:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                yield from self.claims(part, values)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield from self.example(test.operand, "is false", None, values)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right = test.left, test.comparators[0]
            if isinstance(test.ops[0], (ast.Eq, ast.Is)):
                if _is_plain(left) and not _is_plain(right):
                    left, right = right, left
                if not _is_plain(left):
                    yield from self.example(left, "gives", right, values)
            else:
                relation = ast.unparse(ast.Compare(ast.Name("x"), test.ops, [ast.Name("x")]))[2:-2]
                yield from self.example(left, relation, right, values)
        elif isinstance(test, ast.Call) and _last(test.func) in RAISES:  # a helper that tells whether it raises
            yield from self.asserted(test, values)
        elif not isinstance(test, (ast.Name, ast.Constant, ast.Compare)):
            yield from self.example(test, "is true", None, values)

    def asserted(self, call: ast.Call, values: Values) -> Iterator[Example]:
        name = _last(call.func)
        if name in RAISES and len(call.args) >= 2:
            body = call.args[1]
            called: ast.expr = body.body if isinstance(body, ast.Lambda) else ast.Call(body, call.args[2:], call.keywords)
            yield from self.raised(called, call, values)
        elif name in EQUAL and len(call.args) >= 2:
            yield from self.claims(ast.Compare(call.args[0], [ast.Eq()], [call.args[1]]), values)
        elif name in ("assertTrue", "assertFalse", "assertIsNone") and call.args:
            value = ast.Constant(None) if name == "assertIsNone" else None
            relation = {"assertTrue": "is true", "assertFalse": "is false", "assertIsNone": "gives"}[name]
            yield from self.example(call.args[0], relation, value, values)
        elif name == "assertIn" and len(call.args) >= 2:
            yield from self.example(call.args[0], "in", call.args[1], values)

    def block(self, node: ast.With | ast.AsyncWith, values: Mapping[str, ast.expr | None]) -> Iterator[Example]:
        first = node.items[0].context_expr
        if isinstance(first, ast.Call) and _last(first.func) in RAISES and first.args:
            inner = dict(values)
            _remember(node.body[:-1], inner)
            last = node.body[-1]
            if isinstance(last, (ast.Expr, ast.Return, ast.Assign)) and last.value is not None:
                yield from self.raised(last.value, first, inner)
        else:
            inner = dict(values)
            for item in node.items:
                inner |= {part.id: None for part in ast.walk(item) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
            yield from self.suite(node.body, inner)

    def raised(self, called: ast.expr, call: ast.Call, values: Values) -> Iterator[Example]:
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "match"), None)
        if _last(call.func) == "assertRaisesRegex" and len(call.args) >= 2:
            given = call.args[1]
        match = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
        yield from self.example(called, "raises", call.args[0], values, match)

    def example(self, call: ast.expr, relation: str, value: ast.expr | None, values: Values, match: str = "") -> Iterator[Example]:
        text = _inline(call, values)
        told = "" if value is None else _inline(value, values)
        if text is None or told is None or "\n" in text + told:
            return
        if "lambda" in text and ("__" in text or "repr(" in text):  # a function of the test that is told as a lambda has another name
            return
        if relation == "gives" and told in ("True", "False"):
            relation, told = f"is {told.lower()}", ""
        helpers = self.helpers(text, told)
        if helpers is not None:
            names = frozenset(identifiers(ast.parse(text, mode="eval")))
            yield Example(
                call=text, relation=relation, value=told, match=match, helpers=helpers, names=names, test=self.test.qualname
            )  # fmt: skip

    def helpers(self, *texts: str) -> tuple[str, ...] | None:
        """Sentences about functions of the test file; None if a name cannot be told."""
        told: dict[str, None] = {}
        for text in filter(None, texts):
            tree = ast.parse(text, mode="eval")
            bound = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
            bound |= {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}
            for name in sorted({part.id for part in ast.walk(tree) if isinstance(part, ast.Name)} - bound):
                sentence = self.about(name)
                if sentence is None:
                    return None
                if sentence:
                    told[sentence] = None
        return tuple(told)

    def about(self, name: str) -> str | None:
        nodes = self.scope.nodes.get(name, [])
        if not nodes:
            return "" if hasattr(builtins, name) or self.scope.stars else None
        node = nodes[-1]
        if isinstance(node, ast.alias):
            imported = self.scope.imports[node]
            dotted = f"{imported.module}.{imported.name}" if imported.name else imported.module
            return f"{code(name)} is {code(dotted)}" if node.asname else ""
        if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and isinstance(node.body[0], ast.Return) and node.body[0].value:
            return f"{code(f'{name}({ast.unparse(node.args)})')} returns {code(ast.unparse(node.body[0].value))}"
        if isinstance(node, ast.Assign) and len(ast.unparse(node.value)) <= MAX_CODE:
            return f"{code(name)} is {code(ast.unparse(node.value))}"
        return None


def _remember(body: Sequence[ast.stmt], values: dict[str, ast.expr | None]) -> None:
    """What names stand for after these statements."""
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            text = _inline(statement.value, values)
            values[statement.targets[0].id] = ast.parse(text, mode="eval").body if text else None
            continue
        if isinstance(statement, ast.FunctionDef):
            inner = statement.body[0]
            arguments = statement.args
            plain = len(statement.body) == 1 and isinstance(inner, ast.Return) and inner.value is not None and not statement.decorator_list
            values[statement.name] = ast.Lambda(arguments, inner.value) if plain and isinstance(inner, ast.Return) and inner.value else None
            continue
        if isinstance(statement, ast.Assert):
            continue
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
                values[part.id] = None
            elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                values[part.name] = None
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in values:
                values[part.value.id] = None  # a method may change it
            elif isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load) and isinstance(part.value, ast.Name):
                values[part.value.id] = None
            elif isinstance(part, (ast.Import, ast.ImportFrom)):
                values |= {alias.asname or alias.name: None for alias in part.names}


class _Put(ast.NodeTransformer):
    """Values in place of names, which are not looked into again."""

    def __init__(self, values: Values) -> None:
        self.values, self.unknown, self.steps = values, False, 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.values or not isinstance(node.ctx, ast.Load):
            return node
        value = self.values[node.id]
        self.steps += 1
        self.unknown |= value is None or self.steps > MAX_STEPS
        return node if value is None else copy.deepcopy(value)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        own = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        inner = _Put({name: value for name, value in self.values.items() if name not in own})
        node.body = inner.visit(node.body)
        self.unknown |= inner.unknown
        return node


def _inline(node: ast.expr, values: Values) -> str | None:
    """The expression with what is known in place of names; None if something is not, or it gets too long."""
    put = _Put(values)
    result = put.visit(copy.deepcopy(node))
    if put.unknown or any(isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)) for part in ast.walk(result)):
        return None
    text = ast.unparse(ast.fix_missing_locations(result))
    return text if len(text) <= MAX_CODE else None


def _is_plain(node: ast.expr) -> bool:
    """A value, not something that is called."""
    return not any(isinstance(part, (ast.Call, ast.Attribute, ast.Subscript)) for part in ast.walk(node))


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
