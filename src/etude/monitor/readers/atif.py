"""ATIF, Harbor's Agent Trajectory Interchange Format: one JSON object with `schema_version` "ATIF-v1.x" and `steps`.

    {"schema_version": "ATIF-v1.4", "session_id": ..., "agent": {...}, "extra": {...},
     "steps": [{"step_id": 1, "source": "user", "message": ...},
               {"step_id": 2, "source": "agent", "message": ..., "reasoning_content": ...,
                "tool_calls": [{"tool_call_id": ..., "function_name": ..., "arguments": {...}}],
                "observation": {"results": [{"source_call_id": ..., "content": ...}]}}]}

Source: Harbor's RFC 0001. A patch, a task and a reward have no place of their own there: they are looked for in `extra`.

Not here: other formats.
"""

import re
from collections.abc import Mapping
from typing import Any

from etude.monitor.readers.shape import arguments_of, make_act, text_of
from etude.monitor.trajectory import Act, Step, Trajectory

SOURCE = "atif"
_FAILED = re.compile(r"(?:exit[ _]?code|returncode|exit status)[\"']?\s*[:=]?\s*[1-9]\d*", re.IGNORECASE)


def is_record(value: Any) -> bool:
    return isinstance(value, Mapping) and str(value.get("schema_version", "")).startswith("ATIF") and isinstance(value.get("steps"), list)


def read(value: Mapping[str, Any], name: str) -> Trajectory:
    """`name`: of the file, for a record without an id. Raises ValueError."""
    extra = value.get("extra") if isinstance(value.get("extra"), Mapping) else {}
    assert isinstance(extra, Mapping)
    steps: list[Step] = []
    instruction = ""
    for number, entry in enumerate(value["steps"], 1):
        if not isinstance(entry, Mapping):
            raise ValueError(f"step {number} is no object")
        if entry.get("source") == "user" and not steps and not instruction:
            instruction = text_of(entry.get("message"))
        if entry.get("source") == "agent":
            steps.append(_step(len(steps), entry))
    reward = next((extra[key] for key in ("reward", "solved", "resolved") if isinstance(extra.get(key), bool | int | float)), None)
    return Trajectory(
        id=str(value.get("session_id") or name),
        source=SOURCE,
        steps=tuple(steps),
        task_id=_of(extra, "task_id", "task_name", "instance_id", "task"),
        group=_of(extra, "group", "group_id"),
        instruction=instruction,
        patch=_of(extra, "patch", "model_patch", "submission", "git_patch"),
        solved=None if reward is None else float(reward) >= 1,
    )


def _of(extra: Mapping[str, Any], *keys: str) -> str:
    return next((extra[key] for key in keys if isinstance(extra.get(key), str)), "")


def _step(index: int, entry: Mapping[str, Any]) -> Step:
    seen = entry.get("observation")
    results = seen.get("results") if isinstance(seen, Mapping) else None
    results = [result for result in results if isinstance(result, Mapping)] if isinstance(results, list) else []
    calls = entry.get("tool_calls")
    calls = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    acts: list[Act] = []
    by_id = {result["source_call_id"]: result for result in results if result.get("source_call_id")}
    loose = [result for result in results if not result.get("source_call_id")]
    for position, call in enumerate(calls):
        result = by_id.get(call.get("tool_call_id")) or (loose[position] if position < len(loose) else {})
        text = text_of(result.get("content"))
        failed = bool(result.get("is_error")) or bool(_FAILED.search(text[:200]) or _FAILED.search(text[-200:]))
        acts.append(make_act(str(call.get("function_name", "")), arguments_of(call.get("arguments")), text, failed=failed))
    if not calls and loose:
        acts.append(Act(name="", result="\n".join(text_of(result.get("content")) for result in loose)))
    return Step(
        index=index, text=text_of(entry.get("message")), reasoning=text_of(entry.get("reasoning_content")), acts=tuple(acts)
    )  # fmt: skip
