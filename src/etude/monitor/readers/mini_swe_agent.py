"""mini-swe-agent's `.traj.json`: the messages of the conversation, and `info` with what was submitted.

    {"info": {"exit_status": "Submitted", "submission": "diff --git ...", "mini_version": ...}, "trajectory_format": "mini-swe-agent-1.1",
     "instance_id": ..., "messages": [{"role": "system" | "user" | "assistant" | "tool" | "exit", "content": ..., "extra": {...}}]}

Version 1 writes commands as one ```bash block and results as user messages with <returncode> and <output>; version 2 also as tool calls and
tool messages, and keeps the parsed commands in `extra.actions`.

Not here: other formats.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from etude.monitor.readers.shape import COMMAND_KEYS, arguments_of, first_text, text_of
from etude.monitor.trajectory import Act, Step, Trajectory

SOURCE = "mini-swe-agent"
_BLOCK = re.compile(r"```(?:bash|sh|mswea_bash_command)\s*\n(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"<(?:returncode|exit_code)>\s*(-?\d+)")
_OUTPUT = re.compile(r"<output(?:_head)?>\n?(.*?)\n?</output(?:_head)?>", re.DOTALL)


def is_record(value: Any) -> bool:
    if isinstance(value, list):  # the messages alone
        roles = [message.get("role") for message in value if isinstance(message, Mapping)]
        return len(roles) == len(value) > 2 and roles[:2] == ["system", "user"] and "assistant" in roles
    if not isinstance(value, Mapping) or not isinstance(value.get("messages"), list):
        return False
    return str(value.get("trajectory_format", "")).startswith("mini-swe-agent") or (
        isinstance(value.get("info"), Mapping) and ("exit_status" in value["info"] or "mini_version" in value["info"])
    )


def read(value: Mapping[str, Any] | Sequence[Any], name: str) -> Trajectory:
    """`name`: of the file, for a record without an instance. Raises ValueError."""
    if not isinstance(value, Mapping):
        value = {"messages": value}
    info = value.get("info")
    info = info if isinstance(info, Mapping) else {}
    messages = value["messages"]
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise ValueError(f"message {number} is no object")
    instance = str(value.get("instance_id") or info.get("instance_id") or name)
    return Trajectory(
        id=instance,
        source=SOURCE,
        steps=tuple(_steps(messages)),
        task_id=instance,
        instruction=next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), ""),
        patch=text_of(info.get("submission")),
        solved=info["resolved"] if isinstance(info.get("resolved"), bool) else None,
    )


def _steps(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    for position, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        answers = []
        for following in messages[position + 1 :]:
            if following.get("role") == "assistant":
                break
            answers.append(following)
        text = text_of(message.get("content"))
        commands = _commands(message, text)
        acts = tuple(_act(command, _answer(answers, number)) for number, command in enumerate(commands))
        steps.append(
            Step(index=len(steps), text=_BLOCK.sub("", text).strip(), reasoning=text_of(message.get("reasoning_content")), acts=acts)
        )
    return steps


def _commands(message: Mapping[str, Any], text: str) -> list[str]:
    extra = message.get("extra")
    actions = extra.get("actions") if isinstance(extra, Mapping) else None
    if isinstance(actions, list) and actions:
        return [first_text(one, COMMAND_KEYS) if isinstance(one, Mapping) else str(one) for one in actions]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        functions = [call.get("function", call) for call in calls if isinstance(call, Mapping)]
        return [first_text(arguments_of(one.get("arguments")), COMMAND_KEYS) for one in functions if isinstance(one, Mapping)]
    return _BLOCK.findall(text)[:1]


def _answer(answers: Sequence[Mapping[str, Any]], number: int) -> Mapping[str, Any]:
    tools = [answer for answer in answers if answer.get("role") == "tool"] or list(answers)
    return tools[number] if number < len(tools) else {}


def _act(command: str, answer: Mapping[str, Any]) -> Act:
    text = text_of(answer.get("content"))
    extra = answer.get("extra")
    extra = extra if isinstance(extra, Mapping) else {}
    found = _CODE.search(text)
    code = extra.get("returncode", int(found[1]) if found else 0)
    result = extra["raw_output"] if isinstance(extra.get("raw_output"), str) else "\n".join(_OUTPUT.findall(text)) or text
    return Act(name="bash", arguments={"command": command}, command=command, result=result, failed=bool(code))
