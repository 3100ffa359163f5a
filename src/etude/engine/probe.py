"""What an engine must know of a model before it samples from it, found out with one call of two tokens.

Not here: the rule for plain causal attention (model/attention.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from etude.engine.kv import LayerShape
from etude.errors import UserError
from etude.model.attention import NAME, attention, causal, plain_causal


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout inside the block."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


@torch.inference_mode()
def probe(model: PreTrainedModel) -> tuple[list[LayerShape], int]:
    """Shapes of every layer's keys and values, and query heads per key/value head, from one call. UserError: not plain causal."""
    seen: dict[int, LayerShape] = {}
    groups: set[int] = set()

    def look(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        seen[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        groups.add(query.shape[1] // key.shape[1])
        return causal(layer, query, key, value, scaling)

    config = model.config.get_text_config()
    if model.config._attn_implementation == NAME and plain_causal(model.config):
        device = next(model.parameters()).device
        with attention(look), evaluating(model):
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False, logits_to_keep=1)
    if sorted(seen) != list(range(config.num_hidden_layers)) or len(groups) != 1:
        raise UserError(
            f"the local engine samples from models with plain causal attention in every layer; this {model.config.model_type} model "
            "has another kind (sliding windows, linear attention, state space), or was not loaded by load_model: choose another model"
        )
    return [seen[layer] for layer in range(config.num_hidden_layers)], groups.pop()
