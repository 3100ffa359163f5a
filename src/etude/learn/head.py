"""A model without its head, and the head: hidden states -> logits in fp32 chunks, with a hand-written gradient.

    z = softcap(scale (h W^T + b)),   softcap(x) = c tanh(x / c) where the model has one

    N rows (tokens), D hidden size, V vocabulary

Full logits of a long context are the largest tensor of a training step (100k tokens x 152k entries in fp32: 61 GB). Everything here
takes hidden states of the wanted positions only and walks over them in chunks; the backward projects again instead of keeping
anything of size [N, V]. The projection's output is fp32 for bf16 weights: rounding logits to bf16 leaves a loss within 3% but its
gradient up to 32% wrong when two distributions are close (docs/algorithms.md, section 5); fp64 weights stay fp64.

Not here: what is computed from the logits (vocabulary.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer: hidden states to logits."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]
    scale: float = 1.0
    softcap: float = 0.0  # 0: none

    @property
    def dtype(self) -> torch.dtype:
        """Of logits and losses: fp32, or fp64 for fp64 weights."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    def detach(self) -> "Head":
        return replace(self, weight=self.weight.detach(), bias=None if self.bias is None else self.bias.detach())

    def widen(self) -> "Head":
        """On a CPU, weights in the logits' dtype: converted once for all chunks. Elsewhere the kernel accumulates and writes fp32."""
        if self.weight.device.type != "cpu" or self.weight.dtype == self.dtype:
            return self
        return replace(self, weight=self.weight.to(self.dtype))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """[N, D] -> [N, V] in `dtype`. Not to be differentiated by autograd: see `pull_back`."""
        logits_NV = product(hidden_ND, self.weight.t(), self.dtype)
        if self.bias is not None:
            logits_NV += self.bias
        if self.scale != 1.0:
            logits_NV *= self.scale
        if self.softcap:
            logits_NV = torch.tanh(logits_NV / self.softcap) * self.softcap
        return logits_NV

    def pull_back(self, logits_NV: Tensor, grad_NV: Tensor) -> Tensor:
        """Gradient with respect to `h W^T + b` from that with respect to the logits."""
        if self.softcap:
            grad_NV = grad_NV * (1 - (logits_NV / self.softcap) ** 2)
        return grad_NV * self.scale if self.scale != 1.0 else grad_NV


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right with the result in `dtype`, never rounded to a narrower type on the way."""
    if left.dtype == right.dtype == dtype:
        return left @ right
    if left.device.type == "cuda" and dtype == torch.float32:
        narrow = torch.bfloat16 if torch.bfloat16 in (left.dtype, right.dtype) else torch.float16
        return torch.mm(left.to(narrow), right.to(narrow), out_dtype=dtype)
    return left.to(dtype) @ right.to(dtype)


def head_of(model: nn.Module) -> Head:
    """The head of a transformers causal language model: weights, bias, logit scale (Cohere, Granite) and cap (Gemma)."""
    layer, config = model.get_output_embeddings(), model.config  # type: ignore[operator]
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
    return Head(layer.weight, getattr(layer, "bias", None), scale, softcap)


def hidden_states(model: nn.Module, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """[B, T] -> [B, T, D], after the last norm: what the head projects."""
    output = model.base_model(input_ids=ids, position_ids=position_ids, use_cache=False)  # type: ignore[operator]
    hidden: Tensor = output.last_hidden_state
    return hidden


ChunkGrad = Callable[[slice, Tensor], Tensor]
"""Rows of a chunk and their logits [n, V] -> gradient with respect to those logits [n, V]."""


def head_gradients(
    head: Head, hidden_ND: Tensor, chunk: int, chunk_grad: ChunkGrad, wanted: tuple[bool, bool, bool]
) -> list[Tensor | None]:
    """Gradients of hidden states, weight and bias (each if wanted), projecting chunk by chunk again."""
    wide = head.widen()
    hidden_grad = torch.empty_like(hidden_ND) if wanted[0] else None
    weight_grad = torch.zeros(head.weight.shape, dtype=head.dtype, device=head.weight.device) if wanted[1] else None
    bias_grad = torch.zeros(head.weight.shape[0], dtype=head.dtype, device=head.weight.device) if wanted[2] else None
    for rows in chunks(len(hidden_ND), chunk):
        logits_NV = wide.logits(hidden_ND[rows])
        grad_NV = wide.pull_back(logits_NV, chunk_grad(rows, logits_NV))
        del logits_NV
        if hidden_grad is not None:
            hidden_grad[rows] = product(grad_NV, wide.weight, head.dtype).to(hidden_ND.dtype)
        if weight_grad is not None:
            if hidden_ND.dtype == head.dtype:
                weight_grad.addmm_(grad_NV.t(), hidden_ND[rows])
            else:
                weight_grad += product(grad_NV.t(), hidden_ND[rows], head.dtype)
        if bias_grad is not None:
            bias_grad += grad_NV.sum(0)
    narrow = [None if g is None else g.to(head.weight.dtype) for g in (weight_grad, bias_grad)]
    return [hidden_grad, *narrow]


def chunks(num_rows: int, chunk: int) -> list[slice]:
    return [slice(first, min(first + chunk, num_rows)) for first in range(0, num_rows, chunk)]
