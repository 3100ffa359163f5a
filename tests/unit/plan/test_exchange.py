"""What the busiest rank of an exchange sends, against dealing units out one by one."""

import pytest

from etude.optim.muon_share import busiest
from etude.plan.config import Optimizer
from etude.plan.exchange import Ring, Travelling, exchanges, fill, most, share

MATRIX = Travelling(count=10, cost=1000, unit_bytes=6400, units=1, cut=1.0, rank_bytes=800)


def ring(shards=8, split=8, **others):
    return Ring(**{"shards": shards, "split": split, "rivals": 0, "busy": 0.0, "bytes_per_s": 1e9, "launch_s": 0.0} | others)


def dealt(sizes, places):
    full = [0.0] * places
    for size, number in sizes:
        for _ in range(int(number)):
            full[full.index(min(full))] += size
    return max(full)


@pytest.mark.parametrize("sizes", [[(7, 1)], [(7, 9)], [(7, 16), (3, 5)], [(9, 3), (4, 20), (1, 50)], [(5, 2), (1, 3)]])
@pytest.mark.parametrize("places", [1, 3, 8])
def test_the_fullest_place_is_never_underestimated(sizes, places):
    exact = dealt(sizes, places)
    assert exact <= most(sizes, places) <= exact + sizes[-1][0]


def test_places_that_are_busy_leave_more_to_the_others():
    assert most([(1, 12)], 4) == 3
    assert most([(1, 12)], 4, rivals=1, busy=1.0) == 4
    assert most([(1, 12)], 4, rivals=3, busy=1.0) == 12
    assert 3 < most([(1, 12)], 4, rivals=1, busy=0.25) < 4


def test_buckets_hold_every_parameter_once_and_keep_to_their_size():
    small = Travelling(count=7, cost=10, unit_bytes=80, units=1, cut=1.0, rank_bytes=10)
    big = Travelling(count=2, cost=2000, unit_bytes=99999, units=1, cut=1.0, rank_bytes=5000)
    buckets = list(fill([small, MATRIX, big], 2500))
    assert [[(one.rank_bytes, one.count) for one in bucket] for bucket, _ in buckets] == [
        [(5000, 1)], [(5000, 1)], [(800, 3)], [(800, 1), (10, 7)],
    ]  # fmt: skip
    assert [times for _, times in buckets] == [1, 1, 3, 1]


def test_one_owner_of_a_bucket_spreads_before_it_delivers_unless_launches_are_dear():
    bucket = [Travelling(count=1, cost=1, unit_bytes=6400, units=1, cut=1.0, rank_bytes=800)]
    assert share(bucket, ring(), True) == busiest([800, *[0] * 7], 2) == (700, 700)
    assert share(bucket, ring(launch_s=1.0), True) == busiest([800, *[0] * 7], 1) == (5600,)


def test_whole_experts_have_no_legs_and_nothing_is_exchanged_without_sharing():
    whole = [Travelling(count=4, cost=1, unit_bytes=100, units=16, cut=0.0, rank_bytes=200)]
    alone = exchanges(whole, ring(split=1), Optimizer())
    assert (alone.leg_bytes, alone.share_bytes, alone.buckets) == (0, 0, 0)
    shared = exchanges(whole, ring(split=2), Optimizer())
    assert (shared.leg_bytes, shared.share_bytes, shared.share_launches) == (0, 400, 1)  # 8 matrices on each shard, 4 of them here
    cut = exchanges([MATRIX], ring(shards=4, split=1), Optimizer())
    assert (cut.leg_bytes, cut.leg_launches) == (3 * 6400 * 3 / 4, 2)  # 10 matrices on 4 owners
