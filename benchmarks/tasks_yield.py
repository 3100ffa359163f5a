"""How many valid tasks a repository gives, and what they cost.

candidates  tried, once in each mode (stub mode: single functions and classes only)
valid       tasks that passed every check, by mode
core_hours  wall time times the threads that were used; on a machine that does other work it is too high
trace_ratio seconds of a traced run of the suite over those of a plain one
runs        runs of pytest in a sandbox, those of the baseline included

    python -m benchmarks.tasks_yield [--quick] [SOURCE ...]

--quick tries a few candidates of toolz; the figures of the log come from all of them. With --check every task is proved again from its
files, gold and cut included.

Not here: how good the tasks are for training.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import report
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, BuildReport, build_tasks
from etude.synth.check import check_task

SOURCES = ("toolz==1.0.0", "boltons==26.2.0")
QUICK_CANDIDATES = 6


def build(source: str, folder: Path, backend: Bubblewrap, max_candidates: int | None, check: bool) -> tuple[BuildReport, int]:
    """The report, and how many tasks did not hold when they were proved again."""
    result = build_tasks(source, folder, options=BuildOptions(max_candidates=max_candidates), backend=backend)
    store = TaskStore.open(folder)
    wrong = [checked for task in store.tasks() if not (checked := check_task(task, store, backend)).ok] if check else []
    for checked in wrong:
        print(f"{checked.task_id}: {'; '.join(checked.problems)}")
    return result, len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--candidates", type=int, default=None, help="at most so many of each repository; default: all")
    parser.add_argument("sources", nargs="*", help=f"default: {' '.join(SOURCES)}")
    options = parser.parse_args()
    sources = options.sources or SOURCES[: 1 if options.quick else None]
    jobs = len(os.sched_getaffinity(0))
    backend = Bubblewrap()
    rows: list[dict[str, Any]] = []
    repos: dict[str, Any] = {}
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="etude-yield-") as name:
            limit = QUICK_CANDIDATES if options.quick else options.candidates
            result, wrong = build(source, Path(name, "tasks"), backend, limit, options.check)
        tried, valid = sum(result.tried.values()), sum(result.valid.values())
        repos[source.partition("==")[0]] = {
            "candidates": tried,
            "found": result.candidates,
            "valid": valid,
            "valid_by_mode": dict(result.valid),
            "tried_by_mode": dict(result.tried),
            "core_hours": result.seconds * jobs / 3600,
            "seconds": result.seconds,
            "trace_ratio": result.trace_ratio,
            "runs": result.sandbox_runs,
            **({"wrong": wrong} if options.check else {}),
        }
        rows.append(
            {
                "repository": source,
                "tests": result.stable_tests,
                "tried": tried,
                **{f"{mode}: valid of tried": f"{result.valid[mode]} of {result.tried[mode]}" for mode in result.tried},
                "seconds": result.seconds,
                "runs": result.sandbox_runs,
                "traced/plain": result.trace_ratio,
            }
        )
    report("tasks_yield", rows, {"repos": repos, "cores": jobs})


if __name__ == "__main__":
    main()
