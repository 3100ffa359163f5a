"""The chunked projection: equal to dense logits in value and gradient, fp32 out of bf16, and the model's own logits."""

import pytest
import torch

from etude.learn.head import Head, head_of, hidden_states
from etude.learn.oracle import dense_logprobs
from etude.learn.vocabulary import project


def random_head(
    dtype: torch.dtype, scale: float = 1.0, softcap: float = 0.0, bias: bool = False
) -> tuple[torch.Tensor, Head, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(23, 16, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(41, 16, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    offset = torch.randn(41, generator=g, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    return hidden, Head(weight, offset, scale, softcap), torch.randint(0, 41, (23,), generator=g)


def token_logprobs(hidden: torch.Tensor, head: Head, targets: torch.Tensor, chunk: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    found = project(hidden, targets, head, chunk=chunk)
    return found.logp_N, found.entropy_N


def dense(hidden: torch.Tensor, head: Head) -> torch.Tensor:
    logits = hidden @ head.weight.t()
    logits = (logits if head.bias is None else logits + head.bias) * head.scale
    return torch.tanh(logits / head.softcap) * head.softcap if head.softcap else logits


@pytest.mark.parametrize(("scale", "softcap", "bias"), [(1.0, 0.0, False), (0.3, 0.0, True), (1.0, 4.0, False), (2.0, 5.0, True)])
@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_chunked_equals_dense_in_value_and_gradient(scale: float, softcap: float, bias: bool, chunk: int) -> None:
    hidden, head, targets = random_head(torch.float64, scale, softcap, bias)
    leaves = [hidden, head.weight] + ([head.bias] if head.bias is not None else [])
    weights = torch.linspace(-1, 2, 23, dtype=torch.float64)
    ours, entropy = token_logprobs(hidden, head, targets, chunk)
    found = torch.autograd.grad((weights * ours).sum(), leaves)
    theirs, entropy_dense = dense_logprobs(dense(hidden, head), targets)
    wanted = torch.autograd.grad((weights * theirs).sum(), leaves)
    for a, b in zip((ours, entropy, *found), (theirs, entropy_dense, *wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_bf16_weights_give_fp32_results_close_to_an_exact_oracle() -> None:
    hidden, head, targets = random_head(torch.bfloat16)
    logp, _ = token_logprobs(hidden, head, targets, 7)
    grad = torch.autograd.grad(logp.sum(), [hidden, head.weight])
    exact = [x.detach().double().requires_grad_() for x in (hidden, head.weight)]
    wanted, _ = dense_logprobs(exact[0] @ exact[1].t(), targets)
    wanted_grad = torch.autograd.grad(wanted.sum(), exact)
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp.double(), wanted, rtol=0, atol=1e-5)
    for a, b in zip(grad, wanted_grad, strict=True):
        assert a.dtype == torch.bfloat16
        # One rounding of the result to bf16 (2^-9), nothing more.
        torch.testing.assert_close(a.double(), b, rtol=2**-8, atol=1e-4)


def test_a_frozen_head_gets_no_gradient_and_none_is_computed_without_rows() -> None:
    hidden, head, targets = random_head(torch.float64)
    frozen = head.detach()
    token_logprobs(hidden, frozen, targets)[0].sum().backward()
    assert frozen.weight.grad is None
    assert hidden.grad is not None
    none = token_logprobs(hidden[:0], head, targets[:0])[0]
    none.sum().backward()
    assert none.shape == (0,)
    assert head.weight.grad is not None
    assert not head.weight.grad.any()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("granite", {"logits_scaling": 3.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("gemma2", {"final_logit_softcapping": 5.0}),
    ],
)
def test_the_head_gives_the_models_own_logits(make_model, kind: str, fields: dict) -> None:
    model = make_model(kind, torch.float32, implementation="eager", **fields)
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        ours = head_of(model).logits(hidden_states(model, ids).flatten(0, 1))
        torch.testing.assert_close(ours, model(input_ids=ids).logits.flatten(0, 1), rtol=1e-5, atol=1e-5)
