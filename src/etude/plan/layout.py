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
from etude.parallel.degrees import DENSE, EXPERT, Degrees
from etude.plan.config import Cluster, DenseDegrees, ExpertDegrees, ModelDims, Optimizer
from etude.plan.cost import MeshWork, unit_flops
from etude.plan.exchange import Ring, Travelling, exchanges
from etude.plan.shapes import Bill, Parameter


@dataclass(frozen=True, slots=True)
class Layout:
    dense: DenseDegrees
    expert: ExpertDegrees | None


def check_layout(layout: Layout, model: ModelDims, ranks: int) -> None:
    """Raises UserError naming the degree that does not fit and what would."""
    both = degrees(layout)
    if both.world != ranks:
        meshes = f"dense {both.describe(DENSE)}" + (f", expert {both.describe(EXPERT)}" if layout.expert else "")
        raise UserError(f"the meshes have {both.world} ranks ({meshes}) and the cluster {ranks}: change a degree or cluster.ranks")
    for mesh, split, replicas in (
        ("dense", layout.dense.split, both.replicate),
        ("expert", layout.expert.split if layout.expert else 1, both.expert_replicate),
    ):
        if split < 1 or replicas % split:
            raise UserError(f"{mesh}.split is {split}, which does not divide the {replicas} replicas: choose a divisor")
    if layout.expert is not None:
        expert, width = layout.expert, 2 * model.moe_intermediate_size
        if both.expert_shard_dim(model.n_routed_experts) == 1 and (width % expert.efsdp or model.hidden_size % expert.efsdp):
            raise UserError(
                f"expert.efsdp is {expert.efsdp}: {model.n_routed_experts // expert.ep} experts a rank do not go round, and rows of "
                f"{width} and {model.hidden_size} do not divide by it (FSDP2 shards dimension 1 evenly only): choose a divisor of "
                f"{math.gcd(width, model.hidden_size)} or of {model.n_routed_experts // expert.ep}"
            )


def degrees(layout: Layout) -> Degrees:
    """The two meshes as training takes them; a model without experts has the same ranks in the other view. UserError as there."""
    dense, expert = layout.dense, layout.expert
    if expert is None:
        world = dense.replicate * dense.shard * dense.cp
        return Degrees(replicate=dense.replicate, shard=dense.shard, cp=dense.cp, efsdp=world)
    return Degrees(
        replicate=dense.replicate, shard=dense.shard, cp=dense.cp,
        expert_replicate=expert.replicate, efsdp=expert.efsdp, ep=expert.ep,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def whole_experts(num_experts: int, expert: ExpertDegrees) -> bool:
    """Do efsdp ranks share a group's experts without cutting one?"""
    mesh = Degrees(shard=expert.replicate * expert.efsdp * expert.ep, expert_replicate=expert.replicate, efsdp=expert.efsdp, ep=expert.ep)
    return mesh.expert_shard_dim(num_experts) == 0


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
    selections: int
    """ep coordinates: each has units of its own."""


def dense_group(dense: DenseDegrees) -> MeshGroup:
    shards = dense.shard * dense.cp
    return MeshGroup(shards, 1, dense.replicate, shards, dense.split, shards * dense.split, 1)


def expert_group(expert: ExpertDegrees) -> MeshGroup:
    block = expert.efsdp * expert.ep
    return MeshGroup(expert.efsdp, expert.ep, expert.replicate, block, expert.split, block * expert.split, expert.ep)


def mesh_work(bill: Bill, layout: Layout, optimizer: Optimizer, cluster: Cluster, *, experts: bool) -> MeshWork:
    """The optimizer's work of one mesh on rank 0; of the other mesh only `dense_copies` matters."""
    if experts:
        assert layout.expert is not None
        group = expert_group(layout.expert)
    else:
        group = dense_group(layout.dense)
    held = {"muon": 0, "adamw": 0, "frozen": 0}
    flops = largest = 0
    cut = 0.0
    items = []
    for param, count in bill.select(experts=experts):
        elements = count * math.prod(local_shape(param, layout))
        held[param.algorithm] += elements
        if param.unit is None:
            continue
        each = unit_flops(*param.unit, optimizer.newton_schulz, optimizer.steps)
        flops += each * param.num_units * count
        largest = max(largest, each)
        if not experts:
            share = cut_share(param.shape[0], param.unit[0], param.unit[1] == param.shape[1], group.shards)
        else:
            share = 0.0 if layout.expert is None or whole_experts(param.shape[0], layout.expert) else 1.0
        cut += elements * share
        items.append(
            Travelling(
                count=count, cost=each, unit_bytes=optimizer.wire_bytes * math.prod(param.unit), units=param.num_units / group.selections,
                cut=share, rank_bytes=optimizer.wire_bytes * param.numel // (group.shards * group.selections),
            )
        )  # fmt: skip
    rivals, busy = rival_owners(bill, layout, optimizer, largest, flops / group.owners) if experts else (0, 0.0)
    sent = exchanges(items, ring(group, cluster, rivals, busy), optimizer)
    wire, k, node = optimizer.wire_bytes, group.split, cluster.gpus_per_node
    return MeshWork(
        flops=flops / group.owners,
        largest_flops=largest,
        muon_elements=held["muon"],
        adamw_elements=held["adamw"],
        frozen_elements=held["frozen"],
        leg_bytes=by_tier(wire * cut / k, group.stride, group.shards, node),
        leg_busiest=by_tier(with_own(sent.leg_bytes, group.shards), group.stride, group.shards, node),
        leg_launches=sent.leg_launches,
        share_bytes=by_tier(wire * held["muon"], group.replica_stride, k, node),
        share_busiest=by_tier(with_own(sent.share_bytes, k), group.replica_stride, k, node),
        share_launches=sent.share_launches,
        buckets=max(1, sent.buckets),
        leg_peers=group.shards - 1,
        share_peers=k - 1,
        owners=group.owners,
        unit_owners=(group.shards if cut else 1) * k,
    )


def dense_copies(layout: Layout) -> int:
    """How many owners of experts may own the same dense matrix, where replicas repeat the dense work."""
    return 1 if layout.expert is None else max(1, expert_group(layout.expert).owners // dense_group(layout.dense).owners)


def rival_owners(bill: Bill, layout: Layout, optimizer: Optimizer, largest: int, load: float) -> tuple[int, float]:
    """How many owners of one group's experts have a dense matrix above `largest` FLOPs instead, and for what share of the step.

    `load`: FLOPs of experts of each owner. At least one matrix counts, with its copies, and as many as a mean group has.
    """
    assert layout.expert is not None
    larger = [(size, count) for size, count in unit_sizes(bill, optimizer, experts=False) if size > largest]
    if not larger or not load:
        return 0, 0.0
    copies = dense_copies(layout)
    in_a_group = copies * sum(count * min(1.0, size / load) for size, count in larger) / layout.expert.ep
    return max(copies, math.ceil(in_a_group)), min(1.0, larger[0][0] / load)


def ring(group: MeshGroup, cluster: Cluster, rivals: int, busy: float) -> Ring:
    between = members_in_node(group.replica_stride, group.split, cluster.gpus_per_node) < group.split
    return Ring(
        shards=group.shards, split=group.split, rivals=rivals, busy=busy,
        bytes_per_s=cluster.inter_bytes_per_s if between else cluster.intra_bytes_per_s,
        launch_s=cluster.collective_latency_s + (group.split - 1) * cluster.message_latency_s,
    )  # fmt: skip


def with_own(num_bytes: float, group: int) -> float:
    """Bytes for the others as `by_tier` takes them."""
    return num_bytes * group / (group - 1) if group > 1 else 0.0


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
            flops = unit_flops(*param.unit, optimizer.newton_schulz, optimizer.steps)
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
