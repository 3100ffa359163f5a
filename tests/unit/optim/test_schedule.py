"""Learning rate schedules at the steps where they turn."""

import pytest

from etude.optim.schedule import learning_rate


def test_rise_is_linear_and_begins_above_zero() -> None:
    rates = [learning_rate(step, peak=1.0, total_steps=100, warmup_steps=4) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_without_a_rise_the_first_step_is_the_peak() -> None:
    assert learning_rate(0, peak=3e-5, total_steps=10, shape="cosine") == 3e-5


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_falling_shapes_are_halfway_in_the_middle_and_end_at_the_floor(shape: str) -> None:
    def rate(step: int, floor: float = 0.0) -> float:
        return learning_rate(step, peak=2.0, total_steps=12, warmup_steps=2, shape=shape, floor=floor)  # type: ignore[arg-type]

    assert rate(2) == 2.0
    assert rate(7) == pytest.approx(1.0)
    assert rate(12) == pytest.approx(0.0)
    assert rate(500, floor=0.1) == pytest.approx(0.2)
    falling = [rate(step) for step in range(2, 13)]
    assert falling == sorted(falling, reverse=True)


def test_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="constant, linear and cosine"):
        learning_rate(0, peak=1.0, total_steps=1, shape="step")  # type: ignore[arg-type]
