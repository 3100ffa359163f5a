"""What gates conclude from what was noticed, whatever the language: evidence for the task, or why there is none.

Not here: which changes are made and run (gates.py, foreign/gates.py), how many share a run (notice.py).
"""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from etude.grade.grader import grade
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.workshop import Rejected
from etude.types import Task

MIN_MUTANTS = 4  # that are asked for, also where each costs a run; code that has fewer is judged by those
MIN_SCORE = 0.5
SAMPLE = 8  # one task in so many is graded


class DoesNotMatter(Rejected):
    """Some symbols are noticed by no hidden test."""

    def __init__(self, message: str, left: tuple[Any, ...]) -> None:
        super().__init__(message, "inverse")
        self.left = left  # definitions that are


def every_symbol_matters(symbols: Sequence[Any], noticed: Mapping[Any, bool], runs: int) -> dict[str, Any]:
    """`noticed`: definition that was stubbed alone -> whether a hidden test failed. Raises DoesNotMatter; Rejected where none was asked."""
    lost = [symbol for symbol in symbols if noticed.get(symbol) is False]
    if lost:
        left = tuple(symbol for symbol in symbols if symbol not in lost)
        raise DoesNotMatter(f"{len(lost)} of {len(symbols)} symbols matter to no hidden test, first {lost[0].qualname}", left)
    if not noticed:
        raise Rejected(f"none of its {len(symbols)} symbols can be stubbed alone, so whether each matters is unknown", "inverse")
    return {"symbols": len(symbols), "matter": sum(noticed.values()), "not_asked": len(symbols) - len(noticed), "runs": runs}


def mutants_are_noticed(noticed: Mapping[Any, bool], runs: int) -> dict[str, Any]:
    """Raises Rejected where too few are, however few there are; code without a mutant says nothing about its tests."""
    killed = sum(noticed.values())
    if killed < MIN_SCORE * len(noticed):
        raise Rejected(f"the hidden tests notice only {killed} of {len(noticed)} mutants", "mutation")
    return {"mutants": len(noticed), "noticed": killed, "runs": runs}


def graded_sample(task: Task, store: TaskStore, backend: Backend, num_runs: int) -> dict[str, Any]:
    """The empty patch and gold through the grader, for one task in SAMPLE. `num_runs`: of the baseline. Raises Rejected."""
    if int(task.id[-8:], 16) % SAMPLE:
        return {}
    try:
        empty = grade(task, "", store=store, backend=backend)
        gold = grade(task, task.gold, store=store, backend=backend)
    finally:
        shutil.rmtree(store.workspace(task))  # made for this; a task takes kilobytes
    if empty.solved or "passed" in empty.fail_to_pass.values():
        raise Rejected("the grader gives something for an empty patch", "grader")
    if not gold.solved:
        raise Rejected(f"the grader does not take gold: {gold.reason}", "grader")
    return {
        "empty_patch": {"score": 0, "known": "graded"},
        "gold": {"runs": num_runs + 1, "equals": "the original, byte by byte", "known": "graded"},
    }
