"""Expert parallelism for any transformers MoE whose experts go through its experts interface.

    tokens on this rank --by expert--> uneven all-to-all --> owner computes its experts --> all-to-all back --> weighted sum

    T tokens of this rank, K experts chosen per token, E experts, P ranks of the EP group, L = E / P experts owned by each rank

Registered with transformers as "etude_ep"; the experts module stays the model's own, its stacked parameters are DTensors cut on dim 0 over
the EP mesh. Rank p owns experts p L .. (p + 1) L - 1. No capacity: nothing is dropped, an expert takes what comes. Collectives do not
depend on the routing: one all-to-all of counts, one of rows each way, the last two again in backward; a rank that receives nothing
computes on zero rows, so its experts get zero gradients rather than none. Routing weights are applied by the sender, in its precision.

The inner computation is transformers' own kernel ("grouped_mm") on the local experts: gated or not, biased, transposed.

Not here: cutting and FSDP of the parameters (hsdp.py), auxiliary losses of the router.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from etude.errors import UserError

NAME = "etude_ep"
_STATE = "_etude_ep"
_KERNEL = "grouped_mm"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadBalance:
    """Where the tokens of one layer went, over all ranks, since the last call of `load_balance`."""

    layer: str
    """the experts module's name"""
    tokens: tuple[int, ...]
    """assignments (token, expert) per expert; they add up to tokens x experts per token, as nothing is dropped"""
    expert_max_over_mean: float
    """the busiest expert's share over the mean one; 1 is even"""
    rank_max_over_mean: float
    """the same for the EP ranks, which is what a step waits for"""


def find_experts(model: nn.Module) -> dict[str, nn.Module]:
    """Modules with stacked experts that go through transformers' experts interface, by name."""
    return {
        name: module for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel") and hasattr(module, "has_gate")
    }


def stacked_parameters(name: str, experts: nn.Module) -> dict[str, nn.Parameter]:
    """The module's parameters, all [num_experts, ...]. UserError where one is not: it would be shared between EP ranks."""
    found = dict(experts.named_parameters())
    for key, parameter in found.items():
        if "." in key or parameter.shape[0] != experts.num_experts:
            raise UserError(
                f"{name}.{key} {tuple(parameter.shape)} is not {experts.num_experts} stacked experts: this kind of MoE is not supported"
            )
    return found


def route_through(model: nn.Module, experts: dict[str, nn.Module], group: dist.ProcessGroup) -> None:
    """Make these modules dispatch over `group`. Their parameters must be cut over it (hsdp.py does)."""
    for module in experts.values():
        object.__setattr__(module, _STATE, _State(module, group))
    if experts:
        model.set_experts_implementation(NAME)  # type: ignore[operator]


def load_balance(model: nn.Module, *, reset: bool = True) -> list[LoadBalance]:
    """One entry per MoE layer, over all ranks of the world (a collective: call it on all). `reset` starts a new count."""
    layers = {name: getattr(module, _STATE) for name, module in find_experts(model).items() if hasattr(module, _STATE)}
    if not layers:
        return []
    counts_NE = torch.stack([state.counts for state in layers.values()])
    dist.all_reduce(counts_NE)
    if reset:
        for state in layers.values():
            state.counts.zero_()
    found = []
    for (name, state), counts_E in zip(layers.items(), counts_NE.cpu(), strict=True):
        per_rank_P = counts_E.view(state.ranks, -1).sum(1)
        found.append(
            LoadBalance(
                layer=name,
                tokens=tuple(int(count) for count in counts_E),
                expert_max_over_mean=_max_over_mean(counts_E),
                rank_max_over_mean=_max_over_mean(per_rank_P),
            )
        )
    return found


def _max_over_mean(counts: Tensor) -> float:
    total = int(counts.sum())
    return float(counts.max()) * counts.numel() / total if total else 1.0


def _forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What transformers calls: hidden_states [T, H], top_k_index [T, K] (experts), top_k_weights [T, K] -> [T, H]."""
    state: _State | None = getattr(module, _STATE, None)
    if state is None:
        raise ValueError(f'experts implementation "{NAME}" needs apply_dual_mesh(model, mesh) first')
    num_tokens, top_k = top_k_index.shape
    chosen = top_k_index.reshape(-1)
    order = torch.argsort(chosen, stable=True)  # by expert, so by owner
    counts_E = torch.bincount(chosen, minlength=state.num_experts)
    state.count(counts_E)

    sent_PL = counts_E.view(state.ranks, state.local)
    received_PL = torch.empty_like(sent_PL)
    dist.all_to_all_single(received_PL, sent_PL, group=state.group)
    send, receive = torch.stack((sent_PL.sum(1), received_PL.sum(1))).tolist()

    rows = _all_to_all(hidden_states[order // top_k], send, receive, state.group)
    owners = torch.arange(state.local, device=rows.device).repeat(state.ranks).repeat_interleave(received_PL.flatten())
    rows = ALL_EXPERTS_FUNCTIONS[_KERNEL](_LocalExperts(module, state.local), rows, owners[:, None], rows.new_ones(len(rows), 1))
    rows = _all_to_all(rows, receive, send, state.group)

    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    weighted: Tensor = rows[back].view(num_tokens, top_k, -1) * top_k_weights[..., None]
    return weighted.sum(1).to(hidden_states.dtype)


def _all_to_all(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    """rows [sum(send), H], the first send[0] of them for rank 0, ... -> [sum(receive), H]; differentiable."""
    exchanged: Tensor = _AllToAll.apply(rows, send, receive, group)  # type: ignore[no-untyped-call]
    return exchanged


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    out = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(out, rows.contiguous(), receive, send, group=group)
    return out


class _State:
    """What one experts module knows of its EP group, and its count of assignments per expert."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        self.group = group
        self.ranks = group.size()
        self.num_experts: int = module.num_experts  # type: ignore[assignment]
        self.local = self.num_experts // self.ranks
        self.counts = torch.zeros(self.num_experts, dtype=torch.int64)

    def count(self, counts_E: Tensor) -> None:
        if torch._C._current_graph_task_id() != -1:  # activation checkpointing runs the forward again inside backward
            return
        self.counts = self.counts.to(counts_E.device)
        self.counts += counts_E


class _LocalExperts:
    """The experts module as transformers' kernels read it, with this rank's experts as plain tensors."""

    def __init__(self, module: nn.Module, num_experts: int) -> None:
        self._module = module
        self.num_experts = num_experts
        self._is_expert_parallel = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return value.to_local() if isinstance(value, DTensor) else value


ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
