"""Python behind the protocol of languages/: what synth/ has, as byte edits.

In: a Layout; out: an adapter for one repository. Where a definition stands, what a stub, a removal and a reduced test file look like comes
from source.py, cut.py and reduce.py; a changed file becomes one Edit over the bytes that differ. Python's own factory (build.py) does not
go through here: it knows more (mutants, kinds, docs). Its tests are started and traced by grade/child.py, not by a Launch.

Not here: any of that work.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.grade import environment
from etude.languages.protocol import Code, Definition, Edit, Launch, Project, Removal, Request, TestBlock, Unreadable
from etude.synth import edit, source, write
from etude.synth.cut import CutError, cut_sources, render
from etude.synth.discover import discover
from etude.synth.names import Index
from etude.synth.reduce import reduce_tests
from etude.types import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An adapter; `import_roots` as in discover.Layout."""

    import_roots: tuple[str, ...] = (".",)

    def discover(self, folder: Path, name: str) -> Project | None:
        if not any(folder.rglob("*.py")):
            return None
        layout = discover(folder, name)
        support = tuple(path for path in layout.tests if path not in layout.test_paths)
        return Project(
            name=layout.name,
            language="python",
            runner="pytest",
            sources=layout.sources,
            tests=layout.test_paths,
            support=support,
            import_roots=layout.import_roots,
            requirements=layout.requirements,
            own_names=layout.packages,
        )

    def products(self, folder: Path, project: Project) -> list[str]:
        return []

    def make_environment(self, project: Project, folder: Path, out: Path) -> Environment:
        return environment.make_environment(project.requirements, out, under_test=project.own_names)

    def launch(self, runner: str, request: Request) -> Launch:
        raise ValueError("pytest is started by grade/runner.py itself")

    def import_launch(self, runner: str, paths: Sequence[str]) -> Launch | None:
        return None

    def read(self, path: str, data: bytes, *, is_test: bool) -> Code:
        try:
            found = source.parse(path, data)
        except source.Unreadable as error:
            raise Unreadable(str(error)) from None
        functions = [d for d in found.definitions if not d.is_class and d.name.startswith("test")] if is_test else []
        words = {part.id for part in ast.walk(found.tree) if isinstance(part, ast.Name)}
        words |= {part.attr for part in ast.walk(found.tree) if isinstance(part, ast.Attribute)}
        return Code(
            path=path,
            data=data,
            definitions=tuple(_definition(found, each) for each in found.definitions),
            tests=tuple(_block(found, each) for each in functions),
            words=frozenset(words | {each.name for each in found.definitions}),
            tree=found,
        )

    def trace(self, code: Code, numbers: Mapping[tuple[str, int], int]) -> list[Edit]:
        return []  # by a profiler, without edits

    def stub(self, code: Code, definition: Definition) -> list[Edit]:
        own = _own(code, definition)
        nodes = [own, *(d for d in code.tree.definitions if own.is_class and own.line <= d.line <= own.end_line)]
        stubs = {d.node for d in nodes if isinstance(d.node, source.FunctionNode) and not source.is_trivial(d.node)}
        return list(_difference(code.data, edit.apply(code.tree, edit.Edits(stubs=stubs))))

    def remove(self, codes: Mapping[str, Code], sources: Sequence[str], targets: Sequence[Definition]) -> Removal:
        index = self._index(codes)
        try:
            cut = cut_sources(index, sources, [_own(codes[d.path], d) for d in targets], "remove")
            changes = render(cut.closure)
        except CutError as error:
            return Removal(edits={}, removed=(), kept=tuple(targets), blockers=(str(error),))
        gone = {definition.key for definition in cut.removed}
        return Removal(
            edits={path: None if data is None else _difference(codes[path].data, data) for path, data in changes.items()},
            removed=tuple(d for d in targets if (d.path, d.line) in gone),
            kept=tuple(d for d in targets if (d.path, d.line) not in gone),
            blockers=cut.blockers,
        )

    def remove_tests(
        self, codes: Mapping[str, Code], tests: Sequence[TestBlock], removed: Sequence[Definition]
    ) -> Mapping[str, tuple[Edit, ...] | None]:
        index = self._index(codes)
        sources = [path for path, code in codes.items() if not code.tests]
        closure = cut_sources(index, sources, [_own(codes[d.path], d) for d in removed], "remove").closure
        feature = [codes[block.path].tree.by_line[block.line] for block in tests]
        reduce_tests(closure, [path for path, code in codes.items() if code.tests], feature, frozenset((d.path, d.line) for d in removed))
        changes = {path: data for path, data in render(closure).items() if codes[path].tests}
        return {path: None if data is None else _difference(codes[path].data, data) for path, data in changes.items()}

    def signature(self, code: Code, definition: Definition) -> str:
        return write.signature(_own(code, definition))

    def _index(self, codes: Mapping[str, Code]) -> Index:
        return Index({path: code.tree for path, code in codes.items()}, self.import_roots)


def _definition(found: source.Source, each: source.Definition) -> Definition:
    start, end = found.starts[each.line - 1], found.span(each.node)[1]
    body = None
    if isinstance(each.node, source.FunctionNode) and not source.is_trivial(each.node):
        body = found.span(each.node.body[0])[0], end
    doc = ast.get_docstring(each.node) or ""
    return Definition(
        path=each.path,
        qualname=each.qualname,
        name=each.name,
        owner=each.qualname.rpartition(".")[0],
        line=each.line,
        end_line=each.end_line,
        start=start,
        end=end,
        body=body,
        is_class=each.is_class,
        is_public=not each.name.startswith("_"),
        doc=doc,
    )


def _block(found: source.Source, each: source.Definition) -> TestBlock:
    return TestBlock(
        path=each.path, line=each.line, end_line=each.end_line, start=found.starts[each.line - 1], end=found.span(each.node)[1]
    )


def _own(code: Code, definition: Definition) -> source.Definition:
    found: source.Source = code.tree
    return next(d for d in found.definitions if (d.line, d.qualname) == (definition.line, definition.qualname))


def _difference(before: bytes, after: bytes) -> tuple[Edit, ...]:
    """One edit over the bytes that differ."""
    if before == after:
        return ()
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    limit = min(len(before), len(after)) - start
    same = next((i for i in range(limit) if before[-1 - i] != after[-1 - i]), limit)
    return (Edit(start=start, end=len(before) - same, data=after[start : len(after) - same]),)
