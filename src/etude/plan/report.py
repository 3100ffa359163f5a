"""From a PlanConfig to everything that `etude plan` says, as one record of plain numbers (its JSON is `--json`'s).

Units: seconds, bytes, FLOPs, shares of 1.

Not here: the printing (show.py).
"""

from dataclasses import dataclass, replace
from typing import Any

from etude.plan.config import VARIANTS, DenseDegrees, ExpertDegrees, PlanConfig, Variant
from etude.plan.cost import TIERS, ScaleRow, StepTime, breaking_efficiency, ranks_for, scale_row, unit_flops
from etude.plan.layout import Layout, owner_loads, whole_experts
from etude.plan.memory import Memory
from etude.plan.search import Candidate, price, search
from etude.plan.shapes import Bill, active, bill, parameters, total


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow:
    kind: str
    algorithm: str
    tensors: int
    elements: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """Units of one shape."""

    kind: str
    role: str
    rows: int
    columns: int
    units: int
    flops: dict[Variant, float]
    """Of all of them together, by variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """Bytes one rank sends, and receives, in one optimizer step."""

    what: str
    tier: str
    bytes: float
    """Mean of ranks."""
    busiest_bytes: float
    """Of the busiest rank of every exchange, which takes the time."""
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    dense: DenseDegrees
    expert: ExpertDegrees | None
    whole_experts: bool
    time: StepTime
    memory: Memory
    memory_bytes: float
    fits: bool
    inter_bytes: float
    training_inter_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The best layout with another Newton-Schulz."""

    variant: Variant
    time: StepTime
    breaking_efficiency: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipTable:
    """What needs no layout, for one chip."""

    chip: str
    scale: list[ScaleRow]
    ranks_for_target: dict[Variant, dict[str, int]]
    """Variant -> assumed efficiency -> accelerators, communication free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    config: PlanConfig
    total: int
    language: int
    """Without a vision tower."""
    active: int
    muon: int
    parameters: list[ParameterRow]
    units: list[UnitRow]
    flops: dict[Variant, float]
    best: LayoutRow
    traffic: list[TrafficRow]
    max_over_mean: float
    """Newton-Schulz load of the busiest rank over the mean, once every unit of the best layout has its owner."""
    breaking_efficiency: float | None
    what_if: list[WhatIf]
    layouts: list[LayoutRow]
    num_layouts: int
    given: LayoutRow | None
    chips: list[ChipTable]


def make_report(config: PlanConfig) -> PlanReport:
    params = parameters(config.model, config.optimizer)
    model_bill = bill(params)
    found = search(model_bill, config)
    best = found[0]
    given = None
    if config.layout is not None:
        given = layout_row(price(Layout(config.layout.dense, config.layout.expert), model_bill, config), model_bill)
    loads = owner_loads(model_bill, best.layout, config.optimizer)
    muon = sum(one.numel for one in params if one.algorithm == "muon")
    flops = total_flops(model_bill, config.optimizer.steps)
    efficiency, target = config.cluster.efficiency, config.optimizer.target_s
    return PlanReport(
        config=config,
        total=total(params),
        language=total(one for one in params if one.algorithm != "frozen"),
        active=active(params, config.model),
        muon=muon,
        parameters=parameter_rows(model_bill, config),
        units=unit_rows(model_bill, config.optimizer.steps),
        flops=flops,
        best=layout_row(best, model_bill),
        traffic=traffic_rows(best, config),
        max_over_mean=max(loads) * len(loads) / sum(loads),
        breaking_efficiency=breaking_efficiency(best.time, efficiency, target),
        what_if=[what_if(variant, best.layout, model_bill, config) for variant in VARIANTS],
        layouts=[layout_row(one, model_bill) for one in found[: config.search.shown]],
        num_layouts=len(found),
        given=given,
        chips=[chip_table(name, flops, muon, config) for name in config.report.chips or (config.cluster.chip,)],
    )


def total_flops(model_bill: Bill, steps: int) -> dict[Variant, float]:
    rows = unit_rows(model_bill, steps)
    return {variant: sum(row.flops[variant] for row in rows) for variant in VARIANTS}


def parameter_rows(model_bill: Bill, config: PlanConfig) -> list[ParameterRow]:
    kinds: dict[tuple[str, str], list[int]] = {}
    for param, count in model_bill.groups:
        sums = kinds.setdefault((param.kind, param.algorithm), [0, 0, 0])
        sums[0] += count
        sums[1] += count * param.numel
        sums[2] += count * active([param], config.model)
    rows = [ParameterRow(kind=kind, algorithm=how, tensors=a, elements=b, active=c) for (kind, how), (a, b, c) in kinds.items()]
    return sorted(rows, key=lambda row: -row.elements)


def unit_rows(model_bill: Bill, steps: int) -> list[UnitRow]:
    rows: dict[tuple[str, str, int, int], int] = {}
    for param, count in model_bill.groups:
        if param.unit is not None:
            key = (param.kind, param.role, *param.unit)
            rows[key] = rows.get(key, 0) + count * param.num_units
    result = []
    for (kind, role, height, width), number in rows.items():
        flops: dict[Variant, float] = {one: float(number * unit_flops(height, width, one, steps)) for one in VARIANTS}
        result.append(UnitRow(kind=kind, role=role, rows=height, columns=width, units=number, flops=flops))
    return sorted(result, key=lambda row: -row.flops["standard"])


def layout_row(one: Candidate, model_bill: Bill) -> LayoutRow:
    stack = next((param.shape[0] for param, _ in model_bill.select(experts=True)), 0)
    expert = one.layout.expert
    return LayoutRow(
        dense=one.layout.dense,
        expert=expert,
        whole_experts=expert is not None and whole_experts(stack, expert),
        time=one.time,
        memory=one.memory,
        memory_bytes=one.memory.total,
        fits=one.fits,
        inter_bytes=one.inter_bytes,
        training_inter_bytes=one.training_inter_bytes,
    )


def traffic_rows(one: Candidate, config: PlanConfig) -> list[TrafficRow]:
    speeds = {"intra": config.cluster.intra_bytes_per_s, "inter": config.cluster.inter_bytes_per_s}
    rows = []
    for mesh, work in zip(("dense", "experts"), one.meshes, strict=False):
        legs = (work.leg_bytes, work.leg_busiest, work.leg_launches // 2)
        share = (work.share_bytes, work.share_busiest, work.share_launches)
        for what, (mean, busiest, launches) in (("pieces to owners", legs), ("updates back", legs), ("to replicas", share)):
            for tier in TIERS:
                if mean[tier]:
                    seconds = busiest[tier] / speeds[tier]
                    rows.append(
                        TrafficRow(
                            what=f"{mesh}: {what}", tier=tier, bytes=mean[tier], busiest_bytes=busiest[tier], launches=launches,
                            seconds=seconds,
                        )
                    )  # fmt: skip
    return rows


def what_if(variant: Variant, layout: Layout, model_bill: Bill, config: PlanConfig) -> WhatIf:
    other = replace(config, optimizer=replace(config.optimizer, newton_schulz=variant))
    time = price(layout, model_bill, other).time
    breaks = breaking_efficiency(time, config.cluster.efficiency, config.optimizer.target_s)
    return WhatIf(variant=variant, time=time, breaking_efficiency=breaks)


def chip_table(name: str, flops: dict[Variant, float], muon: int, config: PlanConfig) -> ChipTable:
    chip, cluster, target = config.chip(name), config.cluster, config.optimizer.target_s
    worlds = config.report.ranks or tuple(sorted({max(1, cluster.ranks // 2), cluster.ranks, 2 * cluster.ranks, 4 * cluster.ranks}))
    wire = config.optimizer.wire_bytes
    needed: dict[Variant, dict[str, int]] = {
        variant: {f"{share:g}": ranks_for(flops[variant], chip, share, target) for share in config.report.efficiencies}
        for variant in VARIANTS
    }
    scale = [scale_row(ranks, flops, muon, chip, cluster, wire=wire, target_s=target) for ranks in worlds]
    return ChipTable(chip=name, scale=scale, ranks_for_target=needed)


def as_json(report: PlanReport) -> dict[str, Any]:
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(report)
    return built
