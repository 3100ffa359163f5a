"""A module's scope as a list of units, with the names that each one binds and refers to.

In: a `Source`; out: `Unit`s, one for every simple statement and every function at module or class level, and one for the header of
every class and compound statement there. A reference is a dotted chain, ("toolz", "itertoolz", "first"). Local names are left
out; a chain through a method's first parameter begins with SELF, one through an import inside a function with IMPORT and the
module as it is written there ("..pkg.mod").

Not here: what a chain leads to (names.py).
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from etude.synth.source import DefinitionNode, FunctionNode, Source, first_line, nested_suites

Chain = tuple[str, ...]
SELF = "<self>"
IMPORT = "<import>"
WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    path: str
    node: ast.stmt
    owner: ast.ClassDef | None  # the class whose body it stands in
    header: bool  # of a class or compound statement: only its bases, decorators, tests, iterables
    bound: tuple[str, ...]
    now: frozenset[Chain]  # read while the module is imported
    later: frozenset[Chain]  # read when called
    words: frozenset[str]  # every word of its text: names, attributes, also in strings and comments


def units(source: Source) -> list[Unit]:
    return list(_units(source, source.tree.body, None))


def _units(source: Source, body: Iterable[ast.stmt], owner: ast.ClassDef | None) -> Iterator[Unit]:
    for statement in body:
        suites = [statement.body] if isinstance(statement, ast.ClassDef) else list(nested_suites(statement))
        collector = _Collector(in_class=owner is not None)
        collector.unit(statement)
        if suites:
            words = {word for node in _header(statement) for word in _words(source, node)} | set(collector.bound)
        else:
            words = _words(source, statement)
        yield Unit(
            path=source.path,
            node=statement,
            owner=owner,
            header=bool(suites),
            bound=tuple(dict.fromkeys(collector.bound)),
            now=frozenset(collector.now),
            later=frozenset(collector.later),
            words=frozenset(words),
        )
        inner = statement if isinstance(statement, ast.ClassDef) else owner
        for suite in suites:
            yield from _units(source, suite, inner)


def _words(source: Source, node: ast.AST) -> set[str]:
    if not isinstance(node, (ast.stmt, ast.expr)):
        return {word for child in ast.iter_child_nodes(node) for word in _words(source, child)}
    start, end = source.span(node)
    if isinstance(node, DefinitionNode):
        start = source.offset(first_line(node), 0)
    return set(WORD.findall(source.data[start:end].decode(source.encoding, "replace")))


def _header(statement: ast.stmt) -> list[ast.AST]:
    """The parts of a class or compound statement outside its suites."""
    parts: list[ast.AST] = []
    for name, value in ast.iter_fields(statement):
        if name in ("body", "orelse", "finalbody"):
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.ExceptHandler):
                parts += [item.type] if item.type else []
            elif isinstance(item, ast.match_case):
                parts += [item.pattern, *([item.guard] if item.guard else [])]
            elif isinstance(item, ast.AST):
                parts.append(item)
    return parts


@dataclass
class _Collector:
    in_class: bool
    bound: list[str] = field(default_factory=list)
    now: set[Chain] = field(default_factory=set)
    later: set[Chain] = field(default_factory=set)

    def unit(self, statement: ast.stmt) -> None:
        if isinstance(statement, FunctionNode):
            self.bound.append(statement.name)
            self.function(statement, {}, self.now, method=self.in_class)
        elif isinstance(statement, ast.ClassDef) or any(nested_suites(statement)):
            if isinstance(statement, ast.ClassDef):
                self.bound.append(statement.name)
            for handler in getattr(statement, "handlers", []):
                self.bound += [handler.name] if handler.name else []
            for part in _header(statement):
                self.bound += _assigned([part])
                self.read(part, {}, self.now)
        else:
            self.bound += _assigned([statement])
            self.read(statement, {}, self.now)

    def function(self, node: FunctionNode | ast.Lambda, local: dict[str, Chain | None], into: set[Chain], method: bool = False) -> None:
        """`local` maps a local name to what it was imported as, or None."""
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
        for outside in [*arguments.defaults, *filter(None, arguments.kw_defaults), *(a.annotation for a in every if a.annotation)]:
            self.read(outside, local, into)
        inner = local | dict.fromkeys((argument.arg for argument in every), None)
        if isinstance(node, ast.Lambda):
            self.read(node.body, inner, self.later)
            return
        for outside in [*node.decorator_list, *([node.returns] if node.returns else [])]:
            self.read(outside, local, into)
        inner |= _locals(node.body)
        positional = [*arguments.posonlyargs, *arguments.args]
        static = any(isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list)
        if method and positional and not static:
            inner[positional[0].arg] = (SELF,)
        for statement in node.body:
            self.read(statement, inner, self.later)

    def read(self, node: ast.AST, local: dict[str, Chain | None], into: set[Chain]) -> None:
        if isinstance(node, (ast.Name, ast.Attribute)):
            self.chain(node, local, into)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self.function(node, local, into)
        elif isinstance(node, ast.ClassDef):
            inner = local | _locals(node.body)
            for child in ast.iter_child_nodes(node):
                self.read(child, inner, into)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            inner = local | dict.fromkeys(_assigned(node.generators), None)
            for child in ast.iter_child_nodes(node):
                self.read(child, inner, into)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if into is self.later:  # module-level imports are bindings that the cut looks at one by one
                into.update(_import_references(node))
        else:
            for child in ast.iter_child_nodes(node):
                self.read(child, local, into)

    def chain(self, node: ast.Name | ast.Attribute, local: dict[str, Chain | None], into: set[Chain]) -> None:
        names: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            names.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            self.read(base, local, into)
            return
        if base.id in local:
            prefix = local[base.id]
            if prefix is None or (prefix == (SELF,) and not names):
                return
            into.add((*prefix, *reversed(names)))
        elif not (isinstance(base.ctx, ast.Store) and not names):
            into.add((base.id, *reversed(names)))


def _locals(body: list[ast.stmt]) -> dict[str, Chain | None]:
    """What a function or class body binds itself; nested functions and classes only by their name."""
    found: dict[str, Chain | None] = {}
    free: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, DefinitionNode):
            found[node.name] = None
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            free.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(_import_bindings(node))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found[node.name] = None
        stack.extend(ast.iter_child_nodes(node))
    return {name: chain for name, chain in found.items() if name not in free}


def _import_bindings(node: ast.Import | ast.ImportFrom) -> dict[str, Chain | None]:
    """What an import inside a function binds: each name with the chain that it stands for."""
    found: dict[str, Chain | None] = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            if alias.name != "*":
                found[alias.asname or alias.name] = (IMPORT, "." * node.level + (node.module or ""), alias.name)
        elif alias.asname:
            found[alias.asname] = (IMPORT, alias.name)
        else:
            top = alias.name.split(".")[0]
            found[top] = (IMPORT, top)
    return found


def _import_references(node: ast.Import | ast.ImportFrom) -> set[Chain]:
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return {(IMPORT, module) if alias.name == "*" else (IMPORT, module, alias.name) for alias in node.names}
    return {(IMPORT, alias.name) for alias in node.names}


def _assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """Names that statements bind by assignment, in order; not inside functions and lambdas."""
    found: list[str] = []
    for top in nodes:
        stack: list[ast.AST] = [top]
        while stack:
            node = stack.pop(0)
            if isinstance(node, (DefinitionNode, ast.Lambda)):
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.append(node.id)
            stack = [*ast.iter_child_nodes(node), *stack]
    return found
