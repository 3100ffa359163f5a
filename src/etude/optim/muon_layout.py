"""Who holds what: meshes and placements as plain numbers, and the box of indices that each mesh coordinate holds of a parameter.

A mesh is its shape and its global ranks in row-major order. A placement per mesh axis says Replicate (None) or on which tensor dim the
axis cuts, and, for torch's _StridedShard, its split factor. Axes that cut the same dim cut it one after another: plain shards from left
to right; a strided one after the axes to its right whose sizes multiply to its split factor (FSDP over expert or tensor parallelism).
Each cut is torch.chunk's: ceil(n / parts) per part, the last parts smaller or empty.

Words: an *axis* is of a mesh, a *dim* of a tensor. Loads no torch: a description is made from DTensors (sharded_muon.py) or by hand, for
any world. Not here: what is done with the boxes (muon_plan.py).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from etude.optim.units import Interval, Rectangle, Units


class Cut(NamedTuple):
    """A mesh axis that shards tensor dim `dim`; `split_factor` above 1 is torch's _StridedShard."""

    dim: int
    split_factor: int = 1


Placement = Cut | None
REPLICATE: Placement = None


@dataclass(frozen=True)
class MeshLayout:
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    """Global ranks in row-major order of the coordinates."""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.ranks):
            raise ValueError(f"a mesh of shape {self.shape} has {math.prod(self.shape)} ranks, not {len(self.ranks)}")

    @classmethod
    def of_world(cls, shape: Sequence[int], names: Sequence[str] = ()) -> "MeshLayout":
        """The mesh over ranks 0, 1, ... in order."""
        return cls(tuple(shape), tuple(range(math.prod(shape))), tuple(names))

    @cached_property
    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Global rank -> coordinate."""
        return {rank: unravel(i, self.shape) for i, rank in enumerate(self.ranks)}

    def rank(self, coordinate: Sequence[int]) -> int:
        return self.ranks[ravel(coordinate, self.shape)]

    def __str__(self) -> str:
        names = self.names or tuple(f"axis{i}" for i in range(len(self.shape)))
        return "(" + ", ".join(f"{name}={size}" for name, size in zip(names, self.shape, strict=True)) + ")"


@dataclass(frozen=True)
class ParameterLayout:
    """One parameter as the plan sees it. `mesh` indexes the plan's meshes; None is a plain tensor, whole on every rank."""

    name: str
    shape: tuple[int, ...]
    algorithm: Literal["muon", "adamw"] = "muon"
    units: Units = field(default_factory=Units)
    mesh: int | None = None
    placements: tuple[Placement, ...] = ()
    itemsize: int = 4

    def describe(self, meshes: Sequence[MeshLayout]) -> str:
        """One line that two ranks must agree on."""
        where = "local" if self.mesh is None else f"{meshes[self.mesh]} ranks {_brief(meshes[self.mesh].ranks)} {list(self.placements)}"
        return f"{self.name} {self.shape} {self.algorithm} {self.units.rows}x{self.units.cols} {where} {self.itemsize} bytes"


class Holder(NamedTuple):
    """A shard coordinate (one entry per cutting axis) and the part of a unit it holds, in the parameter's indices."""

    coordinate: tuple[int, ...]
    box: tuple[Interval, ...]

    @property
    def numel(self) -> int:
        return math.prod(hi - lo for lo, hi in self.box)


class Sharding:
    """Boxes of one (shape, mesh shape, placements): shared by all parameters that look alike."""

    def __init__(self, shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]) -> None:
        if len(placements) != len(mesh_shape):
            raise ValueError(f"{len(placements)} placements for a mesh of {len(mesh_shape)} axes")
        self.shape = tuple(shape)
        self.mesh_shape = tuple(mesh_shape)
        self.axes = tuple(a for a, p in enumerate(placements) if p is not None and mesh_shape[a] > 1)
        """Axes that cut, in mesh order; the others replicate."""
        self.replica_axes = tuple(a for a in range(len(mesh_shape)) if a not in self.axes and mesh_shape[a] > 1)
        self._order = [_cutting_order(dim, placements, mesh_shape) for dim in range(len(shape))]
        self._intervals = [self._dim_intervals(dim) for dim in range(len(shape))]

    def _dim_intervals(self, dim: int) -> list[tuple[tuple[tuple[int, int], ...], Interval]]:
        """[(((axis, index), ...), interval)]: what each combination of indices on the dim's axes holds of it."""
        found: list[tuple[tuple[tuple[int, int], ...], Interval]] = [((), (0, self.shape[dim]))]
        for axis in self._order[dim]:
            found = [
                ((*at, (axis, index)), (lo + part[0], lo + part[1]))
                for at, (lo, hi) in found
                for index, part in enumerate(chunks(hi - lo, self.mesh_shape[axis]))
            ]
        return found

    def box(self, coordinate: Sequence[int]) -> tuple[Interval, ...]:
        """What a mesh coordinate holds: one interval per tensor dim (empty where lo == hi)."""
        box = []
        for dim, size in enumerate(self.shape):
            lo, hi = 0, size
            for axis in self._order[dim]:
                part = chunks(hi - lo, self.mesh_shape[axis])[coordinate[axis]]
                lo, hi = lo + part[0], lo + part[1]
            box.append((lo, hi))
        return tuple(box)

    def holders(self, unit: Rectangle) -> list[Holder]:
        """Who holds a part of the unit, by coordinate on `axes` in row-major order."""
        found: list[tuple[dict[int, int], tuple[Interval, ...]]] = [({}, ())]
        for dim, (lo, hi) in enumerate(unit.box):
            hits = [(at, (max(lo, a), min(hi, b))) for at, (a, b) in self._intervals[dim] if max(lo, a) < min(hi, b)]
            found = [({**place, **dict(at)}, (*box, part)) for place, box in found for at, part in hits]
        return sorted(Holder(tuple(place[a] for a in self.axes), box) for place, box in found)


def _cutting_order(dim: int, placements: Sequence[Placement], mesh_shape: Sequence[int]) -> list[int]:
    """The axes that cut `dim`, first cut first. ValueError for a strided shard that is not contiguous."""
    order: list[int] = []
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        if placement is None or placement.dim != dim or mesh_shape[axis] == 1:
            continue
        before, product = 0, 1
        while product < placement.split_factor and before < len(order):
            product *= mesh_shape[order[before]]
            before += 1
        if product != placement.split_factor:
            raise ValueError(
                f"strided shard of dim {dim} with split factor {placement.split_factor} on a mesh of shape {tuple(mesh_shape)}: the axes "
                f"to its right do not multiply to it, so a rank would hold scattered pieces; shard in torch.chunk's order"
            )
        order.insert(before, axis)
    return order


def chunks(size: int, parts: int) -> list[Interval]:
    """torch.chunk's intervals, empty ones at the end included."""
    step = -(-size // parts)
    return [(min(i * step, size), min((i + 1) * step, size)) for i in range(parts)]


def ravel(coordinate: Sequence[int], shape: Sequence[int]) -> int:
    index = 0
    for at, size in zip(coordinate, shape, strict=True):
        index = index * size + at
    return index


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    coordinate = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        coordinate.append(at)
    return tuple(reversed(coordinate))


def product_of(sizes: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Every assignment of an index to each axis, row-major in the mapping's order."""
    shape = tuple(sizes.values())
    for index in range(math.prod(shape)):
        yield dict(zip(sizes, unravel(index, shape), strict=True))


def _brief(ranks: Sequence[int]) -> str:
    return str(list(ranks)) if len(ranks) <= 8 else f"{ranks[0]}..{ranks[-1]} ({len(ranks)}, hash {hash(tuple(ranks))})"
