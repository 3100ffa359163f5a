"""etude's own rollouts: one types.Rollout a line in a run folder's rollouts/*.jsonl, instructions in its tasks.json.

    run/tasks.json  run/rollouts/{before,step-0001,...,after}.jsonl

Not here: other formats.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.monitor.readers.shape import make_act
from etude.monitor.trajectory import Act, Event, Step, Trajectory
from etude.records import decode
from etude.sandbox.mounts import HONEYPOTS
from etude.types import Rollout, Turn

SOURCE = "etude"
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_EXIT = re.compile(r"exit code (\d+)(?:\n|\Z)")


def is_record(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("record") == "rollout"


def read(value: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> Trajectory:
    """`tasks`: what the run remembers of its tasks, by id. Raises ValueError."""
    return from_rollout(decode(json.dumps(value), Rollout), tasks.get(str(value.get("task_id")), {}))


def from_rollout(rollout: Rollout, task: Mapping[str, Any] | None = None) -> Trajectory:
    """A rollout that is in memory; `task`: its record as a mapping, or what a run remembers of it."""
    task = task or {}
    turns = [turn for segment in rollout.segments for turn in segment.turns]
    repo = task.get("repo")
    log = rollout.log
    return Trajectory(
        id=rollout.id,
        source=SOURCE,
        steps=tuple(_step(index, turn) for index, turn in enumerate(turns)),
        task_id=rollout.task_id,
        group=rollout.group,
        instruction=str(task.get("instruction", "")),
        patch=rollout.patch,
        solved=rollout.reward.solved if rollout.reward is not None else None,
        events=None if log is None else tuple(Event(step=seen.turn, kind=seen.kind, what=seen.what) for seen in log),
        honeypots=tuple(HONEYPOTS) if log is not None else (),
        packages=_packages(task, repo if isinstance(repo, Mapping) else {}),
    )


def read_tasks(folder: Path) -> dict[str, dict[str, Any]]:
    """The tasks of the run that a file of rollouts belongs to; none where there is no tasks.json, or a broken one."""
    for place in (folder / "tasks.json", folder.parent / "tasks.json"):
        if not place.is_file():
            continue
        try:
            found = json.loads(place.read_bytes())
        except ValueError:
            return {}
        groups = found.values() if isinstance(found, dict) else [found]
        rows = [row for rows in groups if isinstance(rows, list) for row in rows if isinstance(row, dict)]
        return {str(row.get("id")): row for row in rows}
    return {}


def _packages(task: Mapping[str, Any], repo: Mapping[str, Any]) -> tuple[str, ...]:
    """Top folders of the symbols that were cut, below the import roots."""
    roots = tuple(f"{str(root).strip('./')}/" for root in repo.get("import_roots", ()) if str(root).strip("./")) or ("src/", "lib/")
    names = set()
    for symbol in task.get("symbols", ()):
        path = str(symbol.get("path", "") if isinstance(symbol, Mapping) else symbol).partition(":")[0]
        for root in roots:
            path = path.removeprefix(root)
        names.add(path.partition("/")[0].removesuffix(".py"))
    return tuple(sorted(name for name in names if name))


def _step(index: int, turn: Turn) -> Step:
    thoughts = "\n".join(match.strip() for match in _THOUGHT.findall(turn.text))
    text = _THOUGHT.sub("", _CALL.sub("", turn.text)).strip()
    acts = []
    for call, seen in zip(turn.calls, turn.observations, strict=False):
        act = make_act(call.name, call.arguments, seen.text)
        code = _EXIT.match(seen.text) if act.command else None
        failed = seen.error not in (None, "finished_untested") or code is not None
        acts.append(Act(**{**_fields(act), "failed": failed}))
    return Step(index=index, text=text, reasoning=thoughts, acts=tuple(acts))


def _fields(act: Act) -> dict[str, Any]:
    return {name: getattr(act, name) for name in ("name", "arguments", "command", "path", "result")}
