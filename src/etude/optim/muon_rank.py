"""What one rank does in a Muon step: pieces to pack, matrices to assemble, splits of each exchange, and what it all costs.

For each bucket of the plan:
    send       my pieces of every unit that a rank of my own replica owns, by owner, then by (parameter, unit); in elements
    owned      the units I orthogonalise, each from fragments at offsets of what I received, by holder, then by (parameter, unit)
    back       the same splits the other way round
    shares     where k replicas share the work: what each of them brings to all others (muon_share.py); the pieces of each
A lane that nothing cuts has no exchange: what would be sent is what is received.

In: a plan and a rank. Out: plain numbers, so that any rank's part can be looked at from anywhere. Loads no torch.
Not here: how owners were chosen (muon_plan.py), tensors (muon_tasks.py).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from etude.optim.muon_lane import Kind, lane_of
from etude.optim.muon_layout import ravel
from etude.optim.muon_plan import Bucket, Plan
from etude.optim.muon_share import Splits, share_splits
from etude.optim.units import Interval

Box = tuple[Interval, ...]


class Piece(NamedTuple):
    """A part of a unit in this rank's shard of a parameter."""

    parameter: int
    box: Box
    """In indices of the local shard."""
    offset: int
    """In the buffer, in elements."""
    numel: int
    unit_shape: tuple[int, int]


class Fragment(NamedTuple):
    """A part of an owned unit in the received buffer."""

    offset: int
    numel: int
    box: Box
    """Rows and columns inside the unit."""


class Owned(NamedTuple):
    parameter: int
    unit: int
    shape: tuple[int, int]
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RankBucket:
    index: int
    parameters: tuple[int, ...]
    cut_ranks: tuple[int, ...]
    """The cut group, me among them; one rank if nothing is cut."""
    share_ranks: tuple[int, ...]
    send_splits: tuple[int, ...]
    recv_splits: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    """Per place in the share group: what its owners give me; offsets inside that place's part. My own place's are the ones I send."""
    share_sizes: tuple[int, ...]
    """Elements that each place of the share group brings to all others."""
    my_share: int
    share_hops: int
    owned: tuple[Owned, ...]
    flops: int

    @property
    def share_splits(self) -> tuple[tuple[Splits, Splits], ...]:
        """(sent, received) elements by place of the share group, for each exchange among replicas."""
        return share_splits(self.share_sizes, self.my_share, self.share_hops)


class Collective(NamedTuple):
    """One launch. Bytes exclude what a rank keeps for itself."""

    bucket: int
    kind: Literal["to_owners", "to_holders", "share"]
    ranks: tuple[int, ...]
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class RankPlan:
    rank: int
    buckets: tuple[RankBucket, ...]
    collectives: tuple[Collective, ...]
    """In launch order."""

    @property
    def sent_bytes(self) -> int:
        return sum(collective.sent_bytes for collective in self.collectives)

    @property
    def flops(self) -> int:
        return sum(bucket.flops for bucket in self.buckets)


def rank_plan(plan: Plan, rank: int) -> RankPlan:
    """The part of `rank`."""
    buckets = tuple(_rank_bucket(plan, bucket, rank) for bucket in plan.buckets)
    return RankPlan(rank, buckets, tuple(_collectives(plan, buckets)))


class _Place(NamedTuple):
    select: tuple[int, ...]
    cut: int
    cluster: int
    share: int


def _place(kind: Kind, bucket: Bucket, plan: Plan, rank: int) -> _Place:
    if bucket.lane.mesh is None:
        return _Place((), 0, 0, 0)
    mesh = plan.meshes[bucket.lane.mesh]
    at = mesh.coordinates[rank]

    def along(axes: tuple[int, ...]) -> int:
        return ravel([at[axis] for axis in axes], [mesh.shape[axis] for axis in axes])

    cluster, share = divmod(along(bucket.lane.replica_axes), bucket.split)
    return _Place(tuple(at[axis] for axis in kind.select_axes), along(bucket.lane.cut_axes), cluster, share)


def _rank_bucket(plan: Plan, bucket: Bucket, rank: int) -> RankBucket:
    mesh = None if bucket.lane.mesh is None else plan.meshes[bucket.lane.mesh]
    first = plan.kinds[bucket.parameters[0]]
    assert first is not None
    if mesh is not None and rank not in mesh.coordinates:
        return RankBucket(bucket.index, (), (rank,), (rank,), (0,), (0,), ((),), (0,), 0, 0, (), 0)
    me = _place(first, bucket, plan, rank)
    cut_size, cut_ranks, share_ranks = 1, [rank], [rank]
    if mesh is not None:
        lane = lane_of(bucket.lane, bucket.split, mesh, first.select_axes)
        cut_size = lane.cut_size
        ranks = lane.ranks(me.select, me.cluster)
        cut_ranks = ranks[me.share * cut_size : (me.share + 1) * cut_size]
        share_ranks = ranks[me.cut :: cut_size]
    sends: list[list[list[Piece]]] = [[[] for _ in range(cut_size)] for _ in share_ranks]  # by share, by owner
    fragments: list[list[tuple[int, int, Box]]] = [[] for _ in range(cut_size)]  # by holder: (place in owned, numel, box)
    owned: list[tuple[int, int, tuple[int, int]]] = []
    flops = 0
    for place, index in enumerate(bucket.parameters):
        kind = plan.kinds[index]
        assert kind is not None
        mine = _place(kind, bucket, plan, rank)
        local = kind.sharding.box(mesh.coordinates[rank]) if mesh is not None else tuple((0, size) for size in kind.sharding.shape)
        for unit in kind.by_select.get(mine.select, ()):
            info = kind.units[unit]
            share, owner = divmod(bucket.owners[place][mine.cluster][unit], cut_size)
            shape = (info.rectangle.rows, info.rectangle.cols)
            is_mine = share == mine.share and owner == mine.cut
            if is_mine:
                owned.append((index, unit, shape))
                flops += info.cost
            for at, holder in zip(info.places, info.holders, strict=True):
                if at == mine.cut:
                    box = tuple((lo - base, hi - base) for (lo, hi), (base, _) in zip(holder.box, local, strict=True))
                    sends[share][owner].append(Piece(index, box, 0, holder.numel, shape))
                if is_mine:
                    inside = [(lo - base, hi - base) for (lo, hi), (base, _) in zip(holder.box, info.rectangle.box, strict=True)]
                    fragments[at].append((len(owned) - 1, holder.numel, tuple(inside[-2:])))
    placed: list[list[Fragment]] = [[] for _ in owned]
    offset = 0
    for group in fragments:
        for which, numel, box in group:
            placed[which].append(Fragment(offset, numel, box))
            offset += numel
    pieces = tuple(tuple(_with_offsets(by_owner)) for by_owner in sends)
    return RankBucket(
        index=bucket.index, parameters=bucket.parameters, cut_ranks=tuple(cut_ranks), share_ranks=tuple(share_ranks),
        send_splits=tuple(sum(piece.numel for piece in group) for group in sends[me.share]),
        recv_splits=tuple(sum(numel for _, numel, _ in group) for group in fragments),
        pieces=pieces, share_sizes=tuple(sum(piece.numel for piece in group) for group in pieces), my_share=me.share,
        share_hops=bucket.share_hops,
        owned=tuple(Owned(index, unit, shape, tuple(parts)) for (index, unit, shape), parts in zip(owned, placed, strict=True)),
        flops=flops,
    )  # fmt: skip


def _with_offsets(by_owner: list[list[Piece]]) -> Iterator[Piece]:
    offset = 0
    for group in by_owner:
        for piece in group:
            yield piece._replace(offset=offset)
            offset += piece.numel


def _collectives(plan: Plan, buckets: tuple[RankBucket, ...]) -> Iterator[Collective]:
    width = plan.options.wire_bytes
    stage: dict[int, int] = {}
    for index in plan.launches:
        bucket, done = buckets[index], stage.get(index, 0)
        stage[index] = done + 1
        if not bucket.parameters:
            continue
        legs = 2 if plan.buckets[index].lane.cut_axes else 0
        if done >= plan.buckets[index].num_launches:
            continue
        if done >= legs:
            sent_splits, received_splits = bucket.share_splits[done - legs]
            me = bucket.my_share
            out = width * (sum(sent_splits) - sent_splits[me])
            into = width * (sum(received_splits) - received_splits[me])
            yield Collective(index, "share", bucket.share_ranks, out, into)
            continue
        me = bucket.cut_ranks.index(_rank_of(bucket))
        out = width * (sum(bucket.send_splits) - bucket.send_splits[me])
        into = width * (sum(bucket.recv_splits) - bucket.recv_splits[me])
        if done == 0:
            yield Collective(index, "to_owners", bucket.cut_ranks, out, into)
        else:
            yield Collective(index, "to_holders", bucket.cut_ranks, into, out)


def _rank_of(bucket: RankBucket) -> int:
    return bucket.share_ranks[bucket.my_share]


def buffer_bytes(plan: Plan, part: RankPlan) -> int:
    """Largest sum of wire buffers (both directions) and assembled matrices over any `max_inflight` consecutive buckets."""
    width = plan.options.wire_bytes
    sizes = [
        width * (sum(b.send_splits) + sum(b.recv_splits) + sum(sum(splits) for exchange in b.share_splits for splits in exchange))
        + sum(math.prod(owned.shape) for owned in b.owned) * width
        for b in part.buckets
    ]
    window = plan.options.max_inflight
    return max((sum(sizes[i : i + window]) for i in range(len(sizes))), default=0)
