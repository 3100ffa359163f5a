"""What tests of several packages share: a real, tiny tokenizer and a chat template."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from etude.render import Renderer

CORPUS = [
    '<tool_call>{"name": "search", "arguments": {"pattern": "def take(", "path": "calc/ops.py"}}</tool_call>',
    '{"name": "run", "arguments": {"command": "pytest -q tests/test_ops.py"}} edited wrote error: tool not found',
    "You are a coding agent. The repository is in /work. Reminder: the available tools are list, read, search",
    "system\nuser\nassistant\ntool\n return raise NotImplementedError self old new text lines",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """Byte-level BPE of 400 tokens with the special tokens of ChatML and of Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer.to_str()


@pytest.fixture(scope="session")
def chatml() -> str:
    """The template of SmolLM2."""
    return (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


@pytest.fixture(scope="session")
def renderer(tokenizer_json: str, chatml: str) -> Renderer:
    return Renderer(tokenizer_json, chatml)
