"""The feedback KL: moves a student's token distributions toward those of a teacher that saw a hint. Usable alone.

    sum over tokens t of  w_t  min(1, cap / D_t)  D(p_t, q_t)        p student, q teacher (never differentiated), the scale detached

    forward   KL(q || p)                                             gradient of D with respect to the student's logits: p - q
    reverse   KL(p || q)                                                 p (log p/q - KL(p || q))
    jsd       [(1-b) KL(p || m) + b KL(q || m)] / (b (1-b))              p (log p/m - KL(p || m)) / b,   m = (1-b) p + b q

    N rows (tokens of hinted turns), D hidden size, V vocabulary

The JSD is divided by b(1-b), so that b -> 0 is the forward and b -> 1 the reverse KL; without it the ends jump (at b = .01 it is a
hundred times smaller than the KL). The cap scales a whole token: clamping single entries would zero the very entry that a hint is about.
Full vocabulary, in fp32 chunks that the backward projects again. Its oracle is `oracle.dense_divergence`.

    result = feedback_kl(student_hidden, teacher_hidden, student_head=Head(lm_head.weight), teacher_head=Head(teacher_lm_head.weight))
    (result.total / result.count).backward()

Sources: arXiv 2601.19897, 2601.20802, 2601.18734. Not here: which tokens, gate, prefix ratio (step.py), the teacher (teacher.py).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from etude.config import Divergence
from etude.learn.head import Head, chunks, head_gradients


@dataclass(frozen=True, slots=True)
class TokenDivergence:
    """Per token; only `divergence_N` has a gradient."""

    divergence_N: Tensor  # D(p, q), nats, uncapped
    student_logp_N: Tensor  # log p(token)
    teacher_logp_N: Tensor  # log q(token)


@dataclass(frozen=True, slots=True)
class FeedbackKL:
    total: Tensor  # scalar with a gradient: the weighted, capped sum. Divide it by your own count of hinted tokens
    count: int  # rows
    token_kl_N: Tensor  # D per token, uncapped, detached


def feedback_kl(
    student: Tensor,
    teacher: Tensor,
    *,
    student_head: Head | None = None,
    teacher_head: Head | None = None,
    divergence: Divergence = "forward",
    mix: float = 0.5,
    weights_N: Tensor | None = None,
    token_cap: float = 0.0,
    chunk_tokens: int = 256,
) -> FeedbackKL:
    """Sum over rows of the (weighted, capped) divergence between student and teacher.

    `student` and `teacher` are hidden states [N, D] with their heads, or logits [N, V] where the head is None. Without rows the total is
    zero with a zero gradient. Nothing flows into the teacher.
    """
    tokens = token_divergence(
        student,
        teacher,
        None,
        student_head=student_head,
        teacher_head=teacher_head,
        divergence=divergence,
        mix=mix,
        chunk_tokens=chunk_tokens,
    )
    weight_N = cap_scale(tokens.divergence_N, token_cap)
    if weights_N is not None:
        weight_N = weight_N * weights_N
    return FeedbackKL((weight_N * tokens.divergence_N).sum(), len(student), tokens.divergence_N.detach())


def cap_scale(divergence_N: Tensor, cap: float) -> Tensor:
    """min(1, cap / D), detached; ones without a cap."""
    if not cap:
        return torch.ones_like(divergence_N)
    return (cap / divergence_N.detach().clamp(min=cap)).clamp(max=1.0)


def token_divergence(
    student: Tensor,
    teacher: Tensor,
    targets_N: Tensor | None,
    *,
    student_head: Head | None,
    teacher_head: Head | None,
    divergence: Divergence = "forward",
    mix: float = 0.5,
    chunk_tokens: int = 256,
) -> TokenDivergence:
    """D per token, and both log-probabilities of the target tokens (zeros without targets). Shapes as in `feedback_kl`."""
    if len(student) != len(teacher):
        raise ValueError(f"{len(student)} student rows against {len(teacher)} teacher rows: pass the same tokens in the same order")
    weight = None if student_head is None else student_head.weight
    bias = None if student_head is None else student_head.bias
    if targets_N is None:
        targets_N = torch.full((len(student),), -1, device=student.device)
    options = (student_head, None if teacher_head is None else teacher_head.detach(), targets_N, divergence, mix, chunk_tokens)
    return TokenDivergence(*_TokenDivergence.apply(student, weight, bias, teacher.detach(), *options))  # type: ignore[no-untyped-call]


def _logits(head: Head | None, rows_N: Tensor) -> Tensor:
    if head is not None:
        return head.logits(rows_N)
    return rows_N if rows_N.dtype == torch.float64 else rows_N.float()


def divergence_and_slope(logp_NV: Tensor, logq_NV: Tensor, kind: Divergence, mix: float, slope: bool) -> Tensor:
    """D [N], or with `slope` its gradient with respect to the student's logits [N, V]; both arguments are log-probabilities."""
    if kind == "forward":
        if slope:
            return logp_NV.exp().sub_(logq_NV.exp())
        return logq_NV.exp().mul_(logq_NV - logp_NV).sum(-1)
    p_NV = logp_NV.exp()
    if kind == "reverse":
        kl_N = (p_NV * (logp_NV - logq_NV)).sum(-1)
        return p_NV * (logp_NV - logq_NV - kl_N[:, None]) if slope else kl_N
    if kind == "jsd":
        logs = torch.log(torch.tensor([1 - mix, mix], dtype=logp_NV.dtype, device=logp_NV.device))
        logm_NV = torch.logaddexp(logp_NV + logs[0], logq_NV + logs[1])
        from_p_N = (p_NV * (logp_NV - logm_NV)).sum(-1)
        if slope:
            return p_NV * (logp_NV - logm_NV - from_p_N[:, None]) / mix
        return from_p_N / mix + (logq_NV.exp() * (logq_NV - logm_NV)).sum(-1) / (1 - mix)
    raise ValueError(f"divergence is {kind!r}, allowed is 'forward', 'reverse' or 'jsd': choose one of them")


class _TokenDivergence(torch.autograd.Function):
    """D per row with the closed-form gradient above; rows whose incoming gradient is zero (closed gate) are not projected again."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        teacher: Tensor,
        student_head: Head | None,
        teacher_head: Head | None,
        targets_N: Tensor,
        kind: Divergence,
        mix: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads = [None if head is None else head.detach().widen() for head in (student_head, teacher_head)]
        dtype = torch.float64 if torch.float64 in (student.dtype, teacher.dtype) else torch.float32
        found = [torch.empty(len(student), dtype=dtype, device=student.device) for _ in range(3)]
        index_N = targets_N.clamp(min=0)[:, None]
        for rows in chunks(len(student), chunk):
            logp_NV = torch.log_softmax(_logits(heads[0], student[rows]), -1)
            logq_NV = torch.log_softmax(_logits(heads[1], teacher[rows]), -1)
            found[0][rows] = divergence_and_slope(logp_NV, logq_NV, kind, mix, False)
            for out_N, log_NV in zip(found[1:], (logp_NV, logq_NV), strict=True):
                out_N[rows] = log_NV.gather(1, index_N[rows])[:, 0] * (targets_N[rows] >= 0)
        ctx.save_for_backward(student, weight, bias, teacher)
        ctx.student_head = None if student_head is None else student_head.detach()
        ctx.teacher_head, ctx.options = teacher_head, (kind, mix, chunk)
        ctx.mark_non_differentiable(found[1], found[2])
        return found[0], found[1], found[2]

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _logp: Tensor, _logq: Tensor) -> tuple[Tensor | None, ...]:
        student, weight, bias, teacher = ctx.saved_tensors
        kind, mix, chunk = ctx.options
        open_N = grad_N.nonzero()[:, 0]
        grad_N, rows_student, rows_teacher = grad_N[open_N, None], student[open_N], teacher[open_N]
        teacher_head = None if ctx.teacher_head is None else ctx.teacher_head.widen()

        def chunk_grad(rows: slice, logits_NV: Tensor) -> Tensor:
            logp_NV = torch.log_softmax(logits_NV, -1)
            logq_NV = torch.log_softmax(_logits(teacher_head, rows_teacher[rows]), -1)
            return divergence_and_slope(logp_NV, logq_NV, kind, mix, True) * grad_N[rows]

        grads: list[Tensor | None]
        if ctx.student_head is None:
            parts = [chunk_grad(rows, _logits(None, rows_student[rows])) for rows in chunks(len(open_N), chunk)]
            grads = [torch.cat(parts).to(student.dtype) if parts else rows_student, None, None]
        else:
            head = replace(ctx.student_head, weight=weight, bias=bias)
            grads = head_gradients(head, rows_student, chunk, chunk_grad, ctx.needs_input_grad[:3])
        if grads[0] is not None:
            grads[0] = torch.zeros_like(student).index_copy_(0, open_N, grads[0])
        return (*grads, *([None] * 7))
