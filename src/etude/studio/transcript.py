"""A rollout as something to read: messages, turns, calls and their results, and the tokens of a hinted turn with their KL.

In: a Rollout, the hints and the per-token KL of its turns, a Renderer where there is one (it turns ids into text; without it the text
kept in the records is used and a hinted turn shows its KL as bars). Out: plain entries for the template. All text stays raw here; the
template makes it fit to be shown (text.py).

Not here: which rollouts are shown (report.py).
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from etude.render import Renderer
from etude.studio.charts import short, token_strip
from etude.types import Hint, Rollout, Segment, ToolCall, Turn

KL_LEVELS = (0.02, 0.1, 0.5, 2.0)  # nats: where a token's mark grows stronger; the legend prints them
STRONGEST = 5  # tokens that are also listed in words
CLIP = 6000  # characters of one text
INLINE = 80  # characters of an argument that stays on the line of its call

TurnKey = tuple[str, int, int]  # rollout id, segment, turn
CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
CALL_TAGS = "<tool_call>", "</tool_call>"

ERRORS = {
    "unknown_tool": "unknown tool",
    "malformed_call": "malformed call",
    "bad_arguments": "bad arguments",
    "edit_not_found": "edit: text not found",
    "finished_untested": "finished without a test run",
    "tool_failed": "tool failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What training computed for one hinted turn."""

    writer: str
    gate: float | None  # 0: the hint did not make the bad turn less likely and was not used
    effect: float | None = None  # nats a token by which the hint changes the turn's log-probability; below 0: less likely
    token_kl: tuple[float, ...]  # nats, one per sampled token


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    text: str  # of one token, or of several that share a character
    kl: float
    level: int  # 0 to 4
    first: int  # number of its first token within the turn, from 1
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    name: str
    text: str
    block: bool  # on lines of its own
    kind: str = ""  # "old" and "new" text of an edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str  # "" where the call could not be read
    arguments: tuple[Argument, ...]
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedTokens:
    """The hint of a turn and what it did to each token."""

    hint: Hint | None
    feedback: Feedback | None
    tokens: tuple[Token, ...] = ()
    strongest: tuple[Token, ...] = ()
    strip: Markup | None = None
    problem: str | None = None  # why there are no coloured tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    kind: str  # message, turn, tool, gap
    role: str  # system, user, assistant, tool, or a note
    text: str = ""
    number: int = 0  # of the turn, from 1
    num_tokens: int = 0
    calls: tuple[Call, ...] = ()
    error: str | None = None  # in words
    hinted: tuple[HintedTokens, ...] = ()


def transcript(
    rollout: Rollout,
    *,
    hints: Mapping[TurnKey, Sequence[Hint]],
    feedback: Mapping[TurnKey, Sequence[Feedback]],
    renderer: Renderer | None,
    instruction: str = "",
) -> list[Entry]:
    """Everything that was said, in order. `instruction`: shown as the user's message where no renderer can decode the real one."""
    entries: list[Entry] = []
    number = 0
    for at, segment in enumerate(rollout.segments):
        if at:
            entries.append(Entry(kind="gap", role="note", text="the context was compacted here"))
        entries += _opening(segment, renderer, instruction)
        for index, turn in enumerate(segment.turns):
            number += 1
            key = (rollout.id, at, index)
            if index and renderer is not None:  # what the model read between turns, but for the results of its calls: hints in context
                between = _messages(renderer.decode(turn.context_ids))
                entries += [Entry(kind="message", role=role, text=text) for role, text in between if role == "system"]
            hinted = hinted_tokens(turn, hints.get(key, ()), feedback.get(key, ()), renderer)
            entries.append(_turn(turn, number, hinted))
            entries += [
                Entry(kind="tool", role="tool", text=one.text, error=None if one.error is None else ERRORS.get(one.error, one.error))
                for one in turn.observations
            ]
    return entries


def _opening(segment: Segment, renderer: Renderer | None, instruction: str) -> list[Entry]:
    if renderer is None or not segment.turns:
        return [Entry(kind="message", role="user", text=instruction)] if instruction else []
    first = segment.turns[0]
    text = renderer.decode(first.context_ids[: len(first.context_ids) - first.header_tokens])
    found = _messages(text) or [("context", text)]
    return [Entry(kind="message", role=role, text=content) for role, content in found]


def _messages(text: str) -> list[tuple[str, str]]:
    """Messages of a decoded context; none where the template is not ChatML."""
    return [(match[1], match[2]) for match in CHATML.finditer(text)]


def _turn(turn: Turn, number: int, hinted: tuple[HintedTokens, ...]) -> Entry:
    calls = tuple(_call(call) for call in turn.calls)
    prose = turn.text
    if all(call.name for call in calls):
        for call in turn.calls:
            prose = _without(prose, call.raw)
    else:
        calls = ()  # a call that could not be read is shown as it was written
    error = next((ERRORS.get(o.error, o.error) for o in turn.observations if o.error is not None), None)
    return Entry(
        kind="turn",
        role="assistant",
        text=prose.strip(),
        number=number,
        num_tokens=len(turn.sampled_ids),
        calls=calls,
        error=error,
        hinted=hinted,
    )


def _without(text: str, raw: str) -> str:
    """The text without one call and its tags."""
    start, stop = CALL_TAGS
    whole = f"{start}{raw}{stop}"
    return text.replace(whole, "", 1) if whole in text else text.replace(raw, "", 1)


def _call(call: ToolCall) -> Call:
    return Call(name=call.name, arguments=tuple(_argument(name, value) for name, value in call.arguments.items()), raw=call.raw)


def _argument(name: str, value: Any) -> Argument:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kind = next((kind for kind in ("old", "new") if name == kind or name.startswith(f"{kind}_")), "")
    return Argument(name=name, text=text, block=bool(kind) or "\n" in text or len(text) > INLINE, kind=kind)


def hinted_tokens(turn: Turn, hints: Sequence[Hint], feedback: Sequence[Feedback], renderer: Renderer | None) -> tuple[HintedTokens, ...]:
    """One entry per hint of a turn, joined with its feedback by writer. Usually there is none, or one."""
    rest = list(feedback)
    joined = []
    for hint in hints:
        mine = next((f for f in rest if f.writer == hint.writer), None)
        if mine is not None:
            rest.remove(mine)
        joined.append(_coloured(turn, hint, mine, renderer))
    return (*joined, *(_coloured(turn, None, one, renderer) for one in rest))


def _coloured(turn: Turn, hint: Hint | None, feedback: Feedback | None, renderer: Renderer | None) -> HintedTokens:
    if feedback is None or not feedback.token_kl:
        return HintedTokens(hint=hint, feedback=feedback, problem="training computed no KL for this turn")
    kl = feedback.token_kl
    if renderer is None or len(kl) != len(turn.sampled_ids):
        strip = token_strip(kl, [level(v) for v in kl], [""] * len(kl), label="KL of each token of the hinted turn")
        why = "no tokenizer was at hand" if renderer is None else f"{len(kl)} values for {len(turn.sampled_ids)} tokens"
        return HintedTokens(hint=hint, feedback=feedback, strip=strip, problem=f"bars instead of coloured text: {why}")
    tokens, first = [], 1
    for text, count in token_texts(turn.sampled_ids, renderer.decode):
        value = sum(kl[first - 1 : first - 1 + count])
        tokens.append(Token(text=text, kl=value, level=level(value), first=first, count=count))
        first += count
    strongest = sorted((t for t in tokens if t.level > 0), key=lambda t: (-t.kl, t.first))[:STRONGEST]
    strip = token_strip(
        [t.kl for t in tokens], [t.level for t in tokens], [repr(t.text) for t in tokens], label="KL of each token of the turn"
    )
    return HintedTokens(hint=hint, feedback=feedback, tokens=tuple(tokens), strongest=tuple(strongest), strip=strip)


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[tuple[str, int]]:
    """(text, number of tokens) in order; tokens that only together make a character are one piece. Joined they are the decoded whole."""
    pieces: list[tuple[str, int]] = []
    shown, waiting = "", 0
    for stop in range(1, len(ids) + 1):
        waiting += 1
        text = decode(ids[:stop])
        if text.startswith(shown) and (not text.endswith("\ufffd") or stop == len(ids)):
            pieces.append((text[len(shown) :], waiting))
            shown, waiting = text, 0
    if waiting and pieces:  # a decoder that rewrote its beginning: give what is left to the last piece
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + waiting)
    return pieces or [(decode(ids), len(ids))]


def level(kl: float) -> int:
    return bisect_right(KL_LEVELS, kl)


def legend() -> list[tuple[int, str]]:
    """(level, range in nats), weakest first."""
    ends = [short(v) for v in KL_LEVELS]
    middle = [f"{a} to {b}" for a, b in pairwise(ends)]
    return list(enumerate([f"below {ends[0]}", *middle, f"{ends[-1]} and more"]))


def clip(text: str) -> tuple[str, int]:
    """At most CLIP characters from the beginning, and how many were left out."""
    return text[:CLIP], max(0, len(text) - CLIP)
