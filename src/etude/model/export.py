"""A sharded model to a Hugging Face folder: every rank writes the rows it owns into the files' right places, and gathers nothing.

    export_model(model, target, config=hf_config, like=source_folder)      # on all ranks, into one shared file system

With `like`, the folder has that one's keys, files and dtypes (or `dtype` for floats): experts one by one, packed INT4 packed again with
their former scales where these still fit; weights that need more than stacking must be frozen and are copied as bytes. Without it, keys
are those of transformers with the experts one by one, as models are published.

Packing rounds: what moved by less than half a step of four bits comes back as it was. Give `dtype` to keep all that was learned.

The folder is written aside and renamed when it is whole. Block-wise FP8 comes back as bf16.

Not here: tokenizer files beyond copying them.
"""

import json
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from etude.errors import UserError
from etude.model.int4 import PER_ENTRY, quantize
from etude.model.shards import (
    DTYPES,
    Box,
    Conversion,
    Folder,
    Layout,
    Piece,
    Reader,
    Weight,
    find_layout,
    local_box,
    local_tensor,
    overlap,
    targets,
)

FILE_BYTES = 5_000_000_000
COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
COPIED_WITH_WEIGHTS = ("generation_config.json", "preprocessor_config.json", "processor_config.json")  # of `like` only
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor goes."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """first byte, from the start of the file"""


@torch.no_grad()
def export_model(
    model: nn.Module,
    target: Path,
    *,
    config: Any,
    like: Path | None = None,
    dtype: torch.dtype | None = None,
    files_of: Path | None = None,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Call on all ranks. `dtype`: of all floats (None: as in `like`, else the model's). `files_of`: folder with tokenizer files.

    UserError, before anything is written, where a trained weight cannot be brought back into the layout of `like`.
    """
    source = None if like is None else Folder(like)
    layout = _new_layout(model) if source is None else _like(model, source)
    slots = _slots(model, layout, source, dtype, file_bytes)
    aside = target.with_name(f".{target.name}.partial")
    first = dist.get_rank() == 0
    try:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            _write_headers(aside, slots)
        dist.barrier()
        _write_shards(model, layout, source, slots, aside)
        if source is not None:
            _copy(layout, source, slots, aside)
        dist.barrier()
        if first:
            packed = any(key.endswith("_packed") for key in slots)
            _write_rest(aside, slots, config, packed=packed, files_of=files_of or like, like=like)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(aside, target)
        dist.barrier()
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)  # it may be what fills the disk
        raise UserError(f"cannot write the model to {target}: {error.strerror or error}; make room or mend it, then export again") from None


def check_export(model: nn.Module, like: Path) -> None:
    """UserError where a trained weight could not be brought back into the layout of `like`."""
    _like(model, Folder(like))


def _like(model: nn.Module, source: Folder) -> Layout:
    layout = find_layout(model, source.weights())
    for conversion in layout.conversions:
        _require_frozen(model, conversion)
    return layout


def _new_layout(model: nn.Module) -> Layout:
    """Keys as transformers names them, stacked experts one by one."""
    pieces: dict[str, list[Piece]] = {}
    for name, tensor in targets(model).items():
        stem, _, leaf = name.rpartition(".")
        if leaf in ("gate_up_proj", "down_proj") and tensor.ndim == 3 and stem.endswith("experts"):
            experts, rows, columns = tensor.shape
            parts = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else ("down_proj",)
            size = rows // len(parts)
            pieces[name] = [
                Piece(Weight(f"{stem}.{expert}.{part}.weight", (size, columns)), expert, i * size)
                for expert in range(experts)
                for i, part in enumerate(parts)
            ]
        else:
            pieces[name] = [Piece(Weight(name, tuple(tensor.shape)))]
    return Layout(pieces, [], [])


def _require_frozen(model: nn.Module, conversion: Conversion) -> None:
    first, *others = conversion.converter.target_patterns
    names = {conversion.target, *(conversion.target.replace(first, other) for other in others)}
    trained = [name for name, parameter in model.named_parameters() if name in names and parameter.requires_grad]
    if trained:
        raise UserError(
            f"{trained[0]} was trained, and the folder's layout keeps it fused with others ({conversion.weights[0][1].key}): "
            "add its module to model.freeze, or export without the source's layout"
        )


def _slots(model: nn.Module, layout: Layout, source: Folder | None, dtype: torch.dtype | None, file_bytes: int) -> dict[str, Slot]:
    places = targets(model)
    buffers = {name for name, tensor in places.items() if not isinstance(tensor, nn.Parameter)}
    wanted: list[tuple[str, str, torch.dtype, tuple[int, ...]]] = []  # file, key, dtype, shape
    filled, files = 0, 0
    for name, pieces in layout.pieces.items():
        for piece in pieces:
            weight = piece.weight
            for key, kind, shape in _tensors(weight, source, None if name in buffers else dtype, places[name].dtype):
                if source is not None:
                    file = source.entries[key if key in source.entries else f"{weight.key}_packed"].file
                else:
                    num_bytes = _count(shape) * kind.itemsize
                    if filled and filled + num_bytes > file_bytes:
                        filled, files = 0, files + 1
                    filled += num_bytes
                    file = f"{files:05d}"
                wanted.append((file, key, kind, shape))
    if source is not None:
        covered = {weight.key for conversion in layout.conversions for _, weight in conversion.weights} | set(layout.unused)
        for key in sorted(raw for weight in covered for raw in _raw(source, weight)):
            entry = source.entries[key]
            wanted.append((entry.file, key, DTYPES[entry.dtype], entry.shape))
    else:
        renamed = {
            f"{i:05d}": f"model-{i + 1:05d}-of-{files + 1:05d}.safetensors" if files else "model.safetensors" for i in range(files + 1)
        }
        wanted = [(renamed[file], key, kind, shape) for file, key, kind, shape in wanted]
    return _place(wanted)


def _tensors(
    weight: Weight, source: Folder | None, dtype: torch.dtype | None, own: torch.dtype
) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """(key, dtype, shape) of all that makes a weight."""
    if source is None:
        return [(weight.key, dtype or own, weight.shape)]
    if weight.packing == "plain":
        stored = DTYPES[source.entries[weight.key].dtype]
        return [(weight.key, (dtype or stored) if stored.is_floating_point else stored, weight.shape)]
    if weight.packing == "int4" and dtype is None:
        parts = [f"{weight.key}_{part}" for part in ("packed", "scale", "shape") if f"{weight.key}_{part}" in source.entries]
        return [(key, DTYPES[source.entries[key].dtype], source.entries[key].shape) for key in parts]
    return [(weight.key, dtype or torch.bfloat16, weight.shape)]


def _place(wanted: Sequence[tuple[str, str, torch.dtype, tuple[int, ...]]]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    for file in sorted({file for file, *_ in wanted}):
        inside = [(key, dtype, shape) for other, key, dtype, shape in wanted if other == file]
        offset, rows = 0, []
        for key, dtype, shape in inside:
            rows.append((key, dtype, shape, offset))
            offset += _count(shape) * dtype.itemsize
        start = len(_header(rows))
        slots.update({key: Slot(file, dtype, shape, start + begin) for key, dtype, shape, begin in rows})
    return slots


def _header(rows: Sequence[tuple[str, torch.dtype, tuple[int, ...], int]]) -> bytes:
    """What a safetensors file begins with."""
    about: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for key, dtype, shape, begin in rows:
        about[key] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, begin + _count(shape) * dtype.itemsize]}
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return struct.pack("<Q", len(text)) + text


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _write_headers(folder: Path, slots: dict[str, Slot]) -> None:
    for file in {slot.file for slot in slots.values()}:
        inside = sorted(((key, slot) for key, slot in slots.items() if slot.file == file), key=lambda item: item[1].begin)
        start = min(slot.begin for _, slot in inside)
        header = _header([(key, slot.dtype, slot.shape, slot.begin - start) for key, slot in inside])
        last = inside[-1][1]
        with (folder / file).open("wb") as out:
            out.write(header)
            out.truncate(last.begin + _count(last.shape) * last.dtype.itemsize)


def _write_shards(model: nn.Module, layout: Layout, source: Folder | None, slots: dict[str, Slot], folder: Path) -> None:
    places = targets(model)
    with _Writer(folder) as writer:
        reader = None if source is None else Reader(source)
        for name, pieces in layout.pieces.items():
            if not _writes(places[name]):
                continue
            mine, tensor = local_box(places[name]), local_tensor(places[name])
            for piece in pieces:
                both = overlap(mine, piece.box())
                if both is None:
                    continue
                values = tensor[tuple(slice(low - first, high - first) for (low, high), (first, _) in zip(both, mine, strict=True))]
                box = both
                if piece.expert is not None:
                    values, box = values[0], both[1:]
                if box:
                    box = ((box[0][0] - piece.row, box[0][1] - piece.row), *box[1:])
                key = piece.weight.key
                if f"{key}_packed" in slots:
                    assert reader is not None
                    _write_packed(writer, slots, piece.weight, box, values, reader)
                else:
                    writer.write(slots[key], box, values)


def _write_packed(writer: "_Writer", slots: dict[str, Slot], weight: Weight, box: Box, values: Tensor, reader: Reader) -> None:
    (top, bottom), _ = box
    groups = slots[f"{weight.key}_scale"].shape[1]
    former = reader.scale(weight, top, bottom)
    packed, scale = quantize(values.cpu(), weight.shape[1] // groups, former=former, scale_dtype=former.dtype)
    reader.held_bytes = 0
    writer.write(slots[f"{weight.key}_packed"], ((top, bottom), (0, -(-weight.shape[1] // PER_ENTRY))), packed)
    writer.write(slots[f"{weight.key}_scale"], ((top, bottom), (0, groups)), scale)
    shape = slots.get(f"{weight.key}_shape")
    if shape is not None and top == 0:
        writer.write(shape, ((0, 2),), torch.tensor(weight.shape))


def _writes(tensor: Tensor) -> bool:
    """One rank of those that hold the same part."""
    if not isinstance(tensor, DTensor):
        return dist.get_rank() == 0
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    return all(index == 0 for index, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate())


class _Writer:
    """Writes parts of tensors into files that are there already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self._files.values():
            os.fsync(handle)
            os.close(handle)

    def write(self, slot: Slot, box: Box, values: Tensor) -> None:
        """Rows of a tensor; the other dims must be whole."""
        if any((low, high) != (0, size) for (low, high), size in zip(box[1:], slot.shape[1:], strict=True)):
            raise UserError(f"a parameter is cut on another dim than its rows ({box} of {slot.shape}); choose other degrees")
        row_bytes = _count(slot.shape[1:]) * slot.dtype.itemsize
        data = values.detach().to("cpu", slot.dtype).contiguous().reshape(-1).view(torch.uint8).numpy().data
        self.write_bytes(slot.file, slot.begin + (box[0][0] if box else 0) * row_bytes, data)

    def write_bytes(self, file: str, offset: int, data: Any) -> None:
        handle = self._files.get(file)
        if handle is None:
            handle = self._files[file] = os.open(self._folder / file, os.O_WRONLY)
        view = memoryview(data)
        while view:
            done = os.pwrite(handle, view, offset)
            view, offset = view[done:], offset + done


def _copy(layout: Layout, source: Folder, slots: dict[str, Slot], folder: Path) -> None:
    """Frozen weights that were converted, and those that the model has no place for, byte for byte; ranks take turns."""
    weights = [weight.key for conversion in layout.conversions for _, weight in conversion.weights] + layout.unused
    keys = [raw for weight in weights for raw in _raw(source, weight)]
    with _Writer(folder) as writer:
        for key in keys[dist.get_rank() :: dist.get_world_size()]:
            entry = source.entries[key]
            with (source.path / entry.file).open("rb") as file:
                file.seek(entry.begin)
                writer.write_bytes(slots[key].file, slots[key].begin, file.read(entry.num_bytes))


def _raw(source: Folder, key: str) -> list[str]:
    """The tensors of a weight as they are in the folder."""
    return [key + end for end in ("", "_packed", "_scale", "_shape", "_scale_inv") if key + end in source.entries]


def _write_rest(folder: Path, slots: dict[str, Slot], config: Any, *, packed: bool, files_of: Path | None, like: Path | None) -> None:
    files = sorted({slot.file for slot in slots.values()})
    if len(files) > 1:
        total = sum(_count(slot.shape) * slot.dtype.itemsize for slot in slots.values())
        index = {"metadata": {"total_size": total}, "weight_map": {key: slots[key].file for key in sorted(slots)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    config.save_pretrained(folder)
    if not packed:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for level in (about, *(value for value in about.values() if isinstance(value, dict))):
            level.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    copies = [(files_of, name) for name in COPIED] + [(like, name) for name in COPIED_WITH_WEIGHTS]
    for origin, name in copies:
        if origin is not None and (origin / name).is_file():
            shutil.copy(origin / name, folder / name)
