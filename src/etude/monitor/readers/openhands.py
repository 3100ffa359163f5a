"""OpenHands: events, as one JSON list, as the `history` of a line of output.jsonl, or as one file each in a folder.

    {"id": 3, "source": "agent", "action": "run", "args": {"command": "ls", "thought": ...}}
    {"id": 4, "cause": 3, "observation": "run", "content": ..., "extras": {"metadata": {"exit_code": 0}}}
    {"instance_id": ..., "instruction": ..., "test_result": {"git_patch": ...}, "history": [...]}

The newer SDK writes {"kind": "ActionEvent", "thought": [...], "action": {"kind": ..., "command": ...}, "tool_name", "tool_call_id"} and
{"kind": "ObservationEvent", "tool_call_id", "observation": {...}}; the older output.jsonl has pairs of action and observation.

Not here: other formats.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from etude.monitor.readers.shape import arguments_of, make_act, text_of
from etude.monitor.trajectory import Act, Step, Trajectory

SOURCE = "openhands"
_FAILED = re.compile(r"exit code:? ([1-9]\d*)|^ERROR", re.IGNORECASE)
_SILENT = frozenset(
    {"message", "system", "recall", "condensation", "condensation_request", "change_agent_state", "agent_state_changed", "null"}
)


def is_event(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return ("source" in value and ("action" in value or "observation" in value)) or str(value.get("kind", "")).endswith("Event")


def is_record(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(is_event(event) for event in value[:3])
    if not isinstance(value, Mapping) or not isinstance(value.get("history"), list):
        return False
    history = value["history"]
    return "instance_id" in value or "test_result" in value or (bool(history) and is_event(history[0]))


def read(value: Mapping[str, Any] | Sequence[Any], name: str) -> Trajectory:
    """`name`: of the file, for a record without an instance. Raises ValueError."""
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {"history": value}
    events: list[Mapping[str, Any]] = []
    for number, event in enumerate(fields["history"], 1):
        for one in event if isinstance(event, list) else [event]:
            if not isinstance(one, Mapping):
                raise ValueError(f"event {number} is no object")
            events.append(one)
    result = fields.get("test_result")
    result = result if isinstance(result, Mapping) else {}
    report = result.get("report") or fields.get("report")
    resolved = report.get("resolved") if isinstance(report, Mapping) else fields.get("resolved")
    instance = str(fields.get("instance_id") or name)
    return Trajectory(
        id=instance,
        source=SOURCE,
        steps=tuple(_steps(events)),
        task_id=instance,
        instruction=text_of(fields.get("instruction")) or _first_message(events),
        patch=text_of(result.get("git_patch")) or text_of(fields.get("git_patch")),
        solved=resolved if isinstance(resolved, bool) else None,
    )


def _first_message(events: Sequence[Mapping[str, Any]]) -> str:
    for event in events:
        if event.get("source") == "user":
            arguments = event.get("args")
            message = event.get("llm_message")
            return (
                text_of(arguments.get("content"))
                if isinstance(arguments, Mapping)
                else text_of(message if message is not None else event.get("message"))
            )
    return ""


def _steps(events: Sequence[Mapping[str, Any]]) -> list[Step]:
    answers = _answers(events)
    steps: list[Step] = []
    for position, event in enumerate(events):
        if str(event.get("kind")) == "ActionEvent":
            steps.append(_new_step(len(steps), event, answers))
        elif event.get("source") == "agent" and isinstance(event.get("action"), str):
            steps.append(_old_step(len(steps), event, answers, events[position + 1 : position + 2]))
        elif event.get("source") == "agent" and str(event.get("kind")) == "MessageEvent":
            steps.append(Step(index=len(steps), text=text_of(event.get("llm_message"))))
    return steps


def _answers(events: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    found: dict[Any, Mapping[str, Any]] = {}
    for event in events:
        if "observation" in event or event.get("kind") in ("ObservationEvent", "AgentErrorEvent"):
            for key in (event.get("cause"), event.get("tool_call_id"), event.get("action_id")):
                if isinstance(key, str | int):
                    found.setdefault(key, event)
    return found


def _new_step(index: int, event: Mapping[str, Any], answers: Mapping[Any, Mapping[str, Any]]) -> Step:
    action = event.get("action")
    arguments = {key: item for key, item in action.items() if key != "kind"} if isinstance(action, Mapping) else {}
    if not arguments and isinstance(call := event.get("tool_call"), Mapping):
        arguments = arguments_of(call.get("arguments") or (call.get("function") or {}).get("arguments"))
    answer = answers.get(event.get("tool_call_id")) or answers.get(event.get("id")) or {}
    seen = answer.get("observation")
    seen = seen if isinstance(seen, Mapping) else {"content": answer.get("error", "")}
    text = text_of(seen.get("content")) or text_of(seen.get("output"))
    failed = bool(seen.get("is_error") or seen.get("error") or seen.get("exit_code"))
    act = make_act(str(event.get("tool_name", "")), arguments, text, failed=failed)
    return Step(index=index, text=text_of(event.get("thought")), reasoning=text_of(event.get("reasoning_content")), acts=(act,))


def _old_step(index: int, event: Mapping[str, Any], answers: Mapping[Any, Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Step:
    kind = str(event["action"])
    arguments = arguments_of(event.get("args"))
    said = [text_of(arguments.pop("thought", ""))]
    said += [text_of(arguments.get(key)) for name, key in (("message", "content"), ("finish", "final_thought")) if kind == name]
    text = "\n".join(part for part in said if part)
    if kind in _SILENT:
        return Step(index=index, text=text)
    if kind == "think":
        return Step(index=index, text="", reasoning=text)
    answer = answers.get(event.get("id")) or next((one for one in after if "observation" in one), {})
    extras = answer.get("extras")
    extras = extras if isinstance(extras, Mapping) else {}
    metadata = extras.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, Mapping) else extras.get("exit_code")
    result = text_of(answer.get("content"))
    failed = (
        code not in (0, None, -1) or answer.get("observation") == "error" or bool(_FAILED.search(result[-200:]) if code is None else False)
    )
    act = make_act(kind, arguments, result, failed=failed)
    return Step(index=index, text=text, acts=(act,) if kind != "finish" else (Act(name="finish", arguments=arguments, result=result),))
