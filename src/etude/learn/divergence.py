"""The three divergences between a student p and a teacher q, and their gradients with respect to the student's logits, in closed form.

    forward   D = KL(q || p)                                             dD/dz = p - q
    reverse   D = KL(p || q)                                                     p (log p/q - KL(p || q))
    jsd       D = [(1-b) KL(p || m) + b KL(q || m)] / (b (1-b))                  p (log p/m - KL(p || m)) / b,   m = (1-b) p + b q

The JSD is divided by b(1-b), so that b -> 0 is the forward and b -> 1 the reverse KL; without it the ends jump (at b = .01 it is a
hundred times smaller than the KL). Its oracle is `oracle.dense_divergence`. Not here: where p and q come from (vocabulary.py).
"""

import torch
from torch import Tensor

from etude.config import Divergence


def divergence(logp_NV: Tensor, logq_NV: Tensor, kind: Divergence, mix: float) -> Tensor:
    """D of each row [N], nats, from log-probabilities. `mix` is b. ValueError for an unknown kind."""
    if kind == "forward":
        return logq_NV.exp().mul_(logq_NV - logp_NV).sum(-1)
    if kind == "reverse":
        return logp_NV.exp().mul_(logp_NV - logq_NV).sum(-1)
    if kind == "jsd":
        logm_NV = _mixture(logp_NV, logq_NV, mix)
        from_p_N = logp_NV.exp().mul_(logp_NV - logm_NV).sum(-1)
        return from_p_N / mix + logq_NV.exp().mul_(logq_NV - logm_NV).sum(-1) / (1 - mix)
    raise ValueError(f"divergence is {kind!r}, allowed is 'forward', 'reverse' or 'jsd': choose one of them")


def slope(student_NV: Tensor, teacher_NV: Tensor, kind: Divergence, mix: float) -> Tensor:
    """Gradient of D with respect to the student's logits [N, V], from both logits."""
    if kind == "forward":
        return torch.softmax(student_NV, -1).sub_(torch.softmax(teacher_NV, -1))
    logp_NV, logq_NV = torch.log_softmax(student_NV, -1), torch.log_softmax(teacher_NV, -1)
    p_NV = logp_NV.exp()
    log_ratio_NV = logp_NV.sub_(logq_NV if kind == "reverse" else _mixture(logp_NV, logq_NV, mix))
    kl_N1 = (p_NV * log_ratio_NV).sum(-1, keepdim=True)
    slope_NV = log_ratio_NV.sub_(kl_N1).mul_(p_NV)
    return slope_NV if kind == "reverse" else slope_NV.div_(mix)


def _mixture(logp_NV: Tensor, logq_NV: Tensor, mix: float) -> Tensor:
    logs = torch.log(torch.tensor([1 - mix, mix], dtype=logp_NV.dtype, device=logp_NV.device))
    return torch.logaddexp(logp_NV + logs[0], logq_NV + logs[1])
