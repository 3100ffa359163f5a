"""Newton-Schulz FLOPs, and the limit on the time of one optimizer step.

FLOPs are the optimizer's own count (optim/muon_config.py), `symmetric` and `gram-symmetric` with symmetric products computed as half.
Time of a step on the slowest rank:

    compute = Newton-Schulz + elementwise traffic;  link(t) = both legs and the shares on tier t, bytes / speed + latencies, with the
    bytes of the busiest rank of every exchange (exchange.py)
    overlapped = max(link of every tier, compute + ramp);  serial = compute + sum of links

ramp: the first bucket's way out and the last one's way back, which no compute can hide: (2 legs + share) / buckets. It is on the compute
side only: where the link binds it never idles (checked against an emulated link, tests/unit/plan/test_cost.py).

Not here: which bytes and FLOPs fall to a rank (layout.py).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from etude.optim.muon_config import newton_schulz_flops
from etude.plan.config import Chip, Cluster, Variant

MUON_ELEMENTWISE_BYTES = 24
"""Per parameter with fp32 gradient, momentum and master, bf16 update: g 4, m 4 + 4, update 2 + 2, p 4 + 4."""
ADAMW_ELEMENTWISE_BYTES = 28
"""Per parameter in fp32: g 4, two moments 8 + 8, p 4 + 4."""
TIERS = ("intra", "inter")
"""Links inside a node, links between nodes."""


def unit_flops(rows: int, columns: int, variant: Variant, steps: int = 5) -> int:
    """One unit's; `symmetric` needs kernels that compute half of a symmetric product, which the optimizer itself does not bring."""
    return newton_schulz_flops(rows, columns, steps, gram=variant.startswith("gram"), symmetric=variant.endswith("symmetric"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshWork:
    """What one optimizer step asks of the busiest rank for the parameters of one mesh. Bytes are one way, sent = received."""

    flops: float
    """Newton-Schulz of this rank's share of the units."""
    largest_flops: float
    """The largest single unit: it has one owner."""
    muon_elements: int
    adamw_elements: int
    frozen_elements: int
    leg_bytes: dict[str, float]
    """Tier -> bytes of one leg of the all-to-all: pieces of cut units to their owners; the second leg brings as many back. Mean over
    ranks."""
    leg_busiest: dict[str, float]
    """The same by the busiest rank of each exchange, which is what takes time."""
    leg_launches: int
    share_bytes: dict[str, float]
    """Tier -> bytes of updates to the replicas that split the work. Mean over ranks."""
    share_busiest: dict[str, float]
    share_launches: int
    """One exchange or two for each bucket."""
    buckets: int
    leg_peers: int
    share_peers: int
    owners: int
    """Ranks among which all units are dealt out."""
    unit_owners: int
    """Ranks that may own any one unit: a cut group and the replicas that split its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTime:
    """Seconds of one mesh's work, each resource by itself."""

    flops: float
    largest_flops: float
    owners: int
    unit_owners: int
    elementwise_s: float
    links_s: dict[str, float]
    ramp_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step."""

    newton_schulz_s: float
    imbalance: float
    """FLOPs of the busiest rank over an even share."""
    elementwise_s: float
    links_s: dict[str, float]
    ramp_s: float
    overlapped_s: float
    serial_s: float
    binds: str


def link_seconds(work: MeshWork, tier: str, cluster: Cluster) -> float:
    """Both legs and the shares of one mesh on one tier."""
    speed = cluster.inter_bytes_per_s if tier == "inter" else cluster.intra_bytes_per_s
    legs, share = work.leg_busiest[tier], work.share_busiest[tier]
    seconds = (2 * legs + share) / speed
    for bytes_here, peers, launches in ((legs, work.leg_peers, work.leg_launches), (share, work.share_peers, work.share_launches)):
        if bytes_here:
            seconds += launches * (cluster.collective_latency_s + peers * cluster.message_latency_s)
    return seconds


def mesh_time(work: MeshWork, chip: Chip, cluster: Cluster) -> MeshTime:
    links = {tier: link_seconds(work, tier, cluster) for tier in TIERS}
    traffic = MUON_ELEMENTWISE_BYTES * work.muon_elements + ADAMW_ELEMENTWISE_BYTES * work.adamw_elements
    return MeshTime(
        flops=work.flops,
        largest_flops=work.largest_flops,
        owners=work.owners,
        unit_owners=work.unit_owners,
        elementwise_s=traffic / chip.hbm_bytes_per_s,
        links_s=links,
        ramp_s=max(links.values()) / work.buckets,
    )


def limit(compute_s: float, links_s: Iterable[float], ramp_s: float) -> tuple[float, float]:
    """(overlapped, serial) seconds: everything in flight at once, or one thing after the other."""
    links = tuple(links_s)
    return max(compute_s + ramp_s, *links), compute_s + sum(links)


def busiest_flops(dense: MeshTime, expert: MeshTime | None) -> float:
    """FLOPs of the rank that has most, when owners are chosen well.

    The units of a cut group of experts can only go to that group's ranks. One of these owns the largest dense unit (several of them,
    where replicas repeat the dense work), so the others can make up for it with at most the group's experts.
    """
    if expert is None:
        return max(dense.flops, dense.largest_flops)
    copies = min(expert.unit_owners, max(1, expert.owners // dense.owners))
    with_largest = copies * dense.largest_flops / expert.unit_owners
    return max(expert.flops + max(dense.flops, with_largest), dense.largest_flops, expert.largest_flops)


def overlapped_seconds(dense: MeshTime, expert: MeshTime | None, flops_per_s: float) -> float:
    """The same as `step_time`'s, without its parts: the search asks it thousands of times."""
    compute = busiest_flops(dense, expert) / flops_per_s + dense.elementwise_s
    intra, inter = dense.links_s["intra"], dense.links_s["inter"]
    if expert is None:
        return max(compute + dense.ramp_s, intra, inter)
    compute += expert.elementwise_s + max(dense.ramp_s, expert.ramp_s)
    return max(compute, intra + expert.links_s["intra"], inter + expert.links_s["inter"])


def step_time(dense: MeshTime, expert: MeshTime | None, flops_per_s: float) -> StepTime:
    meshes = [dense] if expert is None else [dense, expert]
    shared = sum(one.flops for one in meshes)
    busiest = busiest_flops(dense, expert)
    newton_schulz = busiest / flops_per_s
    elementwise = sum(one.elementwise_s for one in meshes)
    links = {tier: sum(one.links_s[tier] for one in meshes) for tier in TIERS}
    ramp = max(one.ramp_s for one in meshes)
    overlapped, serial = limit(newton_schulz + elementwise, links.values(), ramp)
    compute = "the largest unit" if busiest in (one.largest_flops for one in meshes) else "Newton-Schulz"
    parts = [(newton_schulz + elementwise + ramp, compute if newton_schulz > elementwise else "HBM traffic")]
    parts += [(links["inter"], "links between nodes"), (links["intra"], "links inside a node")]
    return StepTime(
        newton_schulz_s=newton_schulz,
        imbalance=busiest / shared,
        elementwise_s=elementwise,
        links_s=links,
        ramp_s=ramp,
        overlapped_s=overlapped,
        serial_s=serial,
        binds=max(parts)[1],
    )


def breaking_efficiency(time: StepTime, efficiency: float, target_s: float) -> float | None:
    """The share of peak below which the overlapped step is longer than the target; None where the links alone are."""
    room = target_s - time.elementwise_s - time.ramp_s
    if max(time.links_s.values()) > target_s or room <= 0:
        return None
    return efficiency * time.newton_schulz_s / room


def ranks_for(flops: float, chip: Chip, efficiency: float, target_s: float) -> int:
    """Accelerators that do `flops` in the target, were the work spread evenly and communication free."""
    return math.ceil(flops / (efficiency * chip.peak_flops * target_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """A number of ranks, whatever the layout: every unit once, every matrix cut, (G - 1) / G taken as 1."""

    ranks: int
    newton_schulz_s: dict[str, float]
    """Variant -> seconds at the assumed efficiency."""
    needed_efficiency: dict[str, float]
    """Variant -> share of peak that the target asks for, communication hidden."""
    leg_bytes: float
    inter_s: float
    """Both legs over the links between nodes."""
    intra_s: float
    elementwise_s: float


def scale_row(ranks: int, flops: dict[Variant, float], muon: int, chip: Chip, cluster: Cluster, *, wire: int, target_s: float) -> ScaleRow:
    per_rank = ranks * chip.peak_flops
    leg = wire * muon / ranks
    return ScaleRow(
        ranks=ranks,
        newton_schulz_s={variant: count / (cluster.efficiency * per_rank) for variant, count in flops.items()},
        needed_efficiency={variant: count / (target_s * per_rank) for variant, count in flops.items()},
        leg_bytes=leg,
        inter_s=2 * leg / cluster.inter_bytes_per_s,
        intra_s=2 * leg / cluster.intra_bytes_per_s,
        elementwise_s=MUON_ELEMENTWISE_BYTES * muon / ranks / chip.hbm_bytes_per_s,
    )
