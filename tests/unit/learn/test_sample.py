"""Rollouts to samples: tokens flattened as they were, hints at the header of their turn, whole chain rewarded."""

import pytest

from etude.learn.sample import to_samples
from etude.types import Hint, HintSpan, Reward, Rollout, Segment, Turn


class Words:
    """Turns each letter into a token id."""

    def hint(self, text: str) -> list[int]:
        return [ord(c) for c in text]


def turn(context: tuple[int, ...], sampled: tuple[int, ...], header: int = 2) -> Turn:
    return Turn(
        context_ids=context,
        header_tokens=header,
        sampled_ids=sampled,
        logprobs=tuple(-0.1 * i for i in sampled),
        versions=tuple(3 for _ in sampled),
        text="",
    )


def rollout(name: str = "a", reward: float = 1.0) -> Rollout:
    first = Segment(turns=(turn((1, 2, 3, 4), (5, 6)), turn((7, 8, 9), (10,))))
    second = Segment(turns=(turn((1, 2), (11, 12)),))
    return Rollout(
        id=name, task_id="t", group="g", seed=0, status="finished", segments=(first, second), reward=Reward(total=reward, solved=False)
    )


def hint(segment: int, turn: int, text: str = "no", rollout_id: str = "a") -> Hint:
    return Hint(rollout_id=rollout_id, segment=segment, turn=turn, writer="rule", text=text)


def test_a_segment_becomes_one_row_of_its_tokens_in_order() -> None:
    first, second, *_ = to_samples([rollout(), rollout("b", 0.0)])
    assert first.ids == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert first.sampled == (False, False, False, False, True, True, False, False, False, True)
    assert first.logprobs == (0.0, 0.0, 0.0, 0.0, -0.5, -0.6000000000000001, 0.0, 0.0, 0.0, -1.0)
    assert first.versions == (-1, -1, -1, -1, 3, 3, -1, -1, -1, 3)
    assert second.ids == (1, 2, 11, 12)


def test_every_segment_carries_the_rollouts_advantage() -> None:
    samples = to_samples([rollout(), rollout("b", 0.0)])
    assert [(s.rollout_id, s.advantage) for s in samples] == [("a", 0.5), ("a", 0.5), ("b", -0.5), ("b", -0.5)]
    assert [s.advantage for s in to_samples([rollout()], advantages={"a": 7.0})] == [7.0, 7.0]


def test_a_hint_is_placed_before_the_header_of_its_turn() -> None:
    first, second = to_samples([rollout()], [hint(0, 1), hint(1, 0, "x")], Words())
    assert first.hints == (HintSpan(splice=7, start=9, stop=10, hint_ids=(110, 111), segment=0, turn=1, writer="rule"),)
    assert second.hints == (HintSpan(splice=0, start=2, stop=4, hint_ids=(120,), segment=1, turn=0, writer="rule"),)
    assert first.ids[first.hints[0].splice : first.hints[0].start] == (8, 9)
    assert first.ids[first.hints[0].start : first.hints[0].stop] == (10,)


def test_two_writers_at_one_turn_are_two_spans_in_a_fixed_order() -> None:
    forward = to_samples([rollout()], [hint(0, 1, "b"), hint(0, 1, "a"), hint(0, 0)], Words())[0].hints
    backward = to_samples([rollout()], [hint(0, 0), hint(0, 1, "a"), hint(0, 1, "b")], Words())[0].hints
    assert forward == backward
    assert [(s.turn, s.hint_ids) for s in forward] == [(0, (110, 111)), (1, (97,)), (1, (98,))]


def test_an_empty_hint_makes_no_span_nor_does_one_at_a_turn_that_sampled_nothing() -> None:
    silent = Rollout(
        id="a", task_id="t", group="g", seed=0, status="finished", segments=(Segment(turns=(turn((1, 2), (5,)), turn((3, 4), ()))),)
    )
    (sample,) = to_samples([silent], [hint(0, 0, ""), hint(0, 0, "  \n"), hint(0, 1, "x")], Words())
    assert sample.hints == ()


def test_a_segment_that_sampled_nothing_leaves_no_sample() -> None:
    silent = Rollout(id="a", task_id="t", group="g", seed=0, status="sandbox_lost", segments=(Segment(turns=(turn((1, 2), ()),)),))
    assert to_samples([silent]) == []


@pytest.mark.parametrize(
    ("segment", "index", "match"), [(0, 2, "turns 0 to 1"), (0, -1, "turns 0 to 1"), (2, 0, "segment 2 of rollout 'a'")]
)
def test_a_hint_for_a_turn_that_is_not_there_is_refused(segment: int, index: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        to_samples([rollout()], [hint(segment, index)], Words())


def test_hints_without_a_renderer_are_refused() -> None:
    with pytest.raises(ValueError, match="no renderer"):
        to_samples([rollout()], [hint(0, 0)])


def test_a_turn_whose_lists_differ_in_length_is_refused() -> None:
    torn = Turn(context_ids=(1,), header_tokens=1, sampled_ids=(2, 3), logprobs=(0.0,), versions=(1, 1), text="")
    bad = Rollout(id="a", task_id="t", group="g", seed=0, status="finished", segments=(Segment(turns=(torn,)),))
    with pytest.raises(ValueError, match="2 sampled tokens but 1 logprobs"):
        to_samples([bad])
