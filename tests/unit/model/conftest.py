"""A small GGUF file in the layout of the default model's, and a tiny Hugging Face folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from etude.model.tiny import tiny_folder

HIDDEN, INNER, HEADS, HEADS_KV, LAYERS = 64, 96, 2, 1, 2
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *ALPHABET, "in", "Ġt", "ing"]


def tensors(tied: bool) -> dict[str, tuple[tuple[int, ...], str]]:
    size = HIDDEN // HEADS
    layer = {
        "attn_norm": ((HIDDEN,), "F32"),
        "attn_q": ((HIDDEN, HIDDEN), "Q4_1"),
        "attn_k": ((HEADS_KV * size, HIDDEN), "Q8_0"),
        "attn_v": ((HEADS_KV * size, HIDDEN), "F16"),
        "attn_output": ((HIDDEN, HIDDEN), "Q4_1"),
        "ffn_norm": ((HIDDEN,), "F32"),
        "ffn_gate": ((INNER, HIDDEN), "Q4_1"),
        "ffn_up": ((INNER, HIDDEN), "Q8_0"),
        "ffn_down": ((HIDDEN, INNER), "Q4_1"),
    }
    found = {f"blk.{i}.{name}.weight": spec for i in range(LAYERS) for name, spec in layer.items()}
    found |= {"token_embd.weight": ((len(TOKENS), HIDDEN), "Q8_0"), "output_norm.weight": ((HIDDEN,), "F32")}
    return found if tied else found | {"output.weight": ((len(TOKENS), HIDDEN), "Q8_0")}


def write(path: Path, *, tied: bool = True, architecture: str = "llama", extra: dict[str, Any] | None = None) -> Path:
    writer = reference.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["i n", "Ġ t", "in g"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    for name, (shape, kind) in (tensors(tied) | (extra or {})).items():
        values = random.standard_normal(shape, dtype=np.float32)
        quantised = reference.GGMLQuantizationType[kind]
        writer.add_tensor(name, reference.quants.quantize(values, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """write_gguf(path, *, tied=True, architecture="llama", extra={name: (shape, kind)}) -> path"""
    return write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Config, weights, tokenizer and template of the tiny model."""
    return tiny_folder(tmp_path / "tiny")
