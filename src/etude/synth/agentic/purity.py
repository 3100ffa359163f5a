"""Is a changed file the original with something taken away, and nothing else?

In: the two states of a file; out: a `Loss`, the syntax nodes that are gone, or Impure with the place. The trees are compared from the
top: statements, `except` and `case` parts, decorators, names of imports, elements of lists, sets, tuples and dicts may be gone, in order;
everything that is left equals the original. Then the lines: a line that the original lacks is `pass` in a suite that lost everything, or
part of a statement that lost elements (an import, `__all__`).

Whole definitions and what belongs to them is what may go: of a function that stays, only statements that name something that is gone, and
never all of them. So a body is not emptied, a condition not turned round, a line that a test depends on not picked out.

Not here: how much may go and of which files (accept.py).
"""

import ast
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from etude.synth.names import bound_name
from etude.synth.source import Definition, DefinitionNode, FunctionNode, Source, docstring, first_line
from etude.synth.units import WORD

SUITES = ("body", "orelse", "finalbody")
PARTS = ("handlers", "cases", "decorator_list")
MAX_STEPS = 2_000_000  # of one comparison
SKIPPED = ("lineno", "col_offset", "end_lineno", "end_col_offset", "ctx", "type_comment", "kind")


class Impure(ValueError):
    """More than a deletion; the message says where, in one line."""


@dataclass
class Loss:
    """What one file lost."""

    source: Source  # the original
    left: Source | None  # None: the file is gone
    steps: int = 0
    nodes: list[ast.AST] = field(default_factory=list)  # taken away whole, or elements of what stays
    thinned: list[tuple[ast.stmt, ast.stmt]] = field(default_factory=list)  # statements whose own line lost elements: before, after
    added_lines: int = 0
    removed_lines: int = 0
    partial_lines: int = 0  # of them in functions that stay

    @property
    def definitions(self) -> list[Definition]:
        """Those that are gone, without what is inside another one of them."""
        gone = set(self.nodes)
        inner = {part for node in gone if isinstance(node, DefinitionNode) for part in ast.walk(node) if part is not node}
        compound = {part for node in gone if not isinstance(node, DefinitionNode) for part in ast.walk(node)}
        return [d for d in self.source.definitions if d.node not in inner and (d.node in gone or d.node in compound)]


def compare(old: Source, new: Source) -> Loss:
    """Raises Impure."""
    loss = Loss(source=old, left=new)
    if not _same(old.tree, new.tree, loss):
        raise Impure(f"{old.path}: {_first_difference(old, new)} is not in the original like this; take whole things away only")
    _count_lines(old, new, loss)
    return loss


def whole_file(old: Source) -> Loss:
    """The file is gone."""
    return Loss(source=old, left=None, nodes=list(old.tree.body), removed_lines=sum(bool(line.strip()) for line in old.data.splitlines()))


def refuse_partial(losses: Iterable[Loss], is_taken: Callable[[str, str], bool]) -> list[Definition]:
    """The functions that stay and lost something inside. Raises Impure where something is gone that is not about the definitions that are.

    `is_taken(path, name)`: does another file of the original take the name from this module?
    """
    losses = list(losses)
    names = {name for loss in losses for name in _gone_names(loss)}
    touched: dict[tuple[str, int], Definition] = {}
    for loss in losses:
        source = loss.source
        gone = {part for d in loss.definitions for part in ast.walk(d.node)}
        for node in loss.nodes if loss.left is not None else ():
            around = _around(source, node)
            if node in gone or (around is None and _is_free(loss, node, is_taken)):
                continue
            if names.isdisjoint(WORD.findall(ast.unparse(node))):
                where = f"in {around.qualname}, which stays," if around else "outside of functions"
                what = f"{source.path}:{_line(node)}: `{_shown(node)}` {where} is gone"
                raise Impure(f"{what} but has nothing to do with the definitions that are gone, or is still used")
            if around is not None:
                touched[around.key] = around
                loss.partial_lines += ast.unparse(node).count("\n") + 1
    return [touched[key] for key in sorted(touched)]


# -- trees


def _same(old: object, new: object, loss: Loss) -> bool:
    """Equal, but for what may be missing in `new`; that is noted in `loss`."""
    loss.steps += 1
    if loss.steps > MAX_STEPS:
        raise Impure(f"{loss.source.path}: too many alike parts to compare")
    if isinstance(old, ast.AST):
        if type(old) is not type(new):
            return False
        header = 0  # lost outside of suites
        for name in old._fields:
            before = len(loss.nodes)
            if name not in SKIPPED and not _same_field(old, new, name, loss):
                return False
            header += len(loss.nodes) - before if name not in (*SUITES, *PARTS) else 0
        if header and isinstance(old, ast.stmt) and isinstance(new, ast.stmt):
            loss.thinned.append((old, new))
        return True
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(_same(a, b, loss) for a, b in zip(old, new, strict=True))
    return type(old) is type(new) and old == new


def _same_field(old: ast.AST, new: ast.AST, name: str, loss: Loss) -> bool:
    before, after = getattr(old, name), getattr(new, name)
    if name in SUITES and isinstance(before, list):
        return _same_suite(old, before, after, name, loss)
    if name in PARTS or (name == "names" and isinstance(old, (ast.Import, ast.ImportFrom))):
        return bool(after or not before or name == "decorator_list") and _subsequence(before, after, loss)
    if name == "elts":
        return _subsequence(before, after, loss)
    if isinstance(old, ast.Dict):
        assert isinstance(new, ast.Dict)
        return name == "values" or _subsequence(_pairs(old), _pairs(new), loss)
    return _same(before, after, loss)


def _same_suite(owner: ast.AST, old: list[ast.stmt], new: list[ast.stmt], name: str, loss: Loss) -> bool:
    mark = _mark(loss)
    if _subsequence(old, new, loss) and (new or not old or name != "body" or isinstance(owner, ast.Module)):
        return True
    _back(loss, mark)
    if old and len(new) == 1 and isinstance(new[0], ast.Pass) and not isinstance(owner, FunctionNode):  # lost everything
        loss.nodes += old
        return True
    rest = [statement for statement in old if _is_doc(owner, statement)]
    if rest and len(new) == 2 and isinstance(new[1], ast.Pass) and isinstance(owner, ast.ClassDef) and _same(rest[0], new[0], loss):
        loss.nodes += old[1:]
        return True
    elif_part = old[0] if isinstance(owner, ast.If) and name == "orelse" and len(old) == 1 else None
    if isinstance(elif_part, ast.If) and _same_suite(owner, elif_part.orelse, new, name, loss):
        loss.nodes.append(ast.copy_location(ast.If(test=elif_part.test, body=elif_part.body, orelse=[]), elif_part))
        return True
    _back(loss, mark)
    return False


def _subsequence(old: Sequence[object], new: Sequence[object], loss: Loss) -> bool:
    """Every new one is an old one, in order. The earliest that fits is taken, an equal one before one that lost something."""
    place = 0
    dumps = {number: _dump(each) for number, each in enumerate(old)} if len(old) != len(new) else {}
    for each in new:
        wanted = _dump(each) if dumps else ""
        found = next((n for n in range(place, len(old)) if dumps.get(n) == wanted), None) if dumps else None
        if found is None:
            for number in range(place, len(old)):
                mark = _mark(loss)
                if _same_item(old[number], each, loss):
                    found = number
                    break
                _back(loss, mark)
        if found is None:
            return False
        loss.nodes += [node for item in old[place:found] for node in _nodes(item)]
        place = found + 1
    loss.nodes += [node for item in old[place:] for node in _nodes(item)]
    return True


def _same_item(old: object, new: object, loss: Loss) -> bool:
    if isinstance(old, tuple):
        return isinstance(new, tuple) and all(_same(a, b, loss) for a, b in zip(old, new, strict=True))
    return _same(old, new, loss)


def _pairs(node: ast.Dict) -> list[tuple[ast.expr | None, ast.expr]]:
    return list(zip(node.keys, node.values, strict=True))


def _nodes(item: object) -> list[ast.AST]:
    """An entry of a dict is one node: a dict of its own."""
    if isinstance(item, tuple):
        return [ast.copy_location(ast.Dict(keys=[item[0]], values=[item[1]]), item[1])]
    return [item] if isinstance(item, ast.AST) else []


def _dump(item: object) -> str:
    return "\0".join(ast.dump(part) for part in _nodes(item))


def _mark(loss: Loss) -> tuple[int, int]:
    return len(loss.nodes), len(loss.thinned)


def _back(loss: Loss, mark: tuple[int, int]) -> None:
    del loss.nodes[mark[0] :]
    del loss.thinned[mark[1] :]


def _is_doc(owner: ast.AST, statement: ast.stmt) -> bool:
    return isinstance(owner, (ast.ClassDef, ast.Module)) and docstring(owner) is statement


# -- lines


def _count_lines(old: Source, new: Source, loss: Loss) -> None:
    """Raises Impure for a line that the original lacks and that no statement with fewer elements explains."""
    before = [line.rstrip() for line in old.data.splitlines()]
    after = [line.rstrip() for line in new.data.splitlines()]
    explained = {number for _, left in loss.thinned for number in _header_lines(left)}
    passes = {node.lineno for node in ast.walk(new.tree) if isinstance(node, ast.Pass)}
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        loss.removed_lines += sum(bool(line) for line in before[i1:i2])
        for number in range(j1 + 1, j2 + 1):
            text = after[number - 1]
            if not text:
                continue
            loss.added_lines += 1
            stripped = text.strip()
            if not (number in explained or (number in passes and re.fullmatch(rb"(.*:\s*)?pass", stripped))):
                shown = stripped.decode(new.encoding, "replace")[:60]
                raise Impure(f"{old.path}: the line `{shown}` is new; nothing may be added but pass, or an import and __all__ with less")


def _header_lines(statement: ast.stmt) -> range:
    """Of a compound statement those before its first suite, of another one all."""
    inner = [first_line(suite[0]) for name in SUITES if isinstance(suite := getattr(statement, name, None), list) and suite]
    start, end = first_line(statement), statement.end_lineno or statement.lineno
    return range(start, max(start + 1, min(inner))) if inner else range(start, end + 1)


def _first_difference(old: Source, new: Source) -> str:
    """A line of the new file that the old one lacks, for people."""
    before = {line.strip() for line in old.data.splitlines()}
    for line in new.data.splitlines():
        if line.strip() and line.strip() not in before:
            return f"`{line.strip().decode(new.encoding, 'replace')[:60]}`"
    return "the order or the indentation of what is left"


# -- what went together


def _gone_names(loss: Loss) -> set[str]:
    """Of the definitions that are gone with their members, of a file that is gone, and what imports call them."""
    found = {PurePosixPath(loss.source.path).stem} if loss.left is None else set()
    for definition in loss.definitions:
        found |= {part.name for part in ast.walk(definition.node) if isinstance(part, DefinitionNode) and not _is_dunder(part.name)}
    return found


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _around(source: Source, node: ast.AST) -> Definition | None:
    """The innermost function that holds a node and stays."""
    found = source.enclosing(_line(node))
    return found if found is not None and isinstance(found.node, FunctionNode) and found.node is not node else None


def _is_free(loss: Loss, node: ast.AST, is_taken: Callable[[str, str], bool]) -> bool:
    """At the level of a module or class: it does nothing, or binds only names that nothing uses any more."""
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return True
    if isinstance(node, ast.alias):
        bound = [bound_name(node)]
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        bound = [bound_name(alias) for alias in node.names]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        bound = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(bound) < len(targets):
            return False
    else:
        return False
    assert loss.left is not None
    used = {part.id for part in ast.walk(loss.left.tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return not any(name == "*" or _is_dunder(name) or name in used or is_taken(loss.source.path, name) for name in bound)


def _line(node: ast.AST) -> int:
    place = node.pattern if isinstance(node, ast.match_case) else node
    return int(getattr(place, "lineno", 1))


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0][:60]
