"""One exchange among replicas or two: both ends agree, everything arrives, and the cheaper one is chosen."""

import pytest

from etude.optim.muon_config import MuonOptions
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout
from etude.optim.muon_plan import make_plan
from etude.optim.muon_rank import rank_plan
from etude.optim.muon_share import busiest, choose_hops, share_seconds, share_splits

SIZES = [(5, 0, 17, 3), (12, 12, 12), (1, 0, 0, 0, 0), (0, 0), (7, 9), (640, *[0] * 63)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("hops", [1, 2])
def test_both_ends_agree_and_each_place_gets_what_all_others_bring(sizes, hops):
    places = range(len(sizes))
    plans = [share_splits(sizes, place, hops) for place in places]
    for hop in range(hops):
        for i in places:
            assert [plans[p][hop][1][i] for p in places] == list(plans[i][hop][0])
    peaks = [0] * hops
    for place in places:
        arrived = [sum(received) - received[place] for _, received in plans[place]]
        missing = sum(sizes) - sizes[place]
        assert missing <= sum(arrived) < missing + len(sizes) ** 2  # padded
        sent = [sum(out) - out[place] for out, _ in plans[place]]
        peaks = [max(old, one, two) for old, one, two in zip(peaks, sent, arrived, strict=True)]
    assert tuple(peaks) == busiest(sizes, hops)


def test_without_sharing_there_is_no_exchange():
    assert share_splits((9,), 0, 0) == ()
    assert choose_hops([], 1, MuonOptions(share_hops=2)) == 0


def test_two_hops_send_the_largest_share_once_and_the_rest_as_a_mean_rank():
    """64 replicas of which one owns everything: 63 times its share in one exchange, less than twice in two."""
    alone = (64_000, *[0] * 63)
    assert busiest(alone, 1) == (63 * 64_000,)
    assert busiest(alone, 2) == (63_000, 63_000)
    assert busiest((6400,) * 64, 1) == (63 * 6400,)
    assert sum(busiest((6400,) * 64, 2)) == 63 * 6400  # nothing is sent twice


def test_the_shorter_of_one_and_two_exchanges_is_chosen_launches_included():
    options = MuonOptions()
    mib = 1 << 20
    assert choose_hops([(mib, mib)], 2, options) == 1  # of two replicas neither can pass on for the other
    assert choose_hops([(mib,) * 16], 16, options) == 1
    assert choose_hops([(mib, *[0] * 15)], 16, options) == 2
    assert choose_hops([(mib // 4,) * 16, (mib, *[0] * 15)], 16, options) == 2  # the slowest group decides for all
    small = [(1000, *[0] * 15)]
    assert share_seconds(small, 16, 1, options) < share_seconds(small, 16, 2, options)
    assert choose_hops(small, 16, options) == 1
    assert choose_hops(small, 16, MuonOptions(launch_s=0, message_s=0)) == 2
    assert choose_hops(small, 16, MuonOptions(share_hops=2)) == 2
    assert choose_hops([(mib, *[0] * 15)], 16, MuonOptions(share_hops=1)) == 1


def test_a_time_is_bytes_over_the_link_and_a_launch_with_its_messages():
    options = MuonOptions(link_bytes_per_s=100.0, launch_s=1.0, message_s=0.25)
    assert share_seconds([(50, 0, 0)], 3, 1, options) == pytest.approx(2 * 100 / 100 + 1.5)
    assert share_seconds([(51, 0, 0)], 3, 2, options) == pytest.approx(2 * (34 + 34) / 100 + 3.0)


def test_other_numbers_of_exchanges_are_refused():
    with pytest.raises(ValueError, match="share_hops 3: allowed are auto, 1 and 2"):
        MuonOptions(share_hops=3)


@pytest.mark.parametrize(("shapes", "hops"), [([(4097, 4096)], 2), ([(257, 4096)] * 16, 1), ([(4097, 4096), *[(257, 4096)] * 16], 2)])
def test_a_plan_decides_by_the_shares_that_its_ranks_have(shapes, hops):
    """Eight replicas of two shards that differ by a row: one large matrix goes in two exchanges, sixteen equal ones in one."""
    mesh = MeshLayout.of_world((8, 2), ("replicate", "shard"))
    layout = [ParameterLayout(f"w{i}", shape, mesh=0, placements=(None, Cut(0))) for i, shape in enumerate(shapes)]
    plan = make_plan(layout, [mesh], 16, MuonOptions(replica_split=8))
    (bucket,) = plan.buckets
    sizes = {rank_plan(plan, rank).buckets[0].share_sizes for rank in range(16)}
    assert len(sizes) == 2
    assert choose_hops(sorted(sizes), 8, plan.options) == bucket.share_hops == hops
