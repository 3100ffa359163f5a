"""A tiny Llama with random weights and a byte-level ChatML tokenizer, for tests and quick checks: about 100k parameters, under a second.

`tiny_folder(path)` writes an ordinary Hugging Face folder (config.json, model.safetensors, tokenizer.json, tokenizer_config.json,
chat_template.jinja) that everything which takes a model path accepts; `tiny_model()` gives the module alone. Same seed, same bits.

Not here: training a tiny model that can do something (benchmarks/).
"""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from etude.model import attention

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2, as in SmolLM2; bytes follow
VOCAB_SIZE = len(SPECIAL) + 256

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_model(
    seed: int = 0, *, dtype: torch.dtype = torch.float32, layers: int = 2, hidden: int = 64, context: int = 4096
) -> LlamaForCausalLM:
    """Random weights with the spread of a trained model's logits (a default initialisation is close to uniform, which hides mistakes)."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        attn_implementation=attention.NAME,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=2.0 * parameter.shape[1] ** -0.5)
    return model.to(dtype).eval()


def tiny_tokenizer() -> Tokenizer:
    """One token per byte and the three special tokens; encodes and decodes any text."""
    vocab = {token: index for index, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def tiny_folder(path: Path, seed: int = 0, *, weights: bool = True) -> Path:
    """Write the folder and return it; `weights=False` leaves the model out (tokenizer and template only)."""
    path.mkdir(parents=True, exist_ok=True)
    if weights:
        tiny_model(seed).save_pretrained(path)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[2]}
    (path / "tokenizer_config.json").write_text(json.dumps({**names, "model_max_length": 4096}, indent=2) + "\n")
    (path / "chat_template.jinja").write_text(CHATML)
    return path
