"""The gradient norm over both meshes.

    norm = sqrt(sum over parameters and ranks of |local gradient|^2), a shard that several ranks hold counted on one of them only

One all-reduce of one number over the world, whatever meshes the gradients live on (torch's own clipping refuses several). Sums in fp32.

Not here: clipping inside an optimizer.
"""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from etude.errors import EtudeError


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The global norm, fp32, equal on all ranks of the world. Parameters without a gradient count as zero; ValueError on partial sums."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [_local(gradient) for gradient in gradients if _counts_here(gradient)]
    device = _local(gradients[0]).device if gradients else torch.device("cpu")
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in local if gradient.numel()]
    total = torch.stack(norms).square().sum() if norms else torch.zeros((), device=device)
    dist.all_reduce(total)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients so that their global norm is at most `max_norm`; returns the norm as it was.

    EtudeError, on all ranks alike, if it is not finite; the gradients are then left as they are.
    """
    parameters = list(parameters)
    norm = float(gradient_norm(parameters))
    if not math.isfinite(norm):
        raise EtudeError(f"the gradient norm is {norm}: the loss or its gradient overflowed; the weights are unchanged")
    if norm > max_norm:
        for parameter in parameters:
            if parameter.grad is not None:
                _local(parameter.grad).mul_(max_norm / norm)
    return norm


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _counts_here(gradient: Tensor) -> bool:
    """Whether this rank's copy is the one that counts: the first along every axis that replicates it."""
    if not isinstance(gradient, DTensor):
        return dist.get_rank() == 0
    if any(placement.is_partial() for placement in gradient.placements):
        raise ValueError(f"a gradient is a partial sum ({gradient.placements}): reduce it before its norm is taken")
    coordinate = gradient.device_mesh.get_coordinate()
    assert coordinate is not None
    return all(index == 0 for index, placement in zip(coordinate, gradient.placements, strict=True) if placement.is_replicate())
