"""studio/transcript.py: a rollout as something to read."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from etude.render import Renderer
from etude.studio.transcript import CLIP, Feedback, clip, legend, level, token_texts, transcript
from etude.types import Hint, Observation, Rollout, Segment, ToolCall

Make = Callable[..., Rollout]


def hint(rollout: Rollout, turn: int = 0, writer: str = "unknown_tool") -> Hint:
    return Hint(rollout_id=rollout.id, segment=0, turn=turn, writer=writer, text="Reminder: use read.")


def test_system_and_user_messages_are_decoded_from_the_very_ids_of_the_context(rollout: Make, renderer: Renderer) -> None:
    entries = transcript(rollout("hello"), hints={}, feedback={}, renderer=renderer, instruction="not this one")
    assert [(e.kind, e.role) for e in entries[:3]] == [("message", "system"), ("message", "user"), ("turn", "assistant")]
    assert entries[0].text.startswith("You repair a Python repository.")
    assert entries[1].text.startswith("The function `second`")


def test_without_a_renderer_the_instruction_stands_for_the_opening(rollout: Make) -> None:
    entries = transcript(rollout("hello"), hints={}, feedback={}, renderer=None, instruction="Write it again.")
    assert [(e.role, e.text) for e in entries[:2]] == [("user", "Write it again."), ("assistant", "hello")]


def test_a_call_is_taken_apart_and_the_prose_around_it_kept(rollout: Make) -> None:
    made = rollout("x")
    raw = '{"name": "edit", "arguments": {"path": "a.py", "old": "x = 1", "new": "x = 2\\ny = 3"}}'
    call = ToolCall(name="edit", arguments={"path": "a.py", "old": "x = 1", "new": "x = 2\ny = 3"}, raw=raw)
    turn = replace(made.segments[0].turns[0], text=f"I fix it. <tool_call>{raw}</tool_call>", calls=(call,))
    (entry, *_) = transcript(replace(made, segments=(Segment(turns=(turn,)),)), hints={}, feedback={}, renderer=None)
    assert entry.text == "I fix it."
    assert [(a.name, a.block, a.kind) for a in entry.calls[0].arguments] == [
        ("path", False, ""),
        ("old", True, "old"),
        ("new", True, "new"),
    ]


def test_a_call_that_could_not_be_read_is_shown_as_it_was_written(rollout: Make) -> None:
    made = rollout("x")
    text = '<tool_call>{"name": "edit", </tool_call>'
    turn = replace(made.segments[0].turns[0], text=text, calls=(ToolCall(name="", arguments={}, raw='{"name": "edit", '),))
    (entry, *_) = transcript(replace(made, segments=(Segment(turns=(turn,)),)), hints={}, feedback={}, renderer=None)
    assert (entry.text, entry.calls) == (text, ())


def test_results_carry_their_error_in_words(rollout: Make) -> None:
    made = rollout("x")
    turn = replace(made.segments[0].turns[0], observations=(Observation(text="no such tool", error="unknown_tool"),))
    entries = transcript(replace(made, segments=(Segment(turns=(turn,)),)), hints={}, feedback={}, renderer=None)
    assert [(e.kind, e.error) for e in entries] == [("turn", "unknown tool"), ("tool", "unknown tool")]


def test_turns_are_numbered_across_segments_with_a_mark_between_them(rollout: Make) -> None:
    made = rollout("x")
    turns = made.segments[0].turns[:2]
    entries = transcript(replace(made, segments=(Segment(turns=turns), Segment(turns=turns))), hints={}, feedback={}, renderer=None)
    assert [e.number for e in entries if e.kind == "turn"] == [1, 2, 3, 4]
    assert [e.kind for e in entries].count("gap") == 1


def test_a_system_message_between_turns_is_shown_where_the_model_read_it(rollout: Make, renderer: Renderer) -> None:
    made = rollout("x")
    first, second = made.segments[0].turns[:2]
    second = replace(second, context_ids=(*second.context_ids[: -second.header_tokens], *renderer.hint("Use read."), *renderer.header))
    entries = transcript(replace(made, segments=(Segment(turns=(first, second)),)), hints={}, feedback={}, renderer=renderer)
    at = next(i for i, e in enumerate(entries) if e.role == "system" and e.text == "Use read.")
    assert (entries[at + 1].kind, entries[at + 1].number) == ("turn", 2)


def test_the_tokens_of_a_hinted_turn_carry_their_kl_and_join_to_its_text(rollout: Make, renderer: Renderer) -> None:
    made = rollout("call x")
    ids = made.segments[0].turns[0].sampled_ids
    kl = tuple(0.3 * i for i in range(len(ids)))
    rows = {(made.id, 0, 0): [Feedback(writer="unknown_tool", gate=1.0, token_kl=kl)]}
    entries = transcript(made, hints={(made.id, 0, 0): [hint(made)]}, feedback=rows, renderer=renderer)
    (one,) = next(e for e in entries if e.number == 1).hinted
    assert "".join(t.text for t in one.tokens) == "call x<|im_end|>"
    assert [t.kl for t in one.tokens] == pytest.approx(kl)
    assert one.hint is not None
    assert [t.first for t in one.strongest] == [7, 6, 5, 4, 3]
    assert all(not e.hinted for e in entries if e.number != 1)


def test_tokens_that_share_a_character_are_one_piece_with_the_sum_of_their_kl(rollout: Make, renderer: Renderer) -> None:
    made = rollout("aé漢")
    kl = (0.0, 0.1, 0.2, 1.0, 1.0, 1.0, 0.0)  # a byte each: a, é é, 漢 漢 漢, stop
    rows = {(made.id, 0, 0): [Feedback(writer="w", gate=None, token_kl=kl)]}
    (one,) = next(e for e in transcript(made, hints={}, feedback=rows, renderer=renderer) if e.number == 1).hinted
    assert [(t.text, t.count, round(t.kl, 6)) for t in one.tokens] == [("a", 1, 0), ("é", 2, 0.3), ("漢", 3, 3), ("<|im_end|>", 1, 0)]


def test_broken_characters_lose_no_token(renderer: Renderer) -> None:
    ids = renderer.encode("漢")[:2]
    whole = (*ids, *renderer.encode("b"), *ids)
    pieces = token_texts(whole, renderer.decode)
    assert sum(count for _, count in pieces) == len(whole)
    assert "".join(text for text, _ in pieces) == renderer.decode(whole)


def test_a_decoder_that_rewrites_its_beginning_loses_no_token() -> None:
    def decode(ids: tuple[int, ...]) -> str:  # strips the leading space only of a lone token
        return "".join(" w" for _ in ids) if len(ids) > 1 else "w"

    assert sum(count for _, count in token_texts((1, 2, 3), decode)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", ["no renderer", "another length"])
def test_where_values_cannot_be_put_on_text_they_are_bars_and_the_reason_is_given(rollout: Make, renderer: Renderer, broken: str) -> None:
    made = rollout("call x")
    kl = (0.5,) * (7 if broken == "no renderer" else 3)
    rows = {(made.id, 0, 0): [Feedback(writer="w", gate=1.0, token_kl=kl)]}
    entries = transcript(made, hints={}, feedback=rows, renderer=None if broken == "no renderer" else renderer)
    (one,) = next(e for e in entries if e.number == 1).hinted
    assert one.tokens == ()
    assert str(one.strip).count("<rect") == len(kl)
    assert one.problem is not None
    assert "bars" in one.problem


def test_hints_find_their_feedback_by_writer(rollout: Make, renderer: Renderer) -> None:
    made = rollout("x")
    key = (made.id, 0, 0)
    rows = {key: [Feedback(writer="b", gate=0.0, token_kl=(1.0, 1.0)), Feedback(writer="a", gate=1.0, token_kl=(2.0, 2.0))]}
    entries = transcript(made, hints={key: [hint(made, writer="a"), hint(made, writer="b")]}, feedback=rows, renderer=renderer)
    hinted = next(e for e in entries if e.number == 1).hinted
    assert [(h.hint.writer, h.feedback.gate) for h in hinted if h.hint and h.feedback] == [("a", 1.0), ("b", 0.0)]


def test_a_hint_without_feedback_says_that_nothing_was_computed(rollout: Make, renderer: Renderer) -> None:
    made = rollout("x")
    entries = transcript(made, hints={(made.id, 0, 0): [hint(made)]}, feedback={}, renderer=renderer)
    (one,) = next(e for e in entries if e.number == 1).hinted
    assert one.problem == "training computed no KL for this turn"


def test_levels_meet_the_ranges_of_the_legend() -> None:
    assert [level(v) for v in (0, 0.019, 0.02, 0.1, 0.49, 0.5, 2, 9)] == [0, 0, 1, 2, 2, 3, 4, 4]
    assert legend() == [(0, "below 0.02"), (1, "0.02 to 0.1"), (2, "0.1 to 0.5"), (3, "0.5 to 2"), (4, "2 and more")]


def test_long_texts_are_cut_and_the_cut_is_counted() -> None:
    assert clip("x" * (CLIP + 7)) == ("x" * CLIP, 7)
    assert clip("short") == ("short", 0)
