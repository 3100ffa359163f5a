"""SWE-agent's `.traj`: `trajectory` holds thought, action and observation of every turn, `info` what was submitted.

    {"environment": ..., "trajectory": [{"response", "thought", "action", "observation", "state", ...}],
     "history": [{"role": "user", "content": ...}, ...], "info": {"exit_status": "submitted", "submission": "diff --git ..."}}

An action is a shell command, or one of its own tools on a command line: str_replace_editor view|create|str_replace|insert PATH, the older
open, goto, create, edit, find_file, search_dir, search_file, submit.

Not here: other formats.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from etude.monitor.readers.shape import EDITOR_VERBS, text_of
from etude.monitor.trajectory import Act, Step, Trajectory

SOURCE = "swe-agent"
_EDITORS = ("str_replace_editor", "edit_anthropic", "str_replace_based_edit_tool")
_OWN = frozenset({"open", "goto", "scroll_up", "scroll_down", "create", "edit", "submit", "exit_cost", "search_file", "search_dir"})
_FAILED = re.compile(r"Traceback \(most recent call last\)|command not found|No such file or directory|\b[1-9]\d* (?:failed|errors?)\b")


def is_record(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("trajectory"), list):
        return False
    steps = value["trajectory"]
    return isinstance(value.get("info"), Mapping) or any(isinstance(step, Mapping) and "observation" in step for step in steps)


def read(value: Mapping[str, Any], name: str) -> Trajectory:
    """`name`: of the file, which is the instance's id. Raises ValueError."""
    info = value.get("info")
    info = info if isinstance(info, Mapping) else {}
    steps: list[Step] = []
    for number, entry in enumerate(value["trajectory"], 1):
        if not isinstance(entry, Mapping):
            raise ValueError(f"turn {number} is no object")
        steps.append(_step(len(steps), entry))
    return Trajectory(
        id=name,
        source=SOURCE,
        steps=tuple(steps),
        task_id=name,
        instruction=_instruction(value),
        patch=text_of(info.get("submission")),
        solved=info["resolved"] if isinstance(info.get("resolved"), bool) else None,
    )


def _instruction(value: Mapping[str, Any]) -> str:
    history = value.get("history")
    for message in history if isinstance(history, list) else []:
        if isinstance(message, Mapping) and message.get("role") == "user" and not message.get("is_demo"):
            return text_of(message.get("content"))
    return ""


def _step(index: int, entry: Mapping[str, Any]) -> Step:
    action, result = text_of(entry.get("action")).strip(), text_of(entry.get("observation"))
    thought = text_of(entry.get("thought")) or text_of(entry.get("response"))
    acts = (_act(action, result),) if action else ()
    return Step(index=index, text=thought, reasoning=text_of(entry.get("reasoning_content")), acts=acts)


def _act(action: str, result: str) -> Act:
    first = action.split(None, 1)[0]
    if first in _EDITORS:
        return _editor(action, first, result)
    if first in _OWN:
        return _own(action, first, result)
    return Act(name="bash", arguments={"command": action}, command=action, result=result, failed=bool(_FAILED.search(result)))


def _editor(action: str, name: str, result: str) -> Act:
    try:
        words = shlex.split(action)
    except ValueError:
        words = action.split()
    arguments: dict[str, Any] = {"command": words[1] if len(words) > 1 and words[1] in EDITOR_VERBS else ""}
    if len(words) > 2:
        arguments["path"] = words[2]
    for position, word in enumerate(words):
        if word.startswith("--") and position + 1 < len(words):
            arguments[word[2:]] = words[position + 1]
    return Act(name=name, arguments=arguments, path=str(arguments.get("path", "")), result=result, failed="ERROR" in result[:200])


def _own(action: str, name: str, result: str) -> Act:
    head, _, body = action.partition("\n")
    words = head.split()
    path = words[-1].strip("'\"") if name in ("open", "create", "search_file", "search_dir") and len(words) > 1 else ""
    arguments: dict[str, Any] = {"path": path} if path else {}
    if name == "edit":
        opened = re.search(r"\[File: (\S+)", result)
        path = opened[1] if opened else ""
        arguments = {"path": path, "new_str": re.sub(r"\n?end_of_edit\s*\Z", "", body)}
    return Act(name=name, arguments=arguments, path=path, result=result)
