"""What the model reads first: who it is, how to call a tool, the tools, the task. Short, as every rollout pays for each token.

Not here: roles and special tokens (render.py).
"""

from collections.abc import Mapping

from etude.agent.calls import write_call
from etude.agent.output import cut
from etude.agent.tools import TESTS, TOOLS, Tool
from etude.languages.shell import shell_of
from etude.render import Message
from etude.sandbox.protocol import WORK
from etude.types import Task


def system_prompt(tools: Mapping[str, Tool] = TOOLS, *, runner: str = "pytest") -> str:
    tests = shell_of(runner).tests
    return "\n".join([
        f"You are a coding agent. The repository is in {WORK}. Each message is one tool call:",
        write_call("read", {"path": "a.py"}),
        "Tools:",
        *(f"{tool.signature}: {tool.about.replace(TESTS, tests)}" for tool in tools.values()),
    ])  # fmt: skip


def opening_messages(task: Task, *, instruction_chars: int, tools: Mapping[str, Tool] = TOOLS) -> list[Message]:
    system = system_prompt(tools, runner=task.environment.runner)
    return [("system", system), ("user", cut(task.instruction.strip(), instruction_chars, head=1.0))]
