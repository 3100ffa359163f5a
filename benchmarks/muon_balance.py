"""How level the owners' Newton-Schulz work is on Kimi K2.5 (1.02T parameters in Muon) at 256, 512 and 1,024 ranks; no process is started.

    max_over_mean        largest load of a rank over the mean, by etude's plan: loads over both meshes and all replicas
    by_position          the same units dealt out in turn within each group, as most sharded Muons do
    largest_over_mean    the largest single matrix over the mean load: no plan can be better where this exceeds 1
    shared_gb            what replicas send each other in a step: mean of ranks; by the busiest rank of every exchange, if all buckets go in
                         one exchange, in two, and as chosen (two_hops of the buckets that are shared)
    plan_s               seconds to plan for the whole world, and one rank's part of it

Dense parameters on (replicate, shard 64), experts on (efsdp, ep 64) cut by rows, replicas sharing the work; at 512 ranks also shard 8 and
32, which have more replicas. Dimensions are those of the model's config, written out here.

    python -m benchmarks.muon_balance [--quick]

Not here: step times (etude plan).
"""

import argparse
import time
from collections.abc import Iterator, Sequence

from benchmarks.common import report
from etude.optim.muon_config import MuonOptions
from etude.optim.muon_lane import Lane, lane_of
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout
from etude.optim.muon_plan import Plan, make_plan
from etude.optim.muon_rank import rank_plan
from etude.optim.muon_share import busiest, group_sizes
from etude.optim.units import Units, gate_up, row_heads

LAYERS, DENSE_LAYERS, HIDDEN, DENSE_FFN, EXPERT_FFN, EXPERTS = 61, 1, 7168, 18432, 2048, 384
HEADS, Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 64, 1536, 512, 128, 64, 128
SHARD = EXPERT_PARALLEL = 64


def kimi_k2(layers: int = LAYERS) -> Iterator[ParameterLayout]:
    """Every Muon parameter, dense ones on mesh 0, stacked experts on mesh 1."""

    def dense(name: str, rows: int, cols: int, units: Units | None = None) -> ParameterLayout:
        return ParameterLayout(name, (rows, cols), units=units or Units(), mesh=0, placements=(None, Cut(0)))

    def experts(name: str, rows: int, cols: int, units: Units) -> ParameterLayout:
        return ParameterLayout(name, (EXPERTS, rows, cols), units=units, mesh=1, placements=(None, Cut(1), Cut(0)))

    for layer in range(layers):
        at = f"layers.{layer}."
        yield dense(at + "q_a_proj", Q_RANK, HIDDEN)
        yield dense(at + "q_b_proj", HEADS * (NOPE + ROPE), Q_RANK, row_heads(NOPE + ROPE, HEADS))
        yield dense(at + "kv_a_proj", KV_RANK + ROPE, HIDDEN)
        yield dense(at + "kv_b_proj", HEADS * (NOPE + VALUE), KV_RANK, row_heads(NOPE + VALUE, HEADS))
        yield dense(at + "o_proj", HIDDEN, HEADS * VALUE)
        width = DENSE_FFN if layer < DENSE_LAYERS else EXPERT_FFN  # the latter is the shared expert
        yield dense(at + "gate_proj", width, HIDDEN)
        yield dense(at + "up_proj", width, HIDDEN)
        yield dense(at + "down_proj", HIDDEN, width)
        if layer >= DENSE_LAYERS:
            yield experts(at + "experts.gate_up_proj", 2 * EXPERT_FFN, HIDDEN, gate_up(EXPERT_FFN))
            yield experts(at + "experts.down_proj", HIDDEN, EXPERT_FFN, Units())


def meshes(ranks: int, shard: int = SHARD) -> list[MeshLayout]:
    return [
        MeshLayout.of_world((ranks // shard, shard), ("replicate", "shard")),
        MeshLayout.of_world((1, ranks // EXPERT_PARALLEL, EXPERT_PARALLEL), ("replicate", "efsdp", "ep")),
    ]


def by_position(plan: Plan) -> float:
    """Largest load over the mean if each group deals its units out in turn."""
    loads = [0] * plan.world_size
    turn: dict[object, int] = {}
    lanes: dict[object, Lane] = {}
    for bucket in plan.buckets:
        for index in bucket.parameters:
            kind = plan.kinds[index]
            assert kind is not None
            assert bucket.lane.mesh is not None
            if bucket.lane not in lanes:
                lanes[bucket.lane] = lane_of(bucket.lane, bucket.split, plan.meshes[bucket.lane.mesh], kind.select_axes)
            lane = lanes[bucket.lane]
            for cluster in range(lane.num_clusters):
                for info in kind.units:
                    group = lane.ranks(info.select, cluster)
                    at = turn[bucket.lane, info.select, cluster] = turn.get((bucket.lane, info.select, cluster), -1) + 1
                    loads[group[at % len(group)]] += info.cost
    return max(loads) * len(loads) / sum(loads)


def shared(plan: Plan) -> dict[str, float]:
    """What replicas send each other, in GB, by the busiest rank of each exchange."""
    found = dict.fromkeys(("mean", "one", "two", "chosen", "two_hops"), 0.0)
    for bucket in plan.buckets:
        if bucket.split == 1:
            continue
        assert bucket.lane.mesh is not None
        kinds = [kind for kind in (plan.kinds[index] for index in bucket.parameters) if kind is not None]
        lane = lane_of(bucket.lane, bucket.split, plan.meshes[bucket.lane.mesh], kinds[0].select_axes)
        groups = group_sizes(kinds, bucket.owners, lane)
        gb = plan.options.wire_bytes / 1e9
        in_one, in_two = (sum(map(max, zip(*(busiest(sizes, hops) for sizes in groups), strict=True))) for hops in (1, 2))
        found["mean"] += gb * max(map(sum, groups)) * (1 - 1 / bucket.split)
        found["one"] += gb * in_one
        found["two"] += gb * in_two
        found["chosen"] += gb * (in_one, in_two)[bucket.share_hops - 1]
        found["two_hops"] += bucket.share_hops == 2
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four layers at 256 ranks: checks that it runs")
    quick = parser.parse_args(arguments).quick
    rows = []
    for ranks, shard in ((256, SHARD),) if quick else ((256, SHARD), (512, SHARD), (512, 32), (512, 8), (1024, SHARD)):
        start = time.perf_counter()
        parameters = list(kimi_k2(4 if quick else LAYERS))
        plan = make_plan(parameters, meshes(ranks, shard), ranks, MuonOptions(replica_split=ranks))
        planned = time.perf_counter()
        part = rank_plan(plan, ranks - 1)
        parted = time.perf_counter()
        mean = sum(plan.loads) / ranks
        largest = max(kind.max_cost for kind in plan.kinds if kind is not None)
        rows.append(
            {
                "ranks": ranks, "shard": shard, "max_over_mean": plan.max_over_mean,
                "by_position": by_position(plan), "largest_over_mean": largest / mean,
                "pflop": sum(plan.loads) / 1e15, "buckets": len(plan.buckets), "gb_per_rank": part.sent_bytes / 1e9,
                "plan_s": planned - start, "part_s": parted - planned,
                **{f"shared_{key}" if key == "two_hops" else f"shared_{key}_gb": value for key, value in shared(plan).items()},
            }
        )  # fmt: skip
    keys = ("max_over_mean", "by_position", "largest_over_mean", "plan_s", "shared_mean_gb", "shared_one_gb", "shared_chosen_gb")
    result = {key: {f"{row['ranks']} shard {row['shard']}": row[key] for row in rows} for key in keys}
    report("muon_balance", rows, {**result, "quick": quick})


if __name__ == "__main__":
    main()
