"""How often a grading comes out otherwise than it must: the tasks of a store graded again and again, with gold and with the empty patch.

    gold       must be solved: all hidden tests pass, on the tree that the grader makes of the gold patch
    empty      must not be solved, and every fail_to_pass test must not pass
    shuffled   the same two trees, each round in another order

A regrade is one such run of a task's hidden tests. A flake is a regrade with another result than it must have; one without a verdict (the
sandbox failed) is neither. The interval is Wilson's at 95%. With a time limit the tasks still take turns: every task is regraded before any
is regraded twice. A flake by a time limit is one too and also counted beside: on a machine that has more to do than it can, it tells of the
machine. --patience F gives every task F times its time.

    python -m benchmarks.tasks_flakes STORE [--tasks N] [--every K] [--times M] [--minutes T] [--patience F] [--resume FILE.jsonl]

One line of FILE is one regrade; a run that was stopped goes on behind the last whole one. The store gains cut trees in .cache, no more.

Not here: what a build proves of a task (`etude tasks check` runs that again).
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import report
from etude import tree
from etude.errors import SandboxError, UserError
from etude.grade.filter import make_rules
from etude.grade.grader import grade, prepare
from etude.grade.runner import run_tests
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Task

Patch = Literal["gold", "empty"]
Order = Literal["plain", "shuffled"]
WAYS: tuple[tuple[Patch, Order], ...] = (("gold", "plain"), ("empty", "plain"), ("gold", "shuffled"), ("empty", "shuffled"))
OUT_OF_TIME = "out of time"  # in the grader's reason
AIM = 0.002  # of regrades
Z = 1.959964  # of a 95% interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrade:
    task: str
    patch: Patch
    order: Order
    round: int
    verdict: Literal["as it must be", "flake", "none"]
    why: str = ""  # of a flake, or of no verdict


Key = tuple[str, Patch, Order, int]


def key(one: Regrade) -> Key:
    return one.task, one.patch, one.order, one.round


def plan(tasks: Sequence[Task], times: int) -> Iterator[tuple[Task, Patch, Order, int]]:
    """Rounds outside, tasks inside."""
    for number in range(times):
        for patch, order in WAYS:
            for task in tasks:
                yield task, patch, order, number


def regrade(task: Task, patch: Patch, order: Order, number: int, store: TaskStore, backend: Backend) -> Regrade:
    diff = task.gold if patch == "gold" else ""
    if order == "plain":
        verdict = grade(task, diff, store=store, backend=backend)
        known, outcomes, reason = verdict.verdict == "graded", {**verdict.fail_to_pass, **verdict.pass_to_pass}, verdict.reason
    else:
        known, outcomes, reason = _shuffled(task, diff, number, store, backend)
    why = wrong(task, patch, outcomes) if known else reason
    why += f" ({reason})" if known and why and reason else ""
    return Regrade(
        task=task.id, patch=patch, order=order, round=number, verdict="none" if not known else "flake" if why else "as it must be", why=why
    )


def wrong(task: Task, patch: Patch, outcomes: Mapping[str, str]) -> str:
    """What is not as it must be, "" if nothing."""
    if patch == "gold":
        bad = [id for id in (*task.fail_to_pass, *task.pass_to_pass) if outcomes.get(id) != "passed"]
        return f"{len(bad)} tests do not pass with gold, first {bad[0]}" if bad else ""
    bad = [id for id in task.fail_to_pass if outcomes.get(id) == "passed"]
    return f"{len(bad)} tests pass without the feature, first {bad[0]}" if bad else ""


def _shuffled(task: Task, diff: str, seed: int, store: TaskStore, backend: Backend) -> tuple[bool, dict[str, str], str]:
    """(is there a verdict, outcomes, why not)."""
    original, environment = store.snapshot(task.repo), store.environment(task.environment)
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=environment)
    ids = (*task.fail_to_pass, *task.pass_to_pass) if diff else task.fail_to_pass
    with tempfile.TemporaryDirectory(prefix="etude-flakes-") as name:
        work = Path(name, "work")
        prepare(work, diff, start=store.workspace(task), original=original, rules=rules)
        try:
            with backend.open(work, environment=environment, limits=task.limits) as sandbox:
                runner, wall_s = task.environment.runner, task.limits.wall_s
                run = run_tests(sandbox, task.repo, ids=ids, order="shuffled", seed=seed, wall_s=wall_s, runner=runner)
        except SandboxError as error:
            return False, {}, str(error)
    return True, dict(run.outcomes), {"exited": "", "timeout": f"ran {OUT_OF_TIME}"}.get(run.result.status, run.result.status)


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    share, square = hits / of, Z * Z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z * math.sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def read(file: Path) -> dict[Key, Regrade]:
    """The whole lines; what a kill tore is cut off, so that the next line does not continue it."""
    if not file.exists():
        return {}
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        file.write_bytes(whole)
    try:
        found = [Regrade(**json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} holds no regrades ({error}): name another file, or move this one away") from None
    return {key(one): one for one in found}


def run_all(tasks: Sequence[Task], times: int, file: Path, store: TaskStore, backend: Backend, *, minutes: float) -> list[Regrade]:
    """What is known at the end, of these tasks and rounds, in order; `file` gains a line a regrade."""
    known, until = read(file), time.monotonic() + 60 * minutes
    wanted = list(plan(tasks, times))
    with file.open("ab", buffering=0) as out:
        for task, patch, order, number in wanted:
            if time.monotonic() >= until:
                break
            if (task.id, patch, order, number) not in known:
                one = regrade(task, patch, order, number, store, backend)
                known[key(one)] = one
                out.write(json.dumps(asdict(one)).encode("ascii") + b"\n")
    keys = [(task.id, patch, order, number) for task, patch, order, number in wanted]
    return [known[each] for each in keys if each in known]


def rows_of(found: Sequence[Regrade]) -> list[dict[str, Any]]:
    """One row a way, then all."""
    rows = []
    for name, chosen in [
        *((f"{patch}, {order}", [one for one in found if (one.patch, one.order) == (patch, order)]) for patch, order in WAYS),
        ("all", list(found)),
    ]:
        judged = [one for one in chosen if one.verdict != "none"]
        flakes = sum(one.verdict == "flake" for one in judged)
        low, high = wilson(flakes, len(judged))
        rows.append(
            {
                "way": name,
                "tasks": len({one.task for one in judged}),
                "regrades": len(judged),
                "no verdict": len(chosen) - len(judged),
                "flakes": flakes,
                "of them out of time": sum(one.verdict == "flake" and OUT_OF_TIME in one.why for one in judged),
                "share": flakes / len(judged) if judged else None,
                "from": low,
                "to": high,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--tasks", type=int, default=100, help="the first so many, by id; default: 100")
    parser.add_argument("--every", type=int, default=1, help="only each K-th task")
    parser.add_argument("--patience", type=float, default=1.0, help="times a task's time limit; default: 1")
    parser.add_argument("--times", type=int, default=5, help="rounds of four regrades each; default: 5, which is 20 of a task")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no regrade after so many")
    parser.add_argument("--resume", type=Path, default=Path("flakes.jsonl"), help="what is done; default: flakes.jsonl")
    chosen = parser.parse_args()
    try:
        if min(chosen.tasks, chosen.times, chosen.every) < 1 or chosen.patience <= 0:
            raise UserError("--tasks, --times and --every are 1 or more, --patience is above 0")
        store, backend = TaskStore.open(chosen.store), Bubblewrap()
        backend.check()
        start = time.monotonic()
        tasks = [
            replace(task, limits=replace(task.limits, wall_s=task.limits.wall_s * chosen.patience))
            for task in store.tasks()[:: chosen.every][: chosen.tasks]
        ]
        found = run_all(tasks, chosen.times, chosen.resume, store, backend, minutes=chosen.minutes)
    except (UserError, SandboxError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    rows = rows_of(found)
    for one in found:
        if one.verdict != "as it must be":
            print(f"{one.verdict}: {one.task}, {one.patch}, {one.order}, round {one.round}: {one.why}")
    why = Counter(one.task for one in found if one.verdict == "flake")
    more = {
        "aim": AIM,
        "patience": chosen.patience,
        "by_task": dict(why),
        "seconds": time.monotonic() - start,
        "cores": len(os.sched_getaffinity(0)),
    }
    report("tasks_flakes", rows, {"rows": rows, **more})


if __name__ == "__main__":
    main()
