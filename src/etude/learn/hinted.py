"""The hinted turns of one micro-batch: teacher, gate, prefix ratio, cap -> the feedback sum.

    L_feedback = sum over hinted turns g of  gate_g  sum over its tokens t of  rho_t  min(1, cap / D_t)  D(p_t, q_t)
    gate_g     = 1 if the mean over t of log q(y_t | hint) - log q(y_t | no hint) is at most -margin, same teacher weights; else 0
    rho_t      = 1, or min(product over earlier tokens u of the turn of pi(y_u) / mu(y_u), cap), detached

Comparing a teacher with hint to the *student* would take the drift between their weights for the hint's effect; so the gate compares the
teacher with itself. Every sampled token of the turn counts, its stop token included.

    M = B x T places of the micro-batch; N tokens of hinted turns

Not here: the divergence (feedback_kl.py), the teacher's forwards (teacher.py), the division by N_h and lambda (step.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.config import FeedbackConfig, LossConfig
from etude.learn.batch import Batch
from etude.learn.branches import Trunk, branch_of
from etude.learn.feedback_kl import cap_scale, token_divergence
from etude.learn.head import Head, token_logprobs
from etude.learn.stats import HintedTurn, Tally
from etude.learn.teacher import Teacher
from etude.types import HintSpan, Sample

Place = tuple[int, int, HintSpan]
"""Row in the micro-batch, index of the sample in the step, where the hint is."""


def fresh_hints(sample: Sample, config: FeedbackConfig, version: int | None) -> list[HintSpan]:
    """Hints that make a branch: with tokens, at turns sampled at most `max_staleness` versions ago (`version`: that of the weights now)."""

    def fresh(span: HintSpan) -> bool:
        versions = sample.versions[span.start : span.stop]
        return version is None or not versions or version - min(versions) <= config.max_staleness

    return [span for span in sample.hints if span.hint_ids and fresh(span)]


def feedback_sum(
    batch: Batch,
    places: Sequence[Place],
    hidden_MD: Tensor,
    head: Head,
    loss: LossConfig,
    feedback: FeedbackConfig,
    teacher: Teacher,
    trunk: Trunk | None,
    tally: Tally,
) -> Tensor:
    """The sum over the micro-batch's hinted turns, undivided. `hidden_MD`: the student's, `trunk`: what its forward left behind."""
    device, width = hidden_MD.device, batch.ids.shape[1]
    branches = [branch_of(row, batch.samples[row], span) for row, _, span in places]
    lengths = [span.stop - span.start for _, _, span in places]
    predictors_N = torch.cat([torch.arange(row * width + s.start - 1, row * width + s.stop - 1, device=device) for row, _, s in places])
    targets_N = torch.tensor([i for row, _, s in places for i in batch.samples[row].ids[s.start : s.stop]], device=device)
    read, teacher_head = teacher.hinted(batch, branches, trunk, loss.micro_batch_tokens), teacher.head()
    found = token_divergence(
        hidden_MD.index_select(0, predictors_N),
        read.hidden_ND,
        targets_N,
        student_head=head,
        teacher_head=teacher_head,
        divergence=feedback.divergence,
        mix=feedback.mix,
        chunk_tokens=loss.chunk_tokens,
    )
    unhinted_N = found.student_logp_N  # a live teacher's weights are the student's
    if read.unhinted_ND is not None:
        with torch.no_grad():
            unhinted_N, _ = token_logprobs(read.unhinted_ND, teacher_head, targets_N, loss.chunk_tokens)
    effect_N, kl_N = found.teacher_logp_N - unhinted_N, found.divergence_N.detach()
    effects = [float(turn.mean()) for turn in torch.split(effect_N, lengths)]
    gates = [not feedback.gate or effect <= -feedback.gate_margin for effect in effects]
    gate_N = torch.tensor([float(gate) for gate, n in zip(gates, lengths, strict=True) for _ in range(n)], dtype=kl_N.dtype, device=device)
    rho_N = _turn_ratio(batch, places, found.student_logp_N, lengths, feedback)
    scale_N = cap_scale(found.divergence_N, feedback.token_cap)
    total = (gate_N * rho_N * scale_N * found.divergence_N).sum()
    tally.add({"feedback_loss": total.detach(), "feedback_kl": kl_N.sum(), "feedback_open_kl": (kl_N * gate_N).sum()})
    tally.add({"hint_effect": effect_N.sum(), "feedback_capped": (scale_N < 1).sum(), "turn_ratio": rho_N.sum(), "gate_open": sum(gates)})
    tally.counts["hinted_turns"] += len(places)
    tally.counts["hinted_tokens"] += sum(lengths)
    tally.counts["open_tokens"] += sum(n for n, gate in zip(lengths, gates, strict=True) if gate)
    _report(batch, places, gates, effects, torch.split(kl_N, lengths), tally)
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


def _turn_ratio(batch: Batch, places: Sequence[Place], student_N: Tensor, lengths: Sequence[int], feedback: FeedbackConfig) -> Tensor:
    if feedback.turn_ratio == "none":
        return torch.ones_like(student_N)
    sampler = [x for row, _, s in places for x in batch.samples[row].logprobs[s.start : s.stop]]
    gap_N = student_N - torch.tensor(sampler, dtype=student_N.dtype, device=student_N.device)
    # The token's own ratio is left out: the divergence is already an expectation over it.
    before = [gap.cumsum(0) - gap for gap in torch.split(gap_N, list(lengths))]
    return torch.cat(before).exp().clamp(max=feedback.turn_ratio_cap)
