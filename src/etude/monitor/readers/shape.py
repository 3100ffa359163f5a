"""What the readers share: texts out of messages of any shape, and acts out of tool calls of any name.

In: decoded JSON. Out: strings and Acts. Nothing here raises for odd data: what cannot be understood is empty.

Not here: any format.
"""

import json
from collections.abc import Mapping
from typing import Any

from etude.monitor.trajectory import Act

SHELLS = frozenset({
    "run", "bash", "sh", "shell", "terminal", "execute_bash", "execute_command", "run_command", "run_shell_command", "bash_command",
    "shell_command", "exec", "execute", "command", "local_shell", "exec_command",
})  # fmt: skip
NOTEBOOKS = frozenset({"execute_ipython_cell", "run_ipython", "python", "ipython", "execute_python", "jupyter"})
EDITOR_VERBS = frozenset({"view", "create", "str_replace", "insert", "undo_edit"})
COMMAND_KEYS = ("command", "cmd", "commands", "keystrokes", "script", "bash", "input")
PATH_KEYS = ("path", "file_path", "filepath", "filePath", "filename", "file", "absolute_path", "notebook_path")


def text_of(value: Any) -> str:
    """A message's content: a string, a list of parts, or an object with a text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(part for part in map(text_of, value) if part)
    if isinstance(value, Mapping):
        for key in ("text", "content", "output"):
            if key in value:
                return text_of(value[key])
    return ""


def first_text(fields: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = fields.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return " ".join(value) if key != "commands" else "\n".join(value)
    return ""


def arguments_of(value: Any) -> dict[str, Any]:
    """A call's arguments: an object, or one as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {"input": value}
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def make_act(name: str, arguments: Mapping[str, Any], result: str = "", *, failed: bool = False) -> Act:
    """An Act whose `command` and `path` are told from the name and the arguments of the call."""
    command = ""
    base = name.rpartition(".")[2].lower()
    if base in NOTEBOOKS and (code := first_text(arguments, ("code", "command", "input"))):
        command = as_python(code)
    elif base in SHELLS or ("command" in arguments and arguments["command"] not in EDITOR_VERBS):
        command = first_text(arguments, COMMAND_KEYS)
    return Act(name=name, arguments=arguments, command=command, path=first_text(arguments, PATH_KEYS), result=result, failed=failed)


def as_python(code: str) -> str:
    """The shell command that runs this code."""
    return f"python - <<'ETUDE_END'\n{code}\nETUDE_END"
