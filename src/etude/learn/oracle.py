"""Slow oracles of everything fast in learn/: full logits, autograd, one sample at a time, one full forward per hint. For tests.

    dense_logprobs      of  vocabulary.project
    dense_divergence    of  divergence.divergence, divergence.slope, vocabulary.project
    oracle_step         of  step.accumulate
    branches.separate_hidden is that of branches.branch_hidden

Written from the formulas of docs/algorithms.md without the fast paths' code. Not here: the supervised loss (torch's own cross-entropy).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.config import Divergence, FeedbackConfig, LossConfig
from etude.types import HintSpan, Sample


def dense_logprobs(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """(log p(target), entropy) from full logits, by autograd."""
    logp_NV = F.log_softmax(_wide(logits_NV), -1)
    return logp_NV[torch.arange(len(targets_N)), targets_N], -(logp_NV.exp() * logp_NV).sum(-1)


def dense_divergence(student_logits_NV: Tensor, teacher_logits_NV: Tensor, kind: Divergence, mix: float = 0.5) -> Tensor:
    """D per row from full logits, by autograd."""
    p, q = F.softmax(_wide(student_logits_NV), -1), F.softmax(_wide(teacher_logits_NV), -1).detach()
    if kind == "forward":
        return (q * (q.log() - p.log())).sum(-1)
    if kind == "reverse":
        return (p * (p.log() - q.log())).sum(-1)
    m = (1 - mix) * p + mix * q
    jsd = (1 - mix) * (p * (p.log() - m.log())).sum(-1) + mix * (q * (q.log() - m.log())).sum(-1)
    return jsd / (mix * (1 - mix))


def oracle_step(
    model: nn.Module,
    samples: Sequence[Sample],
    loss: LossConfig,
    feedback: FeedbackConfig | None,
    teacher: nn.Module | None,
    reference: nn.Module | None = None,
) -> Tensor:
    """The whole loss of a step as one scalar to be differentiated, every hint fresh: L_RL / (rollouts x constant) + weight L_fb / N_h."""
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    rollouts = len({sample.rollout_id for sample in samples})
    hinted = sum(span.stop - span.start for sample in samples for span in sample.hints if span.hint_ids)
    for sample in samples:
        logits_TV = _logits(model, sample.ids, device)
        if reference is not None:
            with torch.no_grad():
                reference_TV = F.log_softmax(_wide(_logits(reference, sample.ids, device)), -1)
        logp_TV = F.log_softmax(_wide(logits_TV), -1)
        for t in (t for t, sampled in enumerate(sample.sampled) if sampled):
            logp = logp_TV[t - 1, sample.ids[t]]
            advantage = torch.as_tensor(sample.advantage, dtype=logp.dtype)
            if loss.reference == "sampler":
                advantage = advantage - loss.reference_coefficient * (logp.detach() - sample.logprobs[t])
            elif loss.reference == "frozen":
                advantage = advantage - loss.reference_coefficient * (logp.detach() - reference_TV[t - 1, sample.ids[t]])
            ratio = torch.exp(logp.detach() - sample.logprobs[t]).clamp(max=loss.ratio_cap)
            total = total - ratio * advantage * logp / (rollouts * loss.tokens_per_rollout)
        for span in sample.hints:
            if feedback is not None and span.hint_ids:
                assert teacher is not None
                part = _hinted_turn(sample, span, logits_TV, feedback, teacher, device)
                total = total + feedback.weight * part / hinted
    return total


def _hinted_turn(
    sample: Sample, span: HintSpan, logits_TV: Tensor, feedback: FeedbackConfig, teacher: nn.Module, device: torch.device
) -> Tensor:
    with torch.no_grad():
        hinted_ids = sample.ids[: span.splice] + span.hint_ids + sample.ids[span.splice : span.stop]
        shift = len(span.hint_ids)
        teacher_NV = _logits(teacher, hinted_ids, device)[span.start + shift - 1 : span.stop + shift - 1]
        unhinted_NV = _logits(teacher, sample.ids, device)[span.start - 1 : span.stop - 1]
    student_NV = logits_TV[span.start - 1 : span.stop - 1]
    targets_N = torch.tensor(sample.ids[span.start : span.stop], device=device)
    effect_N = dense_logprobs(teacher_NV, targets_N)[0] - dense_logprobs(unhinted_NV, targets_N)[0]
    if feedback.gate and effect_N.mean() > -feedback.gate_margin:
        return torch.zeros((), device=device)
    divergence_N = dense_divergence(student_NV, teacher_NV, feedback.divergence, feedback.mix)
    total = torch.zeros((), dtype=divergence_N.dtype, device=device)
    prefix = 1.0
    logp_N = dense_logprobs(student_NV, targets_N)[0].detach()
    for t in range(len(targets_N)):
        weight = min(prefix, feedback.turn_ratio_cap)
        size = float(divergence_N[t].detach())
        if feedback.token_cap and size > feedback.token_cap:
            weight *= feedback.token_cap / size
        total = total + weight * divergence_N[t]
        if feedback.turn_ratio == "prefix":
            prefix *= float(torch.exp(logp_N[t] - sample.logprobs[span.start + t]))
        elif feedback.turn_ratio == "teacher":
            prefix *= min(1.0, float(torch.exp(effect_N[t])))
    return total


def _logits(model: nn.Module, ids: Sequence[int], device: torch.device) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False).logits[0]
    return logits


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
