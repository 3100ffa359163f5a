"""Checkpoints of model and optimizer that reload on other meshes and world sizes, through torch.distributed.checkpoint.

    save(folder / "step-000100", model, optimizer, extra={"step": 100})      # on all ranks
    extra = load(latest(folder), model, optimizer)                           # any degrees, a world of one too

A folder is written aside (".NAME.partial" beside it) and renamed when it is whole, so a run that dies leaves the last one intact. Its
`etude.json` names every file with its size and comes last; `load` refuses a folder where something is missing or cut short.

All ranks must see the same folder (one machine or a shared file system).

Not here: which steps to keep, Hugging Face's format.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.optim import Optimizer

from etude.errors import UserError

_WHOLE = "etude.json"


def save(folder: Path, model: nn.Module, optimizer: Optimizer | None = None, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint, replacing one of the same name. Call on all ranks; `extra` is JSON, taken from rank 0."""
    aside = folder.with_name(f".{folder.name}.partial")
    if dist.get_rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    dist.barrier()
    save_state(_state(model, optimizer), checkpoint_id=aside)
    if dist.get_rank() == 0:
        files = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
        about = {"format": 1, "optimizer": optimizer is not None, "extra": dict(extra or {}), "files": files}
        _write(aside / _WHOLE, json.dumps(about, indent=1))
        _swap(aside, folder)
    dist.barrier()


def load(folder: Path, model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Read a checkpoint into the model and optimizer as they are sharded now; returns what was saved as `extra`. Call on all ranks.

    UserError where the folder is not a whole checkpoint, or has no optimizer state and one is asked for.
    """
    about = _read(folder)
    if optimizer is not None and not about["optimizer"]:
        raise UserError(f"{folder} has no optimizer state; load the model alone")
    state = _state(model, optimizer)
    load_state(state, checkpoint_id=folder)  # in place: the model's tensors are those of its state
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    extra: dict[str, Any] = about["extra"]
    return extra


def latest(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder of them, by name; None where there is none."""
    whole = [path for path in folder.iterdir() if (path / _WHOLE).is_file() and not path.name.startswith(".")] if folder.is_dir() else []
    return max(whole, default=None, key=lambda path: path.name)


def _state(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    if optimizer is None:
        return {"model": get_model_state_dict(model)}
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _swap(aside: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / _WHOLE).is_file():
        whole = latest(folder.parent)
        hint = f"the last whole one beside it is {whole.name}" if whole else "there is no whole one beside it"
        raise UserError(f"{folder} is not a whole checkpoint (no {_WHOLE}); {hint}")
    about: dict[str, Any] = json.loads((folder / _WHOLE).read_text(encoding="utf-8"))
    for name, size in about["files"].items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            raise UserError(
                f"{folder} is damaged: {name} has {'no' if found is None else found} bytes instead of {size}; load an earlier one"
            )
    return about
