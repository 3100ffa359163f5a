"""What a trainer asks of an optimizer. AdamW (adamw.py) fills it on one process; a sharded one will fill the same five methods.

    norm = optimizer.clip(1.0)        # the gradients' global norm before clipping
    optimizer.step(lr)                # the learning rate comes from the caller (schedule.py)
    optimizer.zero_grad()

For any PyTorch loop, with FSDP2 or without, there is also Muon over sharded parameters, a torch.optim.Optimizer (sharded_muon.py):

    from etude.optim import ShardedMuon, muon_param_groups

Those two names load torch when they are first used. Not here: which parameters are trained and at what rate (train.py). This package
knows no reinforcement-learning word.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from etude.optim.routing import muon_param_groups
    from etude.optim.sharded_muon import ShardedMuon

__all__ = ["Optimizer", "ShardedMuon", "muon_param_groups"]

_LAZY = {"ShardedMuon": "etude.optim.sharded_muon", "muon_param_groups": "etude.optim.routing"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Optimizer(Protocol):
    def clip(self, max_norm: float) -> float:
        """Bound the global gradient norm of the coming step; returns the norm as it was. Raises EtudeError if it is not finite."""
        ...

    def step(self, lr: float) -> None:
        """One update of every parameter that has a gradient."""
        ...

    def zero_grad(self) -> None:
        """Forget the gradients, and with them the bound."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a later step depends on, apart from the parameters; tensors and plain values, by parameter name."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit for bit. Load the parameters first. ValueError if the state is of other parameters."""
        ...
