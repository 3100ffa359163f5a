"""One attention function for every model here: registered with transformers as "etude", it calls the plan in force.

    with attention(plan):          # plan: what attends to what, e.g. a sampler's own key/value buffers, or teacher branches
        model(input_ids=...)       # model loaded with attn_implementation="etude"

A plan is any callable `plan(layer, query, key, value, scaling) -> output`, called once per layer with keys and values after
rotary embedding. Without one, attention is causal over the whole row (`causal`). transformers builds no mask for "etude", so a 2-D
`attention_mask` is never seen: batches are right-padded, and what padding computes is thrown away.

    B batch, H query heads, K key/value heads (H a multiple of K), T tokens, D head size

Only plain causal attention goes through here. A model with sliding windows, logit caps, sinks or layers without attention keeps its
own implementation: `plain_causal(config)` tells them apart, and the function refuses what it cannot do instead of being silently wrong.

Not here: the plans of the sampler (engine/) and of the teacher (learn/branches.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from etude.model.matmul_attention import causal_matmul_backward, worth_it

Plan = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""plan(layer, query [B, H, T, D], key [B, K, T, D], value [B, K, T, D], scaling) -> output [B, H, T, D]"""

NAME = "etude"

# Arguments with which transformers asks for attention that is not plain causal; each is None (or absent) when not in use.
_SPECIAL = ("sliding_window", "softcap", "s_aux", "position_bias")


def causal(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Causal attention over whole rows: the default plan. No mask, so that the fast causal kernel is used."""
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{query.shape[2]} queries against {key.shape[2]} keys: the default plan has no key/value cache; "
            "call the model with use_cache=False, or sample through etude.engine"
        )
    if worth_it(query):
        return causal_matmul_backward(query, key, value, scaling)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])


_current: ContextVar[Plan] = ContextVar("etude_attention_plan", default=causal)


@contextmanager
def attention(plan: Plan) -> Iterator[None]:
    """Use `plan` for every model call inside the block, in this thread. Blocks nest."""
    token = _current.set(plan)
    try:
        yield
    finally:
        _current.reset(token)


def plain_causal(config: Any) -> bool:
    """Whether every layer of this transformers configuration is plain causal softmax attention, so that plans are exact for it.

    Looks at `layer_types`, the sliding window, logit caps and the fields of linear-attention and state-space models. A window that no
    layer uses (Qwen2 with `use_sliding_window=False`) does not count.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None:
        if any(kind != "full_attention" for kind in layer_types):
            return False
    elif getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True):
        return False
    if any(getattr(text, name, None) is not None for name in ("attn_logit_softcapping", "attention_chunk_size")):
        return False
    state_space = ("state_size", "ssm_state_size", "mamba_d_state", "linear_num_key_heads", "layers_block_type", "block_types")
    return not any(getattr(text, name, None) is not None for name in state_space)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: checks that the layer is plain causal, runs the plan, returns [B, T, H, D]."""
    special = [name for name in _SPECIAL if options.get(name) is not None]
    if attention_mask is not None:
        special.append("attention_mask")
    if special or not getattr(module, "is_causal", True):
        raise ValueError(
            f'attention "{NAME}" is plain causal and this layer asks for {", ".join(special) or "bidirectional attention"}: '
            'load the model with attn_implementation="sdpa" (etude.model.attention.plain_causal tells)'
        )
    if dropout:
        raise ValueError(f"attention dropout is {dropout}, only 0 is supported: the sampler has none; set config.attention_dropout = 0")
    layer = module.layer_idx
    assert isinstance(layer, int)
    output = _current.get()(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return output.transpose(1, 2).contiguous(), None


def gather_gqa(states: Tensor, num_heads: int) -> Tensor:
    """[B, K, T, D] -> [B, H, T, D] by repeating each key/value head: for masked attention, where kernels want equal heads."""
    repeats = num_heads // states.shape[1]
    return states if repeats == 1 else states.repeat_interleave(repeats, dim=1)


def masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention of T queries to S keys under a boolean mask [T, S] (True: attends), for plans that are not square causal."""
    key, value = gather_gqa(key, query.shape[1]), gather_gqa(value, query.shape[1])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def lower_right(num_queries: int, num_keys: int, device: torch.device | str) -> Tensor:
    """Boolean mask [num_queries, num_keys]: the queries are the last tokens of the keys, each sees all before it and itself."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


ALL_ATTENTION_FUNCTIONS.register(NAME, _forward)
