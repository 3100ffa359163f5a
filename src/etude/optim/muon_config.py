"""What a Muon step is made of, as numbers: Newton-Schulz settings, their coefficients and cost, and the scale of an update.

    X <- a X + (b A + c A^2) X,   A = X X^T        one Newton-Schulz step (a, b, c may differ per step)

Coefficients: `kj` Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024), the ones of torch.optim.Muon;
`you` YouJiacheng's schedule for five steps (modded-nanogpt, 2025); `polar_express` Amsel, Persson, Musco and Gower, "The Polar Express"
(arXiv:2505.16932), computed for five steps with a safety factor of 2% (modded-nanogpt's figures), so its norm is enlarged by 1.02.

Scale of an update of a unit with r rows and c columns: `moonlight` 0.2 sqrt(max(r, c)) (Liu et al., "Muon is Scalable for LLM Training",
2025: the RMS of AdamW), `keller` sqrt(max(1, r / c)), `spectral` sqrt(r / c) (Bernstein, 2025), `none` 1. torch.optim.Muon calls the
first two match_rms_adamw and original.

Loads no torch, so that a plan for a thousand ranks needs none. Not here: the iteration itself (newton_schulz.py), what varies by
parameter group (learning rate, momentum, weight decay: sharded_muon.py).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Variant = Literal["standard", "gram"]
DtypeName = Literal["bfloat16", "float16", "float32", "float64"]
Scale = Literal["moonlight", "keller", "spectral", "none"]
Coefficients = tuple[float, float, float]

NUM_STEPS = 5
COEFFICIENTS: dict[str, tuple[Coefficients, ...]] = {
    "kj": ((3.4445, -4.7750, 2.0315),),
    "you": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
}
_NORM_FACTOR = {"polar_express": 1.02}
_MOONLIGHT_RMS = 0.2  # the RMS of an AdamW update, Moonlight section 2.2
DTYPE_BYTES: dict[DtypeName, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewtonSchulz:
    """How a matrix is orthogonalised. ValueError for settings that do not fit together."""

    variant: Variant = "standard"
    """standard: the quintic on the matrix. gram: on its small Gram matrix, 2.3 times cheaper at 2048 x 7168, fp16 or fp32 only."""
    coefficients: str | tuple[Coefficients, ...] = "kj"
    """kj, you, polar_express, or one (a, b, c) per step; a single one is repeated."""
    num_steps: int = NUM_STEPS
    dtype: DtypeName = "bfloat16"
    eps: float = 1e-7
    """Smallest norm that is divided by: a zero matrix stays zero."""
    restarts: tuple[int, ...] = (2,)
    """gram: before these steps the matrix and its Gram are formed again, which bounds the rounding error."""
    max_batch_bytes: int = 1 << 28
    """Equal shapes are batched up to this size of input."""

    def __post_init__(self) -> None:
        if self.variant not in ("standard", "gram"):
            raise ValueError(f"Newton-Schulz variant {self.variant!r}: allowed are standard and gram")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"Newton-Schulz dtype {self.dtype!r}: allowed are {', '.join(DTYPE_BYTES)}")
        if self.variant == "gram" and self.dtype == "bfloat16":
            raise ValueError(
                "Gram Newton-Schulz in bfloat16: the Gram matrix squares the condition number, and eight bits of mantissa leave errors of "
                "30% to 250% on matrices near low rank (3% for the standard variant); use dtype float16 or float32, or variant standard"
            )
        if self.num_steps < 1:
            raise ValueError(f"num_steps {self.num_steps}: at least one step")
        if isinstance(self.coefficients, str) and self.coefficients not in COEFFICIENTS:
            raise ValueError(f"coefficients {self.coefficients!r}: allowed are {', '.join(COEFFICIENTS)} or one (a, b, c) per step")
        table = self._table()
        if len(table) not in (1, self.num_steps):
            raise ValueError(f"{len(table)} coefficients for {self.num_steps} steps: give one per step, or one for all")

    def _table(self) -> tuple[Coefficients, ...]:
        return COEFFICIENTS[self.coefficients] if isinstance(self.coefficients, str) else self.coefficients

    @property
    def steps(self) -> tuple[Coefficients, ...]:
        """(a, b, c) of every step."""
        table = self._table()
        return table if len(table) == self.num_steps else table * self.num_steps

    @property
    def norm_factor(self) -> float:
        """What the Frobenius norm is multiplied by before the division."""
        return _NORM_FACTOR.get(self.coefficients, 1.0) if isinstance(self.coefficients, str) else 1.0

    def flops(self, rows: int, cols: int) -> int:
        """Of one unit; see newton_schulz_flops."""
        return newton_schulz_flops(rows, cols, self.num_steps, gram=self.variant == "gram", restarts=self.restarts)


def newton_schulz_flops(
    rows: int, cols: int, num_steps: int = NUM_STEPS, *, gram: bool = False, restarts: Collection[int] = (2,), symmetric: bool = False
) -> int:
    """FLOPs of one m x n unit, m the smaller side; a multiply-add counts two.

    standard    per step the products X X^T, its square, and (b A + c A^2) X                    steps (4 m^2 n + 2 m^3)
    gram        on the m x m Gram matrix, formed again at each restart: a segment of L steps needs X X^T, 4 L - 3 products of m x m
                matrices and one with X. A square unit gains nothing from it and takes the standard way.
    symmetric   products with a symmetric result cost half: all but those with X
    """
    m, n = min(rows, cols), max(rows, cols)
    with_x = small = num_steps
    if gram and m != n:
        bounds = sorted({0, num_steps, *(at for at in restarts if 0 < at < num_steps)})
        with_x, small = len(bounds) - 1, sum(4 * (end - start) - 3 for start, end in pairwise(bounds))
    return (1 if symmetric else 2) * (with_x * m * m * n + small * m**3) + 2 * with_x * m * m * n


def update_scale(scale: Scale, rows: int, cols: int) -> float:
    """What the learning rate is multiplied by for a unit of this shape. ValueError for an unknown rule."""
    if scale == "moonlight":
        return _MOONLIGHT_RMS * math.sqrt(max(rows, cols))
    if scale == "keller":
        return math.sqrt(max(1, rows / cols))
    if scale == "spectral":
        return math.sqrt(rows / cols)
    if scale == "none":
        return 1.0
    raise ValueError(f"scale {scale!r}: allowed are moonlight, keller, spectral and none")


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonOptions:
    """What holds for all of a sharded Muon's parameters. ValueError for values that are not allowed."""

    newton_schulz: NewtonSchulz = field(default_factory=NewtonSchulz)
    scale: Scale = "moonlight"
    """Factor on the learning rate, from the shape of the unit (not of the parameter)."""
    wire_dtype: DtypeName | None = None
    """Of updates on their way to the owner and back. None: bfloat16 (which loses nothing to bfloat16 Newton-Schulz: its input is rounded
    so anyway, and its output is), but float32 for float32 Newton-Schulz."""
    momentum_dtype: DtypeName | None = None
    """None: the parameter's."""
    replica_split: Literal["auto", "off"] | int = "auto"
    """How many replicas share one copy of the work; a number is lowered to a divisor of each mesh's replicas."""
    share_hops: Literal["auto"] | int = "auto"
    """Exchanges in which those replicas hand each other their updates: 1, each to all others; 2, spread evenly, then delivered, so that
    the owner of a large matrix does not send it k - 1 times. auto: per bucket, whichever ends first."""
    bucket_bytes: int = 128 << 20
    """Aim for what one rank sends per bucket and direction; a parameter is never divided."""
    max_inflight: int = 4
    """Buckets under way at one time."""
    flops_per_s: float = 0.6 * 989e12
    """For replica_split auto: what a rank achieves in Newton-Schulz (60% of an H100's dense bf16 peak)."""
    link_bytes_per_s: float = 50e9
    """For replica_split and share_hops auto: one way between replicas (400 Gb/s)."""
    launch_s: float = 20e-6
    """For share_hops auto: what a further exchange takes to start,"""
    message_s: float = 1e-6
    """and for each peer."""

    def __post_init__(self) -> None:
        update_scale(self.scale, 1, 1)
        for name, dtype in (("wire_dtype", self.wire_dtype), ("momentum_dtype", self.momentum_dtype)):
            if dtype is not None and dtype not in DTYPE_BYTES:
                raise ValueError(f"{name} {dtype!r}: allowed are {', '.join(DTYPE_BYTES)}")
        if isinstance(self.replica_split, str) and self.replica_split not in ("auto", "off"):
            raise ValueError(f"replica_split {self.replica_split!r}: allowed are auto, off or a number of replicas")
        if isinstance(self.replica_split, int) and self.replica_split < 1:
            raise ValueError(f"replica_split {self.replica_split}: at least one replica does the work")
        if self.share_hops not in ("auto", 1, 2):
            raise ValueError(f"share_hops {self.share_hops!r}: allowed are auto, 1 and 2")
        if self.max_inflight < 1 or self.bucket_bytes < 1:
            raise ValueError(f"max_inflight {self.max_inflight} and bucket_bytes {self.bucket_bytes}: both must be at least 1")

    @property
    def wire(self) -> DtypeName:
        if self.wire_dtype is not None:
            return self.wire_dtype
        return "bfloat16" if DTYPE_BYTES[self.newton_schulz.dtype] == 2 else self.newton_schulz.dtype

    @property
    def wire_bytes(self) -> int:
        return DTYPE_BYTES[self.wire]
