"""Where one agent works on its deletion, and its tools.

    list read search                   of the harness, in the agent's sandbox
    delete edit restore                source files only; what they come to is kept out here and mirrored into the sandbox
    test                               all tests on a fresh copy, a few times
    tests_of only suggest              what the baseline's traces know
    submit                             accept.py decides; a refusal is told with its reason, and the agent may go on

No code of the repository ever runs in the agent's own sandbox, so what an agent reads there is what it made.

Not here: what is acceptable (accept.py, purity.py), when a run ends (loop.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etude.agent.output import whole_lines
from etude.agent.schema import Schema, object_schema
from etude.agent.tools import TOOLS, Bench, Tool, ToolFailure, relative, replace_once
from etude.grade.runner import TestRun
from etude.synth.agentic.accept import Coverage, Refused, Submission, accept, refusal
from etude.synth.candidates import Candidate
from etude.synth.proposal import Proposal
from etude.synth.source import Definition, Unreadable, parse
from etude.synth.workshop import write_tree
from etude.types import Observation

PATIENCE = 4.0  # times the limit of a proof's run: what an agent reads must not depend on other work on the machine
MAX_REFUSED = 4  # submissions of one run
SUGGESTIONS = 6  # of one page
MAX_WORDS = {"feature": 80, "summary": 600}  # characters

_TEXT: Schema = {"type": "string"}
_GIVEN: Schema = {"type": "string", "minLength": 1}
_NUMBER: Schema = {"type": "integer", "minimum": 1, "maximum": 10_000_000, "optional": True}


class Desk:
    """The work of one agent."""

    def __init__(self, coverage: Coverage, candidates: Sequence[Candidate], *, name: str, page: int, test_runs: int) -> None:
        self.coverage, self.workshop, self.candidates = coverage, coverage.workshop, candidates
        self.changes: dict[str, bytes | None] = {}
        self.proposal: Proposal | None = None
        self.submission: Submission | None = None
        self.refused: list[str] = []
        self._name, self._page, self._test_runs = name, page, test_runs

    @property
    def tools(self) -> Mapping[str, Tool]:
        place: Schema = object_schema(path=_GIVEN, start=_NUMBER, end=_NUMBER)
        symbol: Schema = object_schema(symbol=_GIVEN, path={**_GIVEN, "optional": True})
        own = (
            Tool(name="delete", about="lines start to end of a source file, or the file", schema=place, run=self.delete),
            Tool(
                name="edit",
                about="replace old, found once, by less",
                schema=object_schema(path=_GIVEN, old=_GIVEN, new=_TEXT),
                run=self.edit,
            ),
            Tool(name="restore", about="a file, as it was", schema=object_schema(path=_GIVEN), run=self.restore),
            Tool(name="suggest", about="sets that only a few tests reach", schema=object_schema(page=_NUMBER), run=self.suggest),
            Tool(name="tests_of", about="tests that reach a definition", schema=symbol, run=self.tests_of),
            Tool(name="only", about="what only tests with this in their ids reach", schema=object_schema(tests=_GIVEN), run=self.only),
            Tool(name="test", about="run all tests on what is left", schema=object_schema(), run=self.test),
            Tool(name="submit", about="at the end", schema=object_schema(feature=_GIVEN, symbols=_GIVEN, summary=_GIVEN), run=self.submit),
        )
        return {**{name: TOOLS[name] for name in ("list", "read", "search")}, **{tool.name: tool for tool in own}}

    # -- taking away

    def delete(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        path, lines = self._source(arguments), self._bytes(arguments).splitlines(keepends=True)
        if "start" not in arguments and "end" not in arguments:
            self._put(bench, path, None)
            return Observation(text=f"deleted {path}")
        start = arguments.get("start", 1)
        end = arguments.get("end", start if "start" in arguments else len(lines))
        if start > end or end > len(lines):
            raise ToolFailure(f"{path} has {len(lines)} lines; there are no lines {start} to {end}")
        self._put(bench, path, b"".join(lines[: start - 1] + lines[end:]))
        first, last = (lines[number - 1].strip().decode("utf-8", "replace")[:80] for number in (start, end))
        shown = f"`{first}`" if start == end else f"`{first}` to `{last}`"
        return Observation(
            text=f"deleted lines {start} to {end} of {path}, {shown}; it has {len(lines) - (end - start + 1)} lines now{self._parses(path)}"
        )

    def edit(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        path, old, new = self._source(arguments), arguments["old"], arguments["new"]
        if len(new.strip()) >= len(old.strip()) and new.strip() != "pass":
            raise ToolFailure("new is no shorter than old; this tool only takes away")
        count, data = replace_once(self._bytes(arguments), old, new)
        if count != 1:
            raise ToolFailure(f"old text {'not found' if count == 0 else f'found {count} times'} in {path}", "edit_not_found")
        self._put(bench, path, data)
        return Observation(text=f"edited {path}{self._parses(path)}")

    def restore(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        path = self._source(arguments)
        if path not in self.changes:
            raise ToolFailure(f"{path} is as it was")
        self._put(bench, path, self.workshop.index.sources[path].data)
        return Observation(text=f"{path} is as it was")

    # -- questions

    def suggest(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        pages = max(1, -(-len(self.candidates) // SUGGESTIONS))
        page = (self._page + arguments.get("page", 1) - 1) % pages
        shown = self.candidates[page * SUGGESTIONS : (page + 1) * SUGGESTIONS]
        if not shown:
            return Observation(text="nothing that only a few tests reach was found; look for yourself with tests_of and only")
        lines = []
        for candidate in shown:
            lines.append(f"{candidate.kind}, {candidate.num_lines} lines, {len(candidate.tests)} tests:")
            lines += [f"  {_placed(d)}" for d in candidate.targets[:8]]
            lines += [f"  and {len(candidate.targets) - 8} more"] if len(candidate.targets) > 8 else []
        return Observation(text=_fitting([*lines, f"(page {arguments.get('page', 1)} of {pages})"], bench))

    def tests_of(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        path = relative(arguments["path"]) if "path" in arguments else ""
        wanted, _, name = arguments["symbol"].rpartition(":")
        path = path or wanted
        found = [
            d
            for source in self.workshop.layout.sources
            for d in self.workshop.index.sources[source].definitions
            if d.qualname == name and path in ("", source)
        ]
        if not found:
            raise ToolFailure(f"no definition {name[:100]}{f' in {path}' if path else ''}; give its qualified name, such as Class.method")
        lines = []
        for definition in found[:8]:
            tests = sorted(self.coverage.tests_of([definition]))
            fixed = "; it also runs while modules are imported" if definition.key in self.coverage.fixed else ""
            lines += [
                f"{_placed(definition)}: {len(tests)} of {len(self.coverage.baseline.stable)} tests{fixed}",
                *(f"  {id}" for id in tests),
            ]
        return Observation(text=_fitting(lines, bench))

    def only(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        wanted = [part.strip() for part in arguments["tests"].splitlines() if part.strip()]
        tests = frozenset(id for id in self.coverage.baseline.stable for part in wanted if part in id)
        if not tests:
            raise ToolFailure("no test that passes every time has this in its id, such as tests/test_a.py::test_b")
        found = self.coverage.only(tests)
        lines = [f"{_placed(d)}: {len(self.coverage.tests_of([d]))} of them" for d in found] or ["none"]
        return Observation(text=_fitting([f"reached by {len(tests)} tests and no others:", *lines], bench))

    def test(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        if not self._test_runs:
            raise ToolFailure("there are no test runs left")
        self._test_runs -= 1
        with self.workshop.folder() as folder:
            write_tree(self.workshop.files, self.changes, folder / "tree", self.workshop.bytecode)
            with self.workshop.open(folder / "tree") as sandbox:
                run = self.workshop.run_in(sandbox, wall_s=PATIENCE * self.workshop.limits.wall_s)
        bench.tested = True
        return Observation(text=_fitting([*self._judged(run), f"({self._test_runs} test runs left)"], bench))

    def submit(self, bench: Bench, arguments: Mapping[str, Any]) -> Observation:
        said = Submission(
            feature=_plain(arguments["feature"], MAX_WORDS["feature"]),
            symbols=tuple(part.strip() for part in arguments["symbols"].replace("\n", ",").split(",") if part.strip()),
            summary=_plain(arguments["summary"], MAX_WORDS["summary"]),
        )
        try:
            self.proposal = accept(self.coverage, self.changes, said, name=self._name, evidence={})
        except Refused as reason:
            self.refused.append(str(reason))
            bench.finished = len(self.refused) >= MAX_REFUSED
            raise ToolFailure(f"not accepted: {reason}") from None
        self.submission, bench.finished = said, True
        return Observation(text="accepted")

    # -- helpers

    def _source(self, arguments: Mapping[str, Any]) -> str:
        path = relative(arguments["path"])
        refused = refusal(self.workshop, path)
        if refused:
            raise ToolFailure(refused)
        return path

    def _bytes(self, arguments: Mapping[str, Any]) -> bytes:
        path = relative(arguments["path"])
        data = self.changes.get(path, self.workshop.index.sources[path].data)
        if data is None:
            raise ToolFailure(f"{path} is deleted; restore it first")
        return data

    def _put(self, bench: Bench, path: str, data: bytes | None) -> None:
        if data is None:
            bench.sandbox.run(["rm", "-f", "--", f"./{path}"])
        else:
            bench.sandbox.write(path, data)
        self.changes[path] = data
        if data == self.workshop.index.sources[path].data:
            del self.changes[path]
        bench.tested = False

    def _parses(self, path: str) -> str:
        data = self.changes.get(path)
        try:
            if data is not None:
                parse(path, data)
        except Unreadable as error:
            return f"\nit does not parse now: {error}"
        return ""

    def _judged(self, run: TestRun) -> list[str]:
        """What a run says: tests that should fail, and those that should not."""
        if run.result.status != "exited":
            return [f"the tests end badly: {run.result.status.replace('_', ' ')}"]
        stable = self.coverage.baseline.stable
        broken = sorted({error.partition(": ")[0] for error in run.collect_errors})
        lines = [f"cannot be imported: {error[:200]}" for error in run.collect_errors[:5]]
        lines += ["that is right for tests of what is gone: they are taken out later"] if broken else []
        failing = sorted(id for id in stable if run.outcomes.get(id) != "passed" and not any(id.startswith(f"{path}::") for path in broken))
        lines.append(f"{sum(run.outcomes.get(id) == 'passed' for id in stable)} of {len(stable)} tests pass, {len(failing)} fail")
        lines += [f"  {id}: {run.messages.get(id, 'not run')[:200]}" for id in failing]
        return lines


def _placed(definition: Definition) -> str:
    return f"{definition.path}:{definition.line}-{definition.end_line} {definition.qualname}"


def _plain(text: str, limit: int) -> str:
    """One line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:limit]


def _fitting(lines: list[str], bench: Bench) -> str:
    count = whole_lines(lines, bench.observation_chars - 20)
    return "\n".join(lines if count >= len(lines) else [*lines[:count], f"... ({len(lines) - count} more lines)"])
