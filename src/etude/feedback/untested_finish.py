"""Hint for finishing without having run anything since the last edit: says to run the tests.

In: a turn. Out: the hint's text, or None where the turn is fine. Not here: the words (agent/hints.py).
"""

from etude.agent.hints import hint_text
from etude.types import Turn


def write(turn: Turn) -> str | None:
    if any(o.error == "finished_untested" for o in turn.observations):
        return hint_text("finished_untested")
    return None
