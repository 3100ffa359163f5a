"""Keys and values of many sessions in preallocated buffers, and the attention plan that reads and writes them.

Every session has a row: `keys[layer][row, :, :length]` are its keys. One forward carries the tokens of several sessions packed into
[1, N]: single tokens that are being decoded, and longer spans that are being prefilled, each with its own positions. Everything but
attention treats tokens one by one, so no padding is computed. Nothing is concatenated or repeated: grouped-query attention reads the
rows in place, with the query heads of a group as the queries of one key/value head.

    N tokens of the forward, H query heads, K key/value heads, G = H / K, D head size, C tokens a row can hold, W tokens read

`rounding` = 1 reads exactly as much of a row as needed. In the reproducible mode it is 512, the block of the CPU kernel: what lies
beyond a session's end is masked, adds exact zeros, and the result is the same to the bit whichever sessions are read together.

Not here: which session is where (local.py), models whose attention is not plain causal (model/attention.py refuses them).
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.attention import Plan

KERNEL_BLOCK = 512
"""Keys that torch's CPU attention handles at a time (kvSplitSize in FlashAttentionKernel.cpp)."""

_CALL_TOKENS = 128
"""What one more attention call costs, in tokens read (measured: 30 us against 0.23 us a token and row)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one session in a packed forward."""

    row: int
    start: int  # position of the first of them in the session; the row holds everything before
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class LayerShape:
    heads: int  # K
    key_size: int
    value_size: int


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, because what is masked still takes part in a product and must be finite. On the CPU pages that the system zeroes on
    first use: torch.zeros would write all of them.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class KeyValues:
    """The buffers: `keys[layer]` and `values[layer]`, [rows, K, C, D]. On the CPU they take memory only where they are written."""

    def __init__(self, shapes: Sequence[LayerShape], rows: int, row_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shapes, self.rows, self.row_tokens, self.dtype, self.device = tuple(shapes), rows, row_tokens, dtype, device
        self.keys = [_zeros((rows, s.heads, row_tokens, s.key_size), dtype, device) for s in shapes]
        self.values = [_zeros((rows, s.heads, row_tokens, s.value_size), dtype, device) for s in shapes]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give row `target` the first `length` tokens of row `source`."""
        for buffer in (*self.keys, *self.values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def resized(self, rows: int, row_tokens: int, kept: Sequence[tuple[int, int]]) -> "KeyValues":
        """New buffers whose row i holds the first `length` tokens of old row `row`, for `kept[i] = (row, length)`."""
        new = KeyValues(self.shapes, rows, row_tokens, self.dtype, self.device)
        for old, buffer in zip((*self.keys, *self.values), (*new.keys, *new.values), strict=True):
            for target, (source, length) in enumerate(kept):
                buffer[target, :, :length] = old[source, :, :length]
        return new


@dataclass(frozen=True, slots=True)
class _Run:
    """Decoded tokens of neighbouring rows, read in one attention call."""

    first: int  # index of its first token in the forward
    row: int
    count: int
    window: int  # W
    mask: Tensor | None  # [count, 1, G, W], added to the scores


def _runs(spans: Sequence[Span], rounding: int, row_tokens: int) -> list[tuple[int, int, int]]:
    """(first span, count, window), greedily: a neighbour joins where reading to the longer end costs less than a call of its own."""
    found: list[tuple[int, int, int]] = []
    for index, span in enumerate(spans):
        window = min(-(-span.stop // rounding) * rounding, row_tokens)
        if found:
            first, count, widest = found[-1]
            together = (count + 1) * max(widest, window)
            if span.row == spans[first].row + count and together <= count * widest + window + _CALL_TOKENS:
                found[-1] = (first, count + 1, max(widest, window))
                continue
        found.append((index, 1, window))
    return found


def packed(kv: KeyValues, decoded: Sequence[Span], prefilled: Sequence[Span], *, group: int, rounding: int = 1) -> Plan:
    """The plan for one forward of `decoded` (one token each, ordered by row), then `prefilled`, then any padding (its output is 0).

    `group` is G. The caller has reserved the rows; their contents up to each span's stop are overwritten.
    """
    rows = torch.tensor([span.row for span in decoded], device=kv.device)
    ends = torch.tensor([span.start for span in decoded], device=kv.device)
    runs: list[_Run] = []
    for first, count, window in _runs(decoded, rounding, kv.row_tokens):
        stops = ends[first : first + count] + 1
        mask = None
        if rounding > 1 or any(span.stop != window for span in decoded[first : first + count]):
            beyond = torch.arange(window, device=kv.device) >= stops[:, None]
            mask = torch.zeros(count, window, dtype=kv.dtype, device=kv.device).masked_fill_(beyond, float("-inf"))
            mask = mask[:, None, None, :].expand(count, 1, group, window)
        runs.append(_Run(first, decoded[first].row, count, window, mask))
    chunks = [(span, offset, _chunk_mask(span, group, kv)) for span, offset in _offsets(prefilled, len(decoded))]

    def plan(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        keys, values = kv.keys[layer], kv.values[layer]
        heads, value_size = query.shape[1], value.shape[3]
        output = query.new_zeros(query.shape[2], heads, value_size)
        if decoded:
            count = len(decoded)
            keys[rows, :, ends] = key[0, :, :count].transpose(0, 1)
            values[rows, :, ends] = value[0, :, :count].transpose(0, 1)
            grouped = query[0, :, :count].transpose(0, 1).reshape(count, heads // group, group, -1)
            for run in runs:
                here, there = slice(run.first, run.first + run.count), slice(run.row, run.row + run.count)
                attended = F.scaled_dot_product_attention(
                    grouped[here], keys[there, :, : run.window], values[there, :, : run.window], attn_mask=run.mask, scale=scaling
                )
                output[here] = attended.reshape(run.count, heads, value_size)
        for span, offset, mask in chunks:
            here = slice(offset, offset + span.length)
            keys[span.row, :, span.start : span.stop] = key[0, :, here]
            values[span.row, :, span.start : span.stop] = value[0, :, here]
            if mask is None:
                attended = F.scaled_dot_product_attention(
                    query[:, :, here], key[:, :, here], value[:, :, here], is_causal=True, scale=scaling, enable_gqa=group > 1
                )[0]
            else:
                grouped = query[0, :, here].reshape(1, heads // group, group * span.length, -1)
                attended = F.scaled_dot_product_attention(
                    grouped, keys[span.row, None, :, : span.stop], values[span.row, None, :, : span.stop], attn_mask=mask, scale=scaling
                ).reshape(heads, span.length, value_size)
            output[here] = attended.transpose(0, 1)
        return output.transpose(0, 1)[None]

    return plan


def _offsets(spans: Sequence[Span], offset: int) -> list[tuple[Span, int]]:
    """Each span with the index of its first token in the forward."""
    result = []
    for span in spans:
        result.append((span, offset))
        offset += span.length
    return result


def _chunk_mask(span: Span, group: int, kv: KeyValues) -> Tensor | None:
    """[G * length, stop], added to the scores; None for a span that begins its session: the causal kernel needs none."""
    if span.start == 0:
        return None
    beyond = torch.ones(span.length, span.stop, dtype=torch.bool, device=kv.device).triu_(span.start + 1)
    return torch.zeros(span.length, span.stop, dtype=kv.dtype, device=kv.device).masked_fill_(beyond, float("-inf")).repeat(group, 1)
