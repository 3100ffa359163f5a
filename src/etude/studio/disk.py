"""A run folder read back: settings, metrics, tasks, rollouts, hints and the feedback of hinted turns, whatever of it is there.

In: the files that runfolder.py names. Out: one Run.
Not here: what is made of it (report.py).
"""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from etude.metrics import read_metrics
from etude.records import read_jsonl
from etude.studio.transcript import Feedback, TurnKey
from etude.types import Hint, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is on disk of one run."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    tasks: dict[str, list[dict[str, Any]]]  # group -> tasks, as plain fields
    rollouts: dict[str, list[Rollout]]  # "before", "step-0001", ..., "after"
    hints: dict[TurnKey, list[Hint]] = field(default_factory=dict)
    feedback: dict[TurnKey, list[Feedback]] = field(default_factory=dict)


def read_run(folder: Path) -> Run:
    """Raises: ValueError for a file that is broken (not one that is missing)."""
    config = folder / "config.toml"
    hints: dict[TurnKey, list[Hint]] = {}
    for path in sorted((folder / "hints").glob("*.jsonl")):
        for hint in read_jsonl(path, Hint):
            hints.setdefault((hint.rollout_id, hint.segment, hint.turn), []).append(hint)
    feedback: dict[TurnKey, list[Feedback]] = {}
    for path in sorted((folder / "feedback").glob("*.jsonl")):
        for row in read_lines(path):
            one = Feedback(
                writer=row.get("writer", ""), gate=row.get("gate"), effect=row.get("effect"), token_kl=tuple(row.get("token_kl", ()))
            )
            feedback.setdefault((row["rollout_id"], row["segment"], row["turn"]), []).append(one)
    return Run(
        name=folder.resolve().name,
        config=tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {},
        metrics=read_metrics(folder / "metrics.jsonl"),
        tasks=read_tasks(folder / "tasks.json"),
        rollouts={name: read_jsonl(folder / "rollouts" / f"{name}.jsonl", Rollout) for name in stage_names(folder / "rollouts")},
        hints=hints,
        feedback=feedback,
    )


def stage_names(folder: Path) -> list[str]:
    """Files of rollouts in the order in which they happened: demonstrations, before, the steps, after."""
    names = sorted(path.stem for path in folder.glob("*.jsonl"))
    order = {"demonstrations": -2, "before": -1, "after": 1}
    return sorted(names, key=lambda name: (order.get(name, 0), name))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; one at the end that was torn by a kill is left out."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line.strip()]
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]


def read_tasks(path: Path) -> dict[str, list[dict[str, Any]]]:
    """tasks.json: {"train": [...], "held_out": [...]}, each entry a task record, what a run remembers of one, or only its id."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    groups = found if isinstance(found, dict) else {"train": found}
    return {
        group: [task if isinstance(task, dict) else {"id": str(task)} for task in tasks]
        for group, tasks in groups.items()
        if isinstance(tasks, list)
    }
