"""Prove a task again, from its files alone: `etude tasks check`.

In: a Task, its store, a sandbox backend; out: a CheckReport with every problem found. Six runs: the agent's tree plain and
shuffled (everything in pass_to_pass passes, nothing of fail_to_pass is there), the empty patch graded and then shuffled (every
fail_to_pass test fails), the gold patch graded (solved) and then shuffled.

Not here: how the task came about (prove.py), the grader (grade/).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etude import tree
from etude.grade.filter import make_rules
from etude.grade.grader import grade, prepare
from etude.grade.runner import Order, TestRun, run_tests
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Task

SEED = 2  # another order than the build's


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    task_id: str
    ok: bool
    problems: tuple[str, ...]  # one line each
    num_runs: int


def check_task(task: Task, store: TaskStore, backend: Backend) -> CheckReport:
    """Raises: UserError where the store lacks what the task needs, SandboxError where a sandbox failed."""
    problems: list[str] = []
    orders: tuple[Order, ...] = ("plain", "shuffled")
    for order in orders:
        run = _run(task, store.workspace(task), store, backend, order, (*task.fail_to_pass, *task.pass_to_pass))
        there = sorted(set(run.collected) & set(task.fail_to_pass))
        problems += [f"the agent sees {len(there)} hidden tests, first {there[0]}"] if there else []
        problems += _not_passed(run, task.pass_to_pass, f"in the agent's tree, {order}")
    empty = grade(task, "", store=store, backend=backend)
    passing = sorted(id for id, outcome in empty.fail_to_pass.items() if outcome == "passed")
    problems += [f"{len(passing)} tests pass without the feature, first {passing[0]}"] if passing else []
    problems += ["the empty patch counts as solved"] if empty.solved else []
    gold = grade(task, task.gold, store=store, backend=backend)
    problems += [] if gold.solved else [f"gold does not solve it: {gold.reason}"]
    problems += [f"gold loses {path}: {why}" for path, why in gold.refused]
    problems += _shuffled(task, store, backend)
    return CheckReport(task_id=task.id, ok=not problems, problems=tuple(problems), num_runs=6)


def _shuffled(task: Task, store: TaskStore, backend: Backend) -> list[str]:
    """The graded trees of the empty and the gold patch, in another order."""
    original = store.snapshot(task.repo)
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=store.environment(task.environment))
    with tempfile.TemporaryDirectory(prefix="etude-check-") as name:
        for what, patch in (("empty", ""), ("gold", task.gold)):
            prepare(Path(name, what), patch, start=store.workspace(task), original=original, rules=rules)
        run = _run(task, Path(name, "empty"), store, backend, "shuffled", task.fail_to_pass)
        passing = sorted(id for id in task.fail_to_pass if run.outcomes.get(id) == "passed")
        problems = [f"{len(passing)} tests pass without the feature in shuffled order, first {passing[0]}"] if passing else []
        ids = (*task.fail_to_pass, *task.pass_to_pass)
        return problems + _not_passed(_run(task, Path(name, "gold"), store, backend, "shuffled", ids), ids, "with gold, shuffled")


def _run(task: Task, folder: Path, store: TaskStore, backend: Backend, order: Order, ids: Sequence[str]) -> TestRun:
    folder.chmod(0o755)
    with backend.open(folder, environment=store.environment(task.environment), limits=task.limits) as sandbox:
        runner, wall_s = task.environment.runner, task.limits.wall_s
        return run_tests(sandbox, task.repo, ids=ids, order=order, seed=SEED, wall_s=wall_s, runner=runner)


def _not_passed(run: TestRun, ids: Sequence[str], where: str) -> list[str]:
    bad = [id for id in ids if run.outcomes.get(id) != "passed"]
    if not bad:
        return []
    return [f"{len(bad)} tests do not pass {where}, first {bad[0]}: {run.messages.get(bad[0], 'no report')}"]
