"""Put an unmodified transformers model on the two meshes: FSDP2 per block, the experts on their own mesh.

    apply_dual_mesh(model, mesh, param_dtype=torch.bfloat16, checkpoint=True)

    experts   cut on dim 0 over ep, then fully_shard on (expert_replicate, efsdp): Shard(0), whole experts, where they fit, else Shard(1)
    blocks    fully_shard on (replicate, shard x cp); what is in no block (embeddings, last norm, output head) is the root's group

Gradients are **summed** over all ranks of the world, on both meshes. So a rank's loss is its share of the global one: the sum over its own
tokens, divided by the token count of all ranks (and micro-batches); with that, ranks may hold different numbers of tokens, and any layout
gives the gradients of one process. (FSDP2's own mean is over its own mesh: too large for experts by ep, whose owner has summed the tokens
of its EP group; and torch 2.13 divides by a set factor twice where the shard axis is 1. Sums have neither fault, and gloo has them.)

Every rank must hold equal weights when it is called, or weights on the meta device.

Not here: the attention of context parallelism (context.py), loading weights, the optimizer.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as checkpoint_activations
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers.modeling_layers import GradientCheckpointingLayer

from etude.errors import UserError
from etude.parallel.experts import find_experts, route_through, stacked_parameters
from etude.parallel.mesh import DualMesh


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost transformer blocks in order, of a vision tower too. UserError where none is found."""
    blocks: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and id(module) not in inside:
            blocks.append(module)
            inside.update(id(child) for child in module.modules())
    if not blocks:
        raise UserError(f"{type(model).__name__} has no transformer block that transformers marks as such; pass blocks=[...]")
    return blocks


def apply_dual_mesh(
    model: nn.Module,
    mesh: DualMesh,
    *,
    blocks: Sequence[nn.Module] | None = None,
    param_dtype: torch.dtype | None = None,
    checkpoint: bool = False,
    reshard: bool = True,
) -> None:
    """Shard the model in place; see the module's docstring.

    blocks: units of FSDP, default `find_blocks(model)`. param_dtype: of forward and backward (bf16); the shards keep their dtype,
    gradients are reduced in fp32. checkpoint: keep only each block's input and compute it again in backward. reshard: free a block's
    parameters after forward.
    UserError where experts cannot be cut by these degrees.
    """
    blocks = find_blocks(model) if blocks is None else list(blocks)
    experts = find_experts(model)
    if not experts and mesh.degrees.ep > 1:
        raise UserError(f"ep = {mesh.degrees.ep}, and {type(model).__name__} has no experts that transformers can dispatch; set ep = 1")
    for name, module in experts.items():
        _cut_over_ep(name, module, mesh)
    route_through(model, experts, mesh.ep.get_group())

    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=None if param_dtype is None else torch.float32)
    uncast = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=policy.reduce_dtype, cast_forward_inputs=False)
    shard = partial(fully_shard, reshard_after_forward=reshard)
    for name, module in experts.items():
        dim = _expert_dim(name, module, mesh)
        shard(module, mesh=mesh.expert_hsdp, mp_policy=uncast, shard_placement_fn=lambda _, dim=dim: Shard(dim))
    if param_dtype not in (None, torch.float32):
        for module in _in_fp32(model):
            shard(module, mesh=mesh.dense_hsdp, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    for block in blocks:
        if checkpoint:
            checkpoint_activations(block)
        shard(block, mesh=mesh.dense_hsdp, mp_policy=policy)
    fully_shard(model, mesh=mesh.dense_hsdp, mp_policy=policy)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
    _prefetch(blocks)


def _cut_over_ep(name: str, experts: nn.Module, mesh: DualMesh) -> None:
    _expert_dim(name, experts, mesh)
    for key, parameter in stacked_parameters(name, experts).items():
        mine = parameter.detach().chunk(mesh.degrees.ep)[mesh.ep.get_local_rank()].clone()
        cut = DTensor.from_local(mine, mesh.ep, [Shard(0)], run_check=False)
        setattr(experts, key, nn.Parameter(cut, requires_grad=parameter.requires_grad))


def _expert_dim(name: str, experts: nn.Module, mesh: DualMesh) -> int:
    degrees = mesh.degrees
    num_experts: int = experts.num_experts  # type: ignore[assignment]
    dim = degrees.expert_shard_dim(num_experts)
    for key, parameter in experts.named_parameters():
        if dim == 1 and parameter.shape[1] % degrees.efsdp:
            raise UserError(
                f"{name}.{key} {tuple(parameter.shape)}: efsdp = {degrees.efsdp} divides neither the {num_experts // degrees.ep} experts "
                f"of an EP rank (ep = {degrees.ep}) nor the {parameter.shape[1]} rows of an expert; choose ep x efsdp that divides "
                f"{num_experts}, or efsdp that divides {parameter.shape[1]}"
            )
    return dim


def _in_fp32(model: nn.Module) -> list[nn.Module]:
    """Modules whose own parameters the model wants in fp32 whatever the rest is (routers of DeepSeek-V3)."""
    patterns = {pattern for module in model.modules() for pattern in getattr(module, "_keep_in_fp32_modules_strict", None) or ()}
    owners = {
        name.rpartition(".")[0]: None
        for name, parameter in model.named_parameters()
        if parameter.dtype == torch.float32 and any(pattern in name for pattern in patterns)
    }
    return [model.get_submodule(name) for name in owners]


def _prefetch(blocks: Sequence[nn.Module]) -> None:
    """Gather the next block and its experts while one computes: dispatch waits for counts on the host, which stops FSDP's own prefetch."""
    units = [[module for module in block.modules() if isinstance(module, FSDPModule)] for block in blocks]
    for i, unit in enumerate(units):
        here: Any = unit[0]
        if i + 1 < len(units):
            here.set_modules_to_forward_prefetch(units[i + 1])
        if i > 0:
            here.set_modules_to_backward_prefetch(units[i - 1])
