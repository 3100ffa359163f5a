"""What groups of rollouts say about a task: a Beta posterior of its pass rate p, and what follows from it. Pure mathematics.

    posterior        Beta(a, b), a = a0 + sum of gamma^(now - version) x solved, b likewise with failed; gamma per policy version
    learnability     E[p(1-p)] = ab / ((a+b)(a+b+1)): a lower bound of what a step can gain (arXiv 2504.03380, 2408.15099)
    informative      a group of n is informative (not all alike) with probability 1 - p^n - (1-p)^n; its mean under the posterior is
                     1 - E[p^n] - E[(1-p)^n], E[p^n] = product over i < n of (a+i)/(a+b+i)
    tail             P(at least k of n solved) under the posterior: beta-binomial

Not here: where the counts come from (view.py), what is drawn (draw.py).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beta:
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if not (0 < self.alpha < math.inf and 0 < self.beta < math.inf):
            raise ValueError(f"Beta({self.alpha}, {self.beta}): both must be above 0 and finite")

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def observed(self, solved: float, failed: float) -> "Beta":
        """After so many more; may be fractions, as old ones have decayed."""
        return Beta(self.alpha + solved, self.beta + failed)


def prior(mean: float, strength: float) -> Beta:
    """A Beta of that mean that weighs as much as `strength` rollouts."""
    return Beta(strength * mean, strength * (1 - mean))


def decay(rate: float, versions: int) -> float:
    """Weight of what was seen so many policy versions ago. What comes from a later version than now counts in full."""
    return float(rate ** max(0, versions))


def learnability(posterior: Beta) -> float:
    """E[p(1-p)], up to 1/4."""
    total = posterior.alpha + posterior.beta
    return posterior.alpha * posterior.beta / (total * (total + 1))


def informative(p: float, n: int) -> float:
    """Probability that n rollouts of pass rate p are not all alike."""
    return float(1 - p**n - (1 - p) ** n)


def expected_informative(posterior: Beta, n: int) -> float:
    """The same, p not being known."""
    total = posterior.alpha + posterior.beta
    all_solved = math.prod((posterior.alpha + i) / (total + i) for i in range(n))
    all_failed = math.prod((posterior.beta + i) / (total + i) for i in range(n))
    return max(0.0, 1 - all_solved - all_failed)


def tail(posterior: Beta, solved: int, n: int) -> float:
    """Probability of at least `solved` of n."""
    return min(1.0, sum(_beta_binomial(posterior, k, n) for k in range(solved, n + 1)))


def _beta_binomial(posterior: Beta, k: int, n: int) -> float:
    a, b = posterior.alpha, posterior.beta
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(choose + _log_beta(a + k, b + n - k) - _log_beta(a, b))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def shifted(mean: float, logits: float) -> float:
    """A pass rate so many logits higher."""
    mean = min(max(mean, 0.01), 0.99)
    return 1 / (1 + math.exp(-(math.log(mean / (1 - mean)) + logits)))
