"""One Python file as bytes with its syntax tree, and the way from a position in the tree to a byte offset.

In: a path and the file's bytes; out: `Source`, its `definitions`, its `suites` (every list of statements with its owner).
A PEP 263 cookie, a byte order mark, CRLF and lone CR, form feeds and a missing final line end are all kept: nothing is ever
written back from decoded text, edits are byte ranges (edit.py). ast counts columns in UTF-8 bytes of the decoded line, so
a column in a latin-1 file is first turned into characters and then into bytes of the file.

Not here: which names mean what (names.py), edits (edit.py).
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
DefinitionNode = FunctionNode | ast.ClassDef
MAX_DEPTH = 200  # ast.unparse takes three frames a level


class Unreadable(ValueError):
    """A file that cannot be worked on; the message is one line without the file's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A function, method or class at module or class level, also inside `if`, `try`, `with` and loops there."""

    path: str
    qualname: str
    line: int  # first line, decorators included
    end_line: int
    node: DefinitionNode
    owner: ast.ClassDef | None  # the class it stands in

    @property
    def key(self) -> tuple[str, int]:
        return self.path, self.line

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)


@dataclass(slots=True, eq=False)
class Suite:
    """A list of statements and the node that owns it."""

    owner: ast.AST
    statements: list[ast.stmt]


@dataclass(eq=False)
class Source:
    path: str
    data: bytes
    tree: ast.Module
    encoding: str
    starts: list[int] = field(repr=False)  # byte offset where each line begins, and one past the end

    def offset(self, line: int, column: int) -> int:
        """Byte offset of an ast position (line from 1, column in UTF-8 bytes)."""
        start = self.starts[line - 1]
        if line == 1 and self.data.startswith(b"\xef\xbb\xbf"):
            start += 3
        raw = self.data[start : self.starts[line]]
        if column == 0 or raw.isascii() or self.encoding in ("utf-8", "utf-8-sig"):
            return start + column
        head = raw.decode(self.encoding).encode("utf-8")[:column].decode("utf-8")
        return start + len(head.encode(self.encoding))

    def span(self, node: ast.stmt | ast.expr | ast.alias) -> tuple[int, int]:
        """Byte range of a node, decorators not included."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def line(self, number: int) -> bytes:
        """One line with its line end; numbers from 1."""
        return self.data[self.starts[number - 1] : self.starts[number]]

    @property
    def num_lines(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        return tuple(_definitions(self.path, self.tree.body, "", None))

    @cached_property
    def by_line(self) -> dict[int, Definition]:
        return {definition.line: definition for definition in self.definitions}

    @cached_property
    def suites(self) -> list[Suite]:
        return list(_suites(self.tree))

    @cached_property
    def containers(self) -> list[ast.AST]:
        """The nodes from which single elements can be taken: imports, del, displays."""
        kinds = (ast.Import, ast.ImportFrom, ast.Delete, ast.List, ast.Tuple, ast.Set, ast.Dict)
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    def enclosing(self, line: int) -> Definition | None:
        """The innermost function (else class) among `definitions` that holds a line."""
        best: Definition | None = None
        for definition in self.definitions:
            if definition.line <= line <= definition.end_line and (best is None or definition.line >= best.line):
                best = definition
        return best


def parse(path: str, data: bytes) -> Source:
    """Raises Unreadable: a syntax error, an encoding that is unknown or does not fit, bytes that would not survive."""
    try:
        encoding = _encoding(data)
        text = data.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the repository's code: nobody here is to mend it
            tree = ast.parse(data, filename=path, type_comments=False)
    except UnicodeDecodeError as error:
        raise Unreadable(f"not {error.encoding} at byte {error.start}; a coding cookie would say what else it is") from None
    except SyntaxError as error:
        raise Unreadable(f"syntax error at line {error.lineno or 1}: {error.msg}") from None
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        raise Unreadable(f"cannot be parsed: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    if _is_deep(tree):
        raise Unreadable(f"nested more than {MAX_DEPTH} levels deep")
    if text.encode(encoding) != data:
        raise Unreadable(f"its bytes do not survive decoding and encoding as {encoding}")
    ends = [match.end() for match in re.finditer(rb"\r\n|\r|\n", data)]
    starts = [0, *ends]
    if starts[-1] != len(data):
        starts.append(len(data))
    return Source(path=path, data=data, tree=tree, encoding=encoding, starts=starts)


def first_line(node: ast.stmt) -> int:
    """The line where a statement begins, decorators included."""
    if isinstance(node, DefinitionNode) and node.decorator_list:
        return min(node.lineno, *(decorator.lineno for decorator in node.decorator_list))
    return node.lineno


def docstring(node: DefinitionNode | ast.Module) -> ast.Expr | None:
    """The statement that is the docstring."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def is_trivial(node: FunctionNode) -> bool:
    """A body without work in it: a docstring, `pass`, `...` or `raise NotImplementedError`."""
    return all(_does_nothing(statement) for statement in node.body)


def nested_suites(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statement lists inside `if`, `for`, `while`, `try`, `with` and `match`; none for definitions."""
    if isinstance(statement, DefinitionNode):
        return
    for name in ("body", "orelse", "finalbody"):
        suite = getattr(statement, name, None)
        if suite:
            yield suite
    for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield part.body


def _is_deep(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        data.decode("utf-8")  # its error says more
        raise


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return False


def _definitions(path: str, body: list[ast.stmt], prefix: str, owner: ast.ClassDef | None) -> Iterator[Definition]:
    for statement in body:
        if isinstance(statement, DefinitionNode):
            assert statement.end_lineno is not None
            yield Definition(path, prefix + statement.name, first_line(statement), statement.end_lineno, statement, owner)
            if isinstance(statement, ast.ClassDef):
                yield from _definitions(path, statement.body, f"{prefix}{statement.name}.", statement)
        else:
            for suite in nested_suites(statement):
                yield from _definitions(path, suite, prefix, owner)


def _suites(tree: ast.Module) -> Iterator[Suite]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
                yield Suite(node, statements)
