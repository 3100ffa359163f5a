"""Causal attention with another backward: the fused forward to the bit, gradients as exact as bf16 allows, used where it gains."""

import pytest
import torch
import torch.nn.functional as F

from etude.model.attention import causal
from etude.model.matmul_attention import FUSED_FROM, causal_matmul_backward, worth_it


def inputs(tokens: int, dtype: torch.dtype, num_kv: int = 2) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(tokens)
    shapes = [(2, heads, tokens, 16) for heads in (6, num_kv, num_kv)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3, enable_gqa=True)


@pytest.mark.parametrize("num_kv", [1, 2, 6])
@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 300])
def test_value_and_gradients_equal_the_fused_kernels_in_fp64(tokens: int, num_kv: int) -> None:
    leaves = inputs(tokens, torch.float64, num_kv)
    grad = torch.randn(2, 6, tokens, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = causal_matmul_backward(*leaves, 0.3), fused(*leaves)
    assert torch.equal(ours, theirs)
    for a, b in zip(torch.autograd.grad(ours, leaves, grad), torch.autograd.grad(theirs, leaves, grad), strict=True):
        # Keys and values are summed over blocks in fp32.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_in_bf16_the_forward_is_the_fused_one_to_the_bit_and_gradients_are_within_a_percent_of_fp64() -> None:
    leaves = inputs(300, torch.bfloat16)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    output = causal(0, *leaves, 0.3)
    assert torch.equal(output, fused(*leaves))
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, wanted = torch.autograd.grad(output, leaves, grad), torch.autograd.grad(fused(*exact), exact, grad.double())
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.bfloat16
        assert float((a.double() - b).norm() / b.norm()) < 0.01


def test_it_is_used_for_short_bf16_rows_that_need_a_gradient_only() -> None:
    query = inputs(64, torch.bfloat16)[0]
    assert worth_it(query)
    assert not worth_it(query.detach())
    assert not worth_it(query.float())
    assert not worth_it(inputs(FUSED_FROM, torch.bfloat16)[0])
    with torch.no_grad():
        assert not worth_it(query)
