"""One training step's gradients: forward and backward, micro-batch by micro-batch.

    L = L_RL / (rollouts x constant)  +  lambda  L_feedback / N_h         L_RL: losses.py, L_feedback: hinted.py

    N_h = tokens of all fresh hinted turns of the step, over every process, counted before the gate

In: a model, Samples, settings, denominators. Out: gradients added to `.grad`, and `StepStats` (sums with counts, and the KL of each
token of each hinted turn). Micro-batches are right-padded rows of similar length. A sample without advantage, fresh hint and reference
cost is skipped, as its gradient is exactly zero. Samples that are here for their hints alone run in micro-batches of their own, so that
the reward's part of the gradient is the same to the bit with and without hints. Losses are fp32 (fp64 for fp64 weights). The
denominators are known before the first micro-batch (N_h cannot wait for the gate), so nothing is kept from one to the next. Same
inputs give bit-equal gradients on a CPU with a fixed thread count.

The oracle is `oracle.oracle_step`. Not here: the optimizer, lambda (coefficient.py), who writes hints.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etude.config import FeedbackConfig, LossConfig
from etude.learn.batch import Batch, micro_batches, to_batch
from etude.learn.branches import Trunk
from etude.learn.head import head_of, hidden_states
from etude.learn.hinted import feedback_sum, fresh_hints, read_hints
from etude.learn.losses import rl_loss, sft_loss
from etude.learn.stats import StepStats, Tally
from etude.learn.teacher import Teacher
from etude.learn.vocabulary import Projected, project
from etude.model.attention import attention
from etude.types import Sample

Progress = Callable[[int, int], None]
"""Called after each micro-batch with samples done and samples in all."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """What the two sums are divided by: numbers of the whole step, over all processes (add those of each)."""

    rl: float
    feedback: float


def denominators(
    samples: Iterable[Sample],
    loss: LossConfig,
    feedback: FeedbackConfig | None = None,
    *,
    version: int | None = None,
    num_rollouts: int | None = None,
) -> Denominators:
    """Of this process's samples. `num_rollouts` where some rollouts left no sample; by default distinct rollout ids are counted."""
    samples = list(samples)
    if num_rollouts is None:
        num_rollouts = len({sample.rollout_id for sample in samples})
    spans = [] if feedback is None else [span for sample in samples for span in fresh_hints(sample, feedback, version)]
    return Denominators(rl=num_rollouts * loss.tokens_per_rollout, feedback=float(sum(span.stop - span.start for span in spans)))


def accumulate(
    model: nn.Module,
    samples: Sequence[Sample],
    *,
    loss: LossConfig,
    denominators: Denominators,
    feedback: FeedbackConfig | None = None,
    teacher: Teacher | None = None,
    feedback_weight: float | None = None,
    reference: nn.Module | None = None,
    version: int | None = None,
    progress: Progress | None = None,
) -> StepStats:
    """Add this step's gradients to the model's parameters.

    `feedback_weight` is lambda (default: the configured weight); at 0 the hints are measured and add nothing to the gradient. Without
    `feedback` hints are ignored. `reference` is the frozen model where the loss asks for one, `version` that of the weights now.
    ValueError for settings that do not fit together.
    """
    _check(loss, feedback, teacher, reference)
    weight = 0.0 if feedback is None else feedback.weight if feedback_weight is None else feedback_weight
    spans = [[] if feedback is None else fresh_hints(sample, feedback, version) for sample in samples]
    costly = loss.reference != "none" and loss.reference_coefficient > 0
    trained = [i for i, sample in enumerate(samples) if costly or sample.advantage != 0]
    hinted_only = [i for i in sorted(set(range(len(samples))) - set(trained)) if spans[i]]
    done = len(samples) - len(trained) - len(hinted_only)
    tally, head = Tally(), head_of(model)
    tally.counts.update(samples=len(samples), skipped=done)
    if feedback is not None:
        tally.counts["stale_hints"] = sum(bool(s.hint_ids) for x in samples for s in x.hints) - sum(map(len, spans))
    for indices, rewarded in _groups(samples, trained, hinted_only, loss.micro_batch_tokens):
        places = [(row, i, span) for row, i in enumerate(indices) for span in spans[i]]
        wanted = None if rewarded else [{t for span in spans[i] for t in range(span.start, span.stop)} for i in indices]
        batch = to_batch([samples[i] for i in indices], head.weight.device, wanted=wanted, dtype=head.dtype)
        trunk = Trunk() if places and teacher is not None and teacher.reads_trunk else None
        total, reading = None, None
        with torch.set_grad_enabled(rewarded or weight != 0):
            with _keeping(trunk):
                states_ND = hidden_states(model, batch.ids).flatten(0, 1).index_select(0, batch.predictors_N)
            if places:
                assert feedback is not None
                assert teacher is not None
                reading = read_hints(batch, places, loss, feedback, teacher, trunk)
            found = project(states_ND, batch.targets_N, head, None if reading is None else reading.lesson, loss.chunk_tokens)
            if rewarded:
                total = _reward_sum(batch, found, loss, reference, tally) / denominators.rl
            if reading is not None:
                assert feedback is not None
                part = feedback_sum(batch, places, reading, found, feedback, tally)
                if weight:
                    part = part * (weight / denominators.feedback)
                    total = part if total is None else total + part
        if total is not None:
            total.backward()  # type: ignore[no-untyped-call]
        tally.count_batch(batch)
        done += len(indices)
        if progress is not None:
            progress(done, len(samples))
    return tally.stats()


def accumulate_sft(
    model: nn.Module, samples: Sequence[Sample], *, loss: LossConfig, denominator: float | None = None, progress: Progress | None = None
) -> StepStats:
    """Add the gradients of the mean cross-entropy over sampled tokens. `denominator`: all processes' tokens (default: these samples')."""
    tokens = sum(sum(sample.sampled) for sample in samples) if denominator is None else denominator
    kept = [i for i, sample in enumerate(samples) if any(sample.sampled)]
    tally, head, done = Tally(), head_of(model), len(samples) - len(kept)
    tally.counts.update(samples=len(samples), skipped=done)
    for indices, _ in _groups(samples, kept, [], loss.micro_batch_tokens):
        batch = to_batch([samples[i] for i in indices], head.weight.device, dtype=head.dtype)
        states_ND = hidden_states(model, batch.ids).flatten(0, 1).index_select(0, batch.predictors_N)
        found = project(states_ND, batch.targets_N, head, chunk=loss.chunk_tokens)
        part = sft_loss(found.logp_N)
        (part.total / tokens).backward()  # type: ignore[no-untyped-call]
        tally.add({"sft_loss": part.total.detach(), "entropy": found.entropy_N.sum()})
        tally.counts["sampled_tokens"] += part.count
        tally.count_batch(batch)
        done += len(indices)
        if progress is not None:
            progress(done, len(samples))
    return tally.stats()


def _check(loss: LossConfig, feedback: FeedbackConfig | None, teacher: Teacher | None, reference: nn.Module | None) -> None:
    if loss.reference == "frozen" and reference is None:
        raise ValueError("reference is 'frozen' but no reference model was given: pass reference=, the frozen first weights")
    if feedback is not None and teacher is None:
        raise ValueError("feedback settings without a teacher: pass teacher=Teacher(model, ...), or feedback=None for a reward-only step")
    if feedback is not None and teacher is not None and feedback.teacher != teacher.kind:
        raise ValueError(
            f"the settings ask for a {feedback.teacher!r} teacher, the one given is {teacher.kind!r}: build it from the settings"
        )


def _groups(
    samples: Sequence[Sample], trained: Sequence[int], hinted_only: Sequence[int], max_tokens: int
) -> Iterator[tuple[list[int], bool]]:
    """Indices of each micro-batch, and whether the reward trains it."""
    for indices, rewarded in ((trained, True), (hinted_only, False)):
        for group in micro_batches([samples[i] for i in indices], max_tokens):
            yield [indices[i] for i in group], rewarded


def _keeping(trunk: Trunk | None) -> AbstractContextManager[None]:
    return nullcontext() if trunk is None else attention(trunk.plan)


def _reward_sum(batch: Batch, found: Projected, loss: LossConfig, reference: nn.Module | None, tally: Tally) -> Tensor:
    """The RL sum of one micro-batch, undivided."""
    reference_N = None
    if loss.reference == "frozen":
        assert reference is not None
        with torch.no_grad():
            states_ND = hidden_states(reference, batch.ids).flatten(0, 1).index_select(0, batch.predictors_N)
            reference_N = project(states_ND, batch.targets_N, head_of(reference), chunk=loss.chunk_tokens).logp_N
    part = rl_loss(found.logp_N, batch.sampler_logp_N, batch.advantage_N, loss, reference_N)
    tally.add({"rl_loss": part.total.detach(), "entropy": found.entropy_N.sum(), **part.sums})
    tally.counts["sampled_tokens"] += part.count
    return part.total
