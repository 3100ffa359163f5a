"""Who holds what: degrees that fit a world, each rank's piece of a parameter, and the optimizer's work on the busiest rank.

Dense parameters are Shard(0) over shard x cp ranks; a stack of experts is Shard(0) on ep, then on efsdp Shard(0) where whole experts go
round, else Shard(1), which FSDP2 wants even. Chunks are torch's: ceil(size / ranks) each, the last ones short or empty, so rank 0 holds
the most of every parameter and the figures are rank 0's. ep, cp and shard are the fastest varying ranks, replicas the slowest.

Not here: seconds (cost.py), which layout is best (search.py).
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from etude.errors import UserError
from etude.plan.config import Cluster, DenseDegrees, ExpertDegrees, ModelDims, Optimizer
from etude.plan.cost import MeshWork, newton_schulz_flops
from etude.plan.shapes import Bill, Parameter


@dataclass(frozen=True, slots=True)
class Layout:
    dense: DenseDegrees
    expert: ExpertDegrees | None


def check_layout(layout: Layout, model: ModelDims, ranks: int) -> None:
    """Raises UserError naming the degree that does not fit and what would."""
    dense, expert = layout.dense, layout.expert
    check_mesh("dense", {"replicate": dense.replicate, "shard": dense.shard, "cp": dense.cp}, dense.split, ranks)
    if expert is not None:
        check_mesh("expert", {"replicate": expert.replicate, "efsdp": expert.efsdp, "ep": expert.ep}, expert.split, ranks)
        if model.n_routed_experts % expert.ep:
            raise UserError(f"expert.ep is {expert.ep}, which does not divide the {model.n_routed_experts} experts: choose a divisor")
        width = 2 * model.moe_intermediate_size
        if not whole_experts(model.n_routed_experts, expert) and (width % expert.efsdp or model.hidden_size % expert.efsdp):
            raise UserError(
                f"expert.efsdp is {expert.efsdp}: {model.n_routed_experts // expert.ep} experts a rank do not go round, and rows of "
                f"{width} and {model.hidden_size} do not divide by it (FSDP2 shards dimension 1 evenly only): choose a divisor of "
                f"{math.gcd(width, model.hidden_size)} or of {model.n_routed_experts // expert.ep}"
            )


def check_mesh(mesh: str, degrees: dict[str, int], split: int, ranks: int) -> None:
    for name, degree in degrees.items():
        if degree < 1:
            raise UserError(f"{mesh}.{name} is {degree}, allowed is 1 or more")
    product = math.prod(degrees.values())
    if product != ranks:
        text = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise UserError(f"{mesh} mesh: {text} = {product} ranks, the cluster has {ranks}: change a degree so that the product is {ranks}")
    if split < 1 or degrees["replicate"] % split:
        raise UserError(f"{mesh}.split is {split}, which does not divide the {degrees['replicate']} replicas: choose a divisor")


def whole_experts(num_experts: int, expert: ExpertDegrees) -> bool:
    """Do efsdp ranks share a group's experts without cutting one?"""
    return num_experts // expert.ep % expert.efsdp == 0


def local_size(size: int, ranks: int, rank: int = 0) -> int:
    """Length of one rank's chunk of a dimension, as torch.chunk cuts it."""
    chunk = -(-size // ranks)
    return max(0, min(chunk, size - rank * chunk))


def local_shape(param: Parameter, layout: Layout, rank: int = 0) -> tuple[int, ...]:
    """The shape of one rank's piece."""
    expert = layout.expert
    if param.on_expert_mesh:
        assert expert is not None
        ep_rank, efsdp_rank = rank % expert.ep, rank // expert.ep % expert.efsdp
        stack, rows, columns = param.shape
        stack = local_size(stack, expert.ep, ep_rank)
        if whole_experts(param.shape[0], expert):
            return local_size(stack, expert.efsdp, efsdp_rank), rows, columns
        return stack, local_size(rows, expert.efsdp, efsdp_rank), columns
    shards = layout.dense.shard * layout.dense.cp
    return local_size(param.shape[0], shards, rank % shards), *param.shape[1:]


@lru_cache(maxsize=4096)
def cut_share(rows: int, unit_rows: int, whole_width: bool, ranks: int) -> float:
    """The share of a matrix's units that more than one of `ranks` row chunks hold a piece of."""
    if ranks == 1:
        return 0.0
    if not whole_width:  # a unit of columns runs through all rows
        return 1.0
    chunk = -(-rows // ranks)
    units = rows // unit_rows
    return sum(unit * unit_rows // chunk != ((unit + 1) * unit_rows - 1) // chunk for unit in range(units)) / units


def members_in_node(stride: int, group: int, gpus_per_node: int) -> int:
    """How many of a group, whose ranks lie `stride` apart, share a node with one of them."""
    return max(1, min(group, gpus_per_node // stride))


def by_tier(num_bytes: float, stride: int, group: int, gpus_per_node: int) -> dict[str, float]:
    """Bytes exchanged evenly with the group's other members, by link. `num_bytes`: one's own share included."""
    near = members_in_node(stride, group, gpus_per_node)
    return {"intra": num_bytes * (near - 1) / group, "inter": num_bytes * (group - near) / group}


@dataclass(frozen=True, slots=True)
class MeshGroup:
    """One mesh as its parameters see it: `shards` ranks `stride` apart hold one replica's copy of one ep coordinate."""

    shards: int
    stride: int
    replicas: int
    replica_stride: int
    split: int
    owners: int
    """Ranks among which the units are dealt out."""


def dense_group(dense: DenseDegrees) -> MeshGroup:
    shards = dense.shard * dense.cp
    return MeshGroup(shards, 1, dense.replicate, shards, dense.split, shards * dense.split)


def expert_group(expert: ExpertDegrees) -> MeshGroup:
    block = expert.efsdp * expert.ep
    return MeshGroup(expert.efsdp, expert.ep, expert.replicate, block, expert.split, block * expert.split)


def mesh_work(bill: Bill, layout: Layout, optimizer: Optimizer, cluster: Cluster, *, experts: bool) -> MeshWork:
    """The optimizer's work of one mesh on rank 0."""
    if experts:
        assert layout.expert is not None
        group = expert_group(layout.expert)
    else:
        group = dense_group(layout.dense)
    held = {"muon": 0, "adamw": 0, "frozen": 0}
    flops = largest = 0
    cut = 0.0
    for param, count in bill.select(experts=experts):
        elements = count * math.prod(local_shape(param, layout))
        held[param.algorithm] += elements
        if param.unit is None:
            continue
        each = newton_schulz_flops(*param.unit, optimizer.newton_schulz, optimizer.steps)
        flops += each * param.num_units * count
        largest = max(largest, each)
        if not experts:
            cut += elements * cut_share(param.shape[0], param.unit[0], param.unit[1] == param.shape[1], group.shards)
        elif layout.expert is not None and not whole_experts(param.shape[0], layout.expert):
            cut += elements
    wire, k = optimizer.wire_bytes, group.split
    moved = wire * max(cut / k, held["muon"] if k > 1 else 0.0)
    return MeshWork(
        flops=flops / group.owners,
        largest_flops=largest,
        muon_elements=held["muon"],
        adamw_elements=held["adamw"],
        frozen_elements=held["frozen"],
        leg_bytes=by_tier(wire * cut / k, group.stride, group.shards, cluster.gpus_per_node),
        share_bytes=by_tier(wire * held["muon"], group.replica_stride, k, cluster.gpus_per_node),
        buckets=max(1, math.ceil(moved / optimizer.bucket_bytes)),
        leg_peers=group.shards - 1,
        share_peers=k - 1,
        owners=group.owners,
        unit_owners=(group.shards if cut else 1) * k,
    )


def owner_loads(bill: Bill, layout: Layout, optimizer: Optimizer) -> list[float]:
    """FLOPs per rank when units go, largest first, each to the least loaded rank that may own it (both meshes in one pass).

    Replicas that repeat each other's work carry the same load, so one period of owners stands for all ranks. Units that nobody cuts are
    dealt out like the others: their holders are as many as the owners, so the result is the same up to whole units.
    """
    dense = dense_group(layout.dense).owners
    dense_loads = [0.0] * dense
    deal(dense_loads, range(dense), unit_sizes(bill, optimizer, experts=False), 1)
    if layout.expert is None:
        return dense_loads
    expert, ep = expert_group(layout.expert).owners, layout.expert.ep
    period = math.lcm(dense, expert)
    # an expert owner stands for the ranks at `rank`, `rank + expert`, ...: its dense load is the largest among them
    loads = [max(dense_loads[at % dense] for at in range(rank, period, expert)) for rank in range(expert)]
    before = list(loads)
    sizes = unit_sizes(bill, optimizer, experts=True)
    groups = ep
    if whole_experts(num_experts(bill), layout.expert):  # only their holder and its replicas can own them
        groups = ep * layout.expert.efsdp
    for coordinate in range(groups):
        deal(loads, range(coordinate, expert, groups), sizes, groups)
    return [dense_loads[rank % dense] + loads[rank % expert] - before[rank % expert] for rank in range(period)]


def num_experts(bill: Bill) -> int:
    return next((one.shape[0] for one, _ in bill.select(experts=True)), 0)


def unit_sizes(bill: Bill, optimizer: Optimizer, *, experts: bool) -> list[tuple[int, int]]:
    """(FLOPs, how many), largest first."""
    sizes: dict[int, int] = {}
    for param, count in bill.select(experts=experts):
        if param.unit is not None:
            flops = newton_schulz_flops(*param.unit, optimizer.newton_schulz, optimizer.steps)
            sizes[flops] = sizes.get(flops, 0) + param.num_units * count
    return sorted(sizes.items(), reverse=True)


def deal(loads: list[float], ranks: Iterable[int], sizes: list[tuple[int, int]], parts: int) -> None:
    """Adds one part of the units to `loads`, each to the least loaded of `ranks`."""
    heap = [(loads[rank], rank) for rank in ranks]
    heapq.heapify(heap)
    for flops, count in sizes:
        for _ in range(count // parts):
            load, rank = heap[0]
            loads[rank] = load + flops
            heapq.heapreplace(heap, (load + flops, rank))
