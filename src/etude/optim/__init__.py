"""What a trainer asks of an optimizer. AdamW (adamw.py) fills it on one process; a sharded one will fill the same five methods.

    norm = optimizer.clip(1.0)        # the gradients' global norm before clipping
    optimizer.step(lr)                # the learning rate comes from the caller (schedule.py)
    optimizer.zero_grad()

Not here: which parameters are trained and at what rate (train.py). This package knows no reinforcement-learning word.
"""

from collections.abc import Mapping
from typing import Any, Protocol


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
