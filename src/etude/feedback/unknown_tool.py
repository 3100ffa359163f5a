"""Hint for a tool that is not there: names the ones that are.

In: a turn. Out: the hint's text, or None where the turn is fine. Not here: the words (agent/hints.py).
"""

from etude.agent.hints import hint_text
from etude.types import Turn


def write(turn: Turn) -> str | None:
    if any(o.error == "unknown_tool" for o in turn.observations):
        return hint_text("unknown_tool")
    return None
