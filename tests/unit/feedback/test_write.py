import pytest

from etude.agent.hints import hint_text
from etude.feedback import WRITERS, write_hints
from etude.types import CallError, Hint, Observation, Rollout, Segment, ToolCall, Turn


def turn(*errors: CallError | None, tool: str = "read", sampled: bool = True) -> Turn:
    return Turn(
        context_ids=(1, 2),
        header_tokens=1,
        sampled_ids=(3,) if sampled else (),
        logprobs=(0.0,) if sampled else (),
        versions=(0,) if sampled else (),
        text="",
        calls=tuple(ToolCall(name=tool, arguments={}, raw="") for _ in errors),
        observations=tuple(Observation(text="", error=error) for error in errors),
    )


def rollout(*segments: tuple[Turn, ...]) -> Rollout:
    return Rollout(id="r", task_id="t", group="g", seed=0, status="finished", segments=tuple(Segment(turns=turns) for turns in segments))


def where(hints: list[Hint]) -> list[tuple[int, int, str]]:
    return [(hint.segment, hint.turn, hint.writer) for hint in hints]


def test_turns_without_an_error_of_the_model_get_no_hint() -> None:
    assert write_hints(rollout((turn(None), turn("tool_failed"), turn()))) == []
    assert write_hints(rollout()) == []


@pytest.mark.parametrize(
    ("error", "writer"),
    [
        ("unknown_tool", "unknown_tool"),
        ("malformed_call", "malformed_call"),
        ("bad_arguments", "bad_arguments"),
        ("edit_not_found", "edit_not_found"),
        ("finished_untested", "untested_finish"),
    ],
)
def test_each_error_gets_the_hint_of_its_writer_at_its_turn(error: CallError, writer: str) -> None:
    hints = write_hints(rollout((turn(None), turn(error, tool="edit")), (turn(None, error, tool="edit"),)))
    text = hint_text(error, "edit")
    assert hints == [Hint(rollout_id="r", segment=s, turn=t, writer=writer, text=text) for s, t in ((0, 1), (1, 0))]


def test_the_hint_for_wrong_arguments_is_about_the_tool_that_had_them() -> None:
    calls = (ToolCall(name="run", arguments={}, raw=""), ToolCall(name="search", arguments={}, raw=""))
    observations = (Observation(text=""), Observation(text="", error="bad_arguments"))
    bad = Turn(
        context_ids=(1,), header_tokens=1, sampled_ids=(2,), logprobs=(0.0,), versions=(0,), text="", calls=calls, observations=observations
    )
    assert write_hints(rollout((bad,)))[0].text == hint_text("bad_arguments", "search")


def test_a_turn_gets_one_hint_by_the_order_of_the_writers() -> None:
    assert where(write_hints(rollout((turn("edit_not_found", "unknown_tool"),)))) == [(0, 0, "unknown_tool")]


def test_a_turn_without_a_sampled_token_gets_none() -> None:
    assert write_hints(rollout((turn("malformed_call", sampled=False),))) == []


def test_where_there_are_too_many_each_kind_comes_before_repetitions() -> None:
    turns = [turn("unknown_tool") for _ in range(6)] + [turn("edit_not_found"), turn("finished_untested")]
    assert where(write_hints(rollout(tuple(turns)), max_per_rollout=4)) == [
        (0, 0, "unknown_tool"),
        (0, 1, "unknown_tool"),
        (0, 6, "edit_not_found"),
        (0, 7, "untested_finish"),
    ]
    assert write_hints(rollout(tuple(turns)), max_per_rollout=0) == []


def test_only_the_chosen_writers_write() -> None:
    chosen = {"malformed_call": WRITERS["malformed_call"]}
    assert where(write_hints(rollout((turn("unknown_tool"), turn("malformed_call"))), writers=chosen)) == [(0, 1, "malformed_call")]
