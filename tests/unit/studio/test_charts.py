"""studio/charts.py: numbers as SVG."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from etude.studio.charts import Mark, Series, interval_row, line_chart, percent, short, stacked_bars, ticks, token_strip

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(str(svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def titles(svg: Markup) -> list[str]:
    return [t.text or "" for t in parse(svg).iter(f"{SVG}title")]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range_evenly_with_a_handful_of_marks(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    assert marks[0] <= low + 1e-6 * span
    assert marks[-1] >= low + span - 1e-6 * span
    assert 2 <= len(marks) <= 7
    steps = [b - a for a, b in pairwise(marks)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps) + 1e-9


def test_ticks_of_shares_are_quarters() -> None:
    assert ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]


def test_a_missing_value_is_a_gap_not_a_zero() -> None:
    svg = line_chart([Series(name="reward", values=[0.1, None, 0.3, 0.4])], [1, 2, 3, 4], label="reward")
    assert titles(svg) == ["step 1, reward: 0.1", "step 3, reward: 0.3", "step 4, reward: 0.4"]
    lines = list(parse(svg).iter(f"{SVG}polyline"))
    assert [len(line.attrib["points"].split()) for line in lines] == [2]


def test_a_share_is_drawn_on_an_axis_from_0_to_100_percent() -> None:
    svg = line_chart([Series(name="solved", values=[0.05])], [1], label="solved", share=True)
    texts = [t.text for t in parse(svg).iter(f"{SVG}text")]
    assert texts[0] == "0%"
    assert "100%" in texts


def test_larger_values_are_drawn_higher() -> None:
    svg = line_chart([Series(name="x", values=[1.0, 5.0, -2.0])], [1, 2, 3], label="x")
    heights = [float(c.attrib["cy"]) for c in parse(svg).iter(f"{SVG}circle")]
    assert heights[1] < heights[0] < heights[2]


@pytest.mark.parametrize("values", [[0.0, 0.0], [7.0, 7.0], [None, None], [float("nan"), 1.0], []])
def test_values_without_a_range_still_make_a_chart(values: list[float | None]) -> None:
    svg = line_chart([Series(name="x", values=values)], list(range(1, len(values) + 1)), label="x")
    assert not re.search(r"nan|inf", str(svg))
    parse(svg)


def test_many_steps_get_few_labels() -> None:
    svg = line_chart([Series(name="x", values=[1.0] * 500)], list(range(1, 501)), label="x")
    labels = [t.text for t in parse(svg).iter(f"{SVG}text") if t.attrib["text-anchor"] == "middle"]
    assert 5 <= len(labels) <= 10


def test_parts_of_a_bar_stand_on_each_other_and_sum_up() -> None:
    svg = stacked_bars([Series(name="a", values=[10.0]), Series(name="b", values=[30.0])], [1], label="time", unit=" s")
    lower, upper = list(parse(svg).iter(f"{SVG}rect"))
    assert float(upper.attrib["y"]) + float(upper.attrib["height"]) == pytest.approx(float(lower.attrib["y"]), abs=0.11)
    assert float(upper.attrib["height"]) == pytest.approx(3 * float(lower.attrib["height"]), abs=0.3)
    assert titles(svg) == ["step 1, a: 10 s", "step 1, b: 30 s"]


def test_an_interval_is_drawn_from_its_low_to_its_high_end_around_the_value() -> None:
    marks = [Mark(name="before", value=0.4, low=0.3, high=0.5), Mark(name="after", value=0.1)]
    svg = interval_row(marks, label="x", bounds=(0, 1), show=percent)
    (whisker,) = [e for e in parse(svg).iter(f"{SVG}line") if "whisker" in e.attrib["class"]]
    dot = next(iter(parse(svg).iter(f"{SVG}circle")))
    assert float(whisker.attrib["x1"]) < float(dot.attrib["cx"]) < float(whisker.attrib["x2"])
    assert titles(svg) == ["before: 40% (95%: 30% to 50%)", "after: 10%"]


def test_the_token_strip_has_one_bar_a_token_scaled_to_the_strongest() -> None:
    svg = token_strip([0.0, 1.0, 2.0], [0, 3, 4], ["'a'", "", "'<b>'"], label="KL")
    bars = list(parse(svg).iter(f"{SVG}rect"))
    assert [bar.attrib["class"] for bar in bars] == ["k0 bar", "k3 bar", "k4 bar"]
    assert float(bars[2].attrib["height"]) == pytest.approx(2 * float(bars[1].attrib["height"]), abs=0.2)
    assert titles(svg) == ["token 1 'a': 0 nats", "token 2: 1 nats", "token 3 '<b>': 2 nats"]


def test_names_are_escaped_in_labels_and_tooltips() -> None:
    svg = line_chart([Series(name="<script>", values=[1.0])], [1], label='"><script>', x_label="<b>")
    assert "<script>" not in svg
    assert "<b>" not in svg


def test_numbers_are_short_and_have_a_real_minus() -> None:
    assert [short(v) for v in (0, 0.04321, 0.5, -12.345, 250, 12_345, 3.2e6, 2e-5)] == [
        "0",
        "0.0432",
        "0.5",
        "−12.3",
        "250",
        "12.3k",
        "3.2M",
        "2e−5",
    ]
    assert percent(0.125) == "12.5%"
