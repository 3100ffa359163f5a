"""lambda(k): rises through the warm-up, holds, retires with the gap; one open hint or none."""

import pytest

from etude.config import FeedbackConfig
from etude.learn.coefficient import Gap, coefficient, observe


def run(config: FeedbackConfig, gaps: list[float | None]) -> list[float]:
    state, found = Gap(), []
    for gap in gaps:
        found.append(coefficient(config, state))
        state = observe(config, state, gap)
    return found


def test_it_rises_linearly_and_then_holds_while_the_gap_does() -> None:
    assert run(FeedbackConfig(weight=2.0, warmup_steps=3), [1.0] * 6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_it_falls_as_the_gap_closes_and_never_rises_above_the_weight() -> None:
    found = run(FeedbackConfig(weight=1.0), [1.0, 0.5, 0.5, 0.0, 0.0, 9.0, 9.0])
    assert found[:2] == [1.0, 1.0]
    assert found[2:6] == pytest.approx([0.9, 0.82, 0.656, 0.5248])
    assert found[6] == 1.0
    assert run(FeedbackConfig(weight=1.0, decay=2.0), [1.0, 0.5, 0.5])[2] == pytest.approx(0.81)


def test_without_decay_it_stays() -> None:
    assert run(FeedbackConfig(weight=0.7, decay=0.0), [1.0, 0.1, 0.01]) == [0.7, 0.7, 0.7]


def test_steps_without_an_open_hint_leave_the_gap_alone() -> None:
    assert run(FeedbackConfig(weight=1.0), [None, None, 1.0, None, 0.5, None]) == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0, 0.9])


def test_the_reference_gap_is_that_at_the_end_of_the_warm_up() -> None:
    config, state = FeedbackConfig(warmup_steps=2), Gap()
    for gap in (4.0, 4.0, 4.0):
        state = observe(config, state, gap)
    assert state == Gap(steps=3, now=4.0, first=4.0)
    early = observe(config, Gap(), 4.0)
    assert early.first is None
