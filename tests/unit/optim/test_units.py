"""Units tile their parameter, in the order that fused projections have."""

import pytest

from etude.optim.units import Units, column_heads, gate_up, qkv_concatenated, qkv_interleaved, row_blocks, row_heads, whole


def test_whole_is_one_unit_or_one_per_expert() -> None:
    (unit,) = whole().rectangles((4, 6))
    assert unit.box == ((0, 4), (0, 6))
    assert (unit.rows, unit.cols) == (4, 6)
    assert [unit.box[0] for unit in whole().rectangles((3, 4, 6))] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("units", "rows"),
    [
        (row_heads(2, 3), (2, 2, 2)),
        (row_heads(2, 5, heads_per_group=2), (4, 4, 2)),
        (row_blocks([5, 1]), (5, 1)),
        (gate_up(3), (3, 3)),
        (qkv_concatenated(4, 2, 2), (2,) * 8),
        (qkv_concatenated(4, 2, 2, heads_per_group=2), (4, 4, 4, 4)),
        (qkv_concatenated(3, 1, 2, heads_per_group=2), (4, 2, 2, 2)),
        (qkv_interleaved(4, 2, 3, heads_per_group=2), (6, 3, 3, 6, 3, 3)),
        (qkv_interleaved(4, 2, 3), (3, 3, 3, 3, 3, 3, 3, 3)),
    ],
)
def test_row_blocks_of_each_kind(units: Units, rows: tuple[int, ...]) -> None:
    assert units.row_sizes((sum(rows), 7)) == rows
    assert units.col_sizes((sum(rows), 7)) == (7,)


@pytest.mark.parametrize(
    ("units", "cols"),
    [(column_heads(4, 3), (4, 4, 4)), (gate_up(3, columns=True), (3, 3)), (qkv_concatenated(2, 1, 2, columns=True), (2, 2, 2, 2))],
)
def test_column_blocks_of_each_kind(units: Units, cols: tuple[int, ...]) -> None:
    assert units.col_sizes((5, sum(cols))) == cols
    assert units.row_sizes((5, sum(cols))) == (5,)


@pytest.mark.parametrize(
    ("units", "shape"),
    [(row_heads(2, 3), (6, 5)), (Units(rows=(2, 4), cols=(1, 3, 1)), (6, 5)), (gate_up(3), (4, 6, 5)), (Units(rows=(1, 5)), (2, 6, 5))],
)
def test_units_cover_every_element_once(units: Units, shape: tuple[int, ...]) -> None:
    units.check("w", shape)
    seen = [index for unit in units.rectangles(shape) for index in _indices(unit.box)]
    assert len(seen) == len(set(seen)) == len(_indices(tuple((0, size) for size in shape)))
    assert units.count(shape) == len(units.rectangles(shape))
    assert set(units.shapes(shape)) == {(unit.rows, unit.cols) for unit in units.rectangles(shape)}


def _indices(box: tuple[tuple[int, int], ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for lo, hi in box:
        found = [(*index, i) for index in found for i in range(lo, hi)]
    return found


def test_blocks_that_do_not_tile_name_the_parameter() -> None:
    with pytest.raises(ValueError, match=r"layer\.q \(6, 5\): rows blocks \[4, 4\] add up to 8, not 6"):
        row_heads(4, 2).check("layer.q", (6, 5))
    with pytest.raises(ValueError, match=r"columns blocks 5 blocks of 1\.\.1 add up to 5, not 6"):
        column_heads(1, 5).check("o", (4, 6))
    with pytest.raises(ValueError, match="route it to adamw"):
        whole().check("bias", (6,))


def test_impossible_head_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 query heads do not divide among 2"):
        qkv_interleaved(5, 2, 8)
    with pytest.raises(ValueError, match="in groups of 0: all must be at least 1"):
        row_heads(8, 4, heads_per_group=0)
