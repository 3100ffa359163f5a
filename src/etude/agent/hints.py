"""The words of hints, one text per kind of bad call: at most 40 tokens each, so that a teacher's branch stays short.

They live here, below feedback/, because the warm start shows a model the same words that training then uses.

Not here: which turn gets one (feedback/).
"""

from etude.agent.calls import write_call
from etude.agent.schema import example
from etude.agent.tools import TOOLS
from etude.types import CallError


def hint_text(kind: CallError, tool: str | None = None) -> str:
    """What was wanted at a turn that failed in this way; `tool`: the one that was called, where there is one of this name."""
    match kind:
        case "unknown_tool":
            return f"Reminder: the available tools are {', '.join(TOOLS)}."
        case "malformed_call":
            return f"Reminder: write one call as {write_call('search', {'pattern': 'x'})}"
        case "bad_arguments":
            name = tool if tool is not None and tool in TOOLS else "read"
            return f"Reminder: {name} takes {example(TOOLS[name].schema)}."
        case "edit_not_found":
            return "Reminder: read the file first and copy old exactly from it, with enough lines to be unique."
        case "finished_untested":
            return "Reminder: run the tests after the last edit, before finish."
        case "tool_failed":
            return "Reminder: use paths that list or search have shown."
