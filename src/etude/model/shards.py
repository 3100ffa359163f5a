"""Hugging Face folders of any size, straight into sharded parameters and back: no rank ever holds a model.

    model = empty_model(config)                                  # on the meta device
    apply_dual_mesh(model, mesh); allocate(model, "cpu")         # each rank has room for its own shards
    report = load_shards(model, folder)                          # reads the rows it owns of each tensor, and nothing else

The folder's keys are mapped to parameters by transformers' own tables; `experts.N.gate_proj.weight` and its kind are parts of the stacked
parameter and are read one by one. On the way, packed INT4 (int4.py) and block-wise FP8 (DeepSeek-V3: `weight_scale_inv`, 128 x 128) become
floats. A key that needs more than stacking (fused QKV of a vision tower) is read whole, converted by transformers, then cut.

What a rank holds beside its shards is one piece at a time, at most `piece_bytes` of decoded weights; `LoadReport` has the exact figures.

Not here: writing (export.py), which rank owns what (etude.parallel).
"""

import copy
import json
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming, rename_source_key

from etude.errors import UserError
from etude.model.int4 import PER_ENTRY, dequantize

PIECE_BYTES = 64 << 20
FP8_BLOCK = 128
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
Box = tuple[tuple[int, int], ...]
"""[begin, end) on each dim"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """first byte, from the start of the file"""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of a folder, whatever it is made of: plain, packed INT4, or FP8 with block scales."""

    key: str
    shape: tuple[int, ...]
    packing: str = "plain"


@dataclass(frozen=True, slots=True)
class Piece:
    """`weight` is rows [row, row + shape[0]) of a parameter, of expert `expert` if that is stacked."""

    weight: Weight
    expert: int | None = None
    row: int = 0

    def box(self) -> Box:
        """Where it lies in the parameter."""
        rows, *rest = self.weight.shape or (1,)
        inner = ((self.row, self.row + rows), *((0, size) for size in rest)) if self.weight.shape else ()
        return inner if self.expert is None else ((self.expert, self.expert + 1), *inner)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Weights that become parameters by more than stacking; transformers' converter does it."""

    target: str
    converter: WeightConverter
    weights: tuple[tuple[str, Weight], ...]
    """(source pattern, weight)"""


@dataclass(frozen=True, slots=True)
class Layout:
    pieces: dict[str, list[Piece]]
    """by parameter"""
    conversions: list[Conversion]
    unused: list[str]


@dataclass(frozen=True, slots=True)
class LoadReport:
    read_bytes: int
    """of the files, by this rank"""
    local_bytes: int
    """of this rank's shards and buffers"""
    peak_bytes: int
    """shards, and the largest piece with the file's bytes that it was decoded from"""
    unused: tuple[str, ...]
    """keys of the folder that the model has no place for"""


class Folder:
    """The headers of a folder's safetensors files. UserError where there are none or one is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        index = path / "model.safetensors.index.json"
        if index.is_file():
            names = _files_of(index)
        else:
            names = sorted(file.name for file in path.glob("*.safetensors"))
        if not names:
            raise UserError(f"model folder {path} has no weights (*.safetensors)")
        for name in names:
            self.entries.update(_header(path, name))

    def weights(self) -> dict[str, Weight]:
        """By key; scales and shapes belong to their weight."""
        found = {}
        for key, entry in self.entries.items():
            stem = key.removesuffix("_packed")
            if key.endswith(".weight_packed"):
                scale = self.entries.get(f"{stem}_scale")
                if len(entry.shape) != 2 or scale is None or len(scale.shape) != 2 or scale.shape[0] != entry.shape[0]:
                    about = "is missing" if scale is None else f"has shape {scale.shape} for {entry.shape} packed"
                    raise UserError(f"{self.path}: {stem}_scale {about}; only scales per group of a row are supported")
                found[stem] = Weight(stem, (entry.shape[0], self._columns(stem, entry)), "int4")
            elif key.endswith(".weight") and f"{key}_scale_inv" in self.entries:
                blocks = tuple(-(-size // FP8_BLOCK) for size in entry.shape)
                if len(blocks) != 2 or self.entries[f"{key}_scale_inv"].shape != blocks:
                    shape = self.entries[f"{key}_scale_inv"].shape
                    raise UserError(f"{self.path}: {key}_scale_inv has shape {shape}, expected {blocks}: one for each 128 x 128 weights")
                found[key] = Weight(key, entry.shape, "fp8")
            elif not re.search(r"\.weight_(scale|shape|scale_inv|zero_point|g_idx)$", key):
                found[key] = Weight(key, entry.shape)
            elif key.endswith(("zero_point", "g_idx")):
                raise UserError(f"{self.path}: {key}: only symmetric packing without reordering is supported; dequantise the model first")
        return found

    def _columns(self, stem: str, packed: Entry) -> int:
        shape = self.entries.get(f"{stem}_shape")
        if shape is None:
            return packed.shape[1] * PER_ENTRY
        with (self.path / shape.file).open("rb") as file:
            file.seek(shape.begin)
            size = DTYPES[shape.dtype].itemsize
            return int.from_bytes(file.read(2 * size)[size:], "little", signed=True)


def _files_of(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("weight_map must name files of the folder")
        return sorted(names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} is no index of weights ({type(error).__name__}: {error}); fetch it again") from None


def _header(folder: Path, name: str) -> Iterator[tuple[str, Entry]]:
    file = folder / name
    try:
        length = file.stat().st_size
        with file.open("rb") as data:
            (size,) = struct.unpack("<Q", data.read(8))
            if size > length - 8:
                raise ValueError("it ends before its header does")
            header = json.loads(data.read(size))
        for key, about in header.items():
            if key != "__metadata__":
                yield key, _entry(name, key, about, 8 + size, length)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; fetch the model again") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is not a whole safetensors file ({reason}); fetch it again") from None


def _entry(name: str, key: str, about: Any, start: int, length: int) -> Entry:
    """ValueError and its like where the header's words about a tensor are not true."""
    begin, end = about["data_offsets"]
    shape, dtype = tuple(about["shape"]), about["dtype"]
    if dtype not in DTYPES:
        raise ValueError(f"{key} has the dtype {dtype}; known are {', '.join(DTYPES)}")
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"{key} has the shape {shape} at {begin} to {end}")
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{key} has {end - begin} bytes, which is not {dtype} of shape {shape}")
    if start + end > length:
        raise ValueError("it ends before its tensors do")
    return Entry(name, dtype, shape, start + begin, end - begin)


class Reader:
    """Reads parts of a folder's weights and counts the bytes that it holds meanwhile."""

    def __init__(self, folder: Folder, piece_bytes: int = PIECE_BYTES) -> None:
        self.folder, self.piece_bytes = folder, piece_bytes
        self.read_bytes = 0
        self.held_bytes = 0
        self.most_bytes = 0
        self._files: dict[str, Any] = {}

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exc: object) -> None:
        self._files.clear()

    def pieces(self, weight: Weight, box: Box, dtype: torch.dtype) -> Iterator[tuple[Box, Tensor]]:
        """The part of a weight in consecutive ranges of rows, decoded; each is let go before the next is read."""
        if not box:
            yield box, self._decode(weight, box, dtype)
            return
        (begin, end), *rest = box
        row_bytes = dtype.itemsize
        for low, high in rest:
            row_bytes *= high - low
        step = max(1, self.piece_bytes // max(1, row_bytes))
        for first in range(begin, end, step):
            part = ((first, min(first + step, end)), *rest)
            before = self.held_bytes
            yield part, self._decode(weight, part, dtype)
            self.held_bytes = before

    def whole(self, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        """A weight as it is, or decoded; counted as held until `held_bytes` is set back."""
        box = tuple((0, size) for size in weight.shape)
        return self._decode(weight, box, dtype)

    def _decode(self, weight: Weight, box: Box, dtype: torch.dtype | None) -> Tensor:
        if weight.packing == "plain":
            raw = self._read(weight.key, box)
            return raw if dtype in (None, raw.dtype) else self._hold(raw.to(dtype))
        (top, bottom), (left, right) = box
        if weight.packing == "int4":
            if (left, right) != (0, weight.shape[1]):
                raise UserError(f"{weight.key} is packed by rows and this mesh cuts its columns; choose other degrees")
            packed = self._read(f"{weight.key}_packed", ((top, bottom), (0, self.folder.entries[f"{weight.key}_packed"].shape[1])))
            scale = self.scale(weight, top, bottom)
            return self._hold(dequantize(packed, scale, right, dtype or torch.bfloat16))
        block = (slice(top // FP8_BLOCK, -(-bottom // FP8_BLOCK)), slice(left // FP8_BLOCK, -(-right // FP8_BLOCK)))
        scale = self._read(f"{weight.key}_scale_inv", tuple((part.start, part.stop) for part in block))
        values = self._read(weight.key, box).to(torch.float32)
        spread = scale.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
        offset = (top % FP8_BLOCK, left % FP8_BLOCK)
        spread = spread[offset[0] : offset[0] + bottom - top, offset[1] : offset[1] + right - left]
        return self._hold((values * spread).to(dtype or torch.bfloat16))

    def scale(self, weight: Weight, top: int, bottom: int) -> Tensor:
        """Scales of packed rows."""
        return self._read(f"{weight.key}_scale", ((top, bottom), (0, self.folder.entries[f"{weight.key}_scale"].shape[1])))

    def _read(self, key: str, box: Box) -> Tensor:
        entry = self.folder.entries[key]
        file = self._files.get(entry.file)
        if file is None:
            file = self._files[entry.file] = safe_open(self.folder.path / entry.file, "pt")
        whole = file.get_slice(key) if entry.shape else None
        found: Tensor = file.get_tensor(key) if whole is None else whole[tuple(slice(low, high) for low, high in box)]
        self.read_bytes += found.nbytes
        return self._hold(found)

    def _hold(self, tensor: Tensor) -> Tensor:
        self.held_bytes += tensor.nbytes
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return tensor


def empty_model(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The transformers model of a config, on the meta device; UserError for a kind that transformers does not have."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # weights are floats here, however they are stored
    for kind in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
        if type(config) in kind._model_mapping:
            with torch.device("meta"):
                model: nn.Module = kind.from_config(config, dtype=dtype)
            return model
    raise UserError(f"transformers has no language model of the kind {config.model_type!r}")


def allocate(model: nn.Module, device: str | torch.device) -> None:
    """Give a model on the meta device memory for its local shards: parameters are zeros, buffers as the model makes them.

    Tied parameters stay tied.
    """
    names: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names[id(parameter)].append((module, name))
    groups = list(names.values())
    model.to_empty(device=device)
    with torch.no_grad():
        for group in groups:
            shared = getattr(*group[0])
            local_tensor(shared).zero_()
            for module, name in group[1:]:
                setattr(module, name, shared)
        _make_buffers(model)


def _make_buffers(model: nn.Module) -> None:
    """Buffers that no checkpoint has (rotary frequencies, tables of positions), by the model's own initialisation."""
    for _, owner in [(name, module) for name, module in model.named_modules() if isinstance(module, transformers.PreTrainedModel)][::-1]:
        for module in owner.modules():
            temporary = module._non_persistent_buffers_set
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in temporary:
                    buffer.zero_()
            if not temporary or getattr(module, "_etude_buffers", False):
                continue
            for parameter in module.parameters(recurse=False):
                parameter._is_hf_initialized = True  # only the buffers are made
            owner._init_weights(module)
            module._etude_buffers = True


def targets(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, each once, and persistent buffers, by the name that a checkpoint gives them."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def local_tensor(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_box(tensor: Tensor) -> Box:
    """The part of a tensor that this rank holds."""
    if not isinstance(tensor, DTensor):
        return tuple((0, size) for size in tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return tuple((low, low + size) for low, size in zip(chunk.offsets, chunk.sizes, strict=True))


def overlap(one: Box, other: Box) -> Box | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(low < high for low, high in both) else None


def find_layout(model: nn.Module, weights: dict[str, Weight]) -> Layout:
    """Which weight of a folder is which part of which parameter. UserError where a parameter is missing or has another shape."""
    places = targets(model)
    known = model.state_dict(keep_vars=True)
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    groups: dict[str, dict[str, list[Weight]]] = defaultdict(lambda: defaultdict(list))
    pieces: dict[str, list[Piece]] = defaultdict(list)
    unused = []
    for key in sorted(weights, key=_natural):
        name, pattern = rename_source_key(key, renamings, converters, getattr(model, "base_model_prefix", None), known)
        if pattern is not None:
            groups[name][pattern].append(weights[key])
        elif name in places:
            pieces[name].append(Piece(weights[key]))
        elif name not in known:  # a second name of a tied parameter is no surprise
            unused.append(key)
    conversions = []
    for name, found in groups.items():
        converter = by_pattern[next(iter(found))]
        if name in places and _stacks(converter):
            pieces[name] += _stacked(converter, found)
        else:
            flat = tuple((pattern, weight) for pattern in converter.source_patterns for weight in found.get(pattern, ()))
            conversions.append(Conversion(name, converter, flat))
    layout = Layout(dict(pieces), conversions, unused)
    _check(places, layout)
    return layout


def _stacks(converter: WeightConverter) -> bool:
    kinds = [type(operation) for operation in converter.operations]
    merges = kinds[:1] == [MergeModulelist] and converter.operations[0].dim == 0
    return merges and (kinds[1:] == [] or (kinds[1:] == [Concatenate] and converter.operations[1].dim == 1))


def _stacked(converter: WeightConverter, found: dict[str, list[Weight]]) -> list[Piece]:
    pieces, row = [], 0
    for pattern in converter.source_patterns:
        experts = found.get(pattern, [])
        pieces += [Piece(weight, expert, row) for expert, weight in enumerate(experts)]
        row += experts[0].shape[0] if experts else 0
    return pieces


def _check(places: dict[str, Tensor], layout: Layout) -> None:
    converted = {conversion.target for conversion in layout.conversions}
    missing = [name for name in places if name not in layout.pieces and name not in converted and not _made_by(name, layout.conversions)]
    if missing:
        raise UserError(f"the model folder has weights that do not fit its config.json: {len(missing)} missing, e.g. {missing[0]}")
    for name, pieces in layout.pieces.items():
        shape = tuple(places[name].shape)
        covered = 0
        for piece in pieces:
            box = piece.box()
            inside = len(box) == len(shape) and all(high <= size for (_, high), size in zip(box, shape, strict=True))
            if not inside:
                raise UserError(f"{piece.weight.key} {piece.weight.shape} does not fit {name} {shape}: config.json is of another model")
            covered += _size(box)
        if covered != places[name].numel():
            raise UserError(f"{name} {shape}: the folder's {len(pieces)} parts of it have {covered} weights: some are missing")


def _made_by(name: str, conversions: Sequence[Conversion]) -> bool:
    """Is it one of several targets of a conversion, which is named by the first?"""
    for conversion in conversions:
        first, *others = conversion.converter.target_patterns
        if any(name == conversion.target.replace(first, other) for other in others):
            return True
    return False


def _size(box: Box) -> int:
    total = 1
    for low, high in box:
        total *= high - low
    return total


def _natural(key: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in key.split(".")]


@torch.no_grad()
def load_shards(model: nn.Module, path: Path, *, piece_bytes: int = PIECE_BYTES) -> LoadReport:
    """Fill the local shards of an allocated model from a folder; every rank reads alone. UserError where the folder does not fit."""
    folder = Folder(path)
    layout = find_layout(model, folder.weights())
    places = targets(model)
    with Reader(folder, piece_bytes) as reader:
        for name, pieces in layout.pieces.items():
            mine, tensor = local_box(places[name]), local_tensor(places[name])
            for piece in pieces:
                fill(tensor, mine, piece, reader)
        for conversion in layout.conversions:
            for name, whole in _converted(model, conversion, reader).items():
                box = local_box(places[name])
                local_tensor(places[name]).copy_(whole[tuple(slice(low, high) for low, high in box)])
            reader.held_bytes = 0
        local = sum(local_tensor(tensor).nbytes for tensor in places.values())
        return LoadReport(reader.read_bytes, local, local + reader.most_bytes, tuple(layout.unused))


def fill(tensor: Tensor, mine: Box, piece: Piece, reader: Reader) -> None:
    """Copy what a local shard has of a piece."""
    at = piece.box()
    both = overlap(mine, at)
    if both is None:
        return
    inner = both if piece.expert is None else both[1:]
    shift = (piece.row, *[0] * (len(inner) - 1)) if inner else ()
    in_file = tuple((low - by, high - by) for (low, high), by in zip(inner, shift, strict=True))
    lead = () if piece.expert is None else (both[0][0] - mine[0][0],)
    for part, values in reader.pieces(piece.weight, in_file, tensor.dtype):
        origin = mine[len(lead) :]
        spans = zip(part, shift, origin, strict=True)
        tensor[(*lead, *(slice(low + by - first, high + by - first) for (low, high), by, (first, _) in spans))].copy_(values)


def _converted(model: nn.Module, conversion: Conversion, reader: Reader) -> dict[str, Tensor]:
    converter = conversion.converter
    for pattern, weight in conversion.weights:
        converter.add_tensor(conversion.target, weight.key, pattern, reader.whole(weight))
    made = converter.convert(conversion.target, model=model, config=model.config)
    found = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
    for tensor in found.values():
        reader._hold(tensor)
    return found
