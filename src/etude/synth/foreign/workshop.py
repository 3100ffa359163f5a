"""Where candidates of a foreign repository are tried, and its baseline.

In: a frozen original, its Project and Codes, a sandbox backend; out: runs of its tests on changed copies, and the Baseline of five runs
(plain twice, shuffled, traced plain and traced reversed). Traced runs use a copy of the tree in which every body of a definition calls
the tracer. A test is stable if it passed in all of them.

Not here: what is concluded from a run (prove.py).
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from etude.errors import UserError
from etude.grade.runner import BETWEEN, COLLECT, Order, TestRun, run_launch, run_tests
from etude.languages.edits import apply
from etude.languages.protocol import Code, Edit, Language, Project, TestBlock, Unreadable
from etude.sandbox.protocol import Backend, Sandbox
from etude.synth.workshop import Rejected, seconds_of, slow_tests, stable_tests, write_tree
from etude.types import Limits, Repo

Key = tuple[str, int]  # of a definition or a test block: path, first byte
BASELINE: tuple[tuple[Order, bool], ...] = (("plain", False), ("plain", True), ("reversed", True), ("shuffled", False), ("plain", False))
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    collected: frozenset[str]
    stable: frozenset[str]
    dropped: Mapping[str, str]
    imports: frozenset[str]  # source files that can be loaded by themselves
    blocks: Mapping[str, TestBlock | None]  # id -> the call or method that is the test
    reached: Mapping[Key, frozenset[str]]  # definition -> stable tests
    fixed: frozenset[Key]  # definitions that ran outside every test
    seconds: float  # of the fastest plain run
    slowest_s: float  # of the slowest: what other work on the machine did to it
    traced_seconds: float
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    repo: Repo
    project: Project
    language: Language
    codes: Mapping[str, Code]  # of sources, tests and what helps them
    original: Path
    files: Mapping[str, Path]
    environment: Path
    backend: Backend
    limits: Limits
    scratch: Path
    left_out: frozenset[str] = frozenset()  # slow tests
    chosen: tuple[str, ...] | None = None  # what is run instead of everything, if some are left out
    log: list[str] = field(default_factory=list)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.scratch) as name:
            yield Path(name)

    def open(self, tree: Path) -> Sandbox:
        return self.backend.open(tree, environment=self.environment, limits=self.limits)

    def run(
        self, tree: Path, *, order: Order = "plain", ids: Iterable[str] | None = None, codes: Sequence[tuple[int, str, int]] | None = None
    ) -> TestRun:
        self.log.append(order)
        chosen = self.chosen if ids is None else tuple(sorted(ids))
        with self.open(tree) as sandbox:
            return run_tests(
                sandbox, self.repo, ids=chosen, order=order, seed=SEED, wall_s=self.limits.wall_s, runner=self.project.runner, codes=codes
            )

    def importable(self, tree: Path, paths: Iterable[str]) -> frozenset[str]:
        """Which source files can be loaded; all of them where the adapter has no way to tell but the tests."""
        wanted = sorted(paths)
        launch = self.language.import_launch(self.project.runner, wanted) if wanted else None
        if launch is None:
            return frozenset(wanted)
        with self.open(tree) as sandbox:
            run = run_launch(sandbox, launch, wall_s=self.limits.wall_s)
        return frozenset(path for path, outcome in run.outcomes.items() if outcome == "passed")

    def read(self, path: str, edits: Iterable[Edit]) -> bytes:
        """The file after edits. Rejected where it would not parse."""
        code = self.codes[path]
        try:
            data = apply(code.data, edits)
            self.language.read(path, data, is_test=path not in self.project.sources)
        except (Unreadable, ValueError) as error:
            raise Rejected(f"the cut leaves {path} broken: {error}", "parse") from None
        return data


def measure_baseline(workshop: Workshop, progress: Callable[[int, int, str], None]) -> tuple[Workshop, Baseline]:
    """UserError where the suite cannot be used."""
    sources = [workshop.codes[path] for path in workshop.project.sources if path in workshop.codes]
    keys = [definition.key for code in sources for definition in code.definitions]
    numbers = {key: number for number, key in enumerate(keys)}
    codes = [(number, *key) for key, number in numbers.items()]
    traced = {code.path: apply(code.data, workshop.language.trace(code, numbers)) for code in sources}
    runs: list[TestRun] = []
    with workshop.folder() as folder:
        write_tree(workshop.files, {p: data for p, data in traced.items() if data != workshop.codes[p].data}, folder / "traced")
        for number, (order, is_traced) in enumerate(BASELINE):
            progress(number, len(BASELINE), f"{order}{', traced' if is_traced else ''}")
            tree = folder / "traced" if is_traced else workshop.original
            runs.append(workshop.run(tree, order=order, codes=codes if is_traced else None))
            _refuse_bad(workshop, runs[-1])
            if number == 0:
                slow = slow_tests(runs[0].durations, seconds_of(runs[0]) / runs[0].result.wall_s)
                workshop = replace(workshop, left_out=slow, chosen=tuple(sorted(set(runs[0].collected) - slow)) if slow else None)
        imports = workshop.importable(workshop.original, workshop.project.sources)
    progress(len(BASELINE), len(BASELINE), "")
    collected, stable, dropped = stable_tests(workshop.project.name, runs, workshop.left_out)
    reached, fixed = _attribute(runs, stable, frozenset(keys))
    plain = [seconds_of(run) for run, (_, is_traced) in zip(runs, BASELINE, strict=True) if not is_traced]
    return workshop, Baseline(
        collected=collected,
        stable=stable,
        dropped=dropped,
        imports=imports,
        blocks={id: _block(workshop, runs[0].places.get(id)) for id in sorted(collected)},
        reached=reached,
        fixed=fixed,
        seconds=min(plain),
        slowest_s=max(plain),
        traced_seconds=min(seconds_of(run) for run, (_, is_traced) in zip(runs, BASELINE, strict=True) if is_traced),
        num_runs=len(BASELINE),
    )


def _attribute(runs: Sequence[TestRun], stable: frozenset[str], keys: frozenset[Key]) -> tuple[dict[Key, frozenset[str]], frozenset[Key]]:
    tests: dict[Key, set[str]] = {}
    fixed: set[Key] = set()
    for run in runs:
        for owner, places in run.reach.items():
            found = keys.intersection(places)
            if owner in (COLLECT, BETWEEN):
                fixed |= found
            elif owner in stable:
                for key in found:
                    tests.setdefault(key, set()).add(owner)
    return {key: frozenset(owners) for key, owners in sorted(tests.items())}, frozenset(fixed)


def _block(workshop: Workshop, place: tuple[str, int] | None) -> TestBlock | None:
    """The smallest test that holds the line which the runner told."""
    code = workshop.codes.get(place[0]) if place else None
    if code is None or place is None:
        return None
    line = place[1]
    around = [block for block in code.tests if not block.is_group and block.line <= line <= block.end_line]
    exact = [block for block in around if line in block.call_lines]
    return min(exact or around, key=lambda block: block.end - block.start, default=None)


def _refuse_bad(workshop: Workshop, run: TestRun) -> None:
    name = workshop.project.name
    if run.collect_errors and not run.outcomes:
        raise UserError(f"the tests of {name} cannot be loaded: {run.collect_errors[0]}")
    if run.result.status != "exited":
        raise UserError(f"the tests of {name} end badly: {run.result.status.replace('_', ' ')} after {run.result.wall_s:.0f} s")
    if not run.outcomes:
        said = run.result.stdout.decode(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"no test of {name} ran{f': {said[0][:200]}' if said else ''}")
