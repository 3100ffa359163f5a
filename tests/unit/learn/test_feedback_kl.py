"""The feedback KL: closed forms, chunks, cap, limits, and that nothing flows into the teacher."""

import pytest
import torch
import torch.nn.functional as F

from etude.learn.feedback_kl import cap_scale, feedback_kl
from etude.learn.head import Head
from etude.learn.oracle import dense_divergence

KINDS = ("forward", "reverse", "jsd")


def pair(rows: int = 9, size: int = 31, shift: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    student = torch.randn(rows, size, generator=g, dtype=torch.float64) * 2
    teacher = student + shift * torch.randn(rows, size, generator=g, dtype=torch.float64)
    return student.to(dtype).requires_grad_(), teacher.to(dtype).requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_the_closed_form_gradient_holds_to_1e_12(kind: str) -> None:
    student, teacher = pair()
    result = feedback_kl(student, teacher, divergence=kind, mix=0.3)
    (found,) = torch.autograd.grad(result.total, [student])
    wanted = dense_divergence(student, teacher, kind, 0.3)
    (wanted_grad,) = torch.autograd.grad(wanted.sum(), [student])
    torch.testing.assert_close(result.token_kl_N, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(found, wanted_grad, rtol=0, atol=1e-12)


def test_the_forward_gradient_is_p_minus_q() -> None:
    student, teacher = pair()
    result = feedback_kl(student, teacher)
    (found,) = torch.autograd.grad(result.total, [student])
    torch.testing.assert_close(found, F.softmax(student, -1) - F.softmax(teacher, -1), rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_finite_differences_agree(kind: str) -> None:
    student, teacher = pair(rows=3, size=7)
    teacher = teacher.detach()
    assert torch.autograd.gradcheck(lambda s: feedback_kl(s, teacher, divergence=kind, mix=0.7, chunk_tokens=2).total, [student])


def test_the_divided_jsd_has_the_two_kls_as_its_ends() -> None:
    student, teacher = pair()
    at = {mix: feedback_kl(student, teacher, divergence="jsd", mix=mix).token_kl_N for mix in (1e-6, 1 - 1e-6)}
    torch.testing.assert_close(at[1e-6], feedback_kl(student, teacher, divergence="forward").token_kl_N, rtol=1e-4, atol=0)
    torch.testing.assert_close(at[1 - 1e-6], feedback_kl(student, teacher, divergence="reverse").token_kl_N, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 4, 9, 50])
def test_chunked_through_heads_equals_dense_in_value_and_gradient(kind: str, chunk: int) -> None:
    g = torch.Generator().manual_seed(6)
    hidden, other = (torch.randn(9, 8, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    weight, old = (torch.randn(31, 8, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    weights = torch.tensor([1.0, 0, 2, 0.5, 0, 0, 1, 1, 0.1], dtype=torch.float64)
    result = feedback_kl(
        hidden, other, student_head=Head(weight), teacher_head=Head(old), divergence=kind, weights_N=weights, chunk_tokens=chunk
    )
    found = torch.autograd.grad(result.total, [hidden, weight], retain_graph=True)
    wanted = (weights * dense_divergence(hidden @ weight.t(), other @ old.t(), kind)).sum()
    wanted_grad = torch.autograd.grad(wanted, [hidden, weight])
    torch.testing.assert_close(result.total, wanted, rtol=0, atol=1e-12)
    for a, b in zip(found, wanted_grad, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    result.total.backward()
    assert other.grad is None
    assert old.grad is None


@pytest.mark.parametrize("kind", KINDS)
def test_equal_distributions_give_exactly_zero_value_and_gradient(kind: str) -> None:
    student, _ = pair(dtype=torch.float32)
    result = feedback_kl(student, student.detach().clone(), divergence=kind)
    result.total.backward()
    # The JSD's m is a rounded p: zero to the last bit of fp32, not exactly.
    tolerance = 1e-6 if kind == "jsd" else 0.0
    assert abs(float(result.total.detach())) <= tolerance
    assert float(student.grad.abs().max()) <= tolerance


def test_without_rows_the_total_is_zero_and_attached_to_the_graph() -> None:
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(31, 8, requires_grad=True)
    result = feedback_kl(hidden[:0], hidden[:0].detach(), student_head=Head(weight), teacher_head=Head(weight))
    result.total.backward()
    assert (float(result.total.detach()), result.count) == (0.0, 0)
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_the_cap_scales_a_whole_token_and_leaves_the_others_alone() -> None:
    student, teacher = pair(shift=3.0)
    plain = feedback_kl(student, teacher)
    (plain_grad,) = torch.autograd.grad(plain.total, [student])
    cap = float(plain.token_kl_N.median())
    capped = feedback_kl(student, teacher, token_cap=cap)
    (capped_grad,) = torch.autograd.grad(capped.total, [student])
    torch.testing.assert_close(capped.token_kl_N, plain.token_kl_N)
    torch.testing.assert_close(capped.total, plain.token_kl_N.clamp(max=cap).sum())
    factor = (cap / plain.token_kl_N).clamp(max=1.0)
    torch.testing.assert_close(capped_grad, plain_grad * factor[:, None])
    assert 0 < int((factor < 1).sum()) < len(factor)
    assert torch.equal(cap_scale(plain.token_kl_N, 0.0), torch.ones(9, dtype=torch.float64))


def test_a_small_shift_in_bf16_keeps_the_gradient_of_an_fp32_oracle() -> None:
    """Where rounding logits to bf16 would be up to a third wrong: a hint that changes little."""
    g = torch.Generator().manual_seed(7)
    hidden = torch.randn(64, 32, generator=g).bfloat16()
    weight = torch.randn(500, 32, generator=g).bfloat16().requires_grad_()
    other = (hidden.float() + 0.02 * torch.randn(64, 32, generator=g)).bfloat16()
    hidden.requires_grad_()
    result = feedback_kl(hidden, other, student_head=Head(weight), teacher_head=Head(weight))
    (found,) = torch.autograd.grad(result.total, [hidden])
    exact = hidden.detach().double().requires_grad_()
    wanted = dense_divergence(exact @ weight.detach().double().t(), other.double() @ weight.detach().double().t(), "forward").sum()
    (wanted_grad,) = torch.autograd.grad(wanted, [exact])
    assert float(wanted.detach()) / 64 < 0.05
    torch.testing.assert_close(result.total.double(), wanted, rtol=1e-4, atol=0)
    error = (found.double() - wanted_grad).norm() / wanted_grad.norm()
    weight, hidden = weight.detach(), hidden.detach()
    rounded = F.softmax((hidden @ weight.t()).float(), -1) - F.softmax((other @ weight.t()).float(), -1)
    rounded_error = (rounded.double() @ weight.double() - wanted_grad).norm() / wanted_grad.norm()
    assert float(error) < 0.005
    assert float(rounded_error) > 10 * float(error)


def test_unequal_rows_are_refused() -> None:
    student, teacher = pair()
    with pytest.raises(ValueError, match="9 student rows against 8 teacher rows"):
        feedback_kl(student, teacher[:8])
