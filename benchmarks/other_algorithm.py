"""A function that works in another way and does the same: the rewrite `other_algorithm` of rewrites.py.

    x = [f(y) for y in z]        a loop that appends (sets: adds); also where it is returned
    for x in y: ...              a while loop over an iterator
    if a: b else: c              if not a: c else: b
    x = a if c else b            an if statement; also where it is returned
    return a and b, a or b       one if statement for each operand, the value kept
    f"{x}: {y!r}"                "{}: {!r}".format(x, y), where that evaluates in the same order

What could be told apart is left as it is: a loop variable that is used elsewhere, builtins with another meaning, functions that look at
their own variables.

In: a module's tree and functions of it, changed in place. Out: whether anything was.
"""

import ast
from collections import Counter
from collections.abc import Sequence

BUILTINS = {"iter", "next", "object", "set"}
LOOK_AT_THEMSELVES = {"locals", "vars", "eval", "exec", "dir", "globals", "_getframe", "currentframe", "__class__", "super"}
Comprehension = ast.ListComp | ast.SetComp


def other_algorithm(module: ast.Module, functions: Sequence[ast.FunctionDef], helper: str) -> bool:
    done = False
    bound = _bound(module)
    for function in functions:
        names = {
            each.id if isinstance(each, ast.Name) else each.attr
            for each in ast.walk(function)
            if isinstance(each, ast.Name | ast.Attribute)
        }
        if names & LOOK_AT_THEMSELVES or bound & BUILTINS:
            continue
        before = ast.dump(function)
        at = 1 if ast.get_docstring(function) is not None else 0
        function.body[at:] = _Writer(function).statements(function.body[at:])
        done = done or ast.dump(function) != before
    return done


class _Writer:
    """New statements for those of one function."""

    def __init__(self, function: ast.FunctionDef) -> None:
        every = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
        self._uses = Counter(each.id for each in every)
        self._uses.update(each.arg for each in ast.walk(function) if isinstance(each, ast.arg))
        self._uses.update(name for each in ast.walk(function) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names)
        self._number = 0

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [new for each in body for new in self._statement(each)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return [node]
        node = _Texts().visit(node)
        for name in ("body", "orelse", "finalbody"):
            if inner := getattr(node, name, None):
                setattr(node, name, self.statements(inner))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            part.body = self.statements(part.body)
        match node:
            case ast.If(test=test, body=body, orelse=[_, *_] as orelse):
                return [ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test), body=orelse, orelse=body)]
            case ast.For(orelse=[]):
                return self._walked(node)
            case ast.Return(value=ast.IfExp(test=test, body=body, orelse=orelse)):
                return [ast.If(test=test, body=self._statement(ast.Return(value=body)), orelse=self._statement(ast.Return(value=orelse)))]
            case ast.Assign(targets=[ast.Name() as target], value=ast.IfExp(test=test, body=body, orelse=orelse)):
                both = [self._statement(ast.Assign(targets=[target], value=value)) for value in (body, orelse)]
                return [ast.If(test=test, body=both[0], orelse=both[1])]
            case ast.Return(value=ast.BoolOp(op=op, values=values)):
                return self._chain(op, values)
            case ast.Return(value=ast.ListComp() | ast.SetComp() as value) if self._may_loop(value):
                return [*self._looped(value), ast.Return(value=self._name(ast.Load()))]
            case ast.Assign(targets=[ast.Name() as target], value=ast.ListComp() | ast.SetComp() as value) if self._may_loop(value):
                return [*self._looped(value), ast.Assign(targets=[target], value=self._name(ast.Load()))]
        return [node]

    def _walked(self, node: ast.For) -> list[ast.stmt]:
        self._number += 1
        k = self._number
        head = ast.parse(f"walker_{k}, nothing_{k} = iter(given), object()").body[0]
        assert isinstance(head, ast.Assign)
        assert isinstance(head.value, ast.Tuple)
        assert isinstance(head.value.elts[0], ast.Call)
        head.value.elts[0].args = [node.iter]
        loop = ast.parse(f"while True:\n item_{k} = next(walker_{k}, nothing_{k})\n if item_{k} is nothing_{k}:\n  break").body[0]
        assert isinstance(loop, ast.While)
        loop.body += [ast.Assign(targets=[node.target], value=ast.Name(id=f"item_{k}", ctx=ast.Load())), *node.body]
        return [head, loop, ast.parse(f"walker_{k} = item_{k} = None").body[0]]  # as a for loop lets go of its iterator

    def _chain(self, op: ast.boolop, values: Sequence[ast.expr]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        self._number += 1
        for value in values[:-1]:
            name = self._name(ast.Load())
            ends: ast.expr = name if isinstance(op, ast.Or) else ast.UnaryOp(op=ast.Not(), operand=name)
            made += [
                ast.Assign(targets=[self._name(ast.Store())], value=value),
                ast.If(test=ends, body=[ast.Return(value=name)], orelse=[]),
            ]
        return [*made, *self._statement(ast.Return(value=values[-1]))]

    def _may_loop(self, value: Comprehension) -> bool:
        """Its variables are nowhere else in the function, and nothing in it waits, or runs later."""
        inside = Counter(each.id for each in ast.walk(value) if isinstance(each, ast.Name))
        targets = {each.id for part in value.generators for each in ast.walk(part.target) if isinstance(each, ast.Name)}
        waits = any(isinstance(each, ast.Await | ast.Lambda | ast.GeneratorExp | ast.NamedExpr) for each in ast.walk(value))
        return not waits and not any(part.is_async for part in value.generators) and all(self._uses[t] == inside[t] for t in targets)

    def _looped(self, value: Comprehension) -> list[ast.stmt]:
        self._number += 1
        method, empty = ("append", "[]") if isinstance(value, ast.ListComp) else ("add", "set()")
        name = self._name(ast.Load()).id
        add = ast.parse(f"{name}.{method}(given)").body[0]
        assert isinstance(add, ast.Expr)
        assert isinstance(add.value, ast.Call)
        add.value.args = [value.elt]
        body: list[ast.stmt] = [add]
        for part in reversed(value.generators):
            for test in reversed(part.ifs):
                body = [ast.If(test=test, body=body, orelse=[])]
            body = [ast.For(target=part.target, iter=part.iter, body=body, orelse=[])]
        return [*ast.parse(f"{name} = {empty}").body, *body]

    def _name(self, context: ast.expr_context) -> ast.Name:
        return ast.Name(id=f"got_{self._number}", ctx=context)


class _Texts(ast.NodeTransformer):
    """f-strings of one statement, not of those inside of it."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, old in ast.iter_fields(node):
            if isinstance(old, ast.expr):
                setattr(node, name, self.visit(old))
            elif isinstance(old, list) and old and isinstance(old[0], ast.expr | ast.keyword):
                old[:] = [self.visit(each) for each in old]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = ""
        given: list[ast.expr] = []
        for each in node.values:
            if isinstance(each, ast.Constant):
                parts += str(each.value).replace("{", "{{").replace("}", "}}")
                continue
            assert isinstance(each, ast.FormattedValue)
            spec = _constant(each.format_spec)
            if spec is None:
                return node
            parts += "{" + (f"!{chr(each.conversion)}" if each.conversion > 0 else "") + (f":{spec}" if spec else "") + "}"
            given.append(each.value)
        if not given or (len(given) > 1 and not all(isinstance(value, ast.Name) for value in given)):
            return node  # of several, each is made a text before the next is evaluated
        text = ast.Attribute(value=ast.Constant(value=parts), attr="format", ctx=ast.Load())
        return ast.Call(func=text, args=given, keywords=[])


def _constant(spec: ast.expr | None) -> str | None:
    """A format that is plain text; None for another."""
    if spec is None:
        return ""
    assert isinstance(spec, ast.JoinedStr)
    texts = [each.value for each in spec.values if isinstance(each, ast.Constant)]
    text = "".join(map(str, texts))
    return text if len(texts) == len(spec.values) and not set("{}") & set(text) else None


def _bound(module: ast.Module) -> set[str]:
    """Names that anything in the module gives a meaning, as far as builtins go."""
    found: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found
