"""QK-clip brings the largest logit of every head back to the threshold, and leaves the others alone."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from etude.optim.qk_clip import clip_factors, clip_heads, clip_latent_heads, scale_rows
from tests.distributed.ranks import run_threads


def weight(rows: int, cols: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def head_logits(query: torch.Tensor, key: torch.Tensor, hidden: torch.Tensor, heads: int, key_heads: int) -> torch.Tensor:
    q = (hidden @ query.T).unflatten(-1, (heads, -1))
    k = (hidden @ key.T).unflatten(-1, (key_heads, -1)).repeat_interleave(heads // key_heads, dim=1)
    return torch.einsum("shd,thd->hst", q, k).amax((1, 2))


@pytest.mark.parametrize("key_heads", [4, 2])
def test_heads_above_the_threshold_come_back_to_it(key_heads: int) -> None:
    query, key, hidden = weight(12, 10, 0), weight(3 * key_heads, 10, 1), weight(7, 10, 2)
    before = head_logits(query, key, hidden, 4, key_heads)
    threshold = float(before.median())
    clip_heads(query, key, before, threshold)
    torch.testing.assert_close(head_logits(query, key, hidden, 4, key_heads), before.clamp(max=threshold))


def test_latent_heads_scale_each_part_so_that_their_sum_is_clipped() -> None:
    nope, rope, value, heads = 4, 2, 3, 3
    query, key_value, hidden = weight(heads * (nope + rope), 5, 0), weight(heads * (nope + value), 5, 1), weight(6, 5, 2)
    shared_rope = weight(6, rope, 3)

    def logits() -> torch.Tensor:
        q = (hidden @ query.T).unflatten(-1, (heads, nope + rope))
        k = (hidden @ key_value.T).unflatten(-1, (heads, nope + value))
        both = torch.einsum("shd,thd->hst", q[..., :nope], k[..., :nope]) + torch.einsum("shd,td->hst", q[..., nope:], shared_rope)
        return both.amax((1, 2))

    values = key_value.unflatten(0, (heads, -1))[:, nope:].clone()
    before = logits()
    threshold = float(before.median())
    clip_latent_heads(query, key_value, before, threshold, nope=nope, rope=rope, value=value)
    torch.testing.assert_close(logits(), before.clamp(max=threshold))
    assert torch.equal(key_value.unflatten(0, (heads, -1))[:, nope:], values)


def test_each_rank_scales_its_own_rows() -> None:
    factors = torch.arange(1.0, 11.0, dtype=torch.float64)

    def worker() -> torch.Tensor:
        mesh = init_device_mesh("cpu", (4,))
        parameter = distribute_tensor(weight(10, 3, 0), mesh, [Shard(0)])
        scale_rows(parameter, factors)
        return parameter.full_tensor()

    for scaled in run_threads(worker, 4):
        assert torch.equal(scaled, weight(10, 3, 0) * factors[:, None])


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold 0: must be positive"):
        clip_factors(torch.ones(2), 0)
    with pytest.raises(ValueError, match="5 logits for a query projection of 12 rows"):
        clip_heads(weight(12, 3, 0), weight(12, 3, 1), torch.ones(5), 100)
    with pytest.raises(ValueError, match=r"3 heads of 4 \+ 2 and 4 \+ 3 rows do not make 18 and 20 rows"):
        clip_latent_heads(weight(18, 3, 0), weight(20, 3, 1), torch.ones(3), 100, nope=4, rope=2, value=3)
