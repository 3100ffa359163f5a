"""Causal attention whose backward is plain matrix products, for bf16 on a CPU.

The fused CPU kernel is fast forward, but its bf16 backward reaches a third of the machine below 768 tokens (it works on blocks of 64
queries there): measured at 4 to 8 rows of 350 to 700 tokens it takes 2 to 3 times as long as recomputing the attention of 128 queries at a
time with plain products and differentiating that; a training step of SmolLM2-135M is 10% faster. The forward is the fused kernel's,
to the bit; gradients have the accuracy of bf16 scores (0.5% against fp64, the fused backward's 0.25 to 0.6%).

    B rows, H query heads, K key/value heads, T tokens, D head size

Not here: other devices and types, where the fused kernel is kept (attention.py decides).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

QUERIES = 128  # at a time: measured best of 64, 96, 128, 192
FUSED_FROM = 768  # tokens: from here on the fused backward works on blocks of 256 queries and is as fast


def worth_it(query: Tensor) -> bool:
    """Whether this call gains from it."""
    small = query.shape[2] < FUSED_FROM
    return small and query.device.type == "cpu" and query.dtype == torch.bfloat16 and torch.is_grad_enabled() and query.requires_grad


def causal_matmul_backward(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Causal attention [B, H, T, D]; K divides H."""
    output: Tensor = _Causal.apply(query, key, value, scaling)  # type: ignore[no-untyped-call]
    return output


def blocks(query: Tensor, key: Tensor, value: Tensor, scaling: float, first: int) -> Tensor:
    """Attention of the queries from `first` on, at most QUERIES, to all keys up to the last of them: [B, H, t, D]."""
    (rows, num_heads, tokens, size), num_kv = query.shape, key.shape[1]
    grouped = (query * scaling).reshape(rows, num_kv, -1, size)
    scores = (grouped @ key.transpose(2, 3)).view(rows, num_heads, tokens, key.shape[2])
    future = torch.full((tokens, key.shape[2]), -torch.inf, dtype=query.dtype, device=query.device).triu(first + 1)
    weights = torch.softmax(scores + future, -1).view(rows, num_kv, -1, key.shape[2])
    return (weights @ value).view(rows, num_heads, tokens, size)


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scaling = scaling
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = (x.detach() for x in ctx.saved_tensors)
        query_grad = torch.empty_like(query)
        key_grad, value_grad = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (key, value))
        for first in range(0, query.shape[2], QUERIES):
            own, past = slice(first, first + QUERIES), slice(0, first + QUERIES)
            parts = [x.requires_grad_() for x in (query[:, :, own], key[:, :, past], value[:, :, past])]
            with torch.enable_grad():
                output = blocks(parts[0], parts[1], parts[2], ctx.scaling, first)
            query_grad[:, :, own], keys, values = torch.autograd.grad(output, parts, grad[:, :, own])
            key_grad[:, :, past] += keys
            value_grad[:, :, past] += values
        return query_grad, key_grad.to(key.dtype), value_grad.to(value.dtype), None
