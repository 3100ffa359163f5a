"""AdamW with fp32 master weights.

    m = b1 m + (1 - b1) g                                     b1, b2: decay rates of the two running means
    v = b2 v + (1 - b2) g^2                                   t: step of this parameter, from 1
    w = w - lr decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

Loshchilov & Hutter, "Decoupled weight decay regularization" (2019), Algorithm 2, as torch.optim.AdamW computes it. Deviation: where a
parameter is bf16 or fp16, w lives in an fp32 master and the parameter is its nearest rounding. An update of lr = 1e-5 is far below
the half-ulp of most bf16 weights, so without masters it would be lost.

One fused pass per parameter; its gradient is widened to fp32 just before, so that no second copy of all gradients exists. Masters and
the two means take 12 bytes a parameter (8 where the parameter is fp32 itself).

Not here: the learning rate over time (schedule.py), sharding.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from etude.errors import EtudeError

_EMBEDDINGS = ("embed", "wte", "wpe", "lm_head")


def decays(name: str, parameter: Tensor) -> bool:
    """The usual rule: matrices decay; norms, biases and embeddings (a tied output head is one) do not."""
    return parameter.ndim >= 2 and not any(part in name for part in _EMBEDDINGS)


class AdamW:
    """Over the trainable ones of `named` (name, parameter); `decays` says which of them `weight_decay` applies to."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decays: Callable[[str, Tensor], bool] = decays,
    ) -> None:
        self._parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._betas, self._eps = betas, eps
        self._decay = {name: weight_decay if decays(name, parameter) else 0.0 for name, parameter in self._parameters.items()}
        self._masters = {name: p.detach() if p.dtype == torch.float32 else p.detach().float() for name, p in self._parameters.items()}
        self._means = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._squares = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._steps = {name: torch.zeros((), dtype=torch.float32, device=master.device) for name, master in self._masters.items()}
        self._scale = 1.0

    @torch.no_grad()
    def clip(self, max_norm: float) -> float:
        """See Optimizer. The bound is applied inside `step`, in fp32; the parameters' `grad` stays as it is."""
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in self._parameters.values() if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
        if not math.isfinite(norm):
            raise EtudeError(f"the gradient norm is {norm}: the loss or its gradient overflowed; the weights are unchanged")
        self._scale = min(1.0, max_norm / norm) if norm > 0 else 1.0
        return norm

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.to(torch.float32)
            if self._scale != 1.0:
                gradient = gradient * self._scale
            master = self._masters[name]
            adamw(
                [master], [gradient], [self._means[name]], [self._squares[name]], [], [self._steps[name]],
                fused=True, amsgrad=False, beta1=self._betas[0], beta2=self._betas[1], lr=lr,
                weight_decay=self._decay[name], eps=self._eps, maximize=False,
            )  # fmt: skip
            if master.data_ptr() != parameter.data_ptr():
                parameter.copy_(master)

    def zero_grad(self) -> None:
        self._scale = 1.0
        for parameter in self._parameters.values():
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Step and running means of every parameter, and its master where that is not the parameter itself."""
        state: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            state[name] = {"step": self._steps[name], "mean": self._means[name], "square": self._squares[name]}
            if parameter.dtype != torch.float32:
                state[name]["master"] = self._masters[name]
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ours = self.state_dict()
        odd = sorted(set(ours) ^ set(state)) or [n for n in ours if set(ours[n]) != set(state[n])]
        odd = odd or [n for n in ours if any(ours[n][key].shape != state[n][key].shape for key in ours[n])]
        if odd:
            raise ValueError(
                f"optimizer state is of other parameters ({len(odd)} differ, e.g. {odd[0]}): resume with the same model and dtype"
            )
        for name, tensors in ours.items():
            for key, tensor in tensors.items():
                tensor.copy_(state[name][key])
            if "master" in tensors:
                self._parameters[name].copy_(tensors["master"])
