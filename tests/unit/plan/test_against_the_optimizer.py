"""The planner's closed forms against the plan that ShardedMuon itself makes, unit by unit, for the same model and layout."""

from dataclasses import replace

import pytest

from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout
from etude.optim.muon_plan import Plan, make_plan
from etude.optim.muon_rank import rank_plan
from etude.optim.units import Units
from etude.plan.config import DenseDegrees, ExpertDegrees, PlanConfig
from etude.plan.cost import newton_schulz_flops
from etude.plan.layout import Layout, owner_loads, whole_experts
from etude.plan.search import price
from etude.plan.shapes import Parameter, bill, parameters
from tests.unit.plan import models

LAYERS, EXPERTS = 5, 72


@pytest.mark.parametrize("variant", ["standard", "gram"])
@pytest.mark.parametrize("shape", [(2048, 7168), (7168, 2048), (64, 64), (3, 1000)])
@pytest.mark.parametrize("steps", [3, 5])
def test_the_optimizer_counts_the_same_flops(variant, shape, steps):
    settings = NewtonSchulz(variant=variant, num_steps=steps, dtype="float32")
    assert settings.flops(*shape) == newton_schulz_flops(*shape, variant, steps)


def optimizer_plan(config: PlanConfig, layout: Layout) -> Plan:
    dense, expert = layout.dense, layout.expert
    assert expert is not None
    meshes = [
        MeshLayout.of_world((dense.replicate, dense.shard * dense.cp), ("replicate", "shard")),
        MeshLayout.of_world((expert.replicate, expert.efsdp, expert.ep), ("replicate", "efsdp", "ep")),
    ]
    whole = whole_experts(config.model.n_routed_experts, expert)

    def placed(one: Parameter) -> ParameterLayout:
        assert one.unit is not None
        rows, columns = one.unit
        units = Units((rows,) * (one.shape[-2] // rows), (columns,) * (one.shape[-1] // columns))
        if not one.on_expert_mesh:
            return ParameterLayout(one.name, one.shape, units=units, mesh=0, placements=(None, Cut(0)))
        efsdp = Cut(0, expert.ep) if whole else Cut(1)
        return ParameterLayout(one.name, one.shape, units=units, mesh=1, placements=(None, efsdp, Cut(0)))

    placed_all = [placed(one) for one in parameters(config.model, config.optimizer) if one.algorithm == "muon"]
    split = max(dense.split, expert.split)
    options = MuonOptions(replica_split=split, bucket_bytes=int(config.optimizer.bucket_bytes))
    return make_plan(placed_all, meshes, config.cluster.ranks, options)


LAYOUTS = {
    "cut experts, wide dense": (DenseDegrees(replicate=1, shard=64), ExpertDegrees(replicate=1, efsdp=64, ep=1)),
    "cut experts, replicas share": (DenseDegrees(replicate=8, shard=8, split=8), ExpertDegrees(replicate=1, efsdp=16, ep=4)),
    "cut experts, replicas repeat": (DenseDegrees(replicate=4, shard=16), ExpertDegrees(replicate=1, efsdp=16, ep=4)),
    "whole experts": (DenseDegrees(replicate=1, shard=24), ExpertDegrees(replicate=1, efsdp=3, ep=8)),
    "whole experts, replicas share": (DenseDegrees(replicate=1, shard=48), ExpertDegrees(replicate=2, efsdp=3, ep=8, split=2)),
}


@pytest.mark.parametrize(("dense", "expert"), LAYOUTS.values(), ids=LAYOUTS)
def test_loads_and_bytes_agree(dense, expert):
    ranks = dense.replicate * dense.shard
    config = models.kimi(ranks)
    config = replace(config, model=replace(config.model, num_hidden_layers=LAYERS, n_routed_experts=EXPERTS))
    layout = Layout(dense, expert)
    made = bill(parameters(config.model, config.optimizer))
    ours, theirs = price(layout, made, config), optimizer_plan(config, layout)

    loads = owner_loads(made, layout, config.optimizer)
    assert sum(theirs.loads) == sum(loads) * ranks / len(loads)
    assert theirs.max_over_mean == pytest.approx(max(loads) * len(loads) / sum(loads), rel=0.02)
    assert theirs.max_over_mean == pytest.approx(ours.time.imbalance, rel=0.02)

    legs, shares = [], []
    for rank in range(ranks):
        part = rank_plan(theirs, rank)
        legs.append(sum(one.sent_bytes for one in part.collectives if one.kind != "share"))
        shares.append(sum(one.sent_bytes for one in part.collectives if one.kind == "share"))
    assert sum(legs) / len(legs) == pytest.approx(2 * sum(sum(work.leg_bytes.values()) for work in ours.meshes), rel=0.05)
    assert sum(shares) / len(shares) == pytest.approx(sum(sum(work.share_bytes.values()) for work in ours.meshes), rel=1e-9)
