"""From a foreign repository to tasks: fetch, detect, environment, baseline, candidates, cut, prove, write.

In: a source (synth/fetch.py), a folder, a sandbox backend; out: tasks in a TaskStore and a BuildReport. What was made from the sources
(dist, minified files, class files) is left out of the snapshot. A build that was killed goes on from its ledger.

Not here: Python (synth/build.py), any language (languages/).
"""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from etude import __version__, tree
from etude.errors import SandboxError, UserError
from etude.grade.residue import Scanner
from etude.languages.choose import by_runner, detect
from etude.languages.protocol import Code, Project, Unreadable
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.build import NO_IDEA, BuildOptions, BuildReport, Progress, Report, build_fetched
from etude.synth.cut import Mode
from etude.synth.fetch import Fetched, fetch
from etude.synth.foreign.assemble import MEMORY_MB, Assembler
from etude.synth.foreign.candidates import Candidate, find_candidates, narrowed
from etude.synth.foreign.gates import Gates
from etude.synth.foreign.prove import Inapplicable, prove
from etude.synth.foreign.turns import TimedOut, Turns
from etude.synth.foreign.workshop import Baseline, Workshop, measure_baseline
from etude.synth.ledger import Ledger
from etude.synth.proposal import FEATURE_DELETION
from etude.synth.refusal import Refusal
from etude.synth.verdicts import DoesNotMatter
from etude.synth.workshop import BASELINE_WALL_S, Rejected
from etude.synth.writer import Writer, open_writer, told_of
from etude.types import Environment, Limits, Repo, Task

SLOWDOWN, FLOOR_S = 5.0, 40.0  # a run on a cut tree may take so many times the original's slowest run, and these seconds on top
NO_TIME = "out of time, also alone: "
ROUNDS = {"quick": 2, "full": 3}  # runs of everything in the agent's tree


def build_any(
    source: str, out: Path, *, options: BuildOptions, backend: Backend, progress: Report | None = None, lenient: bool = False
) -> BuildReport:
    """Python by synth/build.py, every other language by `build_foreign`. `lenient`: kinds, a level, shown tests that a language lacks are
    left out; else they are a UserError. Raises: UserError, SandboxError."""
    backend.check()
    (progress or (lambda _: None))(Progress(stage="fetch", done=0, total=1, note=source))
    with fetch(source, history="commit_replay" in options.kinds) as fetched:
        project = detect(fetched.folder, fetched.name)
        if project is None:
            return build_fetched(fetched, out, options=options, backend=backend, progress=progress)
        return build_foreign(fetched, out, options=_possible(options, project, lenient), backend=backend, progress=progress)


def build_foreign(
    fetched: Fetched, out: Path, *, options: BuildOptions = BuildOptions(), backend: Backend, progress: Report | None = None
) -> BuildReport:
    """Tasks of a repository that is here. Raises: UserError, SandboxError."""
    say: Report = progress or (lambda _: None)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="etude-build-") as scratch:
        project = detect(fetched.folder, fetched.name)
        if project is None:
            raise UserError(f"{fetched.source} is of no language that etude knows")
        options = _possible(options, project, lenient=False)
        language = by_runner(project.runner)
        clean = _without_products(fetched.folder, Path(scratch, "clean"), language.products(fetched.folder, project))
        store = TaskStore.create(out, sources=(fetched.source,))
        writer = open_writer(options.writer, out) if options.writer else None
        environment = language.make_environment(project, clean, store.environments)
        digest = store.add_snapshot(clean)
        repo = Repo(name=project.name, digest=digest, import_roots=project.import_roots, test_paths=project.tests, source=fetched.source)
        codes, skipped = _read(project, store.snapshot(repo))
        workshop = Workshop(
            repo=repo,
            project=replace(project, sources=tuple(path for path in project.sources if path in codes)),
            language=language,
            codes=codes,
            original=store.snapshot(repo),
            files=tree.files(store.snapshot(repo)),
            environment=store.environment(environment),
            backend=backend,
            limits=Limits(wall_s=BASELINE_WALL_S, memory_mb=MEMORY_MB, processes=128),
            scratch=Path(scratch),
        )
        say(Progress(stage="fetch", done=1, total=1, note=f"{project.name}: {len(project.sources)} {project.language} files"))
        workshop, baseline = measure_baseline(
            workshop, lambda done, total, note: say(Progress(stage="baseline", done=done, total=total, note=note))
        )
        workshop = replace(workshop, limits=replace(workshop.limits, wall_s=FLOOR_S + SLOWDOWN * baseline.slowest_s))
        told = (options.max_share, options.gates, *((writer.model.name,) if writer else ()))
        ledger = Ledger(store, (__version__, digest, environment, *told), baseline.stable)
        baseline = replace(
            baseline,
            stable=ledger.stable,
            dropped=dict(sorted({**baseline.dropped, **ledger.dropped}.items())),
            reached={key: tests & ledger.stable for key, tests in baseline.reached.items() if tests & ledger.stable},
        )
        found = find_candidates([codes[path] for path in workshop.project.sources], baseline, max_share=options.max_share)
        build = _Build(workshop, baseline, environment, store, ledger, options, say, writer)
        with ledger:
            build.run(found[: options.max_candidates])
    if not build.tasks:
        first = next((f", first {name}: {why}" for name, why in build.rejected.items()), "")
        raise UserError(f"{project.name} gives no task: {len(found)} candidates{first}")
    report = BuildReport(
        tasks=tuple(sorted(task.id for task in build.tasks.values())),
        valid={mode: sum(task.mode == mode for task in build.tasks.values()) for mode in options.modes},
        candidates=len(found),
        tried=build.tried,
        rejected={name: why.reason for name, why in build.rejected.items()},
        rejected_at={name: why.gate for name, why in build.rejected.items()},
        inapplicable=build.inapplicable,
        skipped=skipped,
        stable_tests=len(baseline.stable),
        dropped=baseline.dropped,
        sandbox_runs=len(workshop.log),
        seconds=time.monotonic() - start,
        trace_ratio=baseline.traced_seconds / baseline.seconds,
        writer=told_of(build.tasks.values(), writer) if writer else {},
    )
    names = ("candidates", "tried", "valid", "rejected", "rejected_at", "inapplicable", "skipped", "stable_tests", "dropped")
    store.amend(fetched.source, {name: _plain(getattr(report, name)) for name in names})
    return report


class _Build:
    def __init__(
        self,
        workshop: Workshop,
        baseline: Baseline,
        environment: Environment,
        store: TaskStore,
        ledger: Ledger,
        options: BuildOptions,
        say: Report,
        writer: Writer | None,
    ) -> None:
        self.workshop, self.baseline, self.store, self.options, self.say = workshop, baseline, store, options, say
        self.ledger, self.writer = ledger, writer
        self.assembler = Assembler(workshop, environment, baseline)
        self.scanner = Scanner(cache=store.environments)
        self.gates = Gates(workshop, baseline, store) if options.gates == "full" else None
        self.turns = Turns()
        self.tasks: dict[str, Task] = {}  # by cut
        self.rejected: dict[str, Refusal] = {}
        self.inapplicable: dict[str, str] = {}
        self.tried: dict[str, int] = dict.fromkeys(options.modes, 0)

    def run(self, candidates: Sequence[Candidate]) -> None:
        jobs = [(candidate, mode) for candidate in candidates for mode in self.options.modes]
        with ThreadPoolExecutor(self.options.jobs or len(os.sched_getaffinity(0))) as pool:
            results: list[Future[Task | Refusal]] = [pool.submit(self.attempt, candidate, mode) for candidate, mode in jobs]
            try:
                for number, (candidate, mode) in enumerate(jobs, 1):
                    note = self.note(candidate, mode, results[number - 1].result())
                    self.say(Progress(stage="tasks", done=number, total=len(jobs), note=note))
                    if self.options.max_tasks is not None and len(self.tasks) >= self.options.max_tasks:
                        break
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def attempt(self, candidate: Candidate, mode: Mode) -> Task | Refusal:
        """The task, or the reason why there is none. SandboxError if sandboxes fail twice in a row."""
        known = self.ledger.known(_name(candidate, mode))
        if known is not None:
            return known
        for last in (False, True):
            try:
                return self.turns.take(lambda factor: self.make(candidate, mode, factor))
            except Inapplicable as error:
                return Refusal(f"{NO_IDEA}{error}")
            except TimedOut as error:
                return Refusal(f"{NO_TIME}{error}", error.gate)
            except Rejected as error:
                return Refusal(str(error), error.gate)
            except SandboxError:
                if last:
                    raise
        raise AssertionError("unreachable")

    def make(self, candidate: Candidate, mode: Mode, factor: float) -> Task:
        """Symbols that no hidden test needs are left alone, in a second try. `factor`: of the time that a run may take."""
        limits = self.workshop.limits
        workshop = replace(self.workshop, limits=replace(limits, wall_s=factor * limits.wall_s))
        try:
            return self.prove(workshop, candidate, mode)
        except DoesNotMatter as error:
            if not error.left:
                raise
            return self.prove(workshop, narrowed(candidate, error.left), mode)

    def prove(self, workshop: Workshop, candidate: Candidate, mode: Mode) -> Task:
        gates = replace(self.gates, workshop=workshop) if self.gates else None
        if gates:
            gates.refuse_duplicate(candidate)
        with workshop.folder() as folder:
            rounds = ROUNDS[self.options.gates]
            proof = prove(workshop, self.baseline, candidate, mode, folder, rounds=rounds, scanner=self.scanner)
            task = self.assembler.assemble(candidate, mode, proof)
            task = gates.check(candidate, proof, task) if gates else task
            return self.assembler.rewrite(proof, task, self.writer) if self.writer else task

    def note(self, candidate: Candidate, mode: Mode, outcome: Task | Refusal) -> str:
        name = _name(candidate, mode)
        if isinstance(outcome, Refusal) and outcome.reason.startswith(NO_IDEA):
            self.inapplicable[name] = outcome.reason.removeprefix(NO_IDEA)
            if self.ledger.known(name) is None:
                self.ledger.add(name, outcome)
            return f"{name} {outcome}"
        self.tried[mode] += 1
        if isinstance(outcome, Task) and outcome.cut in self.tasks:
            outcome = Refusal(f"same cut as {self.tasks[outcome.cut].id}", "duplicate")
        if isinstance(outcome, Task):
            outcome = self.admit(outcome)
        if isinstance(outcome, Refusal):
            self.rejected[name] = replace(outcome, reason=outcome.reason.removeprefix(NO_TIME))
            if outcome.reason.startswith(NO_TIME):  # not final: a resumed build tries it again
                return f"no task of {name}: {self.rejected[name]}"
        if self.ledger.known(name) is None:
            self.ledger.add(name, outcome)
        return outcome.id if isinstance(outcome, Task) else f"no task of {name}: {outcome}"

    def admit(self, task: Task) -> Task | Refusal:
        """Into the store, unless there is one about the same code by now."""
        gates = self.gates
        with gates.duplicates.admitting(task) if gates and gates.duplicates else nullcontext() as same:
            if same is not None:
                return Refusal(f"the same code as {same}", "duplicate")
            self.tasks[task.cut] = task
            self.store.add(task)
        return task


def _possible(options: BuildOptions, project: Project, lenient: bool) -> BuildOptions:
    """What there is of the options for languages other than Python. UserError for the rest, unless `lenient`."""
    lacking = [f"kind {kind}" for kind in options.kinds if kind != FEATURE_DELETION]
    lacking += [f"level {options.level}"] if options.level != "A" else []
    lacking += [f"a visible share of {options.visible_share:g}"] if options.visible_share else []
    if (lacking and not lenient) or FEATURE_DELETION not in options.kinds:
        only = f"{FEATURE_DELETION} at level A with no test shown"
        raise UserError(f"{project.name} is {project.language}, for which there is only {only}: leave out {', '.join(lacking)}")
    return replace(options, kinds=(FEATURE_DELETION,), level="A", visible_share=0.0)


def _read(project: Project, folder: Path) -> tuple[dict[str, Code], dict[str, str]]:
    """Every file that can be read, and why the others cannot."""
    language = by_runner(project.runner)
    codes: dict[str, Code] = {}
    skipped: dict[str, str] = {}
    for path in (*project.sources, *project.tests, *project.support):
        try:
            codes[path] = language.read(path, (folder / path).read_bytes(), is_test=path not in project.sources)
        except (Unreadable, OSError) as error:
            skipped[path] = str(error)
    return codes, skipped


def _without_products(folder: Path, clean: Path, products: Sequence[str]) -> Path:
    if not products:
        return folder
    tree.copy_tree(folder, clean)
    for path in products:
        (clean / path).unlink(missing_ok=True)
    for place in sorted((place for place in clean.rglob("*") if place.is_dir()), reverse=True):
        if not any(place.iterdir()):
            shutil.rmtree(place)
    return clean


def _name(candidate: Candidate, mode: Mode) -> str:
    return f"{mode} {candidate.kind} {candidate.name}"


def _plain(value: object) -> object:
    return dict(value) if hasattr(value, "keys") else value  # type: ignore[call-overload]
