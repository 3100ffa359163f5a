"""Charts as SVG text: lines over steps, stacked bars over steps, value-and-interval rows, and a strip of one bar a token.

Colours come from the page's CSS classes (c0, c1, ... for series), so light, dark and print are the page's business. Every mark carries a
<title>, which a browser shows on hover and a screen reader reads. Missing values are gaps.

In: numbers. Out: one <svg> element as Markup. Not here: which numbers (report.py), colours (templates/report.html.j2).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 176  # of a chart over steps, in SVG units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 30  # room for the axes
MAX_X_LABELS = 8
DOT, BAR_GAP = 2.6, 0.28  # radius; share of a step's width

Number = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    values: Sequence[Number]  # one per step


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 times a power of ten) from at most `low` to at least `high`."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number as an axis or a tooltip shows it."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        text = f"{value / 1e6:.3g}M"
    elif size >= 1e4:
        text = f"{value / 1e3:.3g}k"
    elif size >= 100:
        text = f"{value:,.0f}"
    elif size >= 1e-3:
        text = f"{value:.3g}"
    else:
        text = f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")
    return text.replace("-", "−")


def percent(value: float) -> str:
    return f"{100 * value:.3g}%".replace("-", "−")


def line_chart(
    series: Sequence[Series],
    steps: Sequence[int],
    *,
    label: str,
    share: bool = False,
    bounds: tuple[float, float] | None = None,
    x_label: str = "step",
) -> Markup:
    """Lines with a dot per value. `share`: values are shares of 1, shown in percent on an axis from 0 to 100."""
    show = percent if share else short
    found = [v for s in series for v in s.values if v is not None and math.isfinite(v)]
    low, high = bounds or ((0.0, 1.0) if share else (min([0.0, *found]), max(found, default=1.0)))
    marks = ticks(low, high)
    frame = _Frame(len(steps), marks[0], marks[-1])
    parts = [_axes(frame, marks, steps, show, x_label)]
    for index, one in enumerate(series):
        parts += _line(one, index, frame, steps, show, x_label)
    return _svg(WIDTH, HEIGHT, label, parts)


def stacked_bars(series: Sequence[Series], steps: Sequence[int], *, label: str, unit: str, x_label: str = "step") -> Markup:
    """One bar a step, its parts from the bottom up in the order of the series. Missing parts count as nothing."""
    sums = [sum(s.values[i] or 0.0 for s in series) for i in range(len(steps))]
    marks = ticks(0.0, max(sums, default=1.0) or 1.0)
    frame = _Frame(len(steps), 0.0, marks[-1])
    parts = [_axes(frame, marks, steps, short, x_label)]
    width = frame.slot * (1 - BAR_GAP) if len(steps) > 1 else frame.slot / 6
    width = min(width, 36.0)
    for i, step in enumerate(steps):
        base = 0.0
        for index, one in enumerate(series):
            value = one.values[i] or 0.0
            if value <= 0:
                continue
            top, bottom = frame.y(base + value), frame.y(base)
            title = f"{x_label} {step}, {one.name}: {short(value)}{unit}"
            parts.append(_rect(f"c{index} fill", frame.x(i) - width / 2, top, width, bottom - top, title))
            base += value
    return _svg(WIDTH, HEIGHT, label, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One value with its interval."""

    name: str
    value: float
    low: Number = None
    high: Number = None


def interval_row(marks: Sequence[Mark], *, label: str, bounds: tuple[float, float], show: Callable[[float], str]) -> Markup:
    """Values with intervals on one scale, one below the other: two lines overlap where the difference may be chance."""
    width, row, pad = 240, 16, 7
    height = row * len(marks) + 16
    low, high = bounds
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return pad + (min(max(value, low), high) - low) / span * (width - 2 * pad)

    parts = [f'<line class="axis" x1="{pad}" x2="{width - pad}" y1="{height - 13}" y2="{height - 13}"/>']
    for value, anchor in ((low, "start"), ((low + high) / 2, "middle"), (high, "end")):
        parts.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="2" y2="{height - 13}"/>')
        at = {"start": 0, "middle": x(value), "end": width}[anchor]
        parts.append(f'<text x="{at:.1f}" y="{height - 2}" text-anchor="{anchor}">{escape(show(value))}</text>')
    for index, mark in enumerate(marks):
        y = row * index + row / 2 + 2
        title = f"{mark.name}: {show(mark.value)}"
        if mark.low is not None and mark.high is not None:
            title += f" (95%: {show(mark.low)} to {show(mark.high)})"
            parts.append(f'<line class="c{index} whisker" x1="{x(mark.low):.1f}" x2="{x(mark.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_dot(index, x(mark.value), y, 4.2, title))
    return _svg(width, height, label, parts)


def token_strip(values: Sequence[float], levels: Sequence[int], texts: Sequence[str], *, label: str) -> Markup:
    """One bar a token, in order; `levels` chooses the class (k0 to k4). Lets a turn be read where its tokens have no text."""
    count = max(len(values), 1)
    width, height = 720, 56
    slot = min(width / count, 14.0)
    top = max([*values, 1e-9])
    base = height - 2
    parts = [f'<line class="axis" x1="0" x2="{width}" y1="{base}" y2="{base}"/>']
    for i, (value, level, text) in enumerate(zip(values, levels, texts, strict=True)):
        tall = max(value, 0.0) / top * (height - 8)
        title = f"token {i + 1}{f' {text}' if text else ''}: {short(value)} nats"
        parts.append(_rect(f"k{level} bar", i * slot, base - tall, max(slot - 0.8, 0.5), max(tall, 0.6), title))
    return _svg(width, height, label, parts, "strip")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Positions inside the axes: `x` of the i-th step, `y` of a value."""

    num_steps: int
    low: float
    high: float

    @property
    def slot(self) -> float:
        return (WIDTH - LEFT - RIGHT) / max(self.num_steps, 1)

    def x(self, i: int) -> float:
        return LEFT + self.slot * (i + 0.5)

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(frame: _Frame, marks: Sequence[float], steps: Sequence[int], show: Callable[[float], str], x_label: str) -> str:
    parts = []
    for mark in marks:
        y = frame.y(mark)
        kind = "axis" if mark == marks[0] else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(show(mark))}</text>')
    every = max(1, math.ceil(len(steps) / MAX_X_LABELS))
    for i in range(0, len(steps), every):
        parts.append(f'<text x="{frame.x(i):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{steps[i]}</text>')
    parts.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _line(one: Series, index: int, frame: _Frame, steps: Sequence[int], show: Callable[[float], str], x_label: str) -> list[str]:
    parts, run = [], []
    for i, value in enumerate([*one.values, None]):
        if value is not None and math.isfinite(value):
            run.append(f"{frame.x(i):.1f},{frame.y(value):.1f}")
            continue
        if len(run) > 1:
            parts.append(f'<polyline class="c{index} line" points="{" ".join(run)}"/>')
        run = []
    radius = DOT if len(steps) <= 40 else 1.4
    for i, value in enumerate(one.values):
        if value is not None and math.isfinite(value):
            title = f"{x_label} {steps[i]}, {one.name}: {show(value)}"
            parts.append(_dot(index, frame.x(i), frame.y(value), radius, title))
    return parts


def _rect(css: str, x: float, y: float, width: float, height: float, title: str) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{css}" {box}><title>{escape(title)}</title></rect>'


def _dot(index: int, x: float, y: float, radius: float, title: str) -> str:
    return f'<circle class="c{index} fill" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(title)}</title></circle>'


def _svg(width: int, height: int, label: str, parts: Sequence[str], css: str = "") -> Markup:
    """All text in `parts` is escaped where it was made."""
    return Markup(f'<svg class="chart {css}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')
