"""Lanes: the ranks that a group of equally placed parameters travels among, and the kinds of parameters in them.

A *lane* is all parameters of one mesh with the same cutting and replicating axes. Its ranks have a selection (coordinates on axes that
shard but do not cut), a cluster of `split` replicas that share the work, a place in the cut group and a place in the share group.

Loads no torch. Not here: owners and buckets (muon_plan.py).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from etude.optim.muon_layout import Holder, MeshLayout, Sharding, product_of
from etude.optim.units import Rectangle


class LaneKey(NamedTuple):
    mesh: int | None
    cut_axes: tuple[int, ...]
    replica_axes: tuple[int, ...]


class UnitInfo(NamedTuple):
    rectangle: Rectangle
    cost: int
    select: tuple[int, ...]
    """Coordinate on the axes that shard but do not cut (say, which expert-parallel rank)."""
    holders: tuple[Holder, ...]
    places: tuple[int, ...]
    """Index of each holder in the cut group."""
    lopsided: bool
    """Some rank of the cut group holds more of it than another."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What parameters of one shape, placement and choice of units have in common."""

    sharding: Sharding
    lane: LaneKey
    select_axes: tuple[int, ...]
    units: tuple[UnitInfo, ...]
    by_select: Mapping[tuple[int, ...], tuple[int, ...]]
    """Units of each selection."""
    max_cost: int


class Lane:
    """Ranks of a lane by (selection, cluster of replicas, place in the cut group, place in the share group)."""

    def __init__(self, key: LaneKey, split: int, mesh: MeshLayout, select_axes: tuple[int, ...]) -> None:
        sizes = {axis: mesh.shape[axis] for axis in range(len(mesh.shape))}
        self.cut_size = math.prod(sizes[axis] for axis in key.cut_axes)
        self.split = split
        self.num_clusters = math.prod(sizes[axis] for axis in key.replica_axes) // split
        self._ranks: dict[tuple[tuple[int, ...], int], list[int]] = {}
        fixed = dict.fromkeys(sizes, 0)
        for select in product_of({axis: sizes[axis] for axis in select_axes}):
            by_replica = [
                [mesh.rank(list({**fixed, **select, **replica, **cut}.values())) for cut in product_of({a: sizes[a] for a in key.cut_axes})]
                for replica in product_of({axis: sizes[axis] for axis in key.replica_axes})
            ]
            for cluster in range(self.num_clusters):
                rows = by_replica[cluster * split : (cluster + 1) * split]
                self._ranks[tuple(select.values()), cluster] = [rank for row in rows for rank in row]

    def ranks(self, select: tuple[int, ...], cluster: int) -> list[int]:
        """By owner code: place in the cut group + cut_size x place in the share group."""
        return self._ranks[select, cluster]

    def diagonal(self, code: int) -> int:
        """Order in which owners of equal load are taken: one per place in the cut group, each of another replica, then the next round."""
        share, cut = divmod(code, self.cut_size)
        return (share - cut) % self.split * self.cut_size + cut

    def cut_groups(self) -> Iterator[tuple[int, ...]]:
        """Every cut group of the lane."""
        for ranks in self._ranks.values():
            yield from (tuple(ranks[i : i + self.cut_size]) for i in range(0, len(ranks), self.cut_size))

    def share_groups(self) -> Iterator[tuple[int, ...]]:
        """Every share group of the lane."""
        for ranks in self._ranks.values():
            yield from (tuple(ranks[place :: self.cut_size]) for place in range(self.cut_size))


lane_of = lru_cache(maxsize=64)(Lane)
