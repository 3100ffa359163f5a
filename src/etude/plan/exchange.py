"""What the busiest rank sends or receives in the optimizer's exchanges: each ends with it, whatever the mean over ranks is.

A bucket of few large matrices has few owners: these receive whole matrices where others receive nothing, and send whole updates back;
and where replicas share the work, an owner's replica has most to hand on. Closed forms per bucket, with buckets filled as the optimizer
fills them. Units are dealt largest first to the least loaded: of n equal ones the busiest of m owners has ceil(n / m), with u the size of
the last ones never more than the mean + u (1 - 1/m) (Graham, 1969). Replicas share in one exchange or two, as in optim/muon_share.py.

A mesh's sum is meant never to be optimistic: a test holds both kinds against the plan that the optimizer makes, unit by unit.

Not here: means over ranks and links (layout.py), seconds of a step (cost.py).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from etude.optim.muon_share import peaks
from etude.plan.config import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelling:
    """Equal parameters of one mesh on the wire, seen from one ep coordinate."""

    count: int
    cost: int
    """FLOPs of a unit: the order in which buckets are filled."""
    unit_bytes: int
    units: float
    """Of one parameter."""
    cut: float
    """Share of the units that more than one rank holds a piece of."""
    rank_bytes: int
    """Of one parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks that one mesh's units are dealt out among."""

    shards: int
    split: int
    """Replicas that share the work."""
    rivals: int
    """So many of them may have a larger matrix of the other mesh, while the others take their part,"""
    busy: float
    """for this share of the step."""
    bytes_per_s: float
    """The link between those replicas."""
    launch_s: float
    """What one more exchange among them takes to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """One mesh's exchanges of a step, by the busiest rank of each; all buckets together. What a rank keeps for itself is not counted."""

    leg_bytes: float
    """One way: pieces to their owners, or as much back."""
    leg_launches: int
    share_bytes: float
    share_launches: int
    buckets: int


def exchanges(items: Sequence[Travelling], ring: Ring, optimizer: Optimizer) -> Exchanges:
    legs = shares = 0.0
    launches = [0, 0]
    buckets = 0
    for cut in (True, False):  # what nothing cuts has buckets of its own, and no legs
        if not cut and ring.split == 1:
            continue
        for bucket, times in fill([one for one in items if (one.cut > 0) == cut], optimizer.bucket_bytes):
            buckets += times
            if cut:
                moving = [(one.unit_bytes, one.count * one.units * one.cut) for one in bucket]
                top = most(moving, ring.shards * ring.split, rivals=ring.rivals, busy=ring.busy)
                legs += times * top * (ring.shards - 1) / ring.shards
                launches[0] += 2 * times
            if ring.split > 1:
                sent = share(bucket, ring, cut)
                shares, launches[1] = shares + times * sum(sent), launches[1] + times * len(sent)
    return Exchanges(leg_bytes=legs, leg_launches=launches[0], share_bytes=shares, share_launches=launches[1], buckets=buckets)


def share(bucket: Sequence[Travelling], ring: Ring, cut: bool) -> tuple[float, ...]:
    """Bytes of the busiest replica in each exchange of a bucket, one or two, whichever end first."""
    k = ring.split
    if cut:  # a rank brings its piece of each unit; it is ranks that are dealt to, by load, so a replica may have two more than its part
        units = [(one.unit_bytes / ring.shards, one.count * one.units) for one in bucket]
        largest = most(units, k) + 2 * max(size for size, _ in units)
    else:
        units = [(float(one.unit_bytes), one.count * one.units / ring.shards) for one in bucket]
        largest = most(units, k, rivals=ring.rivals, busy=ring.busy)
    total = sum(size * number for size, number in units)
    largest = min(largest, total)
    least = max(0.0, total - (k - 1) * largest)
    ways = (peaks(k, total, largest, least, 1), peaks(k, total / k, largest / k, least / k, 2))
    return min(ways, key=lambda sent: sum(sent) / ring.bytes_per_s + len(sent) * ring.launch_s)


def fill(items: Sequence[Travelling], bucket_bytes: float) -> Iterator[tuple[list[Travelling], int]]:
    """Buckets, and how many there are of each: up to so many bytes a rank, costliest units first; a parameter is never divided."""
    bucket: list[Travelling] = []
    size = 0.0
    for one in sorted(items, key=lambda item: -item.cost):
        left = one.count
        most_fit = max(1, int(bucket_bytes // one.rank_bytes)) if one.rank_bytes else left
        while left:
            if not bucket and left > most_fit:
                yield [replace(one, count=most_fit)], (left - 1) // most_fit
                left -= (left - 1) // most_fit * most_fit
            fit = left if not one.rank_bytes else int((bucket_bytes - size) // one.rank_bytes)
            if fit < 1 and bucket:
                yield bucket, 1
                bucket, size = [], 0.0
                continue
            taken = min(left, max(1, fit))
            bucket.append(replace(one, count=taken))
            size += taken * one.rank_bytes
            left -= taken
    if bucket:
        yield bucket, 1


def most(sizes: Iterable[tuple[float, float]], places: int, *, rivals: int = 0, busy: float = 0.0) -> float:
    """What the fullest of `places` holds when (size, how many) are dealt out, largest first, each to the emptiest.

    For the share `busy` of the deals `rivals` places have something else and get none; after that, places start unevenly.
    """
    top = total = 0.0
    for size, number in sizes:
        total += size * number
        bound = total / places + size * (1 - 1 / places)
        if top:
            top = max(top, min(top + math.ceil(number / places) * size, bound))
        elif busy and rivals and places > 1:
            others = math.ceil(number / max(1, places - rivals)) * size
            top = busy * others + (1 - busy) * min(others, bound)
        else:
            top = math.ceil(number / places) * size
    return min(top, total)
