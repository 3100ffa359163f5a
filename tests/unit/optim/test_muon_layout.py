"""Boxes of each mesh coordinate: chunks, order of cuts, and who holds a part of a unit."""

import itertools

import pytest
import torch

from etude.optim.muon_layout import Cut, MeshLayout, Placement, Sharding, chunks
from etude.optim.units import Rectangle, row_heads


@pytest.mark.parametrize(("size", "parts"), [(8, 4), (18, 8), (5, 8), (7, 3), (0, 2), (1, 1)])
def test_chunks_are_those_of_torch(size: int, parts: int) -> None:
    lengths = [len(piece) for piece in torch.arange(size).chunk(parts)] if size else []
    assert [hi - lo for lo, hi in chunks(size, parts)] == lengths + [0] * (parts - len(lengths))


def test_plain_shards_cut_from_left_to_right_and_a_strided_one_after_its_right_neighbours() -> None:
    plain = Sharding((8, 3), (2, 2), [Cut(0), Cut(0)])
    assert [plain.box(at)[0] for at in itertools.product(range(2), range(2))] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    strided = Sharding((8, 3), (2, 2), [Cut(0, 2), Cut(0)])
    assert [strided.box(at)[0] for at in itertools.product(range(2), range(2))] == [(0, 2), (4, 6), (2, 4), (6, 8)]


def test_a_strided_shard_that_would_scatter_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="strided shard of dim 0 with split factor 3"):
        Sharding((12, 3), (2, 2), [Cut(0, 3), Cut(0)])


def test_axes_of_one_rank_cut_nothing() -> None:
    sharding = Sharding((6, 4), (1, 3), [Cut(1), Cut(0)])
    assert sharding.axes == (1,)
    assert sharding.box((0, 1)) == ((2, 4), (0, 4))


@pytest.mark.parametrize(
    ("shape", "mesh", "placements"),
    [
        ((12, 5), (4,), [Cut(0)]),
        ((7, 9), (2, 3), [Cut(1), Cut(0)]),
        ((5, 6), (2, 4), [None, Cut(0)]),
        ((6, 8, 4), (2, 2, 3), [None, Cut(1), Cut(0)]),
        ((8, 4, 4), (2, 2, 2), [Cut(2), Cut(0, 2), Cut(0)]),
    ],
)
def test_holders_cover_each_unit_once_and_lie_in_their_own_box(
    shape: tuple[int, ...], mesh: tuple[int, ...], placements: list[Placement]
) -> None:
    sharding = Sharding(shape, mesh, placements)
    for unit in row_heads(1, shape[-2]).rectangles(shape):
        holders = sharding.holders(unit)
        assert sum(holder.numel for holder in holders) == unit.rows * unit.cols
        for holder in holders:
            at = dict(zip(sharding.axes, holder.coordinate, strict=True))
            box = sharding.box([at.get(axis, 0) for axis in range(len(mesh))])
            assert all(a <= lo and hi <= b for (lo, hi), (a, b) in zip(holder.box, box, strict=True))
        assert [holder.coordinate for holder in holders] == sorted(holder.coordinate for holder in holders)


def test_holders_of_a_straddling_unit_know_their_parts() -> None:
    first, second = Sharding((8, 4), (4,), [Cut(0)]).holders(Rectangle(((1, 4), (0, 4))))
    assert (first.coordinate, first.box) == ((0,), ((1, 2), (0, 4)))
    assert (second.coordinate, second.box) == ((1,), ((2, 4), (0, 4)))


def test_a_mesh_needs_as_many_ranks_as_its_shape_says() -> None:
    assert MeshLayout((2, 2), (5, 4, 7, 6)).rank((1, 0)) == 7
    assert MeshLayout.of_world((2, 2)).coordinates[2] == (1, 0)
    with pytest.raises(ValueError, match=r"a mesh of shape \(2, 2\) has 4 ranks, not 3"):
        MeshLayout((2, 2), (0, 1, 2))
