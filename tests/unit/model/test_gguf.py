"""GGUF to a Hugging Face folder: the same bits as transformers' own reader, on a small file made here."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from etude.model.gguf import convert

Write = Callable[..., Path]


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_transformers_to_the_bit(write_gguf: Write, tmp_path: Path, tied: bool) -> None:
    file = write_gguf(tmp_path / "model.gguf", tied=tied)
    convert(file, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    expected, got = theirs.state_dict(), ours.state_dict()
    assert set(expected) == set(got) == set(load_file(tmp_path / "out" / "model.safetensors")) | ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    ids = torch.arange(12)[None]
    assert torch.equal(theirs(ids).logits, ours(ids).logits)  # so rotary base, epsilon and heads agree, too


def test_tokenizer_is_that_of_transformers_and_takes_digits_one_by_one(write_gguf: Write, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf")
    convert(file, tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    ours = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in ("testing the thing", "<|im_start|>user\nhé ☃ 1234<|im_end|>\n", " \n\n\tif x2: in"):
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    folder = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (folder.bos_token, folder.eos_token, folder.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert folder.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_what_it_cannot_read_is_refused_by_name(write_gguf: Write, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_bytes(b"not a model at all")
    with pytest.raises(ValueError, match="not a GGUF file"):
        convert(tmp_path / "text.gguf", tmp_path / "out")
    with pytest.raises(ValueError, match="architecture 'gemma'"):
        convert(write_gguf(tmp_path / "gemma.gguf", architecture="gemma"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"blk.0.extra.weight is not part of a plain Llama"):
        convert(write_gguf(tmp_path / "extra.gguf", extra={"blk.0.extra.weight": ((32,), "F32")}), tmp_path / "out")
    with pytest.raises(ValueError, match=r"blk.0.attn_q.weight has ggml type 2; this reader knows F32, F16, Q4_1, Q8_0"):
        convert(write_gguf(tmp_path / "q4_0.gguf", extra={"blk.0.attn_q.weight": ((64, 64), "Q4_0")}), tmp_path / "out")


def test_config_says_what_the_header_says(write_gguf: Write, tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "model.gguf"), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0}
    assert (config["head_dim"], config["num_key_value_heads"], config["tie_word_embeddings"]) == (32, 1, True)
