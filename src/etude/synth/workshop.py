"""Where candidates are tried: one repository, its baseline, and runs of its tests on changed copies of it.

In: a frozen original, its layout and index, a sandbox backend; out: `Workshop.open(changes)`, a sandbox on a changed copy, and
`run_in`, a TestRun in it. The baseline is five runs of the original: plain, traced plain and traced reversed, shuffled, and every test
file in a process of its own. A test is stable if it passed in all of them; only stable tests tell anything later. In a suite that takes
long, the few tests that take most of its time are left out after the first run: every candidate would pay for them several times.
Ids may hold an address, a random number, the time or the machine. Once more the tests are only collected, at another time and on another
machine; functions whose ids are not the same everywhere are unstable as a whole, whatever parameters of theirs appear later.

Not here: what is concluded from a run (prove.py), what is changed (cut.py).
"""

import contextlib
import importlib.util
import json
import os
import py_compile
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from etude.errors import UserError
from etude.grade.runner import COLLECT, Order, TestRun, Variant, run_tests, run_variants
from etude.sandbox.protocol import ENV, Backend, Sandbox
from etude.synth.discover import Layout
from etude.synth.fixtures import share_fixtures
from etude.synth.names import Index
from etude.synth.reduce import Holder, behind, heirs, path_of
from etude.synth.refusal import Gate
from etude.synth.source import Definition
from etude.types import Limits, Repo

Changes = Mapping[str, bytes | None]  # path -> new bytes, None: removed
BASELINE: tuple[tuple[Order, bool], ...] = (("plain", False), ("plain", True), ("reversed", True), ("shuffled", False))
MAX_ALONE = 60  # processes of the run file by file
NUM_RUNS = len(BASELINE) + 1  # the last one file by file
SHUFFLE_SEED = 1
BASELINE_WALL_S = 900.0
LONG_S = 20.0  # a suite whose tests take longer together
SLOW_SHARE = 0.02  # is run without the tests that each take more than this share of it
NO_TESTS = 5  # pytest's exit code
MIN_PASSING = 0.5  # below, the suite counts as failing
ELSEWHERE_S, ELSEWHERE_FACTOR = 20.0, 2.0  # collecting there may take so many seconds, and so many times the first run's
UNSTABLE = "its ids are not the same in every run"
IMPORTS = """
import importlib, json, os, sys
out = os.fdopen(os.dup(1), "w"); null = os.open(os.devnull, os.O_WRONLY); os.dup2(null, 1); os.dup2(null, 2)
request = json.loads(sys.stdin.read())
sys.path[:0] = [*(os.path.join(os.getcwd(), root) for root in request["roots"]), request["env"]]
good, here, profiler = [], os.getcwd() + os.sep, __import__("_lsprof").Profiler(subcalls=False, builtins=False)
profiler.enable()
for name in request["modules"]:
    try:
        importlib.import_module(name)
        good.append(name)
    except BaseException:
        pass
profiler.disable()
codes = [entry.code for entry in profiler.getstats() if not isinstance(entry.code, str)]
ran = sorted({(code.co_filename[len(here):], code.co_firstlineno) for code in codes if code.co_filename.startswith(here)})
out.write(json.dumps([good, ran])); out.flush(); os._exit(0)
"""


class Rejected(Exception):
    """A candidate that makes no task; the message is the reason, one line, and `gate` where it was found."""

    def __init__(self, message: str, gate: Gate = "") -> None:
        super().__init__(message)
        self.gate: Gate = gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the original does."""

    collected: frozenset[str]
    stable: frozenset[str]  # passed in every run
    dropped: Mapping[str, str]  # every other test -> why it does not count
    imports: frozenset[str]  # modules that can be imported
    broken: frozenset[str]  # test files that pytest cannot collect in the original either
    tests: Mapping[str, Definition | None]  # node id -> the function behind it
    reach: tuple[Mapping[str, Sequence[tuple[str, int]]], ...]  # of the traced runs, and of importing every module
    seconds: float  # of one untraced run
    traced_seconds: float
    num_runs: int
    durations: Mapping[str, float] = field(default_factory=dict)  # of the first run
    holders: Mapping[str, Holder] = field(default_factory=dict)  # node id without a function -> what holds it
    heirs: Mapping[str, Holder] = field(default_factory=dict)  # node id whose function is inherited -> its own class
    unstable: frozenset[str] = frozenset()  # ids without parameters: with them, they are not the same in every run

    def known(self, ids: Iterable[str]) -> frozenset[str]:
        """Those that can be told from one run to the next."""
        return frozenset(id for id in ids if without_parameters(id) not in self.unstable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What every check of one repository shares."""

    repo: Repo
    layout: Layout
    index: Index
    original: Path
    files: Mapping[str, Path]  # of the original
    environment: Path
    backend: Backend
    limits: Limits
    scratch: Path
    bytecode: Mapping[str, Path] = field(default_factory=dict)  # of the original's files
    left_out: frozenset[str] = frozenset()  # slow tests
    history: Path | None = None  # a bare clone, where the repository has one; no part of any tree
    chosen: tuple[str, ...] | None = None  # what is run instead of everything, if some are left out
    log: list[str] = field(default_factory=list)  # order of every run of pytest so far

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder for trees, gone after the block."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as name:
            yield Path(name)

    def open(self, tree: Path) -> Sandbox:
        return self.backend.open(tree, environment=self.environment, limits=self.limits)

    def run_in(
        self,
        sandbox: Sandbox,
        *,
        order: Order = "plain",
        ids: Iterable[str] | None = None,
        trace: bool = False,
        wall_s: float | None = None,
    ) -> TestRun:
        self.log.append(order)
        chosen, paths = self._selection(ids)
        wall_s = self.limits.wall_s if wall_s is None else wall_s
        return run_tests(sandbox, self.repo, ids=chosen, paths=paths, order=order, seed=SHUFFLE_SEED, trace=trace, wall_s=wall_s)

    def _selection(self, ids: Iterable[str] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Ids and their files."""
        chosen = self.chosen if ids is None else tuple(sorted(ids))
        return chosen, self.repo.test_paths if chosen is None else tuple(sorted({path_of(self.index, id) for id in chosen}))

    def variant(
        self,
        *,
        order: Order = "plain",
        ids: Iterable[str] | None = None,
        files: Mapping[str, bytes] = {},
        until: tuple[frozenset[str], ...] = (),
        wall_s: float | None = None,
    ) -> Variant:
        """For run_together; what run_in is given."""
        chosen, paths = self._selection(ids)
        wall_s = self.limits.wall_s if wall_s is None else wall_s
        return Variant(files=files, ids=chosen, paths=paths, order=order, seed=SHUFFLE_SEED, until=until, wall_s=wall_s)

    def run_together(self, tree: Path, variants: Sequence[Variant]) -> list[TestRun]:
        """One run of each, in as few sandboxes as can be."""
        runs: list[TestRun] = []
        while len(runs) < len(variants):
            left = variants[len(runs) :]
            for together in (left, left[:1]):
                with self.open(tree) as sandbox:
                    found = run_variants(sandbox, self.repo, together)
                if found:
                    break
            runs += found
        self.log.extend(variant.order for variant in variants)
        return runs

    def importable(self, sandbox: Sandbox, modules: Iterable[str]) -> frozenset[str]:
        """Which modules can be imported, one after the other in one process."""
        return self.import_all(sandbox, modules)[0]

    def import_all(self, sandbox: Sandbox, modules: Iterable[str]) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
        """The same, and what code ran for it, as in TestRun.reach."""
        request = {"roots": self.repo.import_roots, "env": ENV, "modules": sorted(modules)}
        result = sandbox.run(["python3", "-I", "-S", "-B", "-c", IMPORTS], stdin=json.dumps(request).encode(), wall_s=self.limits.wall_s)
        try:
            good, ran = json.loads(result.stdout) if result.ok else ([], [])
            return frozenset(good), tuple((str(path), int(line)) for path, line in ran)
        except (ValueError, TypeError):
            return frozenset(), ()


def measure_baseline(workshop: Workshop, progress: Callable[[int, int, str], None]) -> tuple[Workshop, Baseline]:
    """The workshop without slow tests, and the baseline. UserError where the suite cannot be used: nothing runs, too much fails."""
    runs: list[TestRun] = []
    for number, (order, trace) in enumerate(BASELINE):
        progress(number, NUM_RUNS, f"{order}{', traced' if trace else ''}")
        with workshop.open(workshop.original) as sandbox:
            if not runs:
                modules = [m for p, m in workshop.index.modules.items() if p in workshop.layout.sources and not m.endswith("__main__")]
                imports, imported = workshop.import_all(sandbox, modules)
            runs.append(workshop.run_in(sandbox, order=order, trace=trace))
        _refuse_bad(workshop, runs[-1])
        if number == 0:
            slow = slow_tests(runs[0].durations, seconds_of(runs[0]) / runs[0].result.wall_s)
            chosen = tuple(sorted(set(runs[0].collected) - slow)) if slow else None
            workshop = replace(workshop, left_out=slow, chosen=chosen)
    progress(len(BASELINE), NUM_RUNS, "every file alone")
    alone = _file_by_file(workshop, runs[-1].collected)
    progress(NUM_RUNS, NUM_RUNS, "")
    with workshop.open(workshop.original) as sandbox:
        elsewhere = run_tests(sandbox, workshop.repo, elsewhere=True, wall_s=ELSEWHERE_S + ELSEWHERE_FACTOR * runs[0].result.wall_s)
    unstable = unstable_functions(runs, elsewhere, workshop.left_out)
    collected, stable, dropped = stable_tests(workshop.layout.name, runs, workshop.left_out, alone, unstable)
    tests, holders = behind(workshop.index, collected)
    traced = [run.reach for run, (_, trace) in zip(runs, BASELINE, strict=True) if trace]
    return workshop, Baseline(
        collected=collected,
        stable=stable,
        dropped=dropped,
        imports=imports,
        broken=frozenset(error.split(": ")[0] for run in runs for error in run.collect_errors),
        tests=tests,
        reach=(*share_fixtures(workshop.index, tests, traced), {COLLECT: imported}),
        seconds=min(seconds_of(run) for run, (_, trace) in list(zip(runs, BASELINE, strict=True))[1:] if not trace),
        traced_seconds=min(seconds_of(run) for run, (_, trace) in zip(runs, BASELINE, strict=True) if trace),
        num_runs=NUM_RUNS,
        durations=runs[0].durations,
        holders=holders,
        heirs=heirs(workshop.index, tests),
        unstable=unstable,
    )


def without_parameters(id: str) -> str:
    """The function of a node id, which has no "[" in its path."""
    return id.partition("[")[0]


def unstable_functions(runs: Sequence[TestRun], elsewhere: TestRun, left_out: frozenset[str] = frozenset()) -> frozenset[str]:
    """Ids without parameters that had others in some run. A function that is not found at all `elsewhere` may need what is not there."""
    first, *others = (frozenset(run.collected) - left_out for run in (*runs, elsewhere))
    names = frozenset(map(without_parameters, first)) & frozenset(map(without_parameters, others[-1]))
    moved = frozenset(name for id in first ^ others.pop() if (name := without_parameters(id)) in names)
    return moved.union(without_parameters(id) for other in others for id in first ^ other)


def _file_by_file(workshop: Workshop, ids: Iterable[str]) -> dict[str, str]:
    """Outcomes where every test file has a sandbox and a process to itself, or a few share one where there are very many."""
    by_file: dict[str, list[str]] = {}
    for id in ids:
        by_file.setdefault(path_of(workshop.index, id), []).append(id)
    share = -(-len(by_file) // MAX_ALONE)
    files = sorted(by_file)
    outcomes: dict[str, str] = {}
    for start in range(0, len(files), max(1, share)):
        with workshop.open(workshop.original) as sandbox:
            chosen = [id for file in files[start : start + share] for id in by_file[file]]
            outcomes |= workshop.run_in(sandbox, ids=chosen).outcomes
    return outcomes


def stable_tests(
    name: str,
    runs: Sequence[TestRun],
    left_out: frozenset[str],
    alone: Mapping[str, str] | None = None,
    unstable: frozenset[str] = frozenset(),
) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
    """What every run collected, which of it passed every time, and what the others did instead. UserError where too few pass.

    `alone`: outcomes of one more run, whose selection is its own. `unstable`: functions that do not count, dropped by their name as their
    ids are others every time.
    """
    outcomes: dict[str, set[str]] = {}
    for run in runs:
        for id in set(run.collected) - left_out:
            outcomes.setdefault(id, set()).add(run.outcomes.get(id, "missing"))
    for id in runs[-1].collected if alone is not None else ():
        outcomes.setdefault(id, set()).add((alone or {}).get(id, "missing"))
    outcomes = {id: seen for id, seen in outcomes.items() if not unstable or without_parameters(id) not in unstable}
    everywhere = frozenset.intersection(*(frozenset(run.collected) for run in runs)) & outcomes.keys()
    stable = frozenset(id for id, seen in outcomes.items() if seen == {"passed"} and id in everywhere)
    if not outcomes:
        raise UserError(f"the tests of {name} cannot be told apart: {min(unstable)}, {UNSTABLE}")
    if len(stable) < MIN_PASSING * len(outcomes):
        first = min(id for id in outcomes if id not in stable)
        message = next((run.messages[first] for run in runs if first in run.messages), "")
        raise UserError(
            f"the tests of {name} fail: only {len(stable)} of {len(outcomes)} pass every time; "
            f"first {first}{': ' + message if message else ''}"
        )
    dropped = {id: "/".join(sorted(seen)) for id, seen in outcomes.items() if id not in stable}
    dropped |= dict.fromkeys(left_out, "slow") | dict.fromkeys(unstable, UNSTABLE)
    return everywhere, stable, dict(sorted(dropped.items()))


def seconds_of(run: TestRun) -> float:
    """What it takes where nothing else runs, so that no task depends on what else did."""
    return run.result.wall_s - run.result.waited_s


def slow_tests(durations: Mapping[str, float], needed: float = 1.0) -> frozenset[str]:
    """The tests that a long suite is run without. `needed`: share of the durations that it would take where nothing else runs."""
    total = sum(durations.values())
    return frozenset(id for id, seconds in durations.items() if needed * total > LONG_S and seconds > SLOW_SHARE * total)


def compile_files(files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """Bytecode of every Python file that compiles, which Python takes without looking at the source: path -> file to link beside it."""
    found: dict[str, Path] = {}
    for path, file in files.items():
        if path.endswith(".py"):
            target = folder / f"{len(found)}.pyc"
            with contextlib.suppress(py_compile.PyCompileError, OSError, ValueError, RecursionError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                py_compile.compile(
                    str(file), str(target), dfile=path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
                )
                found[path] = target
    return found


def write_tree(files: Mapping[str, Path], changes: Changes, folder: Path, bytecode: Mapping[str, Path] | None = None) -> None:
    """A copy of frozen files with changes; what stays is linked, as nobody writes to either, with its bytecode."""
    folder.mkdir(parents=True)
    for parent in sorted({os.path.dirname(path) for path in files if changes.get(path, b"") is not None}):
        (folder / parent / ("__pycache__" if bytecode else "")).mkdir(parents=True, exist_ok=True)
    for path, file in files.items():
        if path not in changes:
            _link(file, folder / path)
            if bytecode and path in bytecode:
                _link(bytecode[path], Path(importlib.util.cache_from_source(str(folder / path))))
    for path, data in changes.items():
        if data is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            (folder / path).chmod(files[path].stat().st_mode & 0o777 if path in files else 0o644)
    folder.chmod(0o755)


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # another file system
        shutil.copy(file, place)


def _refuse_bad(workshop: Workshop, run: TestRun) -> None:
    name = workshop.layout.name
    broken = {error.split(": ")[0] for error in run.collect_errors} & set(workshop.repo.test_paths)
    if run.collect_errors and (not run.outcomes or len(broken) > MIN_PASSING * len(workshop.repo.test_paths)):
        missing = re.search(r"No module named '([^'.]+)", run.collect_errors[0])
        remedy = "; name what the tests need in pyproject.toml or requirements-test.txt" if missing else ""
        if missing and missing[1] in workshop.layout.packages:
            remedy = "; if its set-up code makes this file, put it there: that code is never run"
        share = f", {len(broken)} of {len(workshop.repo.test_paths)} files" if run.outcomes else ""
        raise UserError(f"the tests of {name} cannot be collected{share}: {run.collect_errors[0]}{remedy}")
    if run.result.status != "exited":
        raise UserError(f"the tests of {name} end badly: {run.result.status.replace('_', ' ')} after {run.result.wall_s:.0f} s")
    if not run.complete:
        last = f", the last was {list(run.outcomes)[-1]}" if run.outcomes else ""
        raise UserError(f"the tests of {name} stop pytest before its end; {len(run.outcomes)} had begun{last}")
    if not run.outcomes and run.result.code not in (0, NO_TESTS):
        raise UserError(f"pytest cannot run the tests of {name}{_said(run)}")
    if not run.outcomes:
        raise UserError(f"{name} has no tests that pytest finds in {', '.join(workshop.repo.test_paths[:3])}")


def _said(run: TestRun) -> str:
    """The line of its output that names the exception, else the last."""
    lines = [line.removeprefix("E ").strip() for line in run.result.stdout.decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b: ", line)]
    return f": {(named or lines)[-1][:300]}" if lines else ""
