"""All writers over one rollout -> its hints.

In: a Rollout. Out: at most one Hint per turn, at most `max_per_rollout` in all, in the order of the turns. Where there are more bad
turns than that, each writer's first one comes before anyone's second, so that a kind that happens often does not crowd out the others.

Not here: where a hint goes in the tokens (learn/sample.py), whether it helps (the gate of the loss).
"""

from collections import Counter
from collections.abc import Callable, Mapping

from etude.feedback import bad_arguments, edit_not_found, malformed_call, unknown_tool, untested_finish
from etude.types import Hint, Rollout, Turn

Writer = Callable[[Turn], str | None]

WRITERS: Mapping[str, Writer] = {  # the first one that has something to say about a turn says it
    "unknown_tool": unknown_tool.write,
    "malformed_call": malformed_call.write,
    "bad_arguments": bad_arguments.write,
    "edit_not_found": edit_not_found.write,
    "untested_finish": untested_finish.write,
}


def write_hints(rollout: Rollout, *, writers: Mapping[str, Writer] = WRITERS, max_per_rollout: int = 4) -> list[Hint]:
    found: list[tuple[int, Hint]] = []  # how many hints of the same writer came before
    seen: Counter[str] = Counter()
    for s, segment in enumerate(rollout.segments):
        for t, turn in enumerate(segment.turns):
            if not turn.sampled_ids:
                continue
            written = ((name, text) for name, write in writers.items() if (text := write(turn)) is not None)
            name, text = next(written, ("", ""))
            if text:
                found.append((seen[name], Hint(rollout_id=rollout.id, segment=s, turn=t, writer=name, text=text)))
                seen[name] += 1
    kept = sorted(found, key=lambda pair: pair[0])[:max_per_rollout]  # stable: earlier turns first
    return sorted((hint for _, hint in kept), key=lambda hint: (hint.segment, hint.turn))
