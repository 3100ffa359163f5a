"""Parallel training of unmodified transformers models on two meshes: FSDP with replicas, experts, context.

    start(); mesh = DualMesh(Degrees.fit(dist.get_world_size(), cp=2, ep=8))
    use_context(model); apply_dual_mesh(model, mesh, param_dtype=torch.bfloat16, checkpoint=True)
    loss = sum over this rank's tokens / token count of all ranks; loss.backward(); clip_gradients(model.parameters(), 1.0)

`Degrees` needs no torch; the other names load it when they are first used. Knows no optimizer: DTensors are what passes to one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from etude.parallel.degrees import Degrees

if TYPE_CHECKING:
    from etude.parallel.checkpoint import latest, load, save
    from etude.parallel.clip import clip_gradients, gradient_norm
    from etude.parallel.context import context_inputs, cut, join, next_tokens, use_context
    from etude.parallel.experts import LoadBalance, load_balance
    from etude.parallel.hsdp import apply_dual_mesh
    from etude.parallel.mesh import DualMesh, start

__all__ = [
    "Degrees", "DualMesh", "LoadBalance", "apply_dual_mesh", "clip_gradients", "context_inputs", "cut", "gradient_norm", "join",
    "latest", "load", "load_balance", "next_tokens", "save", "start", "use_context",
]  # fmt: skip

_HOME = {
    "DualMesh": "mesh", "start": "mesh", "apply_dual_mesh": "hsdp", "clip_gradients": "clip", "gradient_norm": "clip",
    "LoadBalance": "experts", "load_balance": "experts", "context_inputs": "context", "cut": "context", "join": "context",
    "next_tokens": "context", "use_context": "context", "latest": "checkpoint", "load": "checkpoint", "save": "checkpoint",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"etude.parallel.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
