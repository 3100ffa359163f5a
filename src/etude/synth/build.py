"""From a repository to a folder of tasks: fetch, discover, baseline, candidates, cut, check, write.

In: a source (see fetch.py), a folder, a sandbox backend; out: the tasks in a TaskStore and a BuildReport. Candidates are tried by `jobs`
threads, whose work is in sandboxes; what comes out does not depend on them: the same input gives the same bytes. Nothing that was
measured in seconds gets into a task. Why each rejected candidate was rejected stands in pool.json.

Not here: any single step.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from etude import __version__, tree
from etude.errors import SandboxError, UserError
from etude.grade.environment import make_environment
from etude.grade.runner import BETWEEN, COLLECT, is_test_path
from etude.sandbox.protocol import Backend
from etude.store import Pool, TaskStore
from etude.synth.assemble import Assembler
from etude.synth.candidates import Candidate, find_candidates
from etude.synth.cut import Mode
from etude.synth.discover import Layout, discover
from etude.synth.fetch import fetch
from etude.synth.ledger import Ledger
from etude.synth.names import Index
from etude.synth.prove import prove
from etude.synth.source import Source, Unreadable, parse
from etude.synth.workshop import BASELINE_WALL_S, Baseline, Rejected, Workshop, compile_files, measure_baseline
from etude.types import Limits, Repo, Task

SLOWDOWN = 5.0  # a run on a cut tree may take so many times the original's seconds
FLOOR_S = 8.0  # and these on top: other work on the machine must not decide


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    modes: tuple[Mode, ...] = ("remove", "stub")  # stub: single functions and classes only
    jobs: int = 0  # threads, each with one sandbox; 0: one per core
    max_candidates: int | None = 60  # each is tried in every mode; None: all
    max_tasks: int | None = None  # stop after so many, in the order of candidates
    max_share: float = 0.25  # of the stable tests may reach one candidate

    def __post_init__(self) -> None:
        """Raises: UserError."""
        if not self.modes:
            raise UserError("no mode to cut in; give remove, stub or both")
        if self.jobs < 0:
            raise UserError(f"jobs is {self.jobs}; give 1 or more, or 0 for one per core")
        if self.max_candidates is not None and self.max_candidates < 1:
            raise UserError(f"the limit of candidates is {self.max_candidates}; give 1 or more, or none for all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    stage: str  # fetch | baseline | tasks
    done: int
    total: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    tasks: tuple[str, ...]  # ids, sorted
    valid: Mapping[Mode, int]  # mode -> tasks
    candidates: int  # found
    tried: Mapping[Mode, int]  # mode -> candidates tried
    rejected: Mapping[str, str]  # "mode kind name" -> reason
    skipped: Mapping[str, str]  # file -> why it was left alone
    stable_tests: int
    dropped: Mapping[str, str]  # test -> what it did instead of passing every time
    sandbox_runs: int
    seconds: float
    trace_ratio: float  # seconds of a traced run over those of a plain run


Report = Callable[[Progress], None]


def build_tasks(
    source: str, out: Path, *, options: BuildOptions = BuildOptions(), backend: Backend, progress: Report | None = None
) -> BuildReport:
    """Build the tasks of `source` into the tasks folder `out`. Raises: UserError, SandboxError."""
    say: Report = progress or (lambda _: None)
    start = time.monotonic()
    backend.check()
    say(Progress(stage="fetch", done=0, total=1, note=source))
    with fetch(source) as fetched, tempfile.TemporaryDirectory(prefix="etude-build-") as scratch:
        layout = discover(fetched.folder, fetched.name)
        sources, skipped = read_sources(fetched.folder, layout)
        store = TaskStore.create(out, sources=(fetched.source,))
        environment = make_environment(layout.requirements, store.environments, under_test=layout.packages)
        digest = store.add_snapshot(fetched.folder)
        layout = _without(layout, skipped)
        repo = Repo(name=layout.name, digest=digest, import_roots=layout.import_roots, test_paths=layout.test_paths, source=fetched.source)
        snapshot = tree.files(store.snapshot(repo))
        workshop = Workshop(
            repo=repo,
            layout=layout,
            index=Index(sources, layout.import_roots),
            original=store.snapshot(repo),
            files=snapshot,
            environment=store.environment(environment),
            backend=backend,
            limits=Limits(wall_s=BASELINE_WALL_S),
            scratch=Path(scratch),
            bytecode=compile_files(snapshot, Path(scratch)),
        )
        say(Progress(stage="fetch", done=1, total=1, note=f"{layout.name}: {len(sources)} Python files"))
        workshop, baseline = measure_baseline(
            workshop, lambda done, total, note: say(Progress(stage="baseline", done=done, total=total, note=note))
        )
        workshop = replace(workshop, limits=Limits(wall_s=FLOOR_S + SLOWDOWN * baseline.seconds))
        found = find_candidates(
            workshop.index, layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN), max_share=options.max_share
        )
        useful = [candidate for candidate in found if any(_applies(mode, candidate) for mode in options.modes)]
        maker = _Maker(workshop, baseline, Assembler(workshop, environment, baseline), store)
        ledger = Ledger(store, (__version__, digest, environment, sorted(baseline.stable), options.max_share))
        tasks, rejected, tried = _try_all(maker, ledger, useful[: options.max_candidates], options, say)
    if not tasks:
        first = next(iter(rejected.items()), None)
        raise UserError(f"{layout.name} gives no task: {len(found)} candidates{f', first {first[0]}: {first[1]}' if first else ''}")
    report = BuildReport(
        tasks=tuple(sorted(task.id for task in tasks)),
        valid={mode: sum(task.mode == mode for task in tasks) for mode in options.modes},
        candidates=len(found),
        tried=tried,
        rejected=rejected,
        skipped=skipped,
        stable_tests=len(baseline.stable),
        dropped=baseline.dropped,
        sandbox_runs=len(workshop.log),
        seconds=time.monotonic() - start,
        trace_ratio=baseline.traced_seconds / baseline.seconds,
    )
    _describe(store, report, fetched.source)
    ledger.close()
    return report


def read_sources(folder: Path, layout: Layout) -> tuple[dict[str, Source], dict[str, str]]:
    """Every Python file parsed, and those that cannot be with the reason. UserError where nothing is left."""
    files = tree.files(folder)
    sources: dict[str, Source] = {}
    skipped: dict[str, str] = {}
    for path in (*layout.sources, *layout.tests):
        if path in layout.test_paths and not is_test_path(path):
            skipped[path] = "pytest takes no file of this name; rename it"
            continue
        try:
            sources[path] = parse(path, files[path].read_bytes())
        except Unreadable as error:
            skipped[path] = str(error)
    for kind, paths in (("source file", layout.sources), ("test file", layout.test_paths)):
        if not any(path in sources for path in paths):
            raise UserError(f"no {kind} of {layout.name} can be read; {paths[0]}: {skipped[paths[0]]}")
    return sources, skipped


def _without(layout: Layout, skipped: Mapping[str, str]) -> Layout:
    def keep(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(path for path in paths if path not in skipped)

    return replace(layout, test_paths=keep(layout.test_paths), sources=keep(layout.sources), tests=keep(layout.tests))


@dataclass(frozen=True)
class _Maker:
    """Makes a task of one candidate in one mode; used by many threads."""

    workshop: Workshop
    baseline: Baseline
    assembler: Assembler
    store: TaskStore

    def attempt(self, candidate: Candidate, mode: Mode) -> Task | str:
        """The task, or the reason why there is none. SandboxError if sandboxes fail twice in a row."""
        for last in (False, True):
            try:
                with self.workshop.folder() as folder:
                    proof = prove(self.workshop, self.baseline, candidate, mode, folder)
                    return self.assembler.assemble(candidate, mode, proof)
            except Rejected as error:
                return str(error)
            except SandboxError:
                if last:
                    raise
        raise AssertionError("unreachable")


def _applies(mode: Mode, candidate: Candidate) -> bool:
    return mode == "remove" or candidate.kind in ("function", "class")


def _try_all(
    maker: _Maker, ledger: Ledger, candidates: Sequence[Candidate], options: BuildOptions, say: Report
) -> tuple[list[Task], dict[str, str], dict[Mode, int]]:
    """(tasks in the order of candidates, rejections, mode -> tried). A task is in the store as soon as it is known."""
    jobs = [(candidate, mode) for candidate in candidates for mode in options.modes if _applies(mode, candidate)]

    def attempt(name: str, candidate: Candidate, mode: Mode) -> Task | str:
        return known if (known := ledger.known(name)) is not None else maker.attempt(candidate, mode)

    tasks: dict[str, Task] = {}  # by cut patch: two candidates may come to the same cut
    rejected: dict[str, str] = {}
    tried = dict.fromkeys(options.modes, 0)
    with ThreadPoolExecutor(options.jobs or len(os.sched_getaffinity(0))) as pool:
        results: list[Future[Task | str]] = [pool.submit(attempt, _name(candidate, mode), candidate, mode) for candidate, mode in jobs]
        try:
            for number, (candidate, mode) in enumerate(jobs, 1):
                name = _name(candidate, mode)
                outcome = results[number - 1].result()
                tried[mode] += 1
                if isinstance(outcome, Task) and outcome.cut in tasks:
                    outcome = f"same cut as {tasks[outcome.cut].id}"
                if isinstance(outcome, Task):
                    tasks[outcome.cut] = outcome
                    maker.store.add(outcome)
                else:
                    rejected[name] = outcome
                if ledger.known(name) is None:
                    ledger.add(name, outcome)
                verdict = outcome.id if isinstance(outcome, Task) else f"no task of {name}: {outcome}"
                say(Progress(stage="tasks", done=number, total=len(jobs), note=verdict))
                if options.max_tasks is not None and len(tasks) >= options.max_tasks:
                    break
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return list(tasks.values()), rejected, tried


def _name(candidate: Candidate, mode: Mode) -> str:
    return f"{mode} {candidate.kind} {candidate.name}"


def _describe(store: TaskStore, report: BuildReport, source: str) -> None:
    """pool.json gets what can be told again the next time: no seconds. Another build may have written it meanwhile."""
    pool = TaskStore.open(store.path).pool
    evidence = {
        **pool.evidence,
        source: {
            "candidates": report.candidates,
            "tried": dict(report.tried),
            "valid": dict(report.valid),
            "rejected": dict(report.rejected),
            "skipped": dict(report.skipped),
            "stable_tests": report.stable_tests,
            "dropped": dict(report.dropped),
        },
    }
    sources = tuple(dict.fromkeys((*pool.sources, source)))
    store.describe(Pool(sources=sources, evidence=evidence))
