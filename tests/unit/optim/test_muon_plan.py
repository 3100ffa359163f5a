"""The plan of a world: every unit owned once, every exchange agreed on by both ends, loads level, order the same everywhere."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from etude.optim.muon_config import MuonOptions
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout
from etude.optim.muon_plan import Plan, launch_order, make_plan
from etude.optim.muon_rank import RankPlan, rank_plan
from etude.optim.units import gate_up, row_heads

DENSE = MeshLayout.of_world((2, 4), ("replicate", "shard"))
EXPERT = MeshLayout.of_world((2, 2, 2), ("replicate", "efsdp", "ep"))
WORLD = 8
PARAMETERS = [
    ParameterLayout("q", (30, 12), units=row_heads(6, 5), mesh=0, placements=(None, Cut(0))),
    ParameterLayout("o", (12, 30), mesh=0, placements=(None, Cut(0))),
    ParameterLayout("norm", (12,), algorithm="adamw", mesh=0, placements=(None, Cut(0))),
    ParameterLayout("experts", (5, 16, 12), units=gate_up(8), mesh=1, placements=(None, Cut(1), Cut(0))),
    ParameterLayout("whole", (6, 8, 4), mesh=1, placements=(None, Cut(0, 2), Cut(0))),
    ParameterLayout("plain", (4, 4)),
    *(ParameterLayout(f"up{i}", (9, 7), mesh=0, placements=(None, Cut(1))) for i in range(6)),
]  # fmt: skip
OPTIONS = [
    MuonOptions(replica_split="off"),
    MuonOptions(replica_split=2, bucket_bytes=1),
    MuonOptions(replica_split=2, bucket_bytes=1, share_hops=2),
    MuonOptions(replica_split="auto", bucket_bytes=100, max_inflight=2),
]


def parts_of(plan: Plan) -> list[RankPlan]:
    return [rank_plan(plan, rank) for rank in range(plan.world_size)]


@pytest.mark.parametrize("options", OPTIONS)
def test_both_ends_of_every_exchange_agree(options: MuonOptions) -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, options)
    parts = parts_of(plan)
    for index, _bucket in enumerate(plan.buckets):
        mine = [part.buckets[index] for part in parts]
        for rank, bucket in enumerate(mine):
            assert rank in bucket.cut_ranks
            assert bucket.share_ranks[bucket.my_share] == rank
            place = bucket.cut_ranks.index(rank)
            assert [mine[other].recv_splits[place] for other in bucket.cut_ranks] == list(bucket.send_splits)
            assert [mine[other].share_sizes[other_place] for other_place, other in enumerate(bucket.share_ranks)] == list(
                bucket.share_sizes
            )
            for hop, (sent, _) in enumerate(bucket.share_splits):
                assert [mine[other].share_splits[hop][1][bucket.my_share] for other in bucket.share_ranks] == list(sent)


def test_replicas_that_share_work_send_each_other_what_they_own_and_no_more() -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, OPTIONS[1])
    parts = parts_of(plan)
    shared = [
        kind.sharding.box(plan.meshes[parameter.mesh].coordinates[part.rank])
        for part in parts
        for kind, parameter in zip(plan.kinds, plan.parameters, strict=True)
        if kind is not None and parameter.mesh is not None
    ]
    owned_once = sum(math.prod(hi - lo for lo, hi in box) for box in shared) // 2
    shares = [collective for part in parts for collective in part.collectives if collective.kind == "share"]
    assert sum(share.sent_bytes for share in shares) == sum(share.received_bytes for share in shares) == 2 * owned_once
    assert {share.sent_bytes for share in shares} > {0}  # some own nothing of a bucket, and then send nothing


def test_large_units_fall_to_different_replicas() -> None:
    """Two matrices on eight ranks with equal loads: an owner in either replica, so that neither replica sends for both."""
    layout = [ParameterLayout(f"w{i}", (16, 8), mesh=0, placements=(None, Cut(0))) for i in range(2)]
    plan = make_plan(layout, [DENSE], WORLD, MuonOptions(replica_split=2))
    (bucket,) = plan.buckets
    assert [part.buckets[bucket.index].share_sizes for part in parts_of(plan)] == [(32, 32)] * WORLD


@pytest.mark.parametrize("options", OPTIONS)
def test_every_unit_has_one_owner_per_group_of_sharing_replicas(options: MuonOptions) -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, options)
    owners = Counter((owned.parameter, owned.unit) for part in parts_of(plan) for bucket in part.buckets for owned in bucket.owned)
    for bucket in plan.buckets:
        for index in bucket.parameters:
            parameter = plan.parameters[index]
            times = WORLD if parameter.mesh is None else 2 // bucket.split
            for unit in range(parameter.units.count(parameter.shape)):
                assert owners[index, unit] == times, parameter.name


@pytest.mark.parametrize("options", OPTIONS)
def test_pieces_cover_each_shard_and_fragments_each_owned_unit_exactly(options: MuonOptions) -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, options)
    for part in parts_of(plan):
        for bucket in part.buckets:
            for index in bucket.parameters:
                kind, parameter = plan.kinds[index], plan.parameters[index]
                assert kind is not None
                at = () if parameter.mesh is None else plan.meshes[parameter.mesh].coordinates[part.rank]
                shard = math.prod(hi - lo for lo, hi in kind.sharding.box(at))
                pieces = [piece for group in bucket.pieces for piece in group if piece.parameter == index]
                assert sum(piece.numel for piece in pieces) == shard
                assert len({piece.box for piece in pieces}) == len(pieces)
            for owned in bucket.owned:
                assert sum(fragment.numel for fragment in owned.fragments) == math.prod(owned.shape)
            offsets = sorted((f.offset, f.numel) for owned in bucket.owned for f in owned.fragments)
            assert all(a + n == b for (a, n), (b, _) in pairwise(offsets))


def test_loads_are_the_flops_that_ranks_do() -> None:
    for options in OPTIONS:
        plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, options)
        assert [part.flops for part in parts_of(plan)] == list(plan.loads)


def test_owners_are_chosen_by_load_over_both_meshes() -> None:
    """Three big dense matrices land on three ranks; the experts' equal ones then fill the others up."""
    dense = [ParameterLayout(f"d{i}", (64, 64), mesh=0, placements=(None, Cut(0))) for i in range(3)]
    experts = [ParameterLayout(f"e{i}", (2, 16, 16), mesh=1, placements=(None, Cut(1), Cut(0))) for i in range(192)]
    options = MuonOptions(replica_split=2)
    together = make_plan([*dense, *experts], [DENSE, EXPERT], WORLD, options)
    alone = make_plan(dense, [DENSE, EXPERT], WORLD, options).max_over_mean
    assert alone == pytest.approx(8 / 3)
    assert together.max_over_mean < 1.02 * max(1.0, max(together.loads) / (sum(together.loads) / WORLD))
    assert max(together.loads) - min(together.loads) <= 64**3 * 30 - 2 * 16**3 * 30


def test_units_that_nobody_shares_stay_where_they_are() -> None:
    plan = make_plan([ParameterLayout("e", (4, 8, 8), mesh=1, placements=(None, Cut(0, 2), Cut(0)))], [DENSE, EXPERT], WORLD, OPTIONS[0])
    assert plan.launches == ()
    assert all(part.sent_bytes == 0 and part.collectives == () for part in parts_of(plan))
    assert plan.max_over_mean == 1.0


def test_equal_loads_prefer_the_rank_that_holds_more() -> None:
    """Rows 0..3 of a unit of 5 lie on shard 1 of 4, one row on shard 0: at equal load shard 1 owns it."""
    units = replace(row_heads(1, 1), rows=(2, 5, 5))
    plan = make_plan([ParameterLayout("w", (12, 9), units=units, mesh=0, placements=(None, Cut(0)))], [DENSE], WORLD, OPTIONS[0])
    second = [part.rank for part in parts_of(plan) for owned in part.buckets[0].owned if owned.unit == 1]
    assert second == [1, 5]


def test_replicas_share_where_the_link_is_cheaper_than_the_work() -> None:
    layout = [ParameterLayout("w", (512, 512), mesh=0, placements=(None, Cut(0)))]
    fast = MuonOptions(flops_per_s=1e12, link_bytes_per_s=1e12)
    slow = MuonOptions(flops_per_s=1e12, link_bytes_per_s=1e6)
    assert make_plan(layout, [DENSE], WORLD, fast).buckets[0].split == 2
    assert make_plan(layout, [DENSE], WORLD, slow).buckets[0].split == 1
    assert make_plan(layout, [DENSE], WORLD, MuonOptions(replica_split=7)).buckets[0].split == 2


def test_buckets_keep_to_their_size_and_big_units_go_first() -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, MuonOptions(bucket_bytes=60, replica_split="off"))
    costs = []
    for bucket in plan.buckets:
        kinds = [plan.kinds[i] for i in bucket.parameters]
        costs.append(max(kind.max_cost for kind in kinds if kind is not None))
        if len(bucket.parameters) > 1 and bucket.lane.mesh == 0:
            assert sum(math.prod(plan.parameters[i].shape) for i in bucket.parameters) // 4 * 2 <= 60
    assert costs == sorted(costs, reverse=True)


def test_the_digest_tells_plans_apart() -> None:
    plan = make_plan(PARAMETERS, [DENSE, EXPERT], WORLD)
    assert plan.digest == make_plan(PARAMETERS, [DENSE, EXPERT], WORLD).digest
    other = [replace(PARAMETERS[0], units=row_heads(10, 3)), *PARAMETERS[1:]]
    assert plan.digest != make_plan(other, [DENSE, EXPERT], WORLD).digest
    assert plan.digest != make_plan(PARAMETERS, [DENSE, EXPERT], WORLD, MuonOptions(max_inflight=3)).digest


def test_one_parameter_that_cannot_be_planned_is_named() -> None:
    with pytest.raises(ValueError, match=r"q \(31, 12\): rows blocks 5 blocks of 6..6 add up to 30, not 31"):
        make_plan([replace(PARAMETERS[0], shape=(31, 12))], [DENSE], WORLD)
    with pytest.raises(ValueError, match="x: strided shard of dim 0 with split factor 3"):
        make_plan([ParameterLayout("x", (12, 4), mesh=0, placements=(Cut(0, 3), Cut(0)))], [DENSE], WORLD)


@pytest.mark.parametrize("max_inflight", [1, 2, 4])
def test_every_task_advances_once_per_launch_and_once_to_finish_within_the_window(max_inflight: int) -> None:
    launches = [2, 3, 1, 2, 3, 2, 1]
    order = launch_order(launches, max_inflight)
    assert Counter(order) == {task: n + 1 for task, n in enumerate(launches)}
    live: Counter[int] = Counter()
    for task in order:
        live[task] += 1
        if live[task] == launches[task] + 1:
            del live[task]
        assert len(live) <= max_inflight


def test_the_way_in_of_later_buckets_is_launched_before_the_first_is_computed() -> None:
    assert launch_order([2, 2, 2], 1) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert launch_order([2, 2, 2, 2], 2) == [0, 1, 0, 1, 0, 2, 2, 1, 3, 3, 2, 3]
