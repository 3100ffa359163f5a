"""One pass over the vocabulary for everything that is learnt at a token: log-probability, entropy, divergence from a teacher.

    rows      hidden states of the student at the places that predict something, with the token that followed
    lesson    for some of the rows, what a teacher would have predicted there

Rows are projected in chunks; the backward projects again and adds up, per row,

    g_logp (onehot - p)  +  g_D dD/dz

before it goes through the head once: a hinted token costs the teacher's projection and nothing more on the student's side. A row without
a lesson is treated alike whether or not others have one, so its gradient is the same to the bit. Lessons whose incoming gradient is zero
(closed gate) are not projected again. Its oracles are `oracle.dense_logprobs` and `oracle.dense_divergence`.

    N rows (tokens), M lessons, D hidden size, V vocabulary

Not here: the formulas of D (divergence.py), what the numbers are weighted with (losses.py, hinted.py).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from etude.config import Divergence
from etude.learn.divergence import divergence, slope
from etude.learn.head import Head, chunks, head_gradients


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a teacher predicts at some of the rows; detached."""

    states_MD: Tensor  # hidden states, or logits [M, V] without a head
    rows: Sequence[int]  # the row of each, in any order, repeats allowed
    head: Head | None
    kind: Divergence = "forward"
    mix: float = 0.5


@dataclass(frozen=True, slots=True)
class Projected:
    """In fp32, or fp64 for an fp64 head. `logp_N` and `divergence_M` have gradients, to states and head."""

    logp_N: Tensor  # log p(target); 0 where the target is negative
    entropy_N: Tensor  # of p, nats
    divergence_M: Tensor  # D(p, q), nats
    teacher_logp_M: Tensor  # log q(target)


def project(states_ND: Tensor, targets_N: Tensor, head: Head | None, lesson: Lesson | None = None, chunk: int = 256) -> Projected:
    """Everything about N tokens. `states_ND`: hidden states, or logits [N, V] where the head is None."""
    if lesson is None:
        lesson = Lesson(states_ND.detach()[:0], (), head)
    lesson = replace(lesson, states_MD=lesson.states_MD.detach(), head=None if lesson.head is None else lesson.head.detach())
    order = sorted(range(len(lesson.rows)), key=lesson.rows.__getitem__)
    in_order = order == list(range(len(order)))
    if not in_order:
        place_M = torch.tensor(order, dtype=torch.long, device=states_ND.device)
        lesson = replace(lesson, states_MD=lesson.states_MD[place_M], rows=[lesson.rows[m] for m in order])
    weight, bias = (None, None) if head is None else (head.weight, head.bias)
    found: list[Tensor] = list(_Project.apply(states_ND, weight, bias, head, targets_N, lesson, chunk))  # type: ignore[no-untyped-call]
    if not in_order:
        back_M = torch.argsort(place_M)
        found[2:] = [x_M.index_select(0, back_M) for x_M in found[2:]]
    return Projected(*found)


def logits_of(head: Head | None, states: Tensor) -> Tensor:
    if head is not None:
        return head.logits(states)
    return states if states.dtype == torch.float64 else states.float()


def _lessons(rows: Sequence[int], chunk: slice) -> list[slice]:
    """Lessons (sorted by row) of a chunk of rows, at most as many at once as the chunk has rows."""
    first, stop = bisect_left(rows, chunk.start), bisect_left(rows, chunk.stop)
    return [slice(first + s.start, first + s.stop) for s in chunks(stop - first, chunk.stop - chunk.start)]


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_ND: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        head: Head | None,
        targets_N: Tensor,
        lesson: Lesson,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        head = None if head is None else head.detach()
        wide = None if head is None else head.widen()
        teacher_head = None if lesson.head is None else lesson.head.widen()
        rows_M = torch.tensor(lesson.rows, dtype=torch.long, device=states_ND.device)
        dtype = torch.float64 if states_ND.dtype == torch.float64 else torch.float32
        logp_N, entropy_N, divergence_M, logq_M = (
            torch.empty(n, dtype=dtype, device=states_ND.device) for n in (len(states_ND), len(states_ND), len(rows_M), len(rows_M))
        )
        index_N, known_N = targets_N.clamp(min=0), targets_N >= 0
        kept: list[Tensor] = []  # the teacher's logits, where they are no more than one chunk: spares projecting them again
        for rows in chunks(len(states_ND), chunk):
            logp_NV = torch.log_softmax(logits_of(wide, states_ND[rows]), -1)
            logp_N[rows] = logp_NV.gather(1, index_N[rows, None])[:, 0] * known_N[rows]
            entropy_N[rows] = -(logp_NV.exp().mul_(logp_NV)).sum(-1)
            for part in _lessons(lesson.rows, rows):
                at_M = rows_M[part]
                teacher_MV = logits_of(teacher_head, lesson.states_MD[part])
                logq_MV = torch.log_softmax(teacher_MV, -1)
                if len(rows_M) <= chunk:
                    kept.append(teacher_MV)
                divergence_M[part] = divergence(logp_NV[at_M - rows.start], logq_MV, lesson.kind, lesson.mix)
                logq_M[part] = logq_MV.gather(1, index_N[at_M, None])[:, 0] * known_N[at_M]
        ctx.save_for_backward(states_ND, weight, bias, targets_N)
        if kept:
            lesson = replace(lesson, states_MD=torch.cat(kept), head=None)
        ctx.head, ctx.lesson, ctx.chunk = head, lesson, chunk
        ctx.mark_non_differentiable(entropy_N, logq_M)
        ctx.set_materialize_grads(False)
        return logp_N, entropy_N, divergence_M, logq_M

    @staticmethod
    def backward(ctx: Any, logp_grad_N: Tensor | None, _e: None, divergence_grad_M: Tensor | None, _q: None) -> tuple[Tensor | None, ...]:
        states_ND, weight, bias, targets_N = ctx.saved_tensors
        lesson: Lesson = ctx.lesson
        if divergence_grad_M is None:
            open_M, weight_M = torch.zeros(0, dtype=torch.long), torch.zeros(0)
        else:
            open_M = divergence_grad_M.nonzero()[:, 0]
            weight_M = divergence_grad_M[open_M]
        rows = [lesson.rows[m] for m in open_M.tolist()]
        kept_N = None
        if logp_grad_N is None:
            # Only the rows of open lessons matter.
            unique = sorted(set(rows))
            kept_N = torch.tensor(unique, dtype=torch.long, device=states_ND.device)
            rows = [bisect_left(unique, row) for row in rows]
        rows_M = torch.tensor(rows, dtype=torch.long, device=states_ND.device)
        teacher_MD = lesson.states_MD[open_M.to(states_ND.device)]
        teacher_head = None if lesson.head is None else lesson.head.widen()

        def chunk_grad(part_N: slice, logits_NV: Tensor) -> Tensor:
            slopes = []
            for part in _lessons(rows, part_N):
                at_M = rows_M[part] - part_N.start
                slope_MV = slope(logits_NV[at_M], logits_of(teacher_head, teacher_MD[part]), lesson.kind, lesson.mix)
                slopes.append((at_M, slope_MV.mul_(weight_M[part, None])))
            if logp_grad_N is None:
                grad_NV = torch.zeros_like(logits_NV)
            else:
                grad_NV = torch.softmax(logits_NV, -1).mul_(-(logp_grad_N[part_N] * (targets_N[part_N] >= 0))[:, None])
                grad_NV.scatter_add_(1, targets_N[part_N, None].clamp(min=0), (logp_grad_N[part_N] * (targets_N[part_N] >= 0))[:, None])
            for at_M, slope_MV in slopes:
                grad_NV.index_add_(0, at_M, slope_MV)
            return grad_NV

        used_ND = states_ND if kept_N is None else states_ND[kept_N]
        if ctx.head is None:
            parts = [chunk_grad(part, logits_of(None, used_ND[part])) for part in chunks(len(used_ND), ctx.chunk)]
            grads: list[Tensor | None] = [torch.cat(parts).to(states_ND.dtype) if parts else torch.zeros_like(used_ND), None, None]
        else:
            head = replace(ctx.head, weight=weight, bias=bias)
            grads = head_gradients(head, used_ND, ctx.chunk, chunk_grad, ctx.needs_input_grad[:3])
        if kept_N is not None and grads[0] is not None:
            grads[0] = torch.zeros_like(states_ND).index_copy_(0, kept_N, grads[0])
        return (*grads, None, None, None, None)
