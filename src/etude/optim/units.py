"""Units: the matrices that Muon orthogonalises, as rectangles of a parameter.

A parameter of shape (rows, cols), or a stack (experts, rows, cols), is cut into row blocks times column blocks; each rectangle of each
expert is one unit. So everything is two lists of sizes:

    whole()                           one matrix (of a stack: one per expert)
    row_blocks([512, 64])             rows in blocks of these sizes
    row_heads(192, 64)                64 heads of 192 rows; heads_per_group=2: 32 blocks of 384
    column_heads(128, 64)             the output projection by head
    gate_up(2048)                     two fused matrices, one above the other (columns=True: side by side)
    qkv_concatenated(...)             all query heads, then all key heads, then all value heads (Llama, Phi-3)
    qkv_interleaved(...)              per key/value head: its query heads, one key head, one value head (Megatron, GPT-NeoX, Falcon)

Grouped-query attention is other numbers of heads. Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) is rows per head of q_b
(nope + rope) and kv_b (nope + value). Which granularity is best is open: "Group Muon" (arXiv:2605.08933) finds groups of heads better than
both single heads and the fused matrix, hence `heads_per_group`.

Loads no torch. Not here: which parameter gets which units (routing.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

Interval = tuple[int, int]


class Rectangle(NamedTuple):
    """One unit inside its parameter: an interval of indices per dimension (a single expert first, for a stack)."""

    box: tuple[Interval, ...]

    @property
    def rows(self) -> int:
        return self.box[-2][1] - self.box[-2][0]

    @property
    def cols(self) -> int:
        return self.box[-1][1] - self.box[-1][0]


@dataclass(frozen=True, slots=True)
class Units:
    """Sizes of the row and column blocks; empty means one block over the whole side. Works on every expert of a stack alike."""

    rows: tuple[int, ...] = ()
    cols: tuple[int, ...] = ()
    label: str = "whole"
    """For the audit table."""

    def row_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.rows or (shape[-2],)

    def col_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.cols or (shape[-1],)

    def check(self, name: str, shape: Sequence[int]) -> None:
        """ValueError, naming the parameter, unless the blocks tile a parameter of this shape."""
        if len(shape) not in (2, 3):
            raise ValueError(f"{name} {tuple(shape)}: Muon takes matrices and stacks of matrices; route it to adamw")
        for side, sizes, total in (("rows", self.row_sizes(shape), shape[-2]), ("columns", self.col_sizes(shape), shape[-1])):
            if min(sizes) < 1 or sum(sizes) != total:
                raise ValueError(f"{name} {tuple(shape)}: {side} blocks {_brief(sizes)} add up to {sum(sizes)}, not {total} ({self.label})")

    def shapes(self, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The distinct unit shapes, in order of appearance."""
        return tuple(dict.fromkeys((r, c) for r in self.row_sizes(shape) for c in self.col_sizes(shape)))

    def count(self, shape: Sequence[int]) -> int:
        return (shape[0] if len(shape) == 3 else 1) * len(self.row_sizes(shape)) * len(self.col_sizes(shape))

    def rectangles(self, shape: Sequence[int]) -> tuple[Rectangle, ...]:
        """All units, experts outermost, then rows, then columns."""
        return _rectangles(self.row_sizes(shape), self.col_sizes(shape), tuple(shape))


@lru_cache(maxsize=256)
def _rectangles(rows: tuple[int, ...], cols: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Rectangle, ...]:
    experts: list[tuple[Interval, ...]] = [((e, e + 1),) for e in range(shape[0])] if len(shape) == 3 else [()]
    return tuple(Rectangle((*e, r, c)) for e in experts for r in _intervals(rows) for c in _intervals(cols))


def _intervals(sizes: Sequence[int]) -> list[Interval]:
    found, start = [], 0
    for size in sizes:
        found.append((start, start + size))
        start += size
    return found


def _brief(sizes: Sequence[int]) -> str:
    return str(list(sizes)) if len(sizes) <= 4 else f"{len(sizes)} blocks of {min(sizes)}..{max(sizes)}"


def whole() -> Units:
    return Units()


def row_blocks(sizes: Sequence[int], label: str = "row blocks") -> Units:
    return Units(rows=tuple(sizes), label=label)


def row_heads(head_rows: int, num_heads: int, heads_per_group: int = 1) -> Units:
    """The rows of each head, or of each `heads_per_group` heads; a last smaller group takes the rest."""
    return Units(rows=_grouped(head_rows, num_heads, heads_per_group), label=_per("rows", heads_per_group))


def column_heads(head_cols: int, num_heads: int, heads_per_group: int = 1) -> Units:
    return Units(cols=_grouped(head_cols, num_heads, heads_per_group), label=_per("columns", heads_per_group))


def gate_up(intermediate: int, *, columns: bool = False) -> Units:
    """Two matrices of one shape fused in one parameter."""
    sizes = (intermediate, intermediate)
    return Units(cols=sizes, label="gate | up") if columns else Units(rows=sizes, label="gate | up")


def qkv_concatenated(num_heads: int, num_key_value_heads: int, head_rows: int, heads_per_group: int = 1, *, columns: bool = False) -> Units:
    """Heads of the queries, then of the keys, then of the values; groups never mix the three."""
    query = _grouped(head_rows, num_heads, heads_per_group)
    key = _grouped(head_rows, num_key_value_heads, heads_per_group)
    label = _per("q|k|v columns" if columns else "q|k|v rows", heads_per_group)
    return Units(cols=query + key + key, label=label) if columns else Units(rows=query + key + key, label=label)


def qkv_interleaved(num_heads: int, num_key_value_heads: int, head_rows: int, heads_per_group: int = 1) -> Units:
    """For each key/value head: its query heads (grouped), the key head, the value head."""
    if num_heads % num_key_value_heads:
        raise ValueError(f"{num_heads} query heads do not divide among {num_key_value_heads} key/value heads")
    query = _grouped(head_rows, num_heads // num_key_value_heads, heads_per_group)
    return Units(rows=(*query, head_rows, head_rows) * num_key_value_heads, label=_per("interleaved q|k|v rows", heads_per_group))


def _grouped(size: int, num_heads: int, heads_per_group: int) -> tuple[int, ...]:
    if min(size, num_heads, heads_per_group) < 1:
        raise ValueError(f"{num_heads} heads of {size} in groups of {heads_per_group}: all must be at least 1")
    full, rest = divmod(num_heads, heads_per_group)
    return (size * heads_per_group,) * full + ((size * rest,) if rest else ())


def _per(what: str, heads_per_group: int) -> str:
    return f"{what} per head" if heads_per_group == 1 else f"{what} per {heads_per_group} heads"
