"""From a repository to a folder of tasks: fetch, discover, baseline, candidates, cut, check, write.

In: a source (see fetch.py), a folder, a sandbox backend; out: the tasks in a TaskStore and a BuildReport. Candidates are tried by `jobs`
threads, whose work is in sandboxes; what comes out does not depend on them: the same input gives the same bytes. Nothing that was
measured in seconds gets into a task. Why each rejected candidate was rejected stands in pool.json.

Not here: any single step.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from etude import __version__, tree
from etude.errors import SandboxError, UserError
from etude.grade.environment import make_environment
from etude.grade.residue import Scanner
from etude.grade.scrub import scrub
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.agentic.limits import Model
from etude.synth.assemble import Assembler
from etude.synth.cut import CutError
from etude.synth.discover import add_generated, discover
from etude.synth.fetch import Fetched, fetch
from etude.synth.gates import Gates
from etude.synth.ground import Ground
from etude.synth.kinds import FINDERS, Find
from etude.synth.ledger import Ledger
from etude.synth.names import Index
from etude.synth.options import BuildOptions as BuildOptions
from etude.synth.proposal import FEATURE_DELETION, Idea, Made, NotApplicable, Proposal, propose_cut
from etude.synth.prove import prove_change
from etude.synth.read import read_sources, without
from etude.synth.refusal import Gate, Refusal
from etude.synth.verdicts import DoesNotMatter
from etude.synth.workshop import BASELINE_WALL_S, Baseline, Rejected, Workshop, compile_files, measure_baseline
from etude.synth.writer import Writer, open_writer, told_of
from etude.types import Limits, Repo, Task

SLOWDOWN = 5.0  # a run on a cut tree may take so many times the original's seconds
QUICK_ROUNDS, FULL_ROUNDS = 2, 3  # runs of everything in a candidate's trees
NO_IDEA = "does not apply: "
FLOOR_S = 8.0  # and these on top: other work on the machine must not decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    stage: str  # fetch | baseline | tasks
    done: int
    total: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    tasks: tuple[str, ...]  # ids, sorted
    valid: Mapping[str, int]  # mode of a deletion, or other kind -> tasks
    candidates: int  # found
    tried: Mapping[str, int]  # the same -> candidates tried
    rejected: Mapping[str, str]  # "mode kind name" -> reason
    rejected_at: Mapping[str, Gate] = field(default_factory=dict)  # the same -> gate
    inapplicable: Mapping[str, str]  # the same -> why it was no idea of its own; not counted as tried
    skipped: Mapping[str, str]  # file -> why it was left alone
    stable_tests: int
    dropped: Mapping[str, str]  # test -> what it did instead of passing every time
    sandbox_runs: int
    seconds: float
    trace_ratio: float  # seconds of a traced run over those of a plain run
    writer: Mapping[str, Any] = field(default_factory=dict)  # what a model that wrote instructions did and cost (writer.py)


Report = Callable[[Progress], None]


def build_tasks(
    source: str,
    out: Path,
    *,
    options: BuildOptions = BuildOptions(),
    backend: Backend,
    progress: Report | None = None,
    finders: Mapping[str, Find] = FINDERS,
    model: Model | None = None,
) -> BuildReport:
    """Build the tasks of `source` into the tasks folder `out`. `model`: who writes, instead of the one that `options.writer` names.

    Raises: UserError, SandboxError.
    """
    backend.check()
    (progress or (lambda _: None))(Progress(stage="fetch", done=0, total=1, note=source))
    with fetch(source, history="commit_replay" in options.kinds) as fetched:
        return build_fetched(fetched, out, options=options, backend=backend, progress=progress, finders=finders, model=model)


def build_fetched(
    fetched: Fetched,
    out: Path,
    *,
    options: BuildOptions,
    backend: Backend,
    progress: Report | None = None,
    finders: Mapping[str, Find] = FINDERS,
    model: Model | None = None,
) -> BuildReport:
    """The same of a repository that is here."""
    say: Report = progress or (lambda _: None)
    start = time.monotonic()
    unknown = sorted(set(options.kinds) - finders.keys())
    if unknown:
        raise UserError(f"no kind of task {unknown[0]!r}; there are {', '.join(finders)}")
    with tempfile.TemporaryDirectory(prefix="etude-build-") as scratch:
        layout = discover(fetched.folder, fetched.name)
        clean = Path(scratch, "clean")  # without caches and build products, which hold what is to be cut
        tree.copy_tree(fetched.folder, clean)
        scrub(clean)
        add_generated(clean)
        layout = discover(clean, layout.name)
        sources, skipped = read_sources(clean, layout)
        store = TaskStore.create(out, sources=(fetched.source,))
        writer = open_writer(options.writer, out, model) if options.writer else None
        environment = make_environment(layout.requirements, store.environments, under_test=layout.packages)
        digest = store.add_snapshot(clean)
        layout = without(layout, skipped)
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
            history=fetched.history,
        )
        say(Progress(stage="fetch", done=1, total=1, note=f"{layout.name}: {len(sources)} Python files"))
        workshop, baseline = measure_baseline(
            workshop, lambda done, total, note: say(Progress(stage="baseline", done=done, total=total, note=note))
        )
        workshop = replace(workshop, limits=Limits(wall_s=FLOOR_S + SLOWDOWN * baseline.seconds))
        told = (options.max_share, options.gates, options.level, options.visible_share, *((writer.model.name,) if writer else ()))
        ledger = Ledger(store, (__version__, digest, environment, *told), baseline.stable)
        baseline = replace(baseline, stable=ledger.stable, dropped=dict(sorted({**baseline.dropped, **ledger.dropped}.items())))
        gates = Gates(workshop, baseline, store, Scanner(cache=store.environments)) if options.gates == "full" else None
        maker = _Maker(workshop, baseline, Assembler(workshop, environment, baseline), store, options, gates, writer)
        tried = _Tried(maker, ledger, options, say)
        with ledger:
            for kind in options.kinds:
                tried.kind(kind, finders[kind])
    tasks, rejected = [made.task for made in tried.made.values()], tried.rejected
    if not tasks:
        first = next((f", first {name}: {why}" for name, why in rejected.items()), "")
        raise UserError(f"{layout.name} gives no task: {tried.num_candidates} candidates{first}")
    report = BuildReport(
        tasks=tuple(sorted(task.id for task in tasks)),
        valid={row: sum(made.idea.row == row for made in tried.made.values()) for row in tried.rows},
        candidates=tried.num_candidates,
        tried=tried.rows,
        rejected={name: why.reason for name, why in rejected.items()},
        rejected_at={name: why.gate for name, why in rejected.items()},
        inapplicable=tried.inapplicable,
        skipped=skipped,
        stable_tests=len(baseline.stable),
        dropped=baseline.dropped,
        sandbox_runs=len(workshop.log),
        seconds=time.monotonic() - start,
        trace_ratio=baseline.traced_seconds / baseline.seconds,
        writer=told_of(tasks, writer) if writer else {},
    )
    names = ("candidates", "tried", "valid", "rejected", "rejected_at", "inapplicable", "skipped", "stable_tests", "dropped")  # no seconds
    store.amend(fetched.source, {name: msgspec.to_builtins(getattr(report, name)) for name in names})
    return report


@dataclass(frozen=True)
class _Maker:
    """Makes a task of one idea; used by many threads."""

    workshop: Workshop
    baseline: Baseline
    assembler: Assembler
    store: TaskStore
    options: BuildOptions
    gates: Gates | None
    writer: Writer | None = None

    def attempt(self, idea: Idea) -> Task | Refusal:
        """The task, or the reason why there is none. SandboxError if sandboxes fail twice in a row."""
        for last in (False, True):
            try:
                with self.workshop.folder() as folder:
                    return self.make(idea.make(), folder)
            except NotApplicable as error:
                return Refusal(f"{NO_IDEA}{error}")
            except (Rejected, CutError) as error:
                return Refusal(str(error), error.gate)
            except SandboxError:
                if last:
                    raise
        raise AssertionError("unreachable")

    def make(self, proposal: Proposal, folder: Path) -> Task:
        """Symbols that no hidden test needs are left alone, in a second try."""
        try:
            return self.prove(proposal, folder / "first")
        except DoesNotMatter as error:
            if proposal.kind != FEATURE_DELETION or not error.left:
                raise
            name, tests, evidence = proposal.name, proposal.tests, proposal.evidence
            smaller = propose_cut(self.workshop, error.left, proposal.mode, name=name, tests=tests, evidence=evidence)
            return self.prove(smaller, folder / "second")

    def prove(self, proposal: Proposal, folder: Path) -> Task:
        ground = proposal.ground
        if ground is not None and ground.workshop is not self.workshop:
            return self.on(ground).prove(proposal, folder)
        if self.gates:
            self.gates.refuse_duplicate(proposal)
        proof = prove_change(self.workshop, self.baseline, proposal, folder, rounds=FULL_ROUNDS if self.gates else QUICK_ROUNDS)
        level, visible_share = self.options.level, self.options.visible_share
        draft = self.assembler.draft(proof, level=level, visible_share=visible_share)
        task = self.assembler.assemble(proof, draft, level=level, visible_share=visible_share)
        task = self.gates.check(proof, task) if self.gates else task
        return self.assembler.rewrite(proof, task, draft, self.writer) if self.writer else task

    def on(self, ground: Ground) -> "_Maker":
        """The same for another original, which the store gets too."""
        self.store.add_snapshot(ground.workshop.original)
        mine = self.gates
        gates = Gates(ground.workshop, ground.baseline, self.store, mine.scanner, mine.duplicates) if mine else None
        assembler = Assembler(ground.workshop, self.assembler.environment, ground.baseline)
        return _Maker(ground.workshop, ground.baseline, assembler, self.store, self.options, gates, self.writer)


class _Tried:
    """What was tried so far, in the order of ideas. A task is in the store as soon as it is known."""

    def __init__(self, maker: _Maker, ledger: Ledger, options: BuildOptions, say: Report) -> None:
        self.maker, self.ledger, self.options, self.say = maker, ledger, options, say
        self.made: dict[str, Made] = {}  # by cut patch: two ideas may come to the same cut
        self.rejected: dict[str, Refusal] = {}
        self.inapplicable: dict[str, str] = {}
        self.rows: dict[str, int] = {}
        self.num_candidates = 0
        if "feature_deletion" in options.kinds:
            self.rows |= dict.fromkeys(options.modes, 0)

    def kind(self, kind: str, find: Find) -> None:
        options = self.options
        ideas = list(find(self.maker.workshop, self.maker.baseline, options, tuple(self.made.values())))
        groups = list(dict.fromkeys(idea.group for idea in ideas))
        self.num_candidates += len(groups)
        chosen = set(groups[: options.max_candidates])
        ideas = [idea for idea in ideas if idea.group in chosen]
        with ThreadPoolExecutor(options.jobs or len(os.sched_getaffinity(0))) as pool:
            results: list[Future[Task | Refusal]] = [pool.submit(self.attempt, idea) for idea in ideas]
            try:
                for number, idea in enumerate(ideas, 1):
                    if self.is_enough():
                        break
                    verdict = self.note(idea, results[number - 1].result())
                    self.say(Progress(stage="tasks", done=number, total=len(ideas), note=verdict))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def is_enough(self) -> bool:
        return self.options.max_tasks is not None and len(self.made) >= self.options.max_tasks

    def attempt(self, idea: Idea) -> Task | Refusal:
        return known if (known := self.ledger.known(idea.name)) is not None else self.maker.attempt(idea)

    def note(self, idea: Idea, outcome: Task | Refusal) -> str:
        """What is said of it."""
        if isinstance(outcome, Refusal) and outcome.reason.startswith(NO_IDEA):
            self.inapplicable[idea.name] = outcome.reason.removeprefix(NO_IDEA)
            if self.ledger.known(idea.name) is None:
                self.ledger.add(idea.name, outcome)
            return ""
        self.rows[idea.row] = self.rows.get(idea.row, 0) + 1
        if isinstance(outcome, Task) and outcome.cut in self.made:
            outcome = Refusal(f"same cut as {self.made[outcome.cut].task.id}", "duplicate")
        if isinstance(outcome, Task):
            outcome = self.admit(idea, outcome)
        if isinstance(outcome, Refusal):
            self.rejected[idea.name] = outcome
        if self.ledger.known(idea.name) is None:
            self.ledger.add(idea.name, outcome)
        return outcome.id if isinstance(outcome, Task) else f"no task of {idea.name}: {outcome}"

    def admit(self, idea: Idea, task: Task) -> Task | Refusal:
        """Into the store, unless there is one about the same code by now."""
        gates = self.maker.gates
        with gates.duplicates.admitting(task) if gates and gates.duplicates else nullcontext() as same:
            if same is not None:
                return Refusal(f"the same code as {same}", "duplicate")
            self.made[task.cut] = Made(task=task, idea=idea)
            self.maker.store.add(task)
        return task
