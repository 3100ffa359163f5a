"""Edits of one Python file by byte ranges: delete statements and list elements, replace bodies; nothing else changes.

In: a `Source` and what shall go; out: the new bytes. A deleted definition takes its decorators and the comments that belong
to it along, and leaves no ghost: of the blank lines around it the larger gap stays once. A suite that loses everything gets
`pass`. Statements that share a line (`a = 1; b = 2`, `class A: x = 1`) are cut within the line.

Not here: what has to go (cut.py).
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from etude.synth.source import DefinitionNode, FunctionNode, Source, Suite, docstring, first_line

STUB = b"raise NotImplementedError"
COOKIE = re.compile(rb"^#!|^[ \t\f]*#.*?coding[:=]")


@dataclass
class Edits:
    """What shall happen to one file."""

    statements: set[ast.stmt] = field(default_factory=set)  # deleted
    elements: set[ast.AST] = field(default_factory=set)  # deleted: import aliases, elements and dict values of displays, targets of del
    stubs: set[FunctionNode] = field(default_factory=set)  # body replaced, docstring kept

    def __bool__(self) -> bool:
        return bool(self.statements or self.elements or self.stubs)


def apply(source: Source, edits: Edits) -> bytes:
    """The file after the edits. What lies inside a deleted statement or a replaced body is left alone."""
    gone = {node for top in [*edits.statements, *edits.stubs] for node in ast.walk(top)}
    work = _Work(source)
    for suite in source.suites:
        if suite.owner not in gone and any(statement in edits.statements for statement in suite.statements):
            work.thin(suite, edits.statements)
    inner = {node for top in [*edits.statements, *edits.stubs] for node in ast.walk(top) if node is not top}
    for function in edits.stubs - inner - edits.statements:
        work.stub(function)
    gone |= {node for top in edits.elements for node in ast.walk(top) if node is not top}
    elements = edits.elements - gone
    for node in source.containers if elements else ():
        if node in gone or node in elements:
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            work.drop_elements(node.names, elements)
        elif isinstance(node, ast.Delete):
            work.drop_elements(node.targets, elements)
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            work.drop_display(node, elements)
        elif isinstance(node, ast.Dict):
            work.drop_entries(node, elements)
    return work.finish()


@dataclass
class _Work:
    source: Source
    dead: set[int] = field(default_factory=set)  # line numbers that go
    instead: dict[int, bytes] = field(default_factory=dict)  # line number -> line that takes its place
    changes: list[tuple[int, int, bytes]] = field(default_factory=list)  # byte ranges within lines that stay

    # -- statements

    def thin(self, suite: Suite, doomed: set[ast.stmt]) -> None:
        statements = suite.statements
        inline = bool(self._before(statements[0]).strip())
        everything = all(statement in doomed for statement in statements)
        if everything and inline:
            self._replace(statements[0], statements[-1], b"pass")
            return
        for group in _sharing_lines(self.source, statements):
            if all(statement in doomed for statement in group):
                self._delete_lines(group[0], group[-1], statements)
            else:
                self._delete_within_line(group, doomed)
        if everything and not isinstance(suite.owner, ast.Module):
            line = first_line(statements[0])
            indent = re.match(rb"[ \t\f]*", self.source.line(line))
            assert indent is not None
            self.instead[line] = indent[0] + b"pass" + self._line_end(line)

    def _delete_lines(self, first: ast.stmt, last: ast.stmt, suite: Sequence[ast.stmt]) -> None:
        start, stop = first_line(first), last.end_lineno
        assert stop is not None
        if isinstance(last, DefinitionNode):
            stop = self._trailing_comments(stop, last.col_offset)
        if isinstance(first, DefinitionNode) or self._alone(start, stop):
            start = self._leading_comments(start, first.col_offset)
        self.dead.update(range(start, stop + 1))

    def _delete_within_line(self, group: Sequence[ast.stmt], doomed: set[ast.stmt]) -> None:
        kept_end: int | None = None
        run_start: int | None = None
        for statement in group:
            start, end = self.source.span(statement)
            if statement not in doomed:
                if run_start is not None:
                    self.changes.append((run_start, start, b""))
                    run_start = None
                kept_end = end
            elif run_start is None:
                run_start = start
        if run_start is not None:
            assert kept_end is not None
            self.changes.append((kept_end, self.source.span(group[-1])[1], b""))

    def _leading_comments(self, line: int, column: int) -> int:
        """The first of the comment lines that stand right above `line` at the same depth."""
        while line > 1:
            above = self.source.line(line - 1)
            text = above.lstrip(b" \t\f")
            if not text.startswith(b"#") or len(above) - len(text) != column:
                break
            line -= 1
        if line == 1 or (line == 2 and COOKIE.match(self.source.line(1))):  # a file's header is not about its first statement
            while self.source.line(line).lstrip().startswith(b"#"):
                line += 1
        return line

    def _trailing_comments(self, line: int, column: int) -> int:
        """The last of the comment lines below `line` that are deeper than `column`: they end the body."""
        last = line
        while line < self.source.num_lines:
            line += 1
            below = self.source.line(line)
            text = below.lstrip(b" \t\f")
            if text.startswith(b"#") and len(below) - len(text) > column:
                last = line
            elif text.strip():
                break
        return last

    def _alone(self, start: int, stop: int) -> bool:
        """No other statement right below."""
        return stop >= self.source.num_lines or not self.source.line(stop + 1).strip()

    # -- bodies

    def stub(self, function: FunctionNode) -> None:
        doc = docstring(function)
        body = function.body[1:] if doc else function.body
        if not body:
            assert doc is not None
            end = self.source.span(doc)[1]
            indent = self._before(doc)
            glue = b"; " if indent.strip() else self._line_end(doc.lineno) + indent
            self.changes.append((end, end, glue + STUB))
            return
        start = first_line(body[0])
        if self._before(body[0]).strip():
            self._replace(body[0], body[-1], STUB)
            return
        stop = body[-1].end_lineno
        assert stop is not None
        stop = self._trailing_comments(stop, function.col_offset)
        if doc:
            assert doc.end_lineno is not None
            start = doc.end_lineno + 1
        else:  # comments between the header and the first statement
            while not self.source.line(start - 1).strip() or self.source.line(start - 1).lstrip().startswith(b"#"):
                start -= 1
        indent = self._before(body[0])
        self.dead.update(range(start, stop + 1))
        self.instead[start] = indent + STUB + self._line_end(stop)

    # -- elements

    def drop_elements(self, elements: Sequence[ast.alias] | Sequence[ast.expr], doomed: set[ast.AST]) -> None:
        """Cut runs of elements with their commas; at least one must stay."""
        kept: ast.alias | ast.expr | None = None
        run: list[ast.alias | ast.expr] = []
        for element in elements:
            if element in doomed:
                run.append(element)
                continue
            if run:
                self._drop_run(kept, run, element)
                run = []
            kept = element
        if run and kept is not None:
            self._drop_run(kept, run, None)

    def _drop_run(
        self, before: ast.alias | ast.expr | None, run: Sequence[ast.alias | ast.expr], after: ast.alias | ast.expr | None
    ) -> None:
        start, end = self.source.span(run[0])[0], self.source.span(run[-1])[1]
        if before is not None and (after is None or before.end_lineno == run[0].lineno):
            self.changes.append((self.source.span(before)[1], end, b""))
        else:
            assert after is not None
            self.changes.append((start, self.source.span(after)[0], b""))

    def drop_display(self, node: ast.List | ast.Tuple | ast.Set, doomed: set[ast.AST]) -> None:
        if not any(element in doomed for element in node.elts):
            return
        kept = [element for element in node.elts if element not in doomed]
        start, end = self.source.span(node)
        if not kept:
            empty = {ast.List: b"[]", ast.Tuple: b"()", ast.Set: b"set()"}[type(node)]
            self.changes.append((start, end, empty))
        elif isinstance(node, ast.Tuple) and len(kept) == 1:
            first, last = self.source.span(kept[0])
            self.changes.append((start, end, b"(" + self.source.data[first:last] + b",)"))
        else:
            self.drop_elements(node.elts, doomed)

    def drop_entries(self, node: ast.Dict, doomed: set[ast.AST]) -> None:
        pairs = [(key or value, value) for key, value in zip(node.keys, node.values, strict=True)]
        if not any(value in doomed for _, value in pairs):
            return
        kept = [value for _, value in pairs if value not in doomed]
        if not kept:
            self.changes.append((*self.source.span(node), b"{}"))
            return
        for index, (key, value) in enumerate(pairs):
            if value not in doomed:
                continue
            later = [pair for pair in pairs[index + 1 :] if pair[1] not in doomed]
            earlier = [pair for pair in pairs[:index] if pair[1] not in doomed]
            if later:
                self.changes.append((self.source.span(key)[0], self.source.span(pairs[index + 1][0])[0], b""))
            else:
                previous = pairs[index - 1][1] if pairs[index - 1][1] in doomed else earlier[-1][1]
                self.changes.append((self.source.span(previous)[1], self.source.span(value)[1], b""))

    # -- the result

    def finish(self) -> bytes:
        source = self.source
        gone = self.dead - self.instead.keys()
        gone |= self._ghosts(sorted(gone))
        changes = [*self.changes]
        changes += [(source.offset(line, 0), source.starts[line], b"") for line in gone]
        changes += [(source.offset(line, 0), source.starts[line], text) for line, text in self.instead.items()]
        out, position = [], 0
        for start, end, text in sorted(changes):
            assert start >= position, f"{source.path}: edits overlap at byte {start}"
            out += [source.data[position:start], text]
            position = end
        out.append(source.data[position:])
        return b"".join(out)

    def _ghosts(self, gone: Sequence[int]) -> set[int]:
        """The blank lines that would show where something stood."""
        ghosts: set[int] = set()
        for first, last in self._groups(gone):
            above, below = first - 1, last + 1
            while above >= 1 and self._is_blank(above):
                above -= 1
            while below <= self.source.num_lines and self._is_blank(below):
                below += 1
            gaps = [range(above + 1, first), *self._inner_gaps(first, last), range(last + 1, below)]  # the one below comes last
            if above < 1 or below > self.source.num_lines:
                kept = None
            elif self._depth(below) < self._depth(first):  # the last of its suite
                kept = gaps[-1]
            elif self._depth(above) < self._depth(first):  # the first of its suite
                kept = None
            else:
                kept = max(reversed(gaps), key=len)
            ghosts.update(line for gap in gaps if gap is not kept for line in gap)
        return ghosts

    def _groups(self, gone: Sequence[int]) -> list[tuple[int, int]]:
        """Runs of deleted lines; blank lines do not end a run."""
        groups: list[tuple[int, int]] = []
        for line in gone:
            if groups and all(self._is_blank(between) for between in range(groups[-1][1] + 1, line)):
                groups[-1] = groups[-1][0], line
            else:
                groups.append((line, line))
        return groups

    def _inner_gaps(self, first: int, last: int) -> list[range]:
        blank = [line for line in range(first, last) if self._is_blank(line) and line not in self.dead]
        starts = [line for line in blank if line - 1 not in blank]
        return [range(start, next(line for line in range(start, last + 1) if line not in blank)) for start in starts]

    def _is_blank(self, line: int) -> bool:
        return line not in self.instead and not self.source.line(line).strip(b" \t\r\n")  # a form feed is content

    def _depth(self, line: int) -> int:
        text = self.instead.get(line) or self.source.line(line)
        return len(text) - len(text.lstrip(b" \t"))

    def _before(self, statement: ast.stmt) -> bytes:
        line = first_line(statement)
        start = self.source.offset(line, 0)
        column = statement.col_offset if isinstance(statement, DefinitionNode) else None
        return self.source.data[start : start + column if column is not None else self.source.span(statement)[0]]

    def _line_end(self, line: int) -> bytes:
        text = self.source.line(line)
        return text[len(text.rstrip(b"\r\n")) :]

    def _replace(self, first: ast.stmt, last: ast.stmt, text: bytes) -> None:
        self.changes.append((self.source.span(first)[0], self.source.span(last)[1], text))


def _sharing_lines(source: Source, statements: Iterable[ast.stmt]) -> list[list[ast.stmt]]:
    """Statements grouped by logical line: `a = 1; b = 2` are one group, also over a backslash."""
    groups: list[list[ast.stmt]] = []
    for statement in statements:
        if groups:
            between = source.data[source.span(groups[-1][-1])[1] : source.offset(first_line(statement), statement.col_offset)]
            if b"\n" not in between.replace(b"\\\r\n", b"").replace(b"\\\n", b"") and b"\r" not in between.replace(b"\\\r", b""):
                groups[-1].append(statement)
                continue
        groups.append([statement])
    return groups
