"""The planner's closed forms against the plan that ShardedMuon itself makes, unit by unit, for the same model and layout."""

from collections import Counter
from dataclasses import replace

import pytest

from etude.optim.muon_config import MuonOptions
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout
from etude.optim.muon_plan import Plan, make_plan
from etude.optim.muon_rank import rank_plan
from etude.optim.units import Units
from etude.plan.config import DenseDegrees, ExpertDegrees, PlanConfig
from etude.plan.layout import Layout, owner_loads, whole_experts
from etude.plan.search import price
from etude.plan.shapes import Parameter, bill, parameters
from tests.unit.plan import models

LAYERS, EXPERTS = 5, 72


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

    sent, busiest, launches = exchanged(theirs)
    assert sent["leg"] / ranks == pytest.approx(2 * sum(sum(work.leg_bytes.values()) for work in ours.meshes), rel=0.05)
    assert sent["share"] / ranks == pytest.approx(sum(sum(work.share_bytes.values()) for work in ours.meshes), rel=1e-4)
    expected = {
        "leg": 2 * sum(sum(work.leg_busiest.values()) for work in ours.meshes),
        "share": sum(sum(work.share_busiest.values()) for work in ours.meshes),
    }
    for kind, bytes_here in expected.items():
        assert busiest[kind] <= bytes_here <= 1.25 * busiest[kind]  # never optimistic
    assert abs(launches["leg"] - sum(work.leg_launches for work in ours.meshes)) <= 2  # a bucket more or less
    assert abs(launches["share"] - sum(work.share_launches for work in ours.meshes)) <= 1


def exchanged(plan: Plan) -> tuple[dict[str, int], dict[str, int], Counter[str]]:
    """Bytes of all ranks; of the busiest rank of each exchange; how many exchanges; legs and shares."""
    sent = {"leg": 0, "share": 0}
    busiest: dict[tuple[str, int, int], int] = {}
    for rank in range(plan.world_size):
        stage: Counter[int] = Counter()
        for one in rank_plan(plan, rank).collectives:
            kind = "share" if one.kind == "share" else "leg"
            stage[one.bucket] += 1
            key = (kind, one.bucket, stage[one.bucket])
            sent[kind] += one.sent_bytes
            busiest[key] = max(busiest.get(key, 0), one.sent_bytes, one.received_bytes)
    total = {kind: sum(number for key, number in busiest.items() if key[0] == kind) for kind in sent}
    return sent, total, Counter(kind for kind, _, _ in busiest)
