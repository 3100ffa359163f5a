"""FLOPs and times against figures that were derived or measured without this code."""

import pytest

from etude.plan.config import CHIPS, Optimizer
from etude.plan.cost import (
    MeshTime,
    breaking_efficiency,
    busiest_flops,
    limit,
    overlapped_seconds,
    ranks_for,
    step_time,
    unit_flops,
)
from etude.plan.report import make_report, total_flops
from etude.plan.shapes import bill, parameters
from tests.unit.plan import models

EXPERT = (2048, 7168)


@pytest.fixture(scope="module")
def kimi_report():
    return make_report(models.kimi(512))


@pytest.mark.parametrize(("variant", "tera"), [("standard", 0.687), ("symmetric", 0.494), ("gram", 0.481), ("gram-symmetric", 0.301)])
def test_one_expert_costs_what_counting_its_products_gives(variant, tera):
    assert unit_flops(*EXPERT, variant) / 1e12 == pytest.approx(tera, abs=0.0006)
    assert unit_flops(7168, 2048, variant) == unit_flops(*EXPERT, variant)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_flops_are_those_of_the_products_written_out(steps):
    m, n = 3, 7
    standard = sum([2 * m * n * m + 2 * m * m * m + 2 * m * m * n for _ in range(steps)])
    assert unit_flops(m, n, "standard", steps) == standard
    half = sum([m * n * m + m * m * m + 2 * m * m * n for _ in range(steps)])
    assert unit_flops(m, n, "symmetric", steps) == half
    gram, gram_half = 0, 0
    for length in [steps] if steps <= 2 else [2, steps - 2]:
        gram += 2 * m * m * n + 2 * m * m * n  # the Gram matrix, and the accumulated factor times X
        gram_half += m * m * n + 2 * m * m * n
        for step in range(length):
            products = 1  # the square of the Gram matrix
            products += step > 0  # accumulate; the first factor is taken as it is
            products += 2 * (step < length - 1)  # the next Gram matrix: factor on either side
            gram += products * 2 * m**3
            gram_half += products * m**3
    assert unit_flops(m, n, "gram", steps) == gram
    assert unit_flops(m, n, "gram-symmetric", steps) == gram_half


def test_a_square_matrix_gains_nothing_from_gram():
    assert unit_flops(64, 64, "gram") == unit_flops(64, 64, "standard")
    assert unit_flops(64, 64, "gram-symmetric") == unit_flops(64, 64, "symmetric")


@pytest.mark.parametrize(
    ("variant", "peta", "dense_peta"),
    [("standard", 48.46, 0.965), ("symmetric", 34.80, 0.660), ("gram", 34.25, 0.997), ("gram-symmetric", 21.35, 0.569)],
)
def test_kimi_step_in_petaflops(kimi_report, variant, peta, dense_peta):
    assert kimi_report.flops[variant] / 1e15 == pytest.approx(peta, abs=0.005)
    dense = sum(row.flops[variant] for row in kimi_report.units if row.kind != "routed expert")
    assert dense / 1e15 == pytest.approx(dense_peta, abs=0.0006)


def test_the_output_projection_is_three_quarters_of_the_dense_work(kimi_report):
    (row,) = [row for row in kimi_report.units if row.role == "o_proj"]
    assert row.flops["standard"] / 1e15 == pytest.approx(0.738, abs=0.0005)
    by_head = bill(parameters(kimi_report.config.model, Optimizer(output_head_units=True, router="muon")))
    flops = total_flops(by_head, 5)
    experts = sum(row.flops["standard"] for row in kimi_report.units if row.kind == "routed expert")
    assert (flops["standard"] - experts) / 1e15 == pytest.approx(0.236, abs=0.0005)


@pytest.mark.parametrize(
    ("chip", "variant", "at_40_50_60_70"),
    [
        ("h100", "standard", (613, 490, 408, 350)),
        ("h100", "gram-symmetric", (270, 216, 180, 154)),
        ("gb200", "standard", (242, 194, 162, 138)),
        ("gb200", "gram-symmetric", (107, 85, 71, 61)),
    ],
)
def test_ranks_for_a_fifth_of_a_second(kimi_report, chip, variant, at_40_50_60_70):
    for efficiency, ranks in zip((0.4, 0.5, 0.6, 0.7), at_40_50_60_70, strict=True):
        # the reference rounds to the nearest or down, a machine must be whole
        assert ranks_for(kimi_report.flops[variant], CHIPS[chip], efficiency, 0.2) - ranks in (0, 1)


# ranks: Newton-Schulz standard and gram-symmetric on H100, the same on GB200, shares of peak for 0.2 s, GB a leg, links, HBM; milliseconds
SCALE = {
    256: (319, 141, 126, 56, (0.96, 0.42, 0.38), 8.0, 320, 36, 29),
    512: (160, 70, 63, 28, (0.48, 0.21, 0.19), 4.0, 160, 18, 14),
    1024: (80, 35, 32, 14, (0.24, 0.11, 0.09), 2.0, 80, 9, 7),
    2048: (40, 18, 16, 7, (0.12, 0.05, 0.05), 1.0, 40, 4, 4),
}


@pytest.mark.parametrize("ranks", SCALE)
def test_the_scale_table(kimi_report, ranks):
    std, gram, gb_std, gb_gram, shares, leg, inter, intra, hbm = SCALE[ranks]
    h100, gb200 = (next(row for row in chip.scale if row.ranks == ranks) for chip in kimi_report.chips)
    assert round(1e3 * h100.newton_schulz_s["standard"]) == pytest.approx(std, abs=1)
    assert round(1e3 * h100.newton_schulz_s["gram-symmetric"]) == gram
    assert round(1e3 * gb200.newton_schulz_s["standard"]) == gb_std
    assert round(1e3 * gb200.newton_schulz_s["gram-symmetric"]) == gb_gram
    needed = (h100.needed_efficiency["standard"], h100.needed_efficiency["gram-symmetric"], gb200.needed_efficiency["standard"])
    assert needed == pytest.approx(shares, abs=0.005)
    assert h100.leg_bytes / 1e9 == pytest.approx(leg, abs=0.05)
    assert 1e3 * h100.inter_s == pytest.approx(inter, abs=0.6)
    assert 1e3 * h100.intra_s == pytest.approx(intra, abs=0.5)
    assert 1e3 * h100.elementwise_s == pytest.approx(hbm, abs=0.5)


# an emulated first-in-first-out link around real all-to-alls: (compute ms, link ms for both legs, buckets, measured ms)
EMULATED = [(874, 874, 1, 1748), (874, 874, 8, 991), (874, 1748, 1, 2618), (874, 1748, 8, 1751), (874, 437, 1, 1281), (874, 437, 8, 869)]


@pytest.mark.parametrize(("compute", "link", "buckets", "measured"), EMULATED)
def test_times_agree_with_runs_on_an_emulated_link(compute, link, buckets, measured):
    overlapped, serial = limit(compute, [link], link / buckets)
    assert overlapped == pytest.approx(measured, rel=0.1)
    assert serial == pytest.approx(compute + link)
    if buckets == 1:
        assert serial == pytest.approx(measured, rel=0.1)


def times(flops, largest=0.0, *, owners=1, unit_owners=1, elementwise=0.0, intra=0.0, inter=0.0, ramp=0.0):
    links = {"intra": intra, "inter": inter}
    return MeshTime(
        flops=flops, largest_flops=largest, owners=owners, unit_owners=unit_owners, elementwise_s=elementwise, links_s=links, ramp_s=ramp
    )


@pytest.mark.parametrize(
    ("mesh", "binds"),
    [
        (times(4.0, 1.0, inter=1.0), "Newton-Schulz"),
        (times(4.0, 9.0, inter=1.0), "the largest unit"),
        (times(1.0, inter=3.0, intra=2.0), "links between nodes"),
        (times(1.0, inter=2.0, intra=3.0), "links inside a node"),
        (times(1.0, elementwise=2.0), "HBM traffic"),
    ],
)
def test_what_binds_is_the_longest(mesh, binds):
    assert step_time(mesh, None, 1.0).binds == binds


def test_the_search_and_the_step_use_one_formula():
    dense = times(2.0, 3.0, owners=8, unit_owners=8, elementwise=0.5, inter=1.0, ramp=0.1)
    expert = times(5.0, 1.0, owners=16, unit_owners=4, elementwise=0.25, intra=4.0, inter=6.5, ramp=0.2)
    for pair in ((dense, None), (dense, expert), (expert, dense)):
        assert overlapped_seconds(*pair, 1.0) == step_time(*pair, 1.0).overlapped_s


def test_a_large_dense_unit_idles_the_other_owners_of_its_expert_group():
    # 4 owners a group, 10 FLOPs of experts each; one of them also owns a unit of 8, which the four can share out as 2 each
    assert busiest_flops(times(1.0, 8.0, owners=64, unit_owners=64), times(10.0, 1.0, owners=64, unit_owners=4)) == 12.0
    # where two replicas repeat the dense work inside the group, twice that
    assert busiest_flops(times(1.0, 8.0, owners=32, unit_owners=32), times(10.0, 1.0, owners=64, unit_owners=4)) == 14.0
    # with many owners the even share is larger
    assert busiest_flops(times(1.0, 8.0, owners=64, unit_owners=64), times(10.0, 1.0, owners=64, unit_owners=64)) == 11.0


def test_the_breaking_efficiency_gives_just_the_target():
    mesh = times(30.0, elementwise=0.01, inter=0.1, ramp=0.02)
    time = step_time(mesh, None, 0.6 * 500)
    breaks = breaking_efficiency(time, 0.6, 0.2)
    assert step_time(mesh, None, breaks * 500).overlapped_s == pytest.approx(0.2)
    assert breaking_efficiency(step_time(times(1.0, inter=0.3), None, 1.0), 0.6, 0.2) is None
