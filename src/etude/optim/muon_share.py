"""How the k replicas of a share group hand each other their updates, in one exchange or in two; as numbers.

Place j brings s_j elements that all others need; S = sum of s. An exchange ends with its busiest rank, and a bucket of few large units
has few owners: then one place sends k - 1 times nearly everything.

    one    j sends s_j to each other place                                        busiest  max((k - 1) max s, S - min s)
    two    spread: chunk i of s_j goes to place i, c_j = ceil(s_j / k) each       busiest  max((k - 1) max c, C - min c),  C = sum of c
           deliver: i hands its chunks to every other place, except the
           chunks that came from there                                            busiest  max((k - 2) C + max c, (k - 1) (C - min c))

Two cost max s + S at most, one up to k S. Either way each element reaches each replica once, so the mean is S (k - 1) / k (chunks are
padded to equal size, fewer than k elements a place). Loads no torch. Not here: tensors (muon_tasks.py), who owns what (muon_plan.py).
"""

from array import array
from collections.abc import Iterable, Sequence

from etude.optim.muon_config import MuonOptions
from etude.optim.muon_lane import Kind, Lane

Splits = tuple[int, ...]


def chunk(size: int, places: int) -> int:
    """Length of each of `places` equal chunks; the last is padded."""
    return -(-size // places)


def share_splits(sizes: Sequence[int], place: int, hops: int) -> tuple[tuple[Splits, Splits], ...]:
    """(sent, received) elements by place, for each exchange of the rank at `place`. Two hops: what it keeps for itself is in both."""
    places = range(len(sizes))
    if hops == 0:
        return ()
    if hops == 1:
        mine = sizes[place]
        return ((tuple(0 if p == place else mine for p in places), tuple(0 if p == place else sizes[p] for p in places)),)
    chunks = tuple(chunk(size, len(sizes)) for size in sizes)
    held = sum(chunks)
    spread = ((chunks[place],) * len(sizes), chunks)
    return spread, (tuple(held - chunks[p] for p in places), (held - chunks[place],) * len(sizes))


def busiest(sizes: Sequence[int], hops: int) -> tuple[float, ...]:
    """Elements of the busiest rank, the larger of sent and received, for each exchange."""
    if hops == 0:
        return ()
    parts = sizes if hops == 1 else [chunk(size, len(sizes)) for size in sizes]
    return peaks(len(sizes), sum(parts), max(parts), min(parts), hops)


def peaks(places: int, total: float, largest: float, least: float, hops: int) -> tuple[float, ...]:
    """The same from three figures of what the places bring (one hop), or of the chunks of it (two)."""
    if hops == 1:
        return (max((places - 1) * largest, total - least),)
    return max((places - 1) * largest, total - least), max((places - 2) * total + largest, (places - 1) * (total - least))


def share_seconds(groups: Iterable[Sequence[int]], places: int, hops: int, options: MuonOptions) -> float:
    """Time of a bucket's exchanges among replicas; `groups` are the sizes of every share group, which exchange at the same time."""
    elements: list[float] = [max(exchange) for exchange in zip(*(busiest(sizes, hops) for sizes in groups), strict=True)]
    launch = options.launch_s + (places - 1) * options.message_s
    return options.wire_bytes * sum(elements) / options.link_bytes_per_s + len(elements) * launch


def choose_hops(groups: Sequence[Sequence[int]], places: int, options: MuonOptions) -> int:
    """How many exchanges a bucket takes: what the options say, else whichever ends first; 0 if no work is shared."""
    if places == 1:
        return 0
    if isinstance(options.share_hops, int):
        return options.share_hops
    return min((1, 2), key=lambda hops: share_seconds(groups, places, hops, options))


def group_sizes(kinds: Sequence[Kind], owners: "Sequence[Sequence[array[int]]]", lane: Lane) -> list[tuple[int, ...]]:
    """Elements by place, for every share group of a bucket; `owners` are the owner codes by parameter and cluster."""
    even: dict[tuple[tuple[int, ...], int], list[int]] = {}  # (selection, cluster): what each place brings to each of its cut group's ranks
    odd: dict[tuple[tuple[int, ...], int], dict[int, list[int]]] = {}  # the same for units that its ranks do not hold alike, by cut place
    for kind, rows in zip(kinds, owners, strict=True):
        numels = [info.rectangle.rows * info.rectangle.cols for info in kind.units]
        for cluster, row in enumerate(rows):
            for info, numel, code in zip(kind.units, numels, row, strict=True):
                key, place = (info.select, cluster), code // lane.cut_size
                alike = even.setdefault(key, [0] * lane.split)
                if not info.lopsided:
                    alike[place] += numel // lane.cut_size
                    continue
                for cut, holder in zip(info.places, info.holders, strict=True):
                    odd.setdefault(key, {}).setdefault(cut, [0] * lane.split)[place] += holder.numel
    found = []
    for key, alike in even.items():
        extra = odd.get(key, {})
        if len(extra) < lane.cut_size:
            found.append(tuple(alike))
        found += [tuple(a + b for a, b in zip(alike, sizes, strict=True)) for sizes in extra.values()]
    return found
