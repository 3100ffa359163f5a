"""What the sampler's log-probabilities must be: one full forward without any cache. Slow; for tests and for a look at the gap.

In fp32 the sampler agrees to 1e-4 (measured: 3e-5 on SmolLM2). In bf16 both round differently, by a few hundredths in the mean; training
monitors that gap (`policy/sampler_gap`).

Not here: gradients (learn/).
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from etude.engine.probe import evaluating


@torch.inference_mode()
def full_logprobs(model: PreTrainedModel, ids: Sequence[int], sampled: Sequence[int], temperature: float = 1.0) -> list[float]:
    """log p(sampled[t] | ids, sampled[:t]) at the given temperature (above 0), for every t."""
    device = next(model.parameters()).device
    with evaluating(model):
        tokens = torch.tensor([[*ids, *sampled]], device=device)
        scores = model(input_ids=tokens, use_cache=False).logits[0, len(ids) - 1 : -1].float() / temperature
    return scores.log_softmax(-1).gather(1, tokens[0, len(ids) :, None])[:, 0].tolist()  # type: ignore[no-any-return]
