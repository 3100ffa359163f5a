"""Pieces, bytes and owners against hand-made figures for Kimi K2 on H100 nodes of eight."""

import pytest

from etude.errors import UserError
from etude.plan.config import DenseDegrees, ExpertDegrees
from etude.plan.cost import link_seconds
from etude.plan.layout import Layout, by_tier, check_layout, cut_share, local_shape, local_size, mesh_work, owner_loads, whole_experts
from etude.plan.search import price
from etude.plan.shapes import bill, parameters
from tests.unit.plan import models


@pytest.fixture(scope="module")
def kimi_bill():
    config = models.kimi()
    return bill(parameters(config.model, config.optimizer))


def dense_work(kimi_bill, config, replicate, shard, split):
    layout = Layout(DenseDegrees(replicate=replicate, shard=shard, split=split), None)
    return mesh_work(kimi_bill, layout, config.optimizer, config.cluster, experts=False)


def expert_work(kimi_bill, config, replicate, efsdp, ep, split=1):
    layout = Layout(
        DenseDegrees(replicate=1, shard=config.cluster.ranks), ExpertDegrees(replicate=replicate, efsdp=efsdp, ep=ep, split=split)
    )
    return mesh_work(kimi_bill, layout, config.optimizer, config.cluster, experts=True)


@pytest.mark.parametrize("size", [1, 7, 8, 18, 576])
@pytest.mark.parametrize("ranks", [1, 3, 8, 512])
def test_chunks_are_ceil_sized_and_add_up(size, ranks):
    pieces = [local_size(size, ranks, rank) for rank in range(ranks)]
    assert sum(pieces) == size
    assert pieces[0] == max(pieces) == -(-size // ranks)
    assert pieces == sorted(pieces, reverse=True)


def test_pieces_of_cut_and_of_whole_experts():
    of = {one.role: one for one in parameters(models.kimi().model)}
    up, down = of["experts.gate_up_proj"], of["experts.down_proj"]
    dense = DenseDegrees(replicate=64, shard=8)
    cut = Layout(dense, ExpertDegrees(replicate=1, efsdp=64, ep=8))
    assert local_shape(up, cut) == (48, 64, 7168)
    assert local_shape(down, cut) == (48, 112, 2048)
    whole = Layout(dense, ExpertDegrees(replicate=4, efsdp=16, ep=8))
    assert local_shape(up, whole) == (3, 4096, 7168)
    assert local_shape(of["kv_a_proj_with_mqa"], Layout(DenseDegrees(replicate=1, shard=512), None)) == (2, 7168)
    assert local_shape(of["kv_a_proj_with_mqa"], Layout(DenseDegrees(replicate=1, shard=512), None), rank=288) == (0, 7168)


def test_a_share_of_units_is_cut():
    assert cut_share(64 * 192, 192, True, 8) == 0.0  # eight heads on each rank
    assert cut_share(64 * 192, 192, True, 128) == 1.0  # half a head
    assert cut_share(7168, 7168, True, 8) == 1.0
    assert cut_share(7168, 7168, False, 1) == 0.0
    assert cut_share(12, 4, True, 2) == pytest.approx(1 / 3)  # rows 0-5 and 6-11 cut the unit 4-7
    assert cut_share(7168, 7168, False, 8) == 1.0  # columns of a head run through every rank


def test_bytes_by_tier():
    assert by_tier(80.0, 1, 8, 8) == {"intra": 70.0, "inter": 0.0}
    assert by_tier(64.0, 8, 64, 8) == {"intra": 0.0, "inter": 63.0}
    assert by_tier(64.0, 1, 64, 8) == {"intra": 7.0, "inter": 56.0}
    assert by_tier(64.0, 4, 16, 8) == {"intra": 4.0, "inter": 56.0}
    assert by_tier(64.0, 512, 1, 8) == {"intra": 0.0, "inter": 0.0}


@pytest.mark.parametrize(("efsdp", "ep", "gigabytes", "milliseconds"), [(8, 64, 3.47, 139), (64, 8, 3.90, 156)])
def test_cut_experts_on_512_ranks(kimi_bill, efsdp, ep, gigabytes, milliseconds):
    config = models.kimi(512)
    work = expert_work(kimi_bill, config, 1, efsdp, ep)
    assert work.leg_bytes["inter"] / 1e9 == pytest.approx(gigabytes, abs=0.005)
    assert work.leg_bytes["intra"] == 0
    assert 2e3 * work.leg_bytes["inter"] / config.cluster.inter_bytes_per_s == pytest.approx(milliseconds, abs=0.5)
    latencies = work.leg_launches * (20e-6 + (efsdp - 1) * 1e-6)
    assert link_seconds(work, "inter", config.cluster) == pytest.approx(2 * work.leg_busiest["inter"] / 50e9 + latencies)
    # 192 or 240 equal matrices in a bucket: nearly one more than the mean for the busiest of 64 or 8 owners
    assert 1.15 < work.leg_busiest["inter"] / work.leg_bytes["inter"] < 1.35


def test_whole_experts_send_nothing_but_share_more_than_cutting_costs(kimi_bill):
    config = models.kimi(512)
    whole = expert_work(kimi_bill, config, 4, 16, 8)
    assert whole.leg_bytes == whole.share_bytes == {"intra": 0, "inter": 0}
    assert whole.flops == pytest.approx(4 * expert_work(kimi_bill, config, 1, 64, 8).flops)  # redundant on four replicas
    split = expert_work(kimi_bill, config, 4, 16, 8, split=4)
    assert split.share_bytes["inter"] / 1e9 == pytest.approx(11.9, abs=0.05)
    assert 1e3 * split.share_bytes["inter"] / config.cluster.inter_bytes_per_s == pytest.approx(238, abs=0.5)


@pytest.mark.parametrize(("split", "compute_ms", "share_ms"), [(1, 203, 0), (2, 102, 23), (4, 51, 35), (8, 25, 41), (64, 3, 46)])
def test_narrow_dense_mesh_splits_its_work_over_replicas(kimi_bill, split, compute_ms, share_ms):
    config = models.kimi(512)
    work = dense_work(kimi_bill, config, 64, 8, split)
    assert 1e3 * work.flops / (0.6 * 989e12) == pytest.approx(compute_ms, abs=0.6)
    assert 1e3 * work.share_bytes["inter"] / 50e9 == pytest.approx(share_ms, abs=0.6)
    assert work.leg_bytes["inter"] == 0


@pytest.mark.parametrize(("split", "compute_ms", "share_ms"), [(1, 25, 0), (8, 3, 5)])
def test_a_dense_mesh_of_one_rack_hardly_needs_the_split(kimi_bill, split, compute_ms, share_ms):
    work = dense_work(kimi_bill, models.kimi(512), 8, 64, split)
    assert 1e3 * work.flops / (0.6 * 989e12) == pytest.approx(compute_ms, abs=0.6)
    assert 1e3 * work.share_bytes["inter"] / 50e9 == pytest.approx(share_ms, abs=0.6)


def test_the_longest_matrix_is_the_dense_feed_forward(kimi_bill):
    work = dense_work(kimi_bill, models.kimi(512), 1, 512, 1)
    assert work.largest_flops == pytest.approx(2.26e13, rel=0.002)
    assert 1e3 * work.largest_flops / (0.6 * 989e12) == pytest.approx(38, abs=0.5)


@pytest.mark.parametrize(
    ("dense", "expert", "says"),
    [
        ({"replicate": 3, "shard": 8}, None, "24 ranks (dense replicate 3 x shard 8 x cp 1 = 24) and the cluster 64"),
        ({"replicate": 0, "shard": 8}, None, "degree replicate is 0"),
        ({"replicate": 8, "shard": 8, "split": 3}, None, "dense.split is 3"),
        ({"replicate": 8, "shard": 8}, {"replicate": 2, "efsdp": 4, "ep": 4}, "expert expert_replicate 2 x efsdp 4 x ep 4 = 32"),
        ({"replicate": 8, "shard": 8}, {"replicate": 4, "efsdp": 1, "ep": 16}, "ep = 16 does not divide the model's 8 experts"),
        ({"replicate": 8, "shard": 8}, {"replicate": 1, "efsdp": 8, "ep": 8, "split": 2}, "expert.split is 2"),
    ],
)
def test_degrees_that_do_not_fit_are_named(dense, expert, says):
    layout = Layout(DenseDegrees(**dense), ExpertDegrees(**expert) if expert else None)
    with pytest.raises(UserError) as caught:
        check_layout(layout, models.TINY_MOE, 64)
    assert says in str(caught.value)


def test_experts_that_would_be_cut_unevenly_are_refused():
    layout = Layout(DenseDegrees(replicate=1, shard=768), ExpertDegrees(replicate=1, efsdp=768, ep=1))
    with pytest.raises(UserError, match=r"expert\.efsdp is 768"):
        check_layout(layout, models.TINY_MOE, 768)


def test_every_unit_has_one_owner_and_loads_are_even(kimi_bill):
    config = models.kimi(512)
    every = sum(one for one in total_flops_of(kimi_bill))
    for dense, expert in (((1, 512, 1), (1, 64, 8, 1)), ((64, 8, 64), (1, 8, 64, 1)), ((8, 64, 8), (1, 16, 32, 1))):
        layout = Layout(
            DenseDegrees(replicate=dense[0], shard=dense[1], split=dense[2]),
            ExpertDegrees(replicate=expert[0], efsdp=expert[1], ep=expert[2], split=expert[3]),
        )
        loads = owner_loads(kimi_bill, layout, config.optimizer)
        assert sum(loads) == every
        # the formula of the search is what dealing every unit out gives, up to one expert matrix
        formula = price(layout, kimi_bill, config).time.imbalance
        assert max(loads) * len(loads) / every == pytest.approx(formula, abs=0.01)


def total_flops_of(kimi_bill):
    from etude.plan.cost import unit_flops

    return [count * one.num_units * unit_flops(*one.unit, "standard") for one, count in kimi_bill.groups if one.unit]


def test_redundant_replicas_repeat_the_load(kimi_bill):
    config = models.kimi(512)
    once = owner_loads(kimi_bill, Layout(DenseDegrees(replicate=1, shard=512), None), config.optimizer)
    again = owner_loads(kimi_bill, Layout(DenseDegrees(replicate=64, shard=8), None), config.optimizer)
    assert len(again) == 8
    assert sum(again) == sum(once)


def test_whole_experts_stay_with_their_holder(kimi_bill):
    config = models.kimi(128)
    layout = Layout(DenseDegrees(replicate=1, shard=128), ExpertDegrees(replicate=1, efsdp=16, ep=8))
    assert whole_experts(384, layout.expert)
    loads = owner_loads(kimi_bill, layout, config.optimizer)
    experts = 3 * 60 * 3 * 687194767360  # three experts of three matrices in sixty layers on every rank
    assert min(loads) >= experts
    assert max(loads) >= experts + 22.6e12  # nobody can take experts from the rank with a dense feed-forward matrix
