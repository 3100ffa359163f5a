"""QK-clip: after a step, scale down the query and key weights of heads whose attention logits grew past a threshold.

    gamma_h = min(1, tau / S_h)      S_h: largest logit that head h produced in the last step, over all ranks

Kimi Team, "Kimi K2" (arXiv:2507.20534), section 2.1. A head's logits are multiplied by gamma_h:
  - queries and keys by head (multi-head attention): both by sqrt(gamma_h);
  - grouped-query attention: a key head serves several query heads, so the queries alone take gamma_h;
  - multi-head latent attention: the nope parts of query and key by sqrt(gamma_h); the query's rope part by gamma_h, because the rope part
    of the key is shared by all heads; values untouched.

Rows are scaled in each rank's own shard, without communication: `max_logits` must be the same on all ranks (all-reduce it with MAX first).
Call it after `optimizer.step()`, for instance from `optimizer.register_step_post_hook`. Not here: how the model records its logits.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from etude.optim.muon_layout import Sharding
from etude.optim.sharded_muon import mesh_layout, tensor_placements


def clip_factors(max_logits: Tensor, threshold: float) -> Tensor:
    """gamma per head, in float64. ValueError for a threshold that is not positive."""
    if threshold <= 0:
        raise ValueError(f"QK-clip threshold {threshold}: must be positive (Kimi K2 used 100)")
    return (threshold / max_logits.double().clamp(min=threshold)).nan_to_num(nan=1.0)


@torch.no_grad()
def clip_heads(query: Tensor, key: Tensor, max_logits: Tensor, threshold: float) -> None:
    """Weights (heads x head_dim, hidden) of q and (key heads x head_dim, hidden) of k; `max_logits` has one entry per query head."""
    factors = clip_factors(max_logits, threshold)
    num_heads = len(factors)
    if query.shape[0] % num_heads:
        raise ValueError(f"{num_heads} logits for a query projection of {query.shape[0]} rows: one per head is needed")
    if key.shape[0] == query.shape[0]:
        rows = factors.sqrt().repeat_interleave(query.shape[0] // num_heads)
        scale_rows(query, rows)
        scale_rows(key, rows)
    else:
        scale_rows(query, factors.repeat_interleave(query.shape[0] // num_heads))


@torch.no_grad()
def clip_latent_heads(
    query_b: Tensor, key_value_b: Tensor, max_logits: Tensor, threshold: float, *, nope: int, rope: int, value: int
) -> None:
    """Weights (heads x (nope + rope), q rank) and (heads x (nope + value), kv rank), as in DeepSeek-V2 and later."""
    factors = clip_factors(max_logits, threshold)
    num_heads = len(factors)
    if query_b.shape[0] != num_heads * (nope + rope) or key_value_b.shape[0] != num_heads * (nope + value):
        raise ValueError(
            f"{num_heads} heads of {nope} + {rope} and {nope} + {value} rows do not make {query_b.shape[0]} and {key_value_b.shape[0]} rows"
        )
    root = factors.sqrt()
    scale_rows(query_b, torch.cat([root[:, None].expand(-1, nope), factors[:, None].expand(-1, rope)], 1).flatten())
    scale_rows(key_value_b, torch.cat([root[:, None].expand(-1, nope), torch.ones_like(root)[:, None].expand(-1, value)], 1).flatten())


@torch.no_grad()
def scale_rows(parameter: Tensor, factors: Tensor) -> None:
    """Multiply row i by factors[i], in this rank's shard."""
    if not isinstance(parameter, DTensor):
        parameter.mul_(factors.to(parameter)[:, None])
        return
    mesh = parameter.device_mesh
    sharding = Sharding(tuple(parameter.shape), mesh_layout(mesh).shape, tensor_placements("parameter", parameter))
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return
    lo, hi = sharding.box(coordinate)[0]
    local = parameter.to_local()
    local.mul_(factors[lo:hi].to(local)[:, None])
