"""The plan of a Muon step: who orthogonalises which unit, in which buckets, and what crosses the wire. For any rank of any world.

1. Every parameter's units and their holders (muon_layout.py). An axis of the mesh *cuts* if some unit has holders at two of its indices.
2. A *lane* (muon_lane.py) is all parameters of one mesh with the same cutting and replicating axes. Its units travel inside the *cut
   group* (ranks that differ on the cutting axes) and, where replicas share the work, its updates inside the *share group* (k
   neighbouring replicas).
3. k minimises  F / (S k rate) + w P / S (k - 1) / k / B  over the divisors of the number of replicas R: Newton-Schulz FLOPs F and
   elements P over S distinct shards, w bytes on the wire, link B bytes/s. k = 1: every replica does all its own.
4. Buckets: parameters of a lane, largest unit first, up to `bucket_bytes` per rank and direction.
5. Owners, bucket by bucket: the costliest unit first, to the least loaded rank of its domain (cut group x share group), Graham's LPT rule
   (1969). One load per rank over all meshes, lanes and replicas; work that cannot move (units that nobody shares) counts from the start.
   At equal load a rank that holds a larger part of the unit wins, then the one with least in this bucket (an exchange ends with its
   busiest rank), then ranks in diagonal order, so that large units, which come first, fall to different replicas.
6. Replicas hand each other their updates in one exchange or in two, bucket by bucket, whichever ends first (muon_share.py).
7. `launches`: the order in which every rank issues its collectives, the same on all ranks whatever their speed.

In: layouts as plain numbers. Out: `Plan`; what one rank does is `muon_rank.rank_plan(plan, rank)`. All integers, so every rank computes
the same plan; `digest` proves it. Loads no torch. Not here: process groups and tensors (sharded_muon.py), other costs of a step.
"""

import hashlib
import heapq
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.muon_lane import Kind, Lane, LaneKey, UnitInfo, lane_of
from etude.optim.muon_layout import MeshLayout, ParameterLayout, Placement, Sharding, chunks, ravel
from etude.optim.muon_share import choose_hops, group_sizes
from etude.optim.units import Units

_FORMAT = "muon plan 3"


@dataclass(frozen=True, slots=True)
class Bucket:
    index: int
    lane: LaneKey
    split: int
    """k: replicas that share the work."""
    share_hops: int
    """Exchanges in which they hand each other the updates; 0 if none is shared."""
    parameters: tuple[int, ...]
    owners: "tuple[tuple[array[int], ...], ...]"
    """Per parameter and cluster of k replicas: for each unit, place in the cut group + size of the cut group x place in the share group."""

    @property
    def num_launches(self) -> int:
        return 2 * bool(self.lane.cut_axes) + self.share_hops


@dataclass(frozen=True)
class Plan:
    parameters: tuple[ParameterLayout, ...]
    meshes: tuple[MeshLayout, ...]
    options: MuonOptions
    world_size: int
    kinds: tuple[Kind | None, ...]
    """Per parameter; None for AdamW."""
    buckets: tuple[Bucket, ...]
    loads: tuple[int, ...]
    """Newton-Schulz FLOPs per rank."""
    launches: tuple[int, ...]
    """Bucket indices, one entry per advance of a bucket that communicates; see `launch_order`."""
    digest: str

    @property
    def max_over_mean(self) -> float:
        """Largest load over the mean: 1 is perfect balance."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0


def make_plan(
    parameters: Sequence[ParameterLayout], meshes: Sequence[MeshLayout], world_size: int, options: MuonOptions | None = None
) -> Plan:
    """The plan of a world. ValueError, naming the parameter, where units do not tile it or ranks hold scattered pieces."""
    options = options or MuonOptions()
    kinds = _kinds(parameters, meshes, options.newton_schulz)
    lanes: dict[LaneKey, list[int]] = {}
    for index, kind in enumerate(kinds):
        if kind is not None:
            lanes.setdefault(kind.lane, []).append(index)
    grouped: list[tuple[LaneKey, int, tuple[int, ...]]] = []
    for key, members in lanes.items():
        split = _replica_split([_known(kinds[i]) for i in members], meshes, key, options)
        sized = [(i, _known(kinds[i]), math.prod(parameters[i].shape)) for i in members]
        grouped += [(key, split, chosen) for chosen in _fill(sized, options)]
    grouped.sort(key=lambda bucket: -max(_known(kinds[i]).max_cost for i in bucket[2]))
    loads = [0] * world_size
    buckets = _assign(grouped, kinds, meshes, loads, options)
    travelling = [bucket for bucket in buckets if bucket.num_launches]
    order = launch_order([bucket.num_launches for bucket in travelling], options.max_inflight)
    return Plan(
        parameters=tuple(parameters), meshes=tuple(meshes), options=options, world_size=world_size, kinds=tuple(kinds), buckets=buckets,
        loads=tuple(loads), launches=tuple(travelling[i].index for i in order),
        digest=_digest(parameters, meshes, options, world_size, buckets),
    )  # fmt: skip


def launch_order(num_launches: Sequence[int], max_inflight: int) -> list[int]:
    """Which task advances when: task i advances num_launches[i] times with a collective and once more to finish.

    A task enters while fewer than `max_inflight` are under way. Each round advances the oldest that has launched once (its matrices are
    orthogonalised now, the long part), then every older one. So a bucket's way out overlaps the next one's computation, and the ways in
    were launched before.
    """
    order: list[int] = []
    waiting = iter(range(len(num_launches)))
    live: dict[int, int] = {}
    while True:
        while len(live) < max_inflight and (task := next(waiting, None)) is not None:
            order.append(task)
            live[task] = 1
        if not live:
            return order
        front = next((task for task, done in live.items() if done == 1 and num_launches[task] > 1), None)
        turn = [task for task in live if front is None or task < front]
        for task in ([front] if front is not None else []) + turn:
            order.append(task)
            live[task] += 1
            if live[task] == num_launches[task] + 1:
                del live[task]


def _known(kind: Kind | None) -> Kind:
    assert kind is not None
    return kind


def _kinds(parameters: Sequence[ParameterLayout], meshes: Sequence[MeshLayout], settings: NewtonSchulz) -> list[Kind | None]:
    cache: dict[object, Kind] = {}
    found: list[Kind | None] = []
    for parameter in parameters:
        if parameter.algorithm == "adamw":
            found.append(None)
            continue
        key = (parameter.shape, parameter.units, parameter.mesh, parameter.placements)
        if key not in cache:
            parameter.units.check(parameter.name, parameter.shape)
            mesh_shape = () if parameter.mesh is None else meshes[parameter.mesh].shape
            try:
                cache[key] = _kind(parameter.shape, parameter.units, parameter.mesh, mesh_shape, parameter.placements, settings)
            except ValueError as error:
                raise ValueError(f"{parameter.name}: {error}") from None
        found.append(cache[key])
    return found


def _kind(
    shape: tuple[int, ...], units: Units, mesh: int | None, mesh_shape: tuple[int, ...], placements: tuple[Placement, ...],
    settings: NewtonSchulz,
) -> Kind:  # fmt: skip
    sharding = Sharding(shape, mesh_shape, placements)
    held = [(rectangle, sharding.holders(rectangle)) for rectangle in units.rectangles(shape)]
    cut = tuple(
        axis
        for place, axis in enumerate(sharding.axes)
        if any(holders[0].coordinate[place] != holder.coordinate[place] for _, holders in held for holder in holders)
    )
    select_axes = tuple(axis for axis in sharding.axes if axis not in cut)
    cut_shape = [mesh_shape[axis] for axis in cut]
    cut_places = [sharding.axes.index(axis) for axis in cut]
    select_places = [sharding.axes.index(axis) for axis in select_axes]
    infos = []
    for rectangle, holders in held:
        infos.append(
            UnitInfo(
                rectangle=rectangle,
                cost=settings.flops(rectangle.rows, rectangle.cols),
                select=tuple(holders[0].coordinate[p] for p in select_places),
                holders=tuple(holders),
                places=tuple(ravel([holder.coordinate[p] for p in cut_places], cut_shape) for holder in holders),
                lopsided=len(holders) < math.prod(cut_shape) or len({holder.numel for holder in holders}) > 1,
            )
        )
    lane = LaneKey(mesh, cut, sharding.replica_axes)
    by_select: dict[tuple[int, ...], list[int]] = {}
    for unit, info in enumerate(infos):
        by_select.setdefault(info.select, []).append(unit)
    groups = {select: tuple(units) for select, units in by_select.items()}
    return Kind(sharding, lane, select_axes, tuple(infos), groups, max((info.cost for info in infos), default=0))


def _replica_split(kinds: Sequence[Kind], meshes: Sequence[MeshLayout], lane: LaneKey, options: MuonOptions) -> int:
    if lane.mesh is None or not lane.replica_axes or options.replica_split == "off":
        return 1
    shape = meshes[lane.mesh].shape
    replicas = math.prod(shape[axis] for axis in lane.replica_axes)
    divisors = [k for k in range(1, replicas + 1) if replicas % k == 0]
    if isinstance(options.replica_split, int):
        limit = options.replica_split
        return max(k for k in divisors if k <= limit)
    shards = math.prod(shape) // replicas
    flops = sum(info.cost for kind in kinds for info in kind.units)
    volume = options.wire_bytes * sum(math.prod(kind.sharding.shape) for kind in kinds)

    def seconds(k: int) -> float:
        return flops / (shards * k * options.flops_per_s) + volume / shards * (k - 1) / k / options.link_bytes_per_s

    return min(divisors, key=lambda k: (seconds(k), k))


def _fill(members: Sequence[tuple[int, Kind, int]], options: MuonOptions) -> Iterator[tuple[int, ...]]:
    """Parameters (index, kind, elements) of one lane in buckets, those with the costliest units first."""
    chosen: list[int] = []
    size = 0
    for index, kind, numel in sorted(members, key=lambda member: -member[1].max_cost):
        shards = math.prod(kind.sharding.mesh_shape[axis] for axis in kind.sharding.axes)
        num_bytes = options.wire_bytes * numel // shards
        if chosen and size + num_bytes > options.bucket_bytes:
            yield tuple(chosen)
            chosen, size = [], 0
        chosen.append(index)
        size += num_bytes
    if chosen:
        yield tuple(chosen)


def _assign(
    grouped: Sequence[tuple[LaneKey, int, tuple[int, ...]]], kinds: Sequence[Kind | None], meshes: Sequence[MeshLayout], loads: list[int],
    options: MuonOptions,
) -> tuple[Bucket, ...]:  # fmt: skip
    lanes: dict[LaneKey, Lane] = {}
    plain = 0
    jobs: list[list[tuple[int, int, int, int]]] = []  # per bucket: (cost, parameter's place, cluster, unit), those still without owner
    tables: list[list[list[array[int]]]] = []
    for key, split, members in grouped:
        open_jobs: list[tuple[int, int, int, int]] = []
        table: list[list[array[int]]] = []
        for place, index in enumerate(members):
            kind = _known(kinds[index])
            if key.mesh is None:
                plain += sum(info.cost for info in kind.units)
                table.append([array("l", [0] * len(kind.units))])
                continue
            if key not in lanes:
                lanes[key] = lane_of(key, split, meshes[key.mesh], kind.select_axes)
            lane = lanes[key]
            rows = [array("l", [-1] * len(kind.units)) for _ in range(lane.num_clusters)]
            for cluster, row in enumerate(rows):
                for unit, info in enumerate(kind.units):
                    if split == 1 and len(info.holders) == 1:
                        row[unit] = info.places[0]
                        loads[lane.ranks(info.select, cluster)[row[unit]]] += info.cost
                    else:
                        open_jobs.append((-info.cost, place, cluster, unit))
            table.append(rows)
        jobs.append(open_jobs)
        tables.append(table)
    for rank in range(len(loads)):
        loads[rank] += plain
    for (key, _, members), table, open_jobs in zip(grouped, tables, jobs, strict=True):
        heaps: dict[object, list[_Candidate]] = {}
        taken: dict[int, int] = {}
        for _, place, cluster, unit in sorted(open_jobs):
            kind = _known(kinds[members[place]])
            info, lane = kind.units[unit], lanes[key]
            code = _owner(info, lane, cluster, heaps, loads, taken)
            table[place][cluster][unit] = code
            rank = lane.ranks(info.select, cluster)[code]
            loads[rank] += info.cost
            taken[rank] = taken.get(rank, 0) + info.rectangle.rows * info.rectangle.cols
    buckets = []
    for index, ((key, split, members), table) in enumerate(zip(grouped, tables, strict=True)):
        groups = group_sizes([_known(kinds[i]) for i in members], table, lanes[key]) if split > 1 else []
        buckets.append(Bucket(index, key, split, choose_hops(groups, split, options), members, tuple(tuple(rows) for rows in table)))
    return tuple(buckets)


class _Candidate(NamedTuple):
    """The best owner is the smallest."""

    load: int
    taken: int
    """Elements of the units that it owns in this bucket."""
    tie: int
    rank: int
    code: int


def _owner(
    info: UnitInfo, lane: Lane, cluster: int, heaps: dict[object, list[_Candidate]], loads: Sequence[int], taken: Mapping[int, int]
) -> int:
    """The least loaded rank that may own the unit, as an owner code. Heaps are corrected lazily: what they hold only grows."""
    ranks = lane.ranks(info.select, cluster)
    only = info.places[0] if len(info.holders) == 1 else None  # whole on one shard: a replica of that shard owns it, nothing is cut
    domain = (info.select, cluster, only)
    heap = heaps.get(domain)
    if heap is None:
        codes = range(len(ranks)) if only is None else range(only, len(ranks), lane.cut_size)
        heap = heaps[domain] = [
            _Candidate(loads[ranks[code]], taken.get(ranks[code], 0), lane.diagonal(code), ranks[code], code) for code in codes
        ]
        heapq.heapify(heap)
    while (found := heap[0])[:2] != (now := (loads[found.rank], taken.get(found.rank, 0))):
        heapq.heapreplace(heap, _Candidate(*now, found.tie, found.rank, found.code))
    least, best = heap[0].load, heap[0].code
    if only is None and info.lopsided:
        sizes = dict(zip(info.places, (holder.numel for holder in info.holders), strict=True))
        tied = [
            (-sizes[place], lane.diagonal(code), code)
            for place in info.places
            for code in range(place, len(ranks), lane.cut_size)
            if loads[ranks[code]] == least
        ]
        if tied:
            return min(tied)[2]
    return best


def _digest(
    parameters: Sequence[ParameterLayout], meshes: Sequence[MeshLayout], options: MuonOptions, world_size: int, buckets: Sequence[Bucket]
) -> str:
    hashed = hashlib.sha256(f"{_FORMAT} {world_size} {options}".encode())
    for parameter in parameters:
        hashed.update(parameter.describe(meshes).encode())
    for bucket in buckets:
        hashed.update(f"{bucket.lane} {bucket.split} {bucket.share_hops} {bucket.parameters}".encode())
        for rows in bucket.owners:
            for row in rows:
                hashed.update(row.tobytes())
    return hashed.hexdigest()


def largest_shard(shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]) -> int:
    """Elements of the largest local shard."""
    numel = 1
    for dim, size in enumerate(shape):
        for axis, placement in enumerate(placements):
            if placement is not None and placement.dim == dim:
                size = chunks(size, mesh_shape[axis])[0][1]
        numel *= size
    return numel
