"""Learning rate over steps: a linear rise, then constant, a line or half a cosine down to a floor.

    rise       lr = peak (step + 1) / warmup_steps                       step < warmup_steps; the first step already moves
    constant   lr = peak
    linear     lr = peak (1 - (1 - floor) x)                             x = share of the steps after the rise that are done
    cosine     lr = peak (floor + (1 - floor) (1 + cos(pi x)) / 2)       Loshchilov & Hutter, SGDR (2017)

Not here: state. The step is the caller's, so resuming needs nothing.
"""

import math
from typing import Literal

Shape = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, peak: float, total_steps: int, warmup_steps: int = 0, shape: Shape = "constant", floor: float = 0.0
) -> float:
    """Rate of `step`, counted from 0. `floor` is a share of the peak; steps past the total stay there. ValueError for an unknown shape."""
    if shape not in ("constant", "linear", "cosine"):
        raise ValueError(f"schedule {shape!r}: allowed are constant, linear and cosine")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if shape == "linear":
        return peak * (1 - (1 - floor) * done)
    if shape == "cosine":
        return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)
    return peak
