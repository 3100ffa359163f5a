"""What the loop itself decides."""

import pytest

from etude.errors import NoSignal
from etude.train import PATIENCE, require_signal


@pytest.mark.parametrize(("step", "steps"), [(PATIENCE, 10), (PATIENCE + 1, 10), (2, 2)])
def test_a_run_without_an_informative_group_stops_and_says_why(step, steps):
    with pytest.raises(NoSignal, match=rf"first {step} steps .*mean 0\.25"):
        require_signal(0, step, steps=steps, reward_mean=0.25)


@pytest.mark.parametrize(("informative", "step"), [(1, PATIENCE), (0, PATIENCE - 1)])
def test_one_informative_group_is_enough_and_a_first_step_without_one_is_borne(informative, step):
    require_signal(informative, step, steps=10, reward_mean=0.25)
