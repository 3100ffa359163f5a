"""The RL loss against exact gradients of a toy, where every outcome can be enumerated; truncation; the reference cost."""

import math

import pytest
import torch

from etude.config import LossConfig
from etude.learn.losses import rl_loss, sft_loss

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.5, -0.2, 0.9], dtype=torch.float64).log_softmax(0)
REWARDS = torch.tensor([1.0, 0.0, 0.25, -0.5], dtype=torch.float64)


def policy() -> torch.Tensor:
    return LOGITS.clone().requires_grad_()


def expected_gradient(config: LossConfig, advantages: torch.Tensor, sampler: torch.Tensor, logp_to_loss=rl_loss) -> torch.Tensor:
    """Sum over outcomes y of mu(y) x gradient of the loss on the sample y."""
    total = torch.zeros_like(LOGITS)
    for y in range(len(LOGITS)):
        theta = policy()
        logp = theta.log_softmax(0)[y : y + 1]
        part = logp_to_loss(logp, sampler[y : y + 1], advantages[y : y + 1], config, REFERENCE[y : y + 1])
        total += sampler[y].exp() * torch.autograd.grad(part.total, [theta])[0]
    return total


def exact_gradient(objective) -> torch.Tensor:
    theta = policy()
    return torch.autograd.grad(objective(theta.log_softmax(0)), [theta])[0]


def test_on_policy_the_expected_gradient_is_that_of_minus_the_expected_reward() -> None:
    found = expected_gradient(LossConfig(), REWARDS, LOGITS.log_softmax(0))
    torch.testing.assert_close(found, exact_gradient(lambda logp: -(logp.exp() * REWARDS).sum()), rtol=0, atol=1e-15)


def test_off_policy_the_untruncated_weight_removes_the_samplers_bias() -> None:
    sampler = torch.tensor([0.0, 0.4, -0.3, 0.6], dtype=torch.float64).log_softmax(0)
    found = expected_gradient(LossConfig(ratio_cap=math.inf), REWARDS, sampler)
    torch.testing.assert_close(found, exact_gradient(lambda logp: -(logp.exp() * REWARDS).sum()), rtol=0, atol=1e-15)


def test_the_k1_cost_has_the_exact_gradient_of_the_kl_to_the_reference() -> None:
    config = LossConfig(reference="frozen", reference_coefficient=0.3)
    found = expected_gradient(config, torch.zeros(4, dtype=torch.float64), LOGITS.log_softmax(0))
    wanted = exact_gradient(lambda logp: 0.3 * (logp.exp() * (logp - REFERENCE)).sum())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)


def test_differentiating_k1_itself_would_have_no_gradient_at_all_and_k3_that_of_the_forward_kl() -> None:
    """Why the cost is detached: the two usual estimators, put into the loss directly, on the policy's own samples."""
    sampler = LOGITS.log_softmax(0)

    def direct(estimator):
        def loss(logp, _sampler, _advantage, _config, reference):
            return type("Part", (), {"total": estimator(logp - reference).sum()})

        return expected_gradient(LossConfig(), REWARDS, sampler, loss)

    torch.testing.assert_close(direct(lambda k1: k1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-15)
    forward = exact_gradient(lambda logp: (REFERENCE.exp() * (REFERENCE - logp)).sum())
    torch.testing.assert_close(direct(lambda k1: (-k1).exp() - 1 + k1), forward, rtol=0, atol=1e-15)


def test_the_k1_cost_of_a_chain_is_the_kl_at_visited_states_and_does_not_reach_earlier_tokens() -> None:
    """Two tokens, the second distribution depends on the first: own-token placement, no reward-to-go."""
    g = torch.Generator().manual_seed(0)
    first, second, ref_first, ref_second = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (1, 3, 1, 3))
    config = LossConfig(reference="frozen", reference_coefficient=1.0)
    found = [torch.zeros(1, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)]
    for a in range(3):
        for b in range(3):
            theta = [first.clone().requires_grad_(), second.clone().requires_grad_()]
            logp = torch.stack([theta[0].log_softmax(-1)[0, a], theta[1].log_softmax(-1)[a, b]])
            reference = torch.stack([ref_first.log_softmax(-1)[0, a], ref_second.log_softmax(-1)[a, b]])
            part = rl_loss(logp, logp.detach(), torch.zeros(2, dtype=torch.float64), config, reference)
            for total, grad in zip(found, torch.autograd.grad(part.total, theta), strict=True):
                total += logp.detach().sum().exp() * grad

    def kl(logp: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        return (logp.exp() * (logp - reference)).sum(-1)

    theta = [first.clone().requires_grad_(), second.clone().requires_grad_()]
    visited = theta[0].softmax(-1)[0].detach()
    objective = kl(theta[0].log_softmax(-1), ref_first.log_softmax(-1)).sum()
    objective = objective + (visited * kl(theta[1].log_softmax(-1), ref_second.log_softmax(-1))).sum()
    for a, b in zip(found, torch.autograd.grad(objective, theta), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_the_importance_weight_is_truncated_above_and_carries_no_gradient() -> None:
    logp = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([-1.0, -3.0, -0.5], dtype=torch.float64)
    advantage = torch.tensor([2.0, 2.0, -1.0], dtype=torch.float64)
    part = rl_loss(logp, sampler, advantage, LossConfig(ratio_cap=2.0))
    (grad,) = torch.autograd.grad(part.total, [logp])
    torch.testing.assert_close(grad, torch.tensor([-2.0, -4.0, math.exp(-0.5)], dtype=torch.float64))
    assert part.count == 3
    assert float(part.sums["ratio_capped"]) == 1
    assert float(part.sums["sampler_gap"]) == 2.5


def test_the_cost_against_the_sampler_needs_no_second_model() -> None:
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    config = LossConfig(reference="sampler", reference_coefficient=0.5, ratio_cap=math.inf)
    part = rl_loss(logp, torch.tensor([-1.5], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64), config)
    (grad,) = torch.autograd.grad(part.total, [logp])
    torch.testing.assert_close(grad, torch.tensor([0.5 * 0.5 * math.exp(0.5)], dtype=torch.float64))


def test_a_missing_reference_is_refused() -> None:
    config = LossConfig(reference="frozen", reference_coefficient=0.1)
    with pytest.raises(ValueError, match="pass the frozen model"):
        rl_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), config)


def test_the_supervised_loss_is_the_sum_of_negative_log_probabilities() -> None:
    part = sft_loss(torch.tensor([-1.0, -2.5]))
    assert (float(part.total), part.count) == (3.5, 2)
