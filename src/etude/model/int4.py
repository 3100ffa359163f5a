"""Four-bit weights as compressed-tensors packs them ("pack-quantized", symmetric, groups along the input): Kimi K2.5's experts.

    NAME.weight_packed   int32 [rows, columns / 8]          eight values an entry, the first in the lowest bits, each + 8
    NAME.weight_scale    bf16  [rows, columns / group]
    NAME.weight_shape    int64 [2]                          rows, columns

    weight[r, c] = (nibble - 8) * scale[r, c // group]        nibble - 8 is in -8 .. 7

Each row is independent of the others, so any range of rows can be unpacked or packed alone. A group's scale is max |w| / 7.5, as
compressed-tensors chooses it; where a former scale is given and still spans the group it is kept, so that weights which were unpacked and
not moved are packed to the same bits.

Not here: reading files (shards.py).
"""

import torch
from torch import Tensor

from etude.errors import UserError

PER_ENTRY = 8
BITS = 4
OFFSET = 8
_HALF_RANGE = 7.5  # of -8 .. 7
_KEPT = 6.0  # a former scale is kept while the largest weight is at least so many steps: else it has become too coarse
_SHIFTS = torch.arange(0, 32, BITS, dtype=torch.int32)


def pack(values: Tensor) -> Tensor:
    """int [rows, columns] of -8 .. 7 -> int32 [rows, ceil(columns / 8)]; the missing values of the last entry are zero bits."""
    rows, columns = values.shape
    entries = -(-columns // PER_ENTRY)
    nibbles = torch.zeros(rows, entries * PER_ENTRY, dtype=torch.int64, device=values.device)
    nibbles[:, :columns] = values.to(torch.int64) + OFFSET
    shifted = nibbles.view(rows, entries, PER_ENTRY) << _SHIFTS.to(values.device, torch.int64)
    total = shifted.sum(-1)  # disjoint bits: below 2^32, so it is the bit pattern of an int32
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def unpack(packed: Tensor, columns: int) -> Tensor:
    """int32 [rows, entries] -> int8 [rows, columns]. UserError where the columns do not fit the entries."""
    rows, entries = packed.shape
    if not (entries - 1) * PER_ENTRY < columns <= entries * PER_ENTRY:
        raise UserError(f"packed weight with {entries} entries a row cannot have {columns} columns: the checkpoint is damaged")
    nibbles = packed[:, :, None] >> _SHIFTS.to(packed.device) & 0xF
    return (nibbles - OFFSET).to(torch.int8).view(rows, entries * PER_ENTRY)[:, :columns]


def dequantize(packed: Tensor, scale: Tensor, columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """[rows, columns]; the product is rounded once, to `dtype`. UserError where the groups do not divide the columns."""
    rows, groups = scale.shape
    if columns % groups:
        raise UserError(f"{groups} scales a row do not divide {columns} columns: the checkpoint is damaged")
    values = unpack(packed, columns).view(rows, groups, columns // groups).to(torch.float32)
    return (values * scale[:, :, None].to(torch.float32)).view(rows, columns).to(dtype)


def quantize(
    weight: Tensor, group: int, *, former: Tensor | None = None, scale_dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """[rows, columns] -> packed and scale; `former` [rows, columns / group]. UserError where the group does not divide the columns."""
    rows, columns = weight.shape
    if columns % group:
        raise UserError(f"groups of {group} do not divide {columns} columns; export in another dtype")
    groups = weight.to(torch.float32).view(rows, columns // group, group)
    scale = (groups.abs().amax(-1) / _HALF_RANGE).to(scale_dtype)
    if former is not None:
        steps = groups / _divisor(former)[:, :, None]
        spans = (steps.amax(-1) < _HALF_RANGE) & (steps.amin(-1) > -OFFSET - 0.5) & (steps.abs().amax(-1) >= _KEPT)
        scale = torch.where(spans, former.to(scale_dtype), scale)
    values = torch.round(groups / _divisor(scale)[:, :, None]).clamp(-OFFSET, OFFSET - 1)
    return pack(values.view(rows, columns).to(torch.int8)), scale


def _divisor(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.ones_like(scale), scale).to(torch.float32)
