"""The joint pass: log-probability and divergence at once equal each alone; lessons in any order, repeated, or with a closed gate."""

import pytest
import torch

from etude.learn.head import Head
from etude.learn.oracle import dense_divergence, dense_logprobs
from etude.learn.vocabulary import Lesson, project

ROWS = [7, 2, 2, 9, 0]  # of the lessons: unsorted, one row twice


def parts() -> tuple[torch.Tensor, Head, torch.Tensor, torch.Tensor, Head]:
    g = torch.Generator().manual_seed(1)
    states, teacher = (torch.randn(n, 8, generator=g, dtype=torch.float64) for n in (11, 5))
    weight, old = (torch.randn(31, 8, generator=g, dtype=torch.float64) for _ in range(2))
    targets = torch.randint(0, 31, (11,), generator=g)
    return states.requires_grad_(), Head(weight.requires_grad_()), targets, teacher, Head(old)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_both_at_once_equal_full_logits_and_autograd(kind: str, chunk: int) -> None:
    states, head, targets, teacher, old = parts()
    weights = torch.tensor([0.5, 1.0, -2.0, 0.0, 1.5], dtype=torch.float64)
    found = project(states, targets, head, Lesson(teacher, ROWS, old, kind, 0.4), chunk)
    ours = torch.autograd.grad(found.logp_N[3:].sum() + (weights * found.divergence_M).sum(), [states, head.weight])
    logits, others = states @ head.weight.t(), teacher @ old.weight.t()
    logp, entropy = dense_logprobs(logits, targets)
    divergence = dense_divergence(logits[ROWS], others, kind, 0.4)
    theirs = torch.autograd.grad(logp[3:].sum() + (weights * divergence).sum(), [states, head.weight])
    taught = dense_logprobs(others, targets[ROWS])[0]
    pairs = [(found.logp_N, logp), (found.entropy_N, entropy), (found.divergence_M, divergence), (found.teacher_logp_M, taught)]
    for a, b in [*pairs, *zip(ours, theirs, strict=True)]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_row_without_a_lesson_has_the_same_gradient_to_the_bit_with_and_without_lessons() -> None:
    states, head, targets, teacher, old = (x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in parts())
    head, old = Head(head.weight.detach().float()), Head(old.weight.float())
    grads = []
    for lesson in (None, Lesson(teacher, ROWS, old)):
        leaf = states.detach().clone().requires_grad_()
        found = project(leaf, targets, head, lesson, 4)
        (found.logp_N.sum() + found.divergence_M.sum()).backward()
        grads.append(leaf.grad)
    others = [row for row in range(11) if row not in ROWS]
    assert torch.equal(grads[0][others], grads[1][others])
    assert all((grads[0][row] - grads[1][row]).any() for row in ROWS)


def test_lessons_alone_leave_rows_without_one_at_exactly_zero() -> None:
    states, head, targets, teacher, old = parts()
    project(states, targets, head, Lesson(teacher, ROWS, old), 4).divergence_M[:3].sum().backward()
    assert sorted(set(ROWS[:3])) == states.grad.any(1).nonzero()[:, 0].tolist()


def test_a_closed_gate_adds_nothing_to_the_bit() -> None:
    grads = []
    for weight in (None, 0.0):
        states, head, targets, teacher, old = parts()
        found = project(states, targets, head, Lesson(teacher, ROWS, old), 4)
        total = found.logp_N.sum()
        if weight is not None:
            total = total + weight * found.divergence_M.sum()
        total.backward()
        grads.append((states.grad, head.weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_negative_targets_are_unknown_tokens() -> None:
    states, head, targets, teacher, old = parts()
    targets = targets.clone()
    targets[[2, 4]] = -1
    found = project(states, targets, head, Lesson(teacher, ROWS, old), 4)
    found.logp_N.sum().backward()
    assert found.logp_N[[2, 4]].tolist() == [0.0, 0.0]
    assert found.teacher_logp_M.detach()[[1, 2]].tolist() == [0.0, 0.0]
    assert not states.grad[[2, 4]].any()
    assert states.grad[[0, 1, 3]].any(1).all()


def test_an_unknown_divergence_is_refused() -> None:
    states, head, targets, teacher, old = parts()
    with pytest.raises(ValueError, match="divergence is 'kl'"):
        project(states, targets, head, Lesson(teacher, ROWS, old, "kl"))
