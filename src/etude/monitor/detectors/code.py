"""Python code -> what it names and calls, also where it is only a piece of a file.

In: source text, whole or the added lines of a diff. Out: syntax trees of as much of it as parses, calls by their full dotted names
(`from os import _exit as e; e(0)` and `getattr(__import__("os"), "_ex" + "it")(0)` are both os._exit), strings put together from constants.

Not here: whose code it is (deeds.py), what is suspicious about it (the detectors).
"""

import ast
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

MAX_CHARS = 200_000
_MAX_PIECES = 60
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Call:
    name: str  # dotted; "" where it cannot be told
    node: ast.Call


@dataclass(slots=True)
class Code:
    text: str
    body: list[ast.stmt]
    aliases: dict[str, str] = field(default_factory=dict)  # name in the code -> dotted name
    calls: list[Call] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    whole: bool = True  # it parsed in one piece
    lines: list[str] = field(default_factory=list)
    all_nodes: list[ast.AST] = field(default_factory=list)

    def nodes(self) -> Iterator[ast.AST]:
        if not self.all_nodes:
            self.all_nodes = [node for statement in self.body for node in ast.walk(statement)]
        return iter(self.all_nodes)

    def name(self, node: ast.AST | None) -> str:
        return _dotted(node, self.aliases)

    def at_import(self) -> Iterator[ast.AST]:
        """What runs when the module is imported: not the bodies of functions, nor what is under a main guard."""
        stack: list[ast.AST] = list(reversed(self.body))
        while stack:
            node = stack.pop()
            if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
                continue
            if isinstance(node, ast.If) and _is_main_guard(node):
                stack += reversed(node.orelse)
                continue
            yield node
            stack += reversed(list(ast.iter_child_nodes(node)))

    def line(self, node: ast.AST) -> str:
        """The line of the source that a node begins on."""
        number = getattr(node, "lineno", 0)
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""


@lru_cache(maxsize=512)
def parse_python(text: str) -> Code:
    text = text[:MAX_CHARS]
    body, whole = _statements(text)
    code = Code(text=text, body=body, whole=whole, lines=text.splitlines())
    for node in code.nodes():
        _note_alias(node, code.aliases)
    for node in code.nodes():
        if isinstance(node, ast.Call):
            code.calls.append(Call(_dotted(node.func, code.aliases), node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            code.strings.append(node.value)
        elif isinstance(node, ast.BinOp | ast.JoinedStr) and (joined := constant_text(node)):
            code.strings.append(joined)
    return code


def functions(code: Code) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in code.nodes():
        if isinstance(node, _FUNCTIONS):
            yield node


def body_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Its statements without the docstring."""
    first = function.body[0] if function.body else None
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return function.body[1:] if documented else function.body


def constant_text(node: ast.AST | None) -> str | None:
    """The string that an expression of constants is: "a" + "b", "%s" % "a", "".join(["a", "b"]), chr(97), f"a", "ba"[::-1]."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.Constant(value=bytes(data)):
            return data.decode("utf-8", errors="replace")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = constant_text(left), constant_text(right)
            return None if first is None or second is None else first + second
        case ast.JoinedStr(values=values):
            parts = [constant_text(value.value if isinstance(value, ast.FormattedValue) else value) for value in values]
            return "".join(part or "" for part in parts)
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(number))]) if 0 <= number < 0x110000:
            return chr(number)
        case ast.Call(func=ast.Attribute(value=separator, attr="join"), args=[ast.List(elts=items) | ast.Tuple(elts=items)]):
            joiner, texts = constant_text(separator), [constant_text(item) for item in items]
            return None if joiner is None or None in texts else joiner.join(text or "" for text in texts)
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(op=ast.USub()))):
            text = constant_text(value)
            return None if text is None else text[::-1]
        case ast.Call(func=ast.Attribute(value=value, attr="decode" | "encode" | "lower" | "strip")):
            return constant_text(value)
    return None


def is_constant(node: ast.AST | None) -> bool:
    """A literal, or a container of literals."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return is_constant(operand)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return all(map(is_constant, items))
        case ast.Dict(keys=keys, values=values):
            return all(key is not None and is_constant(key) for key in keys) and all(map(is_constant, values))
    return False


def _statements(text: str) -> tuple[list[ast.stmt], bool]:
    """As many statements as parse: where the text is a piece of a file, line by line from each place where it breaks."""
    whole = _parse(text) or _parse(textwrap.dedent(text))
    if whole is not None:
        return whole.body, True
    lines = text.splitlines()
    found: list[ast.stmt] = []
    start = 0
    for _ in range(_MAX_PIECES):
        if start >= len(lines):
            break
        stop, tree = _longest(lines, start)
        if tree is not None:
            for node in tree.body:
                ast.increment_lineno(node, start)
            found += tree.body
        start = stop
    return found, False


def _longest(lines: list[str], start: int) -> tuple[int, ast.Module | None]:
    """A piece from `start` on that parses, and where to go on."""
    stop = len(lines)
    for _ in range(12):
        piece = textwrap.dedent("\n".join(lines[start:stop]))
        tree = _parse(piece)
        if tree is not None:
            return stop, tree
        error = _error_line(piece)
        if error <= 1:
            break
        stop = start + error - 1
    indent = _indent(lines[start])
    for end in range(start + 1, min(start + 80, len(lines)) + 1):  # a block that its header is missing from, or one line
        if end == len(lines) or (lines[end].strip() and _indent(lines[end]) < indent):
            tree = _parse(textwrap.dedent("\n".join(lines[start:end])))
            if tree is not None:
                return end, tree
            break
    return start + 1, _parse(lines[start].strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parse(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _error_line(text: str) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return error.lineno or 0
    except (ValueError, RecursionError, MemoryError):
        return 0
    return 0


def _note_alias(node: ast.AST, aliases: dict[str, str]) -> None:
    if isinstance(node, ast.Import):
        for name in node.names:
            aliases[name.asname or name.name.partition(".")[0]] = name.name if name.asname else name.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and node.module:
        for name in node.names:
            aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        dotted = _dotted(node.value, aliases) if isinstance(node.value, ast.Attribute | ast.Call) else ""
        module = isinstance(node.value, ast.Call) and _dotted(node.value.func, aliases) in (
            "__import__",
            "importlib.import_module",
            "getattr",
        )
        if dotted and (module or dotted.split(".")[0] in aliases.values()):
            aliases.setdefault(node.targets[0].id, dotted)


def _dotted(node: ast.AST | None, aliases: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return aliases.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            base = _dotted(value, aliases)
            return f"{base}.{attr}" if base else f"?.{attr}"
        case ast.Call(func=func, args=[first, *rest]):
            name = _dotted(func, aliases)
            if name in ("__import__", "importlib.import_module", "builtins.__import__"):
                return constant_text(first) or ""
            if name in ("getattr", "builtins.getattr") and rest and (attr_ := constant_text(rest[0])):
                base = _dotted(first, aliases)
                return f"{base}.{attr_}" if base else attr_
        case ast.Subscript(value=value, slice=index):
            base, key = _dotted(value, aliases), constant_text(index)
            if key and base == "sys.modules":
                return key
            if key and base.endswith("__dict__"):
                return f"{base.removesuffix('.__dict__')}.{key}"
            if key and base in ("__builtins__", "globals", "vars"):
                return key
    return ""


def _is_main_guard(node: ast.If) -> bool:
    match node.test:
        case ast.Compare(left=ast.Name(id="__name__"), comparators=[ast.Constant(value="__main__")]):
            return True
    return False
