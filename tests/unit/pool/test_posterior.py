"""The formulas, against counting and against simulation."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.pool.posterior import Beta, decay, expected_informative, informative, learnability, prior, shifted, tail

betas = st.builds(Beta, st.floats(0.05, 50), st.floats(0.05, 50))


def sampled(beta: Beta, of) -> float:
    rng = random.Random(5)
    return sum(of(rng.betavariate(beta.alpha, beta.beta)) for _ in range(20_000)) / 20_000


@pytest.mark.parametrize("beta", [Beta(1, 1), Beta(0.4, 3), Beta(12, 5)])
def test_learnability_and_informativeness_are_means_over_the_posterior(beta):
    assert learnability(beta) == pytest.approx(sampled(beta, lambda p: p * (1 - p)), abs=0.004)
    assert expected_informative(beta, 8) == pytest.approx(sampled(beta, lambda p: informative(p, 8)), abs=0.01)


def test_a_group_is_informative_unless_all_are_alike():
    assert informative(0.5, 2) == 0.5
    assert informative(0.0, 8) == informative(1.0, 8) == 0.0
    assert expected_informative(Beta(1, 1), 8) == pytest.approx(1 - 2 / 9)  # each number of solved is as likely


@given(betas, st.integers(1, 20))
def test_the_tail_is_a_distribution(beta, n):
    tails = [tail(beta, k, n) for k in range(n + 2)]
    assert tails[0] == pytest.approx(1)
    assert tails[-1] == 0
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(tails))
    mean = sum(tails[1:])
    assert mean == pytest.approx(n * beta.mean, rel=1e-6)


@given(betas)
def test_learnability_is_highest_where_it_is_even_and_sure(beta):
    assert 0 < learnability(beta) < 0.25
    assert learnability(Beta(500, 500)) == pytest.approx(0.25, abs=0.001)


def test_old_evidence_weighs_less_and_the_future_counts_in_full():
    assert [decay(0.5, n) for n in (-1, 0, 1, 3)] == [1, 1, 0.5, 0.125]


def test_priors_have_the_mean_and_weight_they_are_given():
    assert prior(0.25, 2.0) == Beta(0.5, 1.5)
    assert prior(0.25, 2.0).observed(2, 0).mean == pytest.approx(0.625)


@given(st.floats(0.02, 0.98), st.floats(-3, 3))
def test_a_shift_is_in_logits(p, logits):
    assert math.log(shifted(p, logits) / (1 - shifted(p, logits))) == pytest.approx(math.log(p / (1 - p)) + logits)


@pytest.mark.parametrize(("alpha", "beta"), [(0, 1), (1, -1), (math.nan, 1), (math.inf, 1)])
def test_a_beta_needs_two_positive_numbers(alpha, beta):
    with pytest.raises(ValueError, match="above 0"):
        Beta(alpha, beta)
