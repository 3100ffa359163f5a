"""Hint for an edit whose old text is nowhere, or not unique: says how to get it.

In: a turn. Out: the hint's text, or None where the turn is fine. Not here: the words (agent/hints.py).
"""

from etude.agent.hints import hint_text
from etude.types import Turn


def write(turn: Turn) -> str | None:
    if any(o.error == "edit_not_found" for o in turn.observations):
        return hint_text("edit_not_found")
    return None
