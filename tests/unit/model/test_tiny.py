"""The tiny model that other tests stand on: the same each time, far from uniform, with a tokenizer that takes any text."""

from pathlib import Path

import torch
from transformers import AutoTokenizer

from etude.model.tiny import SPECIAL, VOCAB_SIZE, tiny_folder, tiny_model, tiny_tokenizer


def test_a_seed_gives_the_same_bits_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two, other = tiny_model(), tiny_model(), tiny_model(seed=1)
    assert torch.equal(torch.rand(3), expected)
    ids = torch.arange(8)[None]
    assert torch.equal(one(ids).logits, two(ids).logits)
    assert not torch.equal(one(ids).logits, other(ids).logits)


def test_its_distribution_is_neither_uniform_nor_a_point() -> None:
    logprobs = tiny_model()(torch.randint(VOCAB_SIZE, (4, 50), generator=torch.Generator().manual_seed(0))).logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean()
    assert 1.0 < entropy < 0.9 * torch.log(torch.tensor(float(VOCAB_SIZE)))


def test_any_text_survives_and_special_tokens_are_one_id() -> None:
    tokenizer = tiny_tokenizer()
    text = "def f(x):\n\treturn 'é☃' <|im_end|>\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids.count(2) == 1
    assert tokenizer.get_vocab_size() == VOCAB_SIZE == len(SPECIAL) + 256


def test_the_folder_loads_as_any_other(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", weights=False)
    assert not (folder / "model.safetensors").exists()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
