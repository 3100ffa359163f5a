"""What a build of tasks costs: CPU seconds of all its processes, and how many of them each step and gate took.

    in_process    runs a function in a process of its own; the cost is what the kernel counted for it and all that it waited for,
                  sandboxes included, so other work on the machine does not count
    Meter         divides a build with one job among steps: a thread looks every few milliseconds which step is at work, and the
                  processes of a sandbox are charged, when it closes, to the step that opened it

In: a source, BuildOptions; out: Built, with the tasks and a Step for each name in STEPS. Wall seconds are given beside CPU seconds; on a
machine that does other work they say little.

Not here: tables (tasks_yield.py, tasks_against_swesmith.py).
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Self, TypeVar

from etude.errors import UserError
from etude.grade.environment import make_environment
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import WORK, Change, ExecResult, Sandbox
from etude.store import TaskStore
from etude.synth.assemble import Assembler
from etude.synth.build import BuildOptions, BuildReport, build_tasks
from etude.synth.check import check_task
from etude.synth.fetch import fetch
from etude.synth.gates import Gates
from etude.synth.kinds import FINDERS, Find
from etude.synth.proposal import Idea, Made, propose_change, propose_cut
from etude.synth.prove import _Trial
from etude.synth.verdicts import graded_sample
from etude.synth.workshop import Baseline, Workshop, measure_baseline
from etude.types import Limits, Task

T = TypeVar("T")
EVERY_S = 0.005
REAPED_S = 0.2  # a sandbox's end may be noticed by its keeper so much later
ONCE = ("fetch", "environment", "baseline")  # of a repository, however many tasks it gives
REST = "rest"
CHECK = "check"
# the innermost function that is at work decides
STEPS: Mapping[Callable[..., object], str] = {
    fetch: "fetch",
    make_environment: "environment",
    measure_baseline: "baseline",
    propose_cut: "cut",
    propose_change: "cut",
    _Trial.__init__: "trees",
    _Trial.reduce: "trees",
    _Trial.run_agent: "pass_to_pass",
    _Trial.agent_again: "pass_to_pass",
    _Trial.failing_hidden: "fail_to_pass",
    _Trial.hidden_again: "fail_to_pass",
    _Trial.stub: "fail_to_pass",
    Assembler.assemble: "gold, instruction",
    Gates.refuse_duplicate: "duplicate",
    Gates.residue: "residue",
    Gates.inverse: "inverse",
    Gates.mutation: "mutation",
    graded_sample: "graded",
    check_task: CHECK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    cpu_s: float
    wall_s: float


@dataclass(slots=True, kw_only=True)
class Step:
    cpu_s: float = 0.0
    wall_s: float = 0.0
    sandboxes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    report: BuildReport | None  # None: no task came of it
    tasks: tuple[Task, ...]
    steps: Mapping[str, Step]
    suite_s: float  # wall seconds of one run of the tests
    problem: str = ""  # why there is no task
    wrong: tuple[str, ...] = ()  # tasks that did not hold when they were proved again

    @property
    def cpu_s(self) -> float:
        """Of everything but the second proof."""
        return sum(step.cpu_s for name, step in self.steps.items() if name != CHECK)

    @property
    def once_cpu_s(self) -> float:
        return sum(self.steps[name].cpu_s for name in ONCE if name in self.steps)


def in_process(function: Callable[..., T], /, *args: object) -> tuple[T, Cost]:
    """What it returns, and what it cost. `function` and what goes in and out must be picklable; what it raises is raised here."""
    before, start = _children_cpu(), time.monotonic()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(function, *args).result()
    return result, Cost(cpu_s=_children_cpu() - before, wall_s=time.monotonic() - start)


def build(
    source: str,
    options: BuildOptions,
    check: bool = False,
    finders: Mapping[str, Find] = FINDERS,
    steps: Mapping[Callable[..., object], str] = STEPS,
) -> Built:
    """Metered, in this process, in a folder that is gone afterwards. `check`: every task is proved again. UserError of a bad source."""
    report, problem = None, ""
    suites: list[float] = []
    noting = {kind: _noting(find, suites) for kind, find in finders.items()}
    with tempfile.TemporaryDirectory(prefix="etude-benchmark-") as name, Meter(steps) as meter:
        folder = Path(name, "tasks")
        try:
            report = build_tasks(source, folder, options=options, backend=meter, finders=noting)
        except UserError as error:
            if not suites:
                raise
            problem = str(error)
        store = TaskStore.open(folder) if report else None
        tasks = tuple(store.tasks()) if store else ()
        wrong = [each.task_id for task in tasks if not (each := check_task(task, store, meter)).ok] if check and store else []
    return Built(report=report, tasks=tasks, steps=meter.steps, suite_s=suites[0], problem=problem, wrong=tuple(wrong))


def _noting(find: Find, suites: list[float]) -> Find:
    """The same finder, which leaves the wall seconds of a run of the suite behind."""

    def noting(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterable[Idea]:
        suites.append(baseline.seconds)
        return find(workshop, baseline, options, made)

    return noting


class Meter:
    """A sandbox backend that charges its sandboxes, and a thread that charges this process, to steps. For builds with one job."""

    def __init__(self, steps: Mapping[Callable[..., object], str] = STEPS) -> None:
        self.steps: dict[str, Step] = {}
        self.inner = Bubblewrap()
        self._names = {_code(function): name for function, name in steps.items()}
        self._lock = threading.Lock()
        self._sandboxes_s = 0.0  # charged so far
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        self.inner.check()
        self.charge(REST)

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> "MeteredSandbox":
        return MeteredSandbox(self.inner.open(workspace, environment=environment, limits=limits), self, self.step_of(sys._getframe(1)))

    def step_of(self, frame: FrameType | None) -> str:
        while frame is not None:
            if frame.f_code in self._names:
                return self._names[frame.f_code]
            frame = frame.f_back
        return REST

    def charge(self, name: str) -> None:
        """A sandbox of this step has closed."""
        spent, ended = self._sandboxes()
        deadline = time.monotonic() + REAPED_S
        while spent <= self._sandboxes_s and not ended and time.monotonic() < deadline:
            time.sleep(0.001)
            spent, ended = self._sandboxes()
        with self._lock:
            step = self.steps.setdefault(name, Step())
            step.cpu_s += spent - self._sandboxes_s
            step.sandboxes += 1
            self._sandboxes_s = spent

    def _sandboxes(self) -> tuple[float, bool]:
        """CPU seconds of the sandboxes that are over, and whether their keeper is."""
        keeper = self.inner._keeper
        try:
            fields = Path(f"/proc/{keeper.pid if keeper else 0}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return self._sandboxes_s, True
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK"), False

    def _watch(self) -> None:
        cpu, wall = _own_cpu(), time.monotonic()
        while not self._over.wait(EVERY_S):
            name = self._at_work()
            cpu_now, wall_now = _own_cpu(), time.monotonic()
            with self._lock:
                step = self.steps.setdefault(name, Step())
                step.cpu_s += cpu_now - cpu
                step.wall_s += wall_now - wall
            cpu, wall = cpu_now, wall_now

    def _at_work(self) -> str:
        """The step of the build's worker; of the main thread where no worker is at one."""
        main, own = threading.main_thread().ident, threading.get_ident()
        frames = sys._current_frames()
        found = [self.step_of(frame) for thread, frame in frames.items() if thread not in (main, own)]
        return next((name for name in found if name != REST), self.step_of(frames.get(main or 0)))


class MeteredSandbox:
    """Another sandbox, whose end is told to a Meter."""

    def __init__(self, inner: Sandbox, meter: Meter, step: str) -> None:
        self._inner, self._meter, self._step = inner, meter, step
        self._open = True

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        wall_s: float | None = None,
    ) -> ExecResult:
        return self._inner.run(argv, stdin=stdin, env=env, cwd=cwd, wall_s=wall_s)

    def read(self, path: str) -> bytes:
        return self._inner.read(path)

    def write(self, path: str, data: bytes) -> None:
        self._inner.write(path, data)

    def changes(self) -> list[Change]:
        return self._inner.changes()

    def close(self) -> None:
        self._inner.close()
        if self._open:
            self._open = False
            self._meter.charge(self._step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _code(function: Callable[..., object]) -> CodeType:
    code = getattr(function, "__wrapped__", function).__code__  # of a context manager: what it wraps
    assert isinstance(code, CodeType)
    return code


def _own_cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _children_cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
