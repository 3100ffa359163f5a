"""What a grade costs over running the tests alone, and whether honest diffs are taken.

    bare_s        a sandbox over the solved tree, and the task's tests in it            median of the tasks
    grade_s       the same, graded with the guards that are always on; of gold          median; facts of the task known already
    facts_s       finding those out, once for a task                                    median
    ablation_s    the ablation regrade and the inverted tests, on top                   median
    over_bare     median of grade_s / bare_s; over_bare_s: of grade_s - bare_s
    grades_per_core_minute    of gold, all cores busy
    gold, gold_rejected; rewrites, rewrites_rejected: diffs graded with every guard, and those that were not solved, by name. A rewrite
    that changes what the tests can see (they may count locals or look at the source) is one that bare tests reject too: `not_the_same`

    python -m benchmarks.grader [STORE] [--tasks N] [--golds N] [--quick] [--no-rewrites]

STORE is a folder of tasks; without one, tasks are built from a small repository that stands here. Where attacks lie beside the tests
(tests/exploits), their own battery grades them.

Not here: attacks, the monitor.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.rewrites import REWRITES, rewritten
from etude import tree
from etude.grade.filter import make_rules
from etude.grade.grader import Verdict, grade
from etude.grade.guards import FIRST_SOLVE
from etude.grade.lay import prepare
from etude.grade.runner import run_tests
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.build import build_tasks
from etude.synth.options import BuildOptions
from etude.types import Task

SMALL = {
    "ledger/__init__.py": "",
    "ledger/money.py": '''\
def cents(text):
    """The number of cents in a text such as "12.30"."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int((part + "00")[:2])


def shown(amount):
    """The text of a number of cents."""
    sign = "-" if amount < 0 else ""
    whole, part = divmod(abs(amount), 100)
    return f"{sign}{whole}.{part:02d}"


def split(amount, shares):
    """Amounts that differ by one cent at most and add up."""
    least, rest = divmod(amount, shares)
    return [least + 1] * rest + [least] * (shares - rest)
''',
    "tests/test_money.py": """\
import pytest

from ledger.money import cents, shown, split


@pytest.mark.parametrize("text, expected", [("1.5", 150), ("0.07", 7), ("12", 1200)])
def test_cents(text, expected):
    assert cents(text) == expected


def test_shown():
    assert shown(1205) == "12.05"
    assert shown(-7) == "-0.07"


def test_split():
    assert split(10, 3) == [4, 3, 3]
    assert split(9, 3) == [3, 3, 3]


def test_split_of_nothing():
    assert split(0, 2) == [0, 0]
""",
    "pyproject.toml": '[project]\nname = "ledger"\nversion = "1.0"\n',
}


def small_store(folder: Path, backend: Backend) -> TaskStore:
    for path, text in SMALL.items():
        (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / path).write_text(text)
    build_tasks(str(folder / "source"), folder / "tasks", options=BuildOptions(max_share=0.9), backend=backend)
    return TaskStore.open(folder / "tasks")


def bare(task: Task, store: TaskStore, backend: Backend, folder: Path) -> tuple[float, bool]:
    """Seconds of a sandbox with the task's tests over a tree that is there, and whether they pass."""
    ids = (*task.fail_to_pass, *task.pass_to_pass)
    start = time.perf_counter()
    with backend.open(folder, environment=store.environment(task.environment), limits=task.limits) as sandbox:
        passed = run_tests(sandbox, task.repo, ids=ids, wall_s=task.limits.wall_s, runner=task.environment.runner).passed(ids)
    return time.perf_counter() - start, passed


def laid_out(task: Task, patch: str, store: TaskStore, work: Path) -> Path:
    original = store.snapshot(task.repo)
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=store.environment(task.environment))
    prepare(work, patch, start=store.workspace(task), original=original, rules=rules)
    work.chmod(0o755)
    return work


def measure(task: Task, store: TaskStore, backend: Backend) -> dict[str, Any]:
    """One task's row. The facts come first, so that they are in no other figure."""
    start = time.perf_counter()
    first = grade(task, task.gold, store=store, backend=backend)
    facts_s = first.seconds.get("facts", 0.0)
    with tempfile.TemporaryDirectory() as name:
        work = laid_out(task, task.gold, store, Path(name, "work"))
        rounds = [(bare(task, store, backend, work)[0], _timed(task, store, backend)) for _ in range(2)]
    full = grade(task, task.gold, store=store, backend=backend, checks=FIRST_SOLVE)
    return {
        "task": task.id,
        "bare_s": min(one for one, _ in rounds),
        "grade_s": min(other for _, other in rounds),
        "facts_s": facts_s,
        "ablation_s": full.seconds.get("ablation", 0.0),
        "gold": full.solved and first.solved,
        "why": "" if full.solved else full.reason,
        "wall_s": time.perf_counter() - start,
    }


def _timed(task: Task, store: TaskStore, backend: Backend) -> float:
    start = time.perf_counter()
    grade(task, task.gold, store=store, backend=backend)
    return time.perf_counter() - start


def honest(task: Task, store: TaskStore, backend: Backend) -> list[tuple[str, Verdict, bool]]:
    """(rewrite, verdict, whether the tests alone take it)."""
    found = []
    for kind in REWRITES:
        patch = rewritten(task, store, kind)
        if patch is None:
            continue
        verdict = grade(task, patch, store=store, backend=backend, checks=FIRST_SOLVE)
        same = True
        if not verdict.solved:
            with tempfile.TemporaryDirectory() as name:
                same = bare(task, store, backend, laid_out(task, patch, store, Path(name, "work")))[1]
        found.append((kind, verdict, same))
    return found


def per_core_minute(tasks: Sequence[Task], store: TaskStore, backend: Backend, seconds: float) -> float:
    cores, end = os.cpu_count() or 1, time.perf_counter() + seconds

    def work(first: int) -> int:
        done = 0
        while time.perf_counter() < end:
            task = tasks[(first + done) % len(tasks)]
            grade(task, task.gold, store=store, backend=backend)
            done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(2 * cores) as pool:
        done = sum(pool.map(work, range(2 * cores)))
    return done / (time.perf_counter() - start) * 60 / cores


def spread(tasks: Sequence[Task], number: int) -> list[Task]:
    return list(tasks[:: max(1, len(tasks) // number)][:number])


def main() -> None:
    parser = argparse.ArgumentParser(description="what a grade costs, and whether honest diffs are taken")
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--tasks", type=int, default=0, help="so many of the store, evenly spread; 0: all")
    parser.add_argument("--golds", type=int, default=0, help="of so many, evenly spread, only gold is graded, once, with every guard")
    parser.add_argument("--quick", action="store_true", help="two tasks")
    parser.add_argument("--no-rewrites", action="store_true")
    options = parser.parse_args()
    backend = Bubblewrap()
    backend.check()
    with tempfile.TemporaryDirectory() as name:
        store = TaskStore.open(options.store) if options.store else small_store(Path(name), backend)
        tasks = store.tasks()
        golds = spread(tasks, options.golds) if options.golds else []
        tasks = spread(tasks, 2 if options.quick else options.tasks or len(tasks))
        rows: list[dict[str, Any]] = []
        rejected: list[str] = []
        not_the_same: list[str] = []
        rewrites = 0
        for task in tasks:
            rows.append(measure(task, store, backend))
            print(rows[-1], flush=True)
            for kind, verdict, same in [] if options.no_rewrites else honest(task, store, backend):
                rewrites += same
                if not verdict.solved:
                    (rejected if same else not_the_same).append(f"{task.id} {kind}: {verdict.reason}")
                    print(("rejected " if same else "not the same ") + f"{task.id} {kind}: {verdict.reason}", flush=True)
        wrong = [f"{row['task']}: {row['why']}" for row in rows if not row["gold"]]
        for done, task in enumerate(golds, 1):
            verdict = grade(task, task.gold, store=store, backend=backend, checks=FIRST_SOLVE)
            wrong += [] if verdict.solved else [f"{task.id}: {verdict.reason}"]
            print(f"gold {done} of {len(golds)}, {len(wrong)} rejected", end="\n" if done % 20 == 0 else "\r", flush=True)
        speed = per_core_minute(tasks, store, backend, 3.0 if options.quick else 20.0)
    middle = {key: statistics.median(row[key] for row in rows) for key in ("bare_s", "grade_s", "facts_s", "ablation_s")}
    result = {
        **middle,
        "over_bare": statistics.median(row["grade_s"] / row["bare_s"] for row in rows),
        "over_bare_s": statistics.median(row["grade_s"] - row["bare_s"] for row in rows),
        "grades_per_core_minute": speed,
        "gold": len({row["task"] for row in rows} | {task.id for task in golds}),
        "gold_rejected": wrong,
        "rewrites": rewrites,
        "rewrites_rejected": rejected,
        "not_the_same": not_the_same,
    }
    report("grader", rows, result)


if __name__ == "__main__":
    main()
