"""Hint for arguments that do not fit: shows what that tool takes.

In: a turn. Out: the hint's text, or None where the turn is fine. Not here: the words (agent/hints.py).
"""

from etude.agent.hints import hint_text
from etude.types import Turn


def write(turn: Turn) -> str | None:
    for call, observation in zip(turn.calls, turn.observations, strict=False):  # the turn may have been cut short
        if observation.error == "bad_arguments":
            return hint_text("bad_arguments", call.name)
    return None
