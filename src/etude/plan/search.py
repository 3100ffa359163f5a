"""The best layouts for an optimizer step: every pair of meshes and every replica split, by the limit formula.

The two meshes only meet in sums, so each is priced once and the pairs are added up. A layout must fit into HBM. Order: overlapped time;
those within five per cent of the shortest go by what the rest of training sends between nodes (an estimate), then by memory.

Not here: the formula (cost.py), the table (show.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from etude.errors import UserError
from etude.plan.config import DenseDegrees, ExpertDegrees, PlanConfig
from etude.plan.cost import MeshTime, MeshWork, StepTime, mesh_time, overlapped_seconds, step_time
from etude.plan.layout import Layout, by_tier, check_layout, dense_copies, dense_group, expert_group, mesh_work
from etude.plan.memory import REDUCE_BYTES, Memory, memory
from etude.plan.shapes import Bill

TIE = 0.05
"""Layouts whose optimizer step is within five per cent of the shortest are told apart by the rest of the training step."""


@dataclass(frozen=True, slots=True)
class Candidate:
    layout: Layout
    meshes: list[MeshWork]
    time: StepTime
    memory: Memory
    training_inter_bytes: float
    """Received from other nodes in one micro-batch of training; an estimate."""
    fits: bool

    @property
    def inter_bytes(self) -> float:
        """Sent to other nodes in one optimizer step."""
        return sum(2 * work.leg_bytes["inter"] + work.share_bytes["inter"] for work in self.meshes)


def divisors(number: int) -> list[int]:
    small = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def shards_and_replicas(ranks: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Every (shards, replicas, replicas that share the work) of `ranks`; at most `most` replicas, 0: any."""
    for shards in divisors(ranks):
        replicas = ranks // shards
        if not most or replicas <= most:
            for split in divisors(replicas):
                yield shards, replicas, split


def dense_choices(config: PlanConfig) -> Iterator[DenseDegrees]:
    ranks, most = config.cluster.ranks, config.search.max_replicate
    for cp in config.search.cp:
        if cp < 1 or ranks % cp:
            raise UserError(f"search.cp has {cp}, which does not divide {ranks} ranks: choose divisors")
        for shard, replicate, split in shards_and_replicas(ranks // cp, most):
            yield DenseDegrees(replicate=replicate, shard=shard, cp=cp, split=split)


def expert_choices(config: PlanConfig) -> Iterator[ExpertDegrees]:
    ranks, experts, most = config.cluster.ranks, config.model.n_routed_experts, config.search.max_replicate
    degrees = config.search.ep or tuple(one for one in divisors(ranks) if experts % one == 0)
    for ep in degrees:
        if ep < 1 or ranks % ep or experts % ep:
            raise UserError(f"search.ep has {ep}, which must divide {ranks} ranks and {experts} experts: choose common divisors")
        for efsdp, replicate, split in shards_and_replicas(ranks // ep, most):
            yield ExpertDegrees(replicate=replicate, efsdp=efsdp, ep=ep, split=split)


def price(layout: Layout, bill: Bill, config: PlanConfig) -> Candidate:
    """One layout. Raises UserError where its degrees do not fit."""
    check_layout(layout, config.model, config.cluster.ranks)
    meshes = [mesh_work(bill, layout, config.optimizer, config.cluster, experts=False)]
    if layout.expert is not None:
        meshes.append(mesh_work(bill, layout, config.optimizer, config.cluster, experts=True))
    return assemble(layout, meshes, bill, config)


def assemble(layout: Layout, meshes: list[MeshWork], bill: Bill, config: PlanConfig) -> Candidate:
    chip, cluster = config.chip(), config.cluster
    used = memory(bill, meshes, layout, config)
    times = [mesh_time(work, chip, cluster) for work in meshes]
    time = step_time(times[0], times[1] if layout.expert else None, flops_per_s(config))
    training = training_inter_bytes(bill, layout, config)
    return Candidate(layout, meshes, time, used, training, used.total <= cluster.usable_hbm * chip.hbm_bytes)


def flops_per_s(config: PlanConfig) -> float:
    return config.cluster.efficiency * config.chip().peak_flops


def search(bill: Bill, config: PlanConfig) -> list[Candidate]:
    """One candidate for each pair of degrees, with its best splits, best first. Those that do not fit into HBM come last."""
    chip, cluster, rate = config.chip(), config.cluster, flops_per_s(config)
    dense: list[tuple[DenseDegrees, MeshWork, MeshTime]] = []
    for degrees in dense_choices(config):
        work = mesh_work(bill, Layout(degrees, None), config.optimizer, cluster, experts=False)
        dense.append((degrees, work, mesh_time(work, chip, cluster)))
    pricing = ExpertPricing(bill, config)
    best: dict[tuple[int, ...], tuple[float, Layout, list[MeshWork]]] = {}
    for dense_degrees, dense_work, dense_time in dense:
        dense_key = (dense_degrees.replicate, dense_degrees.shard)  # with the ranks they say cp, and efsdp says ep
        for expert_degrees, expert_work, expert_time in pricing.beside(dense_degrees):
            seconds = overlapped_seconds(dense_time, expert_time, rate)
            key = dense_key if expert_degrees is None else (*dense_key, expert_degrees.replicate, expert_degrees.efsdp)
            if key not in best or seconds < best[key][0]:
                meshes = [dense_work] if expert_work is None else [dense_work, expert_work]
                best[key] = (seconds, Layout(dense_degrees, expert_degrees), meshes)
    if not best:
        raise UserError("no layout has degrees that fit: widen [search] (ep, cp, max_replicate) or change cluster.ranks")
    candidates = [assemble(layout, meshes, bill, config) for _, layout, meshes in best.values()]
    candidates.sort(key=lambda one: (not one.fits, one.time.overlapped_s))
    return settle_ties(candidates)


class ExpertPricing:
    """Every expert mesh that fits, priced beside a dense one; what is the same beside many is priced once."""

    def __init__(self, bill: Bill, config: PlanConfig) -> None:
        self.bill, self.config = bill, config
        self._choices: list[ExpertDegrees] = []
        self._priced: dict[tuple[ExpertDegrees, int], tuple[MeshWork, MeshTime]] = {}
        for one in expert_choices(config) if config.model.n_routed_experts else ():
            try:
                check_layout(Layout(DenseDegrees(replicate=1, shard=config.cluster.ranks), one), config.model, config.cluster.ranks)
            except UserError:
                continue  # efsdp would have to cut unevenly
            self._choices.append(one)

    def beside(self, dense: DenseDegrees) -> Iterator[tuple[ExpertDegrees | None, MeshWork | None, MeshTime | None]]:
        """One (None, None, None) for a model without experts."""
        if not self.config.model.n_routed_experts:
            yield None, None, None
        for one in self._choices:
            layout = Layout(dense, one)
            key = (one, dense_copies(layout))
            if key not in self._priced:
                work = mesh_work(self.bill, layout, self.config.optimizer, self.config.cluster, experts=True)
                self._priced[key] = (work, mesh_time(work, self.config.chip(), self.config.cluster))
            yield one, *self._priced[key]


def settle_ties(candidates: list[Candidate]) -> list[Candidate]:
    """`candidates`, sorted and not empty: those that tie with the first go by what training sends between nodes, then by memory."""
    first = candidates[0]
    longest = (1 + TIE) * first.time.overlapped_s
    tied = [one for one in candidates if one.fits == first.fits and one.time.overlapped_s <= longest]
    rest = candidates[len(tied) :] if first.fits else [one for one in candidates if one not in tied]
    return sorted(tied, key=lambda one: (one.training_inter_bytes, one.memory.total)) + rest


def training_inter_bytes(bill: Bill, layout: Layout, config: PlanConfig) -> float:
    """An estimate of what a rank receives from other nodes in one micro-batch: FSDP's gathers and reductions, expert dispatch.

    Weights are gathered for the forward and the backward pass; gradients are reduced in fp32, over replicas as an all-reduce. Tokens go
    out to their experts and back, in the forward pass, its recomputation and the backward pass.
    """
    model, training, node = config.model, config.training, config.cluster.gpus_per_node
    groups = [(dense_group(layout.dense), sum(elements(bill, experts=False)))]
    total = 0.0
    if layout.expert is not None:
        groups.append((expert_group(layout.expert), sum(elements(bill, experts=True)) // layout.expert.ep))
        passes = 6 if training.checkpointing else 4
        layers = model.num_hidden_layers - model.first_k_dense_replace
        sent = training.tokens_per_rank * model.num_experts_per_tok * model.hidden_size * training.weight_bytes
        total += passes * layers * by_tier(sent, 1, layout.expert.ep, node)["inter"]
    for group, count in groups:
        bytes_here = count * (2 * training.weight_bytes + REDUCE_BYTES)
        total += by_tier(bytes_here, group.stride, group.shards, node)["inter"]
        total += by_tier(2 * REDUCE_BYTES * count / group.shards, group.replica_stride, group.replicas, node)["inter"]
    return total


def elements(bill: Bill, *, experts: bool) -> list[int]:
    return [one.numel * count for one, count in bill.select(experts=experts) if one.algorithm != "frozen"]
