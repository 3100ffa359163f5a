"""Micro-batches: budget kept, every sample once, predictors point one place before their target."""

from random import Random

import pytest

from etude.learn.batch import input_length, micro_batches, to_batch
from etude.types import Sample


def sample(length: int, sampled: set[int], name: str = "r", advantage: float = 1.0) -> Sample:
    return Sample(
        rollout_id=name,
        ids=tuple(range(100, 100 + length)),
        sampled=tuple(t in sampled for t in range(length)),
        logprobs=tuple(-float(t) if t in sampled else 0.0 for t in range(length)),
        advantage=advantage,
    )


def test_what_follows_the_last_sampled_token_is_not_read() -> None:
    assert input_length(sample(10, {3, 6})) == 6
    batch = to_batch([sample(10, {3, 6}), sample(5, {2})])
    assert batch.rows == ((100, 101, 102, 103, 104, 105), (100, 101))
    assert batch.ids.shape == (2, 6)
    assert batch.num_tokens == 8


def test_predictors_stand_one_place_before_their_targets() -> None:
    batch = to_batch([sample(10, {3, 6}, advantage=2.0), sample(5, {2}, advantage=-1.0)])
    flat = batch.ids.flatten()
    assert batch.targets_N.tolist() == [103, 106, 102]
    assert [int(flat[i]) + 1 for i in batch.predictors_N] == batch.targets_N.tolist()
    assert batch.sampler_logp_N.tolist() == [-3.0, -6.0, -2.0]
    assert batch.advantage_N.tolist() == [2.0, 2.0, -1.0]


def test_only_the_wanted_tokens_are_predicted_and_each_is_found_by_its_place() -> None:
    batch = to_batch([sample(10, {3, 6}), sample(8, {2, 5})], wanted=[{6}, {2, 3, 5}])
    assert batch.targets_N.tolist() == [106, 102, 105]
    assert batch.row_of == {(0, 6): 0, (1, 2): 1, (1, 5): 2}
    assert batch.ids.shape == (2, 6)


def test_groups_hold_every_sample_once_within_the_budget() -> None:
    random = Random(0)
    samples = [sample(n, {n - 1}) for n in (random.randint(2, 60) for _ in range(40))]
    groups = micro_batches(samples, 400)
    assert sorted(i for group in groups for i in group) == list(range(40))
    assert all(len(g) * max(input_length(samples[i]) for i in g) <= 400 for g in groups)
    assert len(groups) <= 5


def test_a_sample_longer_than_the_budget_stands_alone() -> None:
    assert micro_batches([sample(50, {49}), sample(5, {4}), sample(50, {49})], 20) == [[0], [2], [1]]


def test_a_sampled_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing predicts it"):
        input_length(sample(4, {0, 2}))
