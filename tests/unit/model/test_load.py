"""Models by path, and the default model's folder: whole or absent, quiet, one clear line for a mistake."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from etude.errors import UserError
from etude.model.attention import NAME
from etude.model.load import cache_folder, convert_once, default_model, load_model
from etude.model.tiny import tiny_model

Write = Callable[..., Path]


def refusal(path: Path | str, dtype: str = "float32") -> str:
    """The one line that a user reads."""
    with pytest.raises(UserError) as caught:
        load_model(path, dtype)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_folder_gives_the_weights_that_were_saved_ready_to_train(folder: Path) -> None:
    model, ids = load_model(folder, "float32"), torch.arange(9)[None]
    assert torch.equal(model(ids).logits, tiny_model()(ids).logits)
    assert model.config._attn_implementation == NAME
    assert not model.training
    assert all(p.requires_grad for p in model.parameters())
    assert load_model(str(folder), torch.bfloat16).dtype == torch.bfloat16


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(folder, "float32")
    assert capfd.readouterr() == ("", "")


def test_a_model_with_sliding_windows_keeps_transformers_attention(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4}
    (folder / "config.json").write_text(json.dumps(settings))
    assert load_model(folder, "float32").config._attn_implementation == "sdpa"


def test_a_missing_folder_and_a_hub_name_say_what_to_do(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere") == f"model folder {tmp_path / 'nowhere'} does not exist"
    assert "nothing is downloaded" in refusal("some-org/some-model")
    assert "hf download some-org/some-model" in refusal("some-org/some-model")
    assert "does not exist" in refusal("nowhere")


def test_a_folder_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(tmp_path / "empty")
    assert "is a file" in refusal(folder / "config.json")
    (folder / "model.safetensors").unlink()
    assert "has no weights" in refusal(folder)


def test_weights_that_do_not_fit_the_config_are_refused_not_invented(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_torn_weights_and_a_broken_config_are_one_line(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert "cannot be loaded" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "no-such-architecture"}')
    assert "cannot be loaded" in refusal(folder)
    (folder / "config.json").write_text("{")
    assert "cannot be loaded" in refusal(folder)


def test_an_unknown_dtype_is_refused_with_those_there_are(folder: Path) -> None:
    assert refusal(folder, "fp8") == "dtype 'fp8': allowed are float32, bfloat16, float16"


def test_the_default_model_is_an_ordinary_folder_that_is_made_once() -> None:
    made = default_model()
    before = (made / "model.safetensors").stat()
    assert default_model() == made
    assert (made / "model.safetensors").stat() == before
    config = json.loads((made / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    assert Tokenizer.from_file(str(made / "tokenizer.json")).encode("<|im_start|>user\n").ids[:1] == [1]
    assert "<|im_start|>" in (made / "chat_template.jinja").read_text()


def test_the_cache_follows_xdg() -> None:
    assert cache_folder().name == "etude"
    assert default_model().is_relative_to(cache_folder())


def test_conversions_at_one_time_leave_one_whole_folder_and_nothing_else(write_gguf: Write, tmp_path: Path) -> None:
    source, target = write_gguf(tmp_path / "small.gguf"), tmp_path / "cache" / "small"
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: convert_once(source, target), range(4)))
    assert made == [target] * 4
    assert [entry.name for entry in target.parent.iterdir()] == ["small"]
    load_model(target, "float32")


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest", "empty"])
def test_a_torn_folder_is_made_again(write_gguf: Write, tmp_path: Path, damage: str) -> None:
    source, target = write_gguf(tmp_path / "small.gguf"), tmp_path / "cache" / "small"
    whole = (convert_once(source, target) / "model.safetensors").read_bytes()
    if damage == "truncated":
        (target / "model.safetensors").write_bytes(whole[:100])
    elif damage == "missing":
        (target / "tokenizer.json").unlink()
    elif damage == "no manifest":
        (target / "etude.json").unlink()
    else:
        shutil.rmtree(target)
        target.mkdir()
    assert convert_once(source, target) == target
    assert (target / "model.safetensors").read_bytes() == whole
    assert (target / "tokenizer.json").is_file()
    assert [entry.name for entry in target.parent.iterdir()] == ["small"]


def test_a_broken_source_and_an_unwritable_cache_are_one_line(write_gguf: Write, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "small.gguf")
    (tmp_path / "torn.gguf").write_bytes(source.read_bytes()[:2000])
    with pytest.raises(UserError, match="install its package again"):
        convert_once(tmp_path / "torn.gguf", tmp_path / "cache" / "torn")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="set XDG_CACHE_HOME to a writable folder"):
        convert_once(source, tmp_path / "file" / "small")
