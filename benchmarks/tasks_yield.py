"""How many valid tasks a repository gives, what they cost, and which step costs it.

tried, valid      candidates tried and tasks that passed every check, in each mode of a deletion and each other kind
CPU s             of all processes of the build (tasks_factory.py); tasks per core-hour are valid tasks over these. The wall column stands
                  beside it; it is that of one job, and on a machine that does other work it is too high
suite s           one plain run of the tests         traced/plain      wall seconds of a traced run over those of a plain one
runs              runs of pytest in a sandbox, those of the baseline included

The second table divides the CPU seconds among steps: all of them, and those of each candidate that was tried.

    python -m benchmarks.tasks_yield [--quick] [--limit N] [--kinds KIND,...] [--gates full|quick] [--check] [--json] [SOURCE ...]

--quick tries a few candidates of toolz; the figures of the log come from all of them. With --check every task is proved again from its
files, gold and cut included; that is not in the cost.

Not here: how good the tasks are for training.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.common import report, table
from benchmarks.tasks_factory import CHECK, ONCE, REST, STEPS, Built, Cost, build, in_process
from etude.errors import UserError
from etude.synth.build import BuildOptions
from etude.synth.kinds import FINDERS

SOURCES = ("toolz==1.0.0", "boltons==26.2.0")
QUICK_CANDIDATES = 6


def figures(built: Built, cost: Cost) -> dict[str, Any]:
    """What other programs read of one repository."""
    found: dict[str, Any] = {
        "cpu_s": built.cpu_s,
        "process_cpu_s": cost.cpu_s,  # as the kernel counted it, interpreter start and second proof included
        "wall_s": sum(step.wall_s for name, step in built.steps.items() if name != CHECK),
        "once_cpu_s": built.once_cpu_s,
        "steps": {
            name: {"cpu_s": step.cpu_s, "wall_s": step.wall_s, "sandboxes": step.sandboxes} for name, step in sorted(built.steps.items())
        },
    }
    if built.report is None:
        return {**found, "candidates": 0, "valid": 0, "problem": built.problem}
    tried, valid = sum(built.report.tried.values()), sum(built.report.valid.values())
    return {
        **found,
        "stable_tests": built.report.stable_tests,
        "found": built.report.candidates,
        "candidates": tried,
        "valid": valid,
        "yield": valid / tried,
        "tried_by_mode": dict(built.report.tried),
        "valid_by_mode": dict(built.report.valid),
        "rejected": dict(built.report.rejected),
        "tasks_per_core_hour": 3600 * valid / built.cpu_s,
        "tasks_per_wall_hour": 3600 * valid / found["wall_s"],
        "suite_s": built.suite_s,
        "trace_ratio": built.report.trace_ratio,
        "runs": built.report.sandbox_runs,
        "wrong": list(built.wrong),
    }


def row(source: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the first table."""
    modes = found.get("tried_by_mode", {})
    return {
        "repository": source,
        "tests": found.get("stable_tests"),
        "suite s": found.get("suite_s"),
        "valid of tried": ", ".join(f"{mode} {found['valid_by_mode'][mode]}/{modes[mode]}" for mode in modes) or found["problem"],
        "yield": found.get("yield"),
        "CPU s": found["cpu_s"],
        "wall s": found["wall_s"],
        "tasks/core-hour": found.get("tasks_per_core_hour"),
        "tasks/wall-hour": found.get("tasks_per_wall_hour"),
        "runs": found.get("runs"),
        "traced/plain": found.get("trace_ratio"),
    }


def step_rows(repos: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each step that took anything, in the order of a build; two columns for each repository."""
    names = [name for name in dict.fromkeys((*STEPS.values(), REST)) if any(name in found["steps"] for found in repos.values())]
    rows: list[dict[str, Any]] = []
    for name in names:
        line: dict[str, Any] = {"step": name}
        for source, found in repos.items():
            seconds = found["steps"].get(name, {}).get("cpu_s", 0.0)
            line[f"{source} CPU s"] = seconds
            line["a candidate" if len(repos) == 1 else f"{source} a candidate"] = (
                None if name in (*ONCE, CHECK) or not found.get("candidates") else seconds / found["candidates"]
            )
        rows.append(line)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--limit", type=int, default=None, help="at most so many candidates of each kind and repository; default: all")
    parser.add_argument("--kinds", default="feature_deletion", help=f"with commas, of {', '.join(FINDERS)}; or all")
    parser.add_argument("--gates", choices=("quick", "full"), default="full")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("sources", nargs="*", help=f"default: {' '.join(SOURCES)}")
    chosen = parser.parse_args()
    limit = QUICK_CANDIDATES if chosen.quick else chosen.limit
    kinds = tuple(FINDERS) if chosen.kinds == "all" else tuple(chosen.kinds.split(","))
    repos: dict[str, dict[str, Any]] = {}
    load = os.getloadavg()
    for source in chosen.sources or SOURCES[: 1 if chosen.quick else None]:
        try:
            options = BuildOptions(kinds=kinds, gates=chosen.gates, jobs=1, max_candidates=limit)
            built, cost = in_process(build, source, options, chosen.check)
        except UserError as error:  # the others took long
            print(f"error: {source}: {error}", file=sys.stderr, flush=True)
            continue
        repos[source] = figures(built, cost)
        print(f"{source}: {repos[source]['valid']} of {repos[source]['candidates']} valid", file=sys.stderr, flush=True)
        for wrong in built.wrong:
            print(f"{wrong} does not hold when it is proved again", file=sys.stderr)
    if not repos:
        raise SystemExit(2)
    result = {"repos": repos, "kinds": kinds, "gates": chosen.gates, "cores": len(os.sched_getaffinity(0)), "load": (load, os.getloadavg())}
    if chosen.json:
        print(json.dumps({"benchmark": "tasks_yield", **result}, sort_keys=True))
        return
    print(f"CPU seconds of each step\n\n{table(step_rows(repos))}\n")
    report("tasks_yield", [row(source, found) for source, found in repos.items()], result)


if __name__ == "__main__":
    main()
