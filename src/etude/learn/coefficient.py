"""lambda(k): how strongly the hints count at optimizer step k.

    lambda(k) = weight  min(1, (k + 1) / (warmup_steps + 1))  min(1, gap / gap_0) ^ decay

`gap` is a running mean of the feedback KL per token; gap_0 is its value when the warm-up ended. So the stream rises, holds while
student and teacher differ as much as at first, and retires as the student does without the hint what it does with it. The idea of
warm-up and retirement: arXiv 2606.04036, 2609.20784.

`Gap` is the whole state: two numbers and a count, plain data for a checkpoint. Not here: the KL itself (feedback_kl.py).
"""

from dataclasses import dataclass

from etude.config import FeedbackConfig

SMOOTHING = 0.2  # share of the newest step in the running mean: about the last five steps count


@dataclass(frozen=True, slots=True)
class Gap:
    steps: int = 0  # optimizer steps so far
    now: float | None = None  # running mean of the feedback KL per token, nats; None before the first hint
    first: float | None = None  # gap_0


def coefficient(config: FeedbackConfig, gap: Gap) -> float:
    """lambda for the coming step."""
    warm = min(1.0, (gap.steps + 1) / (config.warmup_steps + 1))
    if gap.now is None or not gap.first or not config.decay:
        return config.weight * warm
    return float(config.weight * warm * min(1.0, gap.now / gap.first) ** config.decay)


def observe(config: FeedbackConfig, gap: Gap, token_kl: float | None) -> Gap:
    """The state after a step whose mean feedback KL per token was `token_kl`; None if it had no open hint."""
    now = gap.now
    if token_kl is not None:
        now = token_kl if now is None else now + SMOOTHING * (token_kl - now)
    first = gap.first
    if first is None and gap.steps >= config.warmup_steps:
        first = now
    return Gap(gap.steps + 1, now, first)
