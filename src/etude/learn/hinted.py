"""The hinted turns of one micro-batch: teacher, gate, prefix ratio, cap -> the feedback sum.

    L_feedback = sum over hinted turns g of  gate_g  sum over its tokens t of  rho_t  min(1, cap / D_t)  D(p_t, q_t)
    gate_g     = 1 if the mean over t of log q(y_t | hint) - log q(y_t | no hint) is at most -margin, same teacher weights; else 0
    rho_t      = product over earlier tokens u of the turn of r_u, detached
                 r_u = 1 ("none"), or pi(y_u) / mu(y_u), the product truncated ("prefix": corrects staleness), or
                 min(1, q(y_u | hint) / q(y_u | no hint)) ("teacher")

"teacher" is the default: after a prefix that the hinted teacher would not have written, say the name of a tool that is not there, its
opinion of what follows is outside all it has learned, and teaching it made runs collapse (docs/log.md).
Comparing a teacher with hint to the *student* would take the drift between their weights for the hint's effect; so the gate compares the
teacher with itself. Every sampled token of the turn counts, its stop token included.

    N tokens that the micro-batch predicts, M tokens of hinted turns

Not here: the divergence (divergence.py, vocabulary.py), the teacher's forwards (teacher.py), the division by N_h and lambda (step.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.config import FeedbackConfig, LossConfig
from etude.learn.batch import Batch
from etude.learn.branches import Trunk, branch_of
from etude.learn.feedback_kl import cap_scale
from etude.learn.stats import HintedTurn, Tally
from etude.learn.teacher import Teacher
from etude.learn.vocabulary import Lesson, Projected, project
from etude.types import HintSpan, Sample

Place = tuple[int, int, HintSpan]
"""Row in the micro-batch, index of the sample in the step, where the hint is."""


def fresh_hints(sample: Sample, config: FeedbackConfig, version: int | None) -> list[HintSpan]:
    """Hints that make a branch: with tokens, at turns sampled at most `max_staleness` versions ago (`version`: that of the weights now)."""

    def fresh(span: HintSpan) -> bool:
        versions = sample.versions[span.start : span.stop]
        return version is None or not versions or version - min(versions) <= config.max_staleness

    return [span for span in sample.hints if span.hint_ids and fresh(span)]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the teacher made of a micro-batch's hints; M tokens of hinted turns."""

    lesson: Lesson
    unhinted_logp_M: Tensor | None  # the teacher's, without the hint; None for a live teacher, whose weights are the student's
    lengths: list[int]  # tokens of each hinted turn


def read_hints(
    batch: Batch, places: Sequence[Place], loss: LossConfig, feedback: FeedbackConfig, teacher: Teacher, trunk: Trunk | None
) -> Reading:
    """Run the teacher. `trunk`: what the student's forward left behind, for a live one that reads it."""
    branches = [branch_of(row, batch.samples[row], span) for row, _, span in places]
    read, head = teacher.hinted(batch, branches, trunk, loss.micro_batch_tokens), teacher.head()
    rows = [batch.row_of[row, t] for row, _, span in places for t in range(span.start, span.stop)]
    unhinted_logp_M = None
    if read.unhinted_MD is not None:
        with torch.no_grad():
            targets_M = batch.targets_N[torch.tensor(rows, device=batch.targets_N.device)]
            unhinted_logp_M = project(read.unhinted_MD, targets_M, head, chunk=loss.chunk_tokens).logp_N
    lesson = Lesson(read.hidden_MD, rows, head, feedback.divergence, feedback.mix)
    return Reading(lesson, unhinted_logp_M, [span.stop - span.start for _, _, span in places])


def feedback_sum(
    batch: Batch, places: Sequence[Place], reading: Reading, found: Projected, feedback: FeedbackConfig, tally: Tally
) -> Tensor:
    """The sum over the micro-batch's hinted turns, undivided. `found`: the pass over the vocabulary that had the reading's lesson."""
    lengths, divergence_M = reading.lengths, found.divergence_M
    student_M = found.logp_N.detach()[torch.tensor(reading.lesson.rows, device=divergence_M.device)]
    unhinted_M = student_M if reading.unhinted_logp_M is None else reading.unhinted_logp_M
    effect_M, kl_M = found.teacher_logp_M - unhinted_M, divergence_M.detach()
    effects = [float(turn.mean()) for turn in torch.split(effect_M, lengths)]
    gates = [not feedback.gate or effect <= -feedback.gate_margin for effect in effects]
    per_token = [float(gate) for gate, n in zip(gates, lengths, strict=True) for _ in range(n)]
    gate_M = torch.tensor(per_token, dtype=kl_M.dtype, device=kl_M.device)
    rho_M = _turn_ratio(batch, places, student_M, effect_M, lengths, feedback)
    scale_M = cap_scale(divergence_M, feedback.token_cap)
    total = (gate_M * rho_M * scale_M * divergence_M).sum()
    tally.add({"feedback_loss": total.detach(), "feedback_kl": kl_M.sum(), "feedback_open_kl": (kl_M * gate_M).sum()})
    tally.add({"hint_effect": effect_M.sum(), "feedback_capped": (scale_M < 1).sum(), "turn_ratio": rho_M.sum(), "gate_open": sum(gates)})
    tally.counts["hinted_turns"] += len(places)
    tally.counts["hinted_tokens"] += sum(lengths)
    tally.counts["open_tokens"] += sum(n for n, gate in zip(lengths, gates, strict=True) if gate)
    _report(batch, places, gates, effects, torch.split(kl_M, lengths), tally)
    return total


def _report(
    batch: Batch, places: Sequence[Place], gates: Sequence[bool], effects: Sequence[float], token_kls: Sequence[Tensor], tally: Tally
) -> None:
    for (row, index, span), gate, effect, kl in zip(places, gates, effects, token_kls, strict=True):
        turn = HintedTurn(
            rollout_id=batch.samples[row].rollout_id,
            segment=span.segment,
            turn=span.turn,
            writer=span.writer,
            gate=gate,
            effect=effect,
            token_kl=tuple(kl.tolist()),
        )
        tally.hinted.append((index, turn))


def _turn_ratio(
    batch: Batch, places: Sequence[Place], student_M: Tensor, effect_M: Tensor, lengths: Sequence[int], feedback: FeedbackConfig
) -> Tensor:
    if feedback.turn_ratio == "none":
        return torch.ones_like(student_M)
    if feedback.turn_ratio == "teacher":
        return _before(effect_M.clamp(max=0), lengths).exp()
    sampler = [x for row, _, s in places for x in batch.samples[row].logprobs[s.start : s.stop]]
    gap_M = student_M - torch.tensor(sampler, dtype=student_M.dtype, device=student_M.device)
    return _before(gap_M, lengths).exp().clamp(max=feedback.turn_ratio_cap)


def _before(log_ratio_M: Tensor, lengths: Sequence[int]) -> Tensor:
    """Sum over the earlier tokens of the turn. A token's own ratio is left out: the divergence is already an expectation over it."""
    return torch.cat([turn.cumsum(0) - turn for turn in torch.split(log_ratio_M, list(lengths))])
