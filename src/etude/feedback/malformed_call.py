"""Hint for a message without a call, or whose call is not JSON of the right form: shows the form.

In: a turn. Out: the hint's text, or None where the turn is fine. Not here: the words (agent/hints.py).
"""

from etude.agent.hints import hint_text
from etude.types import Turn


def write(turn: Turn) -> str | None:
    if any(o.error == "malformed_call" for o in turn.observations):
        return hint_text("malformed_call")
    return None
