"""The attention function: equal to transformers' own, plans nest and see every layer, what is not plain causal is refused."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen3Config

from etude.model.attention import attention, causal, lower_right, masked, plain_causal

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def llama(implementation: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation=implementation)).eval()


def tokens() -> torch.Tensor:
    return torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(1))


def test_the_default_plan_equals_transformers_own_attention() -> None:
    ids = tokens()
    with torch.no_grad():
        ours, theirs = llama("etude")(input_ids=ids).logits, llama("sdpa")(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_plan_sees_every_layer_once_with_ungrouped_heads_and_blocks_nest() -> None:
    seen: list[tuple[str, int, tuple[int, ...], tuple[int, ...]]] = []

    def spy(name: str):  # type: ignore[no-untyped-def]
        def plan(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
            seen.append((name, layer, tuple(q.shape), tuple(k.shape)))
            return causal(layer, q, k, v, scaling)

        return plan

    model, ids = llama("etude"), tokens()
    with torch.no_grad(), attention(spy("outer")):
        with attention(spy("inner")):
            model(input_ids=ids)
        model(input_ids=ids)
    model(input_ids=ids)
    assert seen == [(name, layer, (2, 4, 20, 8), (2, 2, 20, 8)) for name in ("inner", "outer") for layer in range(3)]


def test_right_padding_does_not_change_the_tokens_before_it() -> None:
    model, ids = llama("etude"), tokens()
    padded = torch.cat([ids, torch.zeros(2, 7, dtype=torch.long)], 1)
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=padded).logits[:, :20], model(input_ids=ids).logits, rtol=0, atol=1e-6)


def test_masked_attention_with_a_lower_right_mask_equals_the_end_of_causal_attention() -> None:
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, 12, 8, generator=g) for heads in (4, 2, 2))
    whole = causal(0, q, k, v, 0.3)
    end = masked(q[:, :, 9:], k, v, lower_right(3, 12, "cpu"), 0.3)
    torch.testing.assert_close(end, whole[:, :, 9:], rtol=0, atol=1e-6)


def test_a_cache_is_refused_with_the_remedy() -> None:
    model = llama("etude")
    with pytest.raises(ValueError, match="use_cache=False"):
        model.generate(tokens(), max_new_tokens=3, do_sample=False)


def test_a_sliding_window_is_refused_with_the_remedy() -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4, attn_implementation="etude"))
    with pytest.raises(ValueError, match=r'sliding_window.*attn_implementation="sdpa"'):
        model(input_ids=tokens())


def test_attention_dropout_is_refused() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1, attn_implementation="etude")).train()
    with pytest.raises(ValueError, match="dropout"):
        model(input_ids=tokens())


def test_plain_causal_reads_windows_layer_types_and_state_spaces() -> None:
    from transformers import Gemma2Config, GptOssConfig, MambaConfig, Qwen3NextConfig

    assert plain_causal(LlamaConfig())
    assert plain_causal(Qwen2Config(use_sliding_window=False, sliding_window=4096))
    assert plain_causal(Qwen3Config())
    assert plain_causal(MistralConfig(sliding_window=None))
    assert not plain_causal(MistralConfig(sliding_window=4096))
    assert not plain_causal(Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=1))
    assert not plain_causal(Gemma2Config())
    assert not plain_causal(GptOssConfig())
    assert not plain_causal(MambaConfig())
    assert not plain_causal(Qwen3NextConfig())
