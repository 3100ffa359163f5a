"""The RL loss and the supervised loss: pure, on per-token log-probabilities; they return sums with counts, the trainer divides.

RL, for a sampled token t of a rollout with advantage A:

    w_t = min(pi(y_t) / mu(y_t), ratio_cap)                        detached; mu: the sampler's log-probability
    L_t = - w_t (A - beta k1_t) log pi(y_t),   k1_t = sg[log pi(y_t) - log ref(y_t)]

The sum over tokens is divided by rollouts x a configured constant (arXiv 2503.20783), not by the tokens that happen to be there. On
the policy's own samples the gradient of the k1 term is exactly that of sum_t KL(pi(.|s_t) || ref(.|s_t)) at the visited states; the
derivative of k1 itself has zero expectation, and that of the k3 estimator is the *forward* KL's. docs/algorithms.md, section 2.

Not here: the projection to the vocabulary (head.py), advantages (credit.py), hints (feedback_kl.py).
"""

from dataclasses import dataclass, field

from torch import Tensor

from etude.config import LossConfig


@dataclass(frozen=True, slots=True)
class LossSum:
    total: Tensor  # scalar with a gradient: a sum over tokens, undivided
    count: int  # tokens
    sums: dict[str, Tensor] = field(default_factory=dict)  # detached sums over tokens; divided by count they are means


def rl_loss(
    logp_N: Tensor, sampler_logp_N: Tensor, advantage_N: Tensor, config: LossConfig, reference_logp_N: Tensor | None = None
) -> LossSum:
    """The sum of L_t over N sampled tokens. ValueError if the configuration asks for a reference and none was given."""
    gap_N = logp_N.detach() - sampler_logp_N
    ratio_N = gap_N.exp()
    weight_N = ratio_N.clamp(max=config.ratio_cap)
    sums = {
        "sampler_gap": gap_N.abs().sum(),
        "sampler_k1": -gap_N.sum(),  # estimates KL(mu || pi)
        "ratio": ratio_N.sum(),
        "ratio_capped": (ratio_N > config.ratio_cap).sum(),
    }
    if config.reference != "none":
        if config.reference == "sampler":
            reference_logp_N = sampler_logp_N
        if reference_logp_N is None:
            raise ValueError("reference is 'frozen' but there are no reference log-probabilities: pass the frozen model")
        k1_N = logp_N.detach() - reference_logp_N
        sums["reference_k1"] = k1_N.sum()
        if config.reference_coefficient:
            advantage_N = advantage_N - config.reference_coefficient * k1_N
    return LossSum(-(weight_N * advantage_N * logp_N).sum(), len(logp_N), sums)


def sft_loss(logp_N: Tensor) -> LossSum:
    """The sum of -log p over N demonstrated tokens; divided by the count it is the mean cross-entropy."""
    return LossSum(-logp_N.sum(), len(logp_N))
