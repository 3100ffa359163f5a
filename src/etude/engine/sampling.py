"""One token per row from fp32 log-probabilities, by inverting the distribution function at one uniform number per row.

    token = min { i : sum_{j <= i} p_j > u },   p = softmax(logits / temperature),   u uniform in [0, 1)

The sum is taken in blocks of the vocabulary: first the block is found, then the token within, which is quicker and more exact than
one running sum over 49,152 numbers. One uniform per token means that a request's randomness is its own and costs nothing.

Temperature 0 takes the most likely token, with log-probability 0: that distribution has one point.

    n rows, V vocabulary, B blocks

Not here: top-k, top-p and penalties: they sample from another distribution than the one that is trained.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.errors import EngineError

_BLOCK = 256


def sample(logits_nV: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities under the distribution they were drawn from. EngineError for NaN or infinite logits."""
    scores = logits_nV.float()
    if any(temperature != 1.0 for temperature in temperatures):
        scale = torch.tensor([temperature or 1.0 for temperature in temperatures], device=scores.device)
        scores = scores / scale[:, None]
    log_total = scores.logsumexp(-1)
    if not bool(log_total.isfinite().all()):
        raise EngineError("the model's logits are NaN or infinite: its weights are broken (diverged training?); nothing was sampled")
    chosen = _invert(scores, log_total, torch.tensor(uniforms, dtype=torch.float32, device=scores.device))
    greedy = torch.tensor([temperature == 0.0 for temperature in temperatures], device=scores.device)
    if any(temperature == 0.0 for temperature in temperatures):
        chosen = torch.where(greedy, scores.argmax(-1), chosen)
    logprobs = scores.gather(1, chosen[:, None])[:, 0] - log_total
    return chosen.tolist(), logprobs.masked_fill(greedy, 0.0).tolist()


def _invert(scores_nV: Tensor, log_total_n: Tensor, uniform_n: Tensor) -> Tensor:
    """Index of the token whose share of [0, 1) holds the uniform number; never one of probability 0."""
    p = (scores_nV - log_total_n[:, None]).exp()
    p_nBb = F.pad(p, (0, -p.shape[1] % _BLOCK)).view(p.shape[0], -1, _BLOCK)
    blocks = p_nBb.sum(-1).cumsum(-1)
    block, left = _first_above(blocks, uniform_n * blocks[:, -1])
    inside = p_nBb[torch.arange(len(block), device=block.device), block].cumsum(-1)
    token, _ = _first_above(inside, left)
    return block * _BLOCK + token


def _first_above(sums: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First index whose running sum exceeds the target, and what of the target is left there.

    Rounding can put the target at or past the last sum: then it is the last index that adds anything.
    """
    last = (sums < sums[:, -1:]).sum(-1)
    index = torch.minimum((sums <= target[:, None]).sum(-1), last)
    before = F.pad(sums, (1, 0)).gather(1, index[:, None])[:, 0]
    return index, target - before
