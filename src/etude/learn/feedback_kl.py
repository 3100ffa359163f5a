"""The feedback KL: moves a student's token distributions toward those of a teacher that saw a hint. Usable alone, in any loop.

    sum over tokens t of  w_t  min(1, cap / D_t)  D(p_t, q_t)        p student, q teacher (never differentiated), the scale detached

D is one of divergence.py: forward KL (default), reverse KL or JSD, over the full vocabulary, in fp32 chunks. The cap scales a whole token:
clamping single entries would zero the very entry that a hint is about.

    result = feedback_kl(student_hidden, teacher_hidden, student_head=Head(lm_head.weight), teacher_head=Head(teacher_lm_head.weight))
    (result.total / result.count).backward()

    N rows (tokens of hinted turns), D hidden size, V vocabulary

Sources: arXiv 2601.19897, 2601.20802, 2601.18734. Not here: which tokens, gate, prefix ratio (hinted.py), the teacher (teacher.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.config import Divergence
from etude.learn.head import Head
from etude.learn.vocabulary import Lesson, project


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
    zero with a zero gradient. Nothing flows into the teacher. ValueError for unequal rows.
    """
    if len(student) != len(teacher):
        raise ValueError(f"{len(student)} student rows against {len(teacher)} teacher rows: pass the same tokens in the same order")
    lesson = Lesson(teacher, range(len(teacher)), teacher_head, divergence, mix)
    no_targets_N = torch.full((len(student),), -1, device=student.device)
    divergence_N = project(student, no_targets_N, student_head, lesson, chunk_tokens).divergence_M
    weight_N = cap_scale(divergence_N, token_cap)
    if weights_N is not None:
        weight_N = weight_N * weights_N
    return FeedbackKL((weight_N * divergence_N).sum(), len(student), divergence_N.detach())


def cap_scale(divergence_N: Tensor, cap: float) -> Tensor:
    """min(1, cap / D), detached; ones without a cap."""
    if not cap:
        return torch.ones_like(divergence_N)
    return (cap / divergence_N.detach().clamp(min=cap)).clamp(max=1.0)
