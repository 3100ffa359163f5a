"""One token by inverting the distribution function: exact shares, no token of probability zero, clear errors."""

import math

import pytest
import torch

from etude.engine.sampling import sample
from etude.errors import EngineError


def draw(logits: torch.Tensor, uniforms: list[float], temperature: float = 1.0) -> tuple[list[int], list[float]]:
    return sample(logits.expand(len(uniforms), -1), [temperature] * len(uniforms), uniforms)


@pytest.mark.parametrize("size", [5, 256, 257, 1000])
def test_each_token_has_its_share_of_the_unit_interval(size: int) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 2
    uniforms = [(i + 0.5) / 20000 for i in range(20000)]  # evenly spread: the counts are the shares
    ids, logprobs = draw(logits, uniforms)
    expected = logits.softmax(0)
    counts = torch.bincount(torch.tensor(ids), minlength=size) / 20000
    assert (counts - expected).abs().max() < 2e-4
    assert ids == sorted(ids)
    assert torch.allclose(torch.tensor(logprobs), expected.log()[ids], atol=1e-5)


def test_temperature_is_part_of_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 3.0])
    ids, logprobs = draw(logits, [0.0, 0.999], temperature=2.0)
    assert torch.allclose(torch.tensor(logprobs), (logits / 2).log_softmax(0)[ids], atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1e-12, 0.5, 1 - 2**-53, 1.0])
def test_impossible_tokens_are_never_taken_even_at_the_ends(uniform: float) -> None:
    logits = torch.full((600,), -math.inf)
    logits[[100, 300, 301]] = torch.tensor([0.3, -80.0, 0.1])
    assert draw(logits, [uniform])[0][0] in (100, 301)
    logits[:] = -math.inf
    logits[599] = 0.0
    assert draw(logits, [uniform]) == ([599], [0.0])


def test_rows_do_not_mix() -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(1))
    together = sample(logits, [1.0, 0.0, 0.5], [0.3, 0.9, 0.7])
    apart = [sample(logits[i : i + 1], [t], [u]) for i, (t, u) in enumerate([(1.0, 0.3), (0.0, 0.9), (0.5, 0.7)])]
    assert together == ([ids[0] for ids, _ in apart], [logprobs[0] for _, logprobs in apart])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_an_error(value: float) -> None:
    logits = torch.zeros(2, 10)
    logits[1, 3] = value
    with pytest.raises(EngineError, match="NaN or infinite"):
        sample(logits, [1.0, 1.0], [0.5, 0.5])
    with pytest.raises(EngineError, match="NaN or infinite"):
        draw(torch.full((10,), -math.inf), [0.5])
