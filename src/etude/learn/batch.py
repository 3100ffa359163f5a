"""Samples -> micro-batches of tensors: the only records here that hold tensors.

Rows of similar length are padded on the right up to a token budget. Only positions that predict something are ever projected, so a
batch lists them: the output at place t-1 predicts token t.

    B rows, T padded length; N tokens to be predicted: the sampled ones of all rows, in row order, or those of hinted turns only

Not here: losses (losses.py), teacher branches (branches.py).
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.types import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    samples: tuple[Sample, ...]
    rows: tuple[tuple[int, ...], ...]  # token ids of each row, unpadded: inputs only, what comes after the last target is dropped
    ids: Tensor  # [B, T] padded on the right with 0
    predictors_N: Tensor  # index into the flattened [B x T] outputs that predicts each token
    targets_N: Tensor  # those tokens
    sampler_logp_N: Tensor  # the sampler's log-probabilities
    advantage_N: Tensor
    row_of: dict[tuple[int, int], int]  # (row, place of a sampled token in its sample) -> index into the N tokens

    @property
    def num_tokens(self) -> int:
        """Input tokens without padding."""
        return sum(map(len, self.rows))


def input_length(sample: Sample) -> int:
    """Tokens that have to be read: all before the last sampled one (what follows it predicts nothing, hints included)."""
    last = max((t for t, sampled in enumerate(sample.sampled) if sampled), default=0)
    if sample.sampled and sample.sampled[0]:
        raise ValueError(f"the first token of a sample of rollout {sample.rollout_id!r} is marked as sampled: nothing predicts it")
    return last


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[int]]:
    """Indices of samples, grouped by similar length; padded size of a group at most `max_tokens` unless it is a single sample."""
    lengths = [input_length(sample) for sample in samples]
    groups: list[list[int]] = []
    for index in sorted(range(len(samples)), key=lambda i: (-lengths[i], i)):
        # Longest first, so that a group's first member sets its padded length.
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def to_batch(
    samples: Sequence[Sample],
    device: torch.device | str = "cpu",
    *,
    wanted: Sequence[Container[int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Batch:
    """Tensors of one micro-batch. `wanted`: per sample, which of its sampled tokens are to be predicted (all by default)."""
    rows = [sample.ids[: input_length(sample)] for sample in samples]
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    predictors: list[int] = []
    targets: list[int] = []
    logps: list[float] = []
    advantages: list[float] = []
    row_of: dict[tuple[int, int], int] = {}
    for b, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        ids[b, : len(row)] = torch.tensor(row, dtype=torch.long)
        places = [t for t, sampled in enumerate(sample.sampled) if sampled and (wanted is None or t in wanted[b])]
        row_of.update(((b, t), len(targets) + i) for i, t in enumerate(places))
        predictors += [b * width + t - 1 for t in places]
        targets += [sample.ids[t] for t in places]
        logps += [sample.logprobs[t] for t in places]
        advantages += [sample.advantage] * len(places)
    return Batch(
        samples=tuple(samples),
        rows=tuple(rows),
        ids=ids.to(device),
        predictors_N=torch.tensor(predictors, dtype=torch.long, device=device),
        targets_N=torch.tensor(targets, dtype=torch.long, device=device),
        sampler_logp_N=torch.tensor(logps, dtype=dtype, device=device),
        advantage_N=torch.tensor(advantages, dtype=dtype, device=device),
        row_of=row_of,
    )
