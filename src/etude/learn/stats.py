"""What a training step reports: sums with their counts, so that several processes can add theirs, and the KL of every hinted token.

`metrics` turns them into means for a log. Not here: where the numbers come from (step.py, hinted.py).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from etude.learn.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedTurn:
    """What became of one hint."""

    rollout_id: str
    segment: int
    turn: int
    writer: str
    gate: bool
    effect: float  # mean over the turn of log q(y | hint) - log q(y | no hint), nats a token: below 0 the hint speaks against the turn
    token_kl: tuple[float, ...]  # D per token, uncapped


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    sums: dict[str, float]  # undivided; which count belongs to which sum: see `metrics`
    counts: dict[str, int]
    hinted: tuple[HintedTurn, ...] = ()

    def mean(self, name: str, count: str) -> float | None:
        return self.sums.get(name, 0.0) / self.counts[count] if self.counts.get(count) else None


@dataclass(slots=True)
class Tally:
    """Collects while a step runs."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    hinted: list[tuple[int, HintedTurn]] = field(default_factory=list)  # with the sample's index

    def add(self, sums: Mapping[str, Tensor | float]) -> None:
        for name, value in sums.items():
            self.sums[name] += float(value)

    def count_batch(self, batch: Batch) -> None:
        self.counts["micro_batches"] += 1
        self.counts["input_tokens"] += batch.num_tokens
        self.counts["padded_tokens"] += batch.ids.numel()

    def stats(self) -> StepStats:
        turns = tuple(turn for _, turn in sorted(self.hinted, key=lambda pair: pair[0]))
        return StepStats(sums=dict(self.sums), counts=dict(self.counts), hinted=turns)


def metrics(stats: StepStats) -> dict[str, float]:
    """Means and shares for a log; a mean over nothing is left out. Keys: docs/algorithms.md, section 6."""
    found = {
        "loss/rl_per_token": stats.mean("rl_loss", "sampled_tokens"),
        "loss/sft": stats.mean("sft_loss", "sampled_tokens"),
        "policy/entropy": stats.mean("entropy", "sampled_tokens"),
        "policy/sampler_gap": stats.mean("sampler_gap", "sampled_tokens"),
        "policy/sampler_k1": stats.mean("sampler_k1", "sampled_tokens"),
        "policy/ratio": stats.mean("ratio", "sampled_tokens"),
        "policy/ratio_capped_share": stats.mean("ratio_capped", "sampled_tokens"),
        "policy/reference_k1": stats.mean("reference_k1", "sampled_tokens"),
        "feedback/token_kl": stats.mean("feedback_kl", "hinted_tokens"),
        "feedback/open_token_kl": stats.mean("feedback_open_kl", "open_tokens"),
        "feedback/gate_share": stats.mean("gate_open", "hinted_turns"),
        "feedback/effect": stats.mean("hint_effect", "hinted_tokens"),
        "feedback/capped_share": stats.mean("feedback_capped", "hinted_tokens"),
        "feedback/turn_ratio": stats.mean("turn_ratio", "hinted_tokens"),
    }
    counted = {f"tokens/{name}": stats.counts.get(name, 0) for name in ("sampled_tokens", "hinted_tokens", "input_tokens", "padded_tokens")}
    other = {f"step/{name}": stats.counts.get(name, 0) for name in ("samples", "skipped", "micro_batches", "hinted_turns", "stale_hints")}
    return {name: float(value) for name, value in {**found, **counted, **other}.items() if value is not None}
