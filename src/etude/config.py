"""Every knob: frozen dataclasses, validated at construction, torch-free.

A wrong value raises ValueError with the value, what is allowed and what to do. Symbols in the comments are those of docs/algorithms.md.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Divergence = Literal["forward", "reverse", "jsd"]
TeacherKind = Literal["ema", "live", "frozen"]
Reference = Literal["none", "frozen", "sampler"]
TurnRatio = Literal["none", "prefix"]


def _require(name: str, value: Any, allowed: str, ok: bool, remedy: str) -> None:
    if not ok:
        raise ValueError(f"{name} is {value!r}, allowed is {allowed}: {remedy}")


def _one_of(name: str, value: Any, choices: Any) -> None:
    names = get_args(choices)
    _require(name, value, " or ".join(repr(n) for n in names), value in names, "choose one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The reward's part of the loss, and how the step is cut into pieces."""

    tokens_per_rollout: float = 1024.0  # the constant that the token sum of a rollout is divided by; only scales the learning rate
    ratio_cap: float = 2.0  # the importance weight pi/mu is truncated here
    reference: Reference = "none"  # the k1 cost is taken against: nothing, the frozen first weights, the sampler's log-probabilities
    reference_coefficient: float = 0.0  # beta: nats of KL to the reference against one unit of reward
    micro_batch_tokens: int = 8192  # padded tokens of one forward and backward
    chunk_tokens: int = 256  # rows that are projected to the vocabulary at a time, in fp32

    def __post_init__(self) -> None:
        finite = math.isfinite(self.tokens_per_rollout) and self.tokens_per_rollout > 0
        _require("tokens_per_rollout", self.tokens_per_rollout, "a number above 0", finite, "use the usual length of a rollout")
        _require("ratio_cap", self.ratio_cap, "1 or more (inf: no cap)", self.ratio_cap >= 1, "2 is the usual value")
        _one_of("reference", self.reference, Reference)
        beta = self.reference_coefficient
        _require("reference_coefficient", beta, "0 or more", math.isfinite(beta) and beta >= 0, "0 turns the cost off")
        off = self.reference == "none"
        _require("reference", self.reference, "'frozen' or 'sampler' with a coefficient", not off or beta == 0, "set both or none")
        _require("micro_batch_tokens", self.micro_batch_tokens, "1 or more", self.micro_batch_tokens >= 1, "8192 suits a small model")
        _require("chunk_tokens", self.chunk_tokens, "1 or more", self.chunk_tokens >= 1, "256 keeps a chunk small")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """The hints' part of the loss: which divergence, which teacher, which turns, how strongly."""

    divergence: Divergence = "forward"  # D: KL(q||p), KL(p||q), or JSD divided by mix (1 - mix)
    mix: float = 0.5  # beta of the JSD: the teacher's share of the mixture; no use otherwise
    teacher: TeacherKind = "ema"
    ema_rate: float = 0.05  # of each optimizer step: teacher += rate (student - teacher)
    weight: float = 1.0  # lambda at its highest; 0 leaves a reward-only step
    warmup_steps: int = 0  # lambda rises linearly over so many steps
    decay: float = 1.0  # lambda falls with (gap now / gap at the end of the warm-up) to this power; 0: stays
    gate: bool = True  # a hint counts only if it makes the bad turn less likely, for the same teacher weights
    gate_margin: float = 0.0  # by at least so many nats a token
    token_cap: float = 0.0  # nats: a token's D and its gradient are scaled down to this; 0: no cap
    turn_ratio: TurnRatio = "none"  # rho: 1, or the prefix ratio inside the turn
    turn_ratio_cap: float = 2.0  # the prefix ratio is truncated here
    max_staleness: int = 4  # turns sampled more than so many versions ago are dropped

    def __post_init__(self) -> None:
        _one_of("divergence", self.divergence, Divergence)
        inside = 0 < self.mix < 1
        _require("mix", self.mix, "strictly between 0 and 1", inside, "the ends are divergence='forward' and 'reverse'")
        _one_of("teacher", self.teacher, TeacherKind)
        _require("ema_rate", self.ema_rate, "above 0, at most 1", 0 < self.ema_rate <= 1, "teacher='frozen' is a rate of 0")
        for name in ("weight", "decay", "gate_margin", "token_cap"):
            value = getattr(self, name)
            _require(name, value, "0 or more", math.isfinite(value) and value >= 0, "0 turns it off")
        _require("warmup_steps", self.warmup_steps, "0 or more", self.warmup_steps >= 0, "0 starts at the full weight")
        _one_of("turn_ratio", self.turn_ratio, TurnRatio)
        _require("turn_ratio_cap", self.turn_ratio_cap, "1 or more", self.turn_ratio_cap >= 1, "2 is the usual value")
        _require("max_staleness", self.max_staleness, "0 or more", self.max_staleness >= 0, "0 keeps only the newest version's turns")
