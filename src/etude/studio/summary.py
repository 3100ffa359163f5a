"""What a set of rollouts amounts to, with intervals, and whether one set is better than another.

    solved              share of graded rollouts that are solved
    fail_to_pass_share  mean over graded rollouts of the share of fail_to_pass tests that pass
    invalid_call_rate   invalid calls / calls, over all rollouts together
    turns, sampled_tokens   mean per rollout

Every interval covers 95% and treats the *task* as the unit that was drawn at random, because rollouts of one task, and the calls
inside a rollout, resemble each other. Means and ratios: percentile bootstrap over tasks, n - 1 of n drawn with replacement
(Rao and Wu 1988: the plain bootstrap of n is too narrow by sqrt((n - 1) / n)). Solved: Wilson's interval at the effective number
of rollouts p (1 - p) / Var(p), Var between tasks, which also holds where nothing or everything is solved.
A change is paired by task, over the tasks that both sets contain. It is called better or worse only where its interval leaves out zero
and an exact test agrees: were before and after the same, exchanging them within any task would change nothing, and p is the share of
such exchanges that move the metric as far as was seen (a bootstrap over eight tasks alone is too sure of itself).

In: rollouts. Out: plain dicts (summary.json), a rich table (the end of a run), and the numbers of report.html.
Not here: tests of a method against another over seeds (benchmarks/).
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from etude.types import Rollout

T = TypeVar("T")
Z95 = 1.959964  # standard normal quantile at .975
DRAWS = 2000  # of the bootstrap: the ends of the interval then move by about 1% of its width between seeds
P_CLEAR = 0.05
MIN_TASKS = 6  # fewer pairs cannot reach p < .05, as two of the 2**n exchanges are always as extreme: 2 / 2**6 = .031
EXACT_TASKS = 11  # up to 2**11 exchanges are tried in full, beyond that DRAWS random ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    label: str
    share: bool  # shown in percent
    better: int  # +1: higher is better, -1: lower is better, 0: neither
    part: Callable[[Rollout], tuple[float, float] | None]  # numerator and denominator of one rollout; None: it says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    value: float | None  # None: nothing to measure
    low: float | None = None  # None: an interval needs two tasks
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    value: float | None
    low: float | None
    high: float | None
    tasks: int  # pairs
    p: float | None  # of the exchange test; None: too few tasks
    verdict: str  # better, worse, higher, lower, no clear change, unchanged, too few tasks, not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    metric: Metric
    before: Estimate
    after: Estimate
    change: Change


def _solved(rollout: Rollout) -> tuple[float, float] | None:
    return None if rollout.reward is None else (float(rollout.reward.solved), 1.0)


def _fail_to_pass_share(rollout: Rollout) -> tuple[float, float] | None:
    share = None if rollout.reward is None else rollout.reward.parts.get("fail_to_pass_share")
    return None if share is None else (share, 1.0)


METRICS = (
    Metric(name="solved", label="solved", share=True, better=1, part=_solved),
    Metric(name="fail_to_pass_share", label="hidden tests passed", share=True, better=1, part=_fail_to_pass_share),
    Metric(
        name="invalid_call_rate",
        label="invalid calls",
        share=True,
        better=-1,
        part=lambda r: (float(r.usage.invalid_calls), float(r.usage.calls)) if r.usage.calls else None,
    ),
    Metric(name="turns", label="turns per rollout", share=False, better=0, part=lambda r: (float(r.usage.turns), 1.0)),
    Metric(name="sampled_tokens", label="tokens per rollout", share=False, better=0, part=lambda r: (float(r.usage.sampled_tokens), 1.0)),
)

Pair = tuple[tuple[float, float], tuple[float, float]]  # before and after of one task, each numerator and denominator
Sums = dict[str, tuple[float, float]]  # task id -> sums of numerator and denominator over its rollouts


def finished(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """One rollout per id, the last one written; what was interrupted or lost its sandbox says nothing about the model."""
    latest = {rollout.id: rollout for rollout in rollouts}
    return [r for r in latest.values() if r.status not in ("interrupted", "sandbox_lost")]


def by_task(metric: Metric, rollouts: Sequence[Rollout]) -> Sums:
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for rollout in rollouts:
        if (part := metric.part(rollout)) is not None:
            top, bottom = sums[rollout.task_id]
            sums[rollout.task_id] = (top + part[0], bottom + part[1])
    return dict(sorted(sums.items()))  # so that a seeded draw does not depend on the order of the rollouts


def estimate(metric: Metric, rollouts: Sequence[Rollout]) -> Estimate:
    """Value and interval of one metric."""
    sums = list(by_task(metric, rollouts).values())
    if not sums:
        return Estimate(value=None)
    value = _ratio(sums)
    if metric.name == "solved" or (metric.share and value in (0.0, 1.0)):  # resampling all-equal tasks would give no width
        low, high = wilson(value, effective_size(sums))
    elif len(sums) < 2:
        low, high = None, None
    else:
        rng = random.Random(0)
        low, high = _percentiles([_ratio(_draw(sums, rng)) for _ in range(DRAWS)])
    return Estimate(value=value, low=low, high=high)


def change(metric: Metric, before: Sequence[Rollout], after: Sequence[Rollout]) -> Change:
    """After minus before, over the tasks in both."""
    old, new = by_task(metric, before), by_task(metric, after)
    pairs = [(old[task], new[task]) for task in sorted(old.keys() & new.keys())]
    if not pairs:
        return Change(value=None, low=None, high=None, tasks=0, p=None, verdict="not measured")
    value = _difference(pairs)
    if len(pairs) < MIN_TASKS:
        verdict = "unchanged" if value == 0 else "too few tasks"
        return Change(value=value, low=None, high=None, tasks=len(pairs), p=None, verdict=verdict)
    rng = random.Random(0)
    low, high = _percentiles([_difference(_draw(pairs, rng)) for _ in range(DRAWS)])
    p = exchange_test(pairs)
    return Change(value=value, low=low, high=high, tasks=len(pairs), p=p, verdict=_verdict(metric, value, low, high, p))


def _difference(pairs: Sequence[Pair]) -> float:
    old, new = zip(*pairs, strict=True)
    return _ratio(new) - _ratio(old)


def exchange_test(pairs: Sequence[Pair]) -> float:
    """Two-sided p: the share of exchanges of before and after within tasks that move the metric at least as far."""
    seen = abs(_difference(pairs)) * (1 - 1e-9)
    if len(pairs) <= EXACT_TASKS:
        exchanges: list[int] = list(range(2 ** len(pairs)))
    else:
        rng = random.Random(0)
        exchanges = [0, *(rng.getrandbits(len(pairs)) for _ in range(DRAWS))]  # 0: as it was, so that p is never 0
    far = sum(abs(_difference([(b, a) if bits >> i & 1 else (a, b) for i, (a, b) in enumerate(pairs)])) >= seen for bits in exchanges)
    return far / len(exchanges)


def _verdict(metric: Metric, value: float, low: float, high: float, p: float) -> str:
    if value == low == high == 0:
        return "unchanged"
    if low <= 0 <= high or p >= P_CLEAR:
        return "no clear change"
    if metric.better == 0:
        return "higher" if value > 0 else "lower"
    return "better" if value * metric.better > 0 else "worse"


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95% score interval for `share` of `n` (Wilson 1927); n need not be whole."""
    z2 = Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_size(sums: Sequence[tuple[float, float]]) -> float:
    """How many independent trials a share over clustered ones is worth: between the number of tasks and of trials.

    Var(p) is the linearised variance of a ratio over clusters, n / (n - 1) * sum (top - p * bottom)^2 / total^2. Where p is 0 or 1 it
    is 0 and says nothing; the number of tasks is then the careful answer.
    """
    tasks, total, share = len(sums), sum(bottom for _, bottom in sums), _ratio(sums)
    if tasks < 2 or share in (0.0, 1.0):
        return float(tasks)
    variance = tasks / (tasks - 1) * sum((top - share * bottom) ** 2 for top, bottom in sums) / total**2
    return min(max(share * (1 - share) / variance, tasks), total) if variance > 0 else total


def _ratio(sums: Sequence[tuple[float, float]]) -> float:
    tops, bottoms = zip(*sums, strict=True)
    return float(sum(tops) / sum(bottoms))


def _draw(items: Sequence[T], rng: random.Random) -> list[T]:
    return rng.choices(items, k=len(items) - 1)


def _percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[round(0.025 * (len(ordered) - 1))], ordered[round(0.975 * (len(ordered) - 1))]


def summarise(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """For summary.json: counts, and per metric {value, low, high}; None where there is nothing to measure."""
    kept = finished(rollouts)
    return {
        "rollouts": len(kept),
        "graded": sum(r.reward is not None for r in kept),
        "left_out": len({r.id for r in rollouts}) - len(kept),  # interrupted, or the sandbox was lost
        "tasks": len({r.task_id for r in kept}),
        **{metric.name: asdict(estimate(metric, kept)) for metric in METRICS},
    }


def comparisons(before: Sequence[Rollout], after: Sequence[Rollout]) -> list[Comparison]:
    """Every metric before, after, and its change."""
    old, new = finished(before), finished(after)
    return [Comparison(metric=m, before=estimate(m, old), after=estimate(m, new), change=change(m, old, new)) for m in METRICS]


def compare(before: Sequence[Rollout], after: Sequence[Rollout]) -> dict[str, Any]:
    """For summary.json: per metric the change {value, low, high, tasks, p, verdict}, paired by task."""
    old, new = finished(before), finished(after)
    return {metric.name: asdict(change(metric, old, new)) for metric in METRICS}


def end_table(before: Sequence[Rollout], after: Sequence[Rollout]) -> Table:
    """Held-out tasks before and after, one metric a row."""
    old, new = finished(before), finished(after)
    tasks = len({r.task_id for r in (*old, *new)})
    table = Table(
        title=f"Held-out tasks before and after training: {tasks} tasks, {len(old)} and {len(new)} rollouts",
        caption="Below each value its 95% interval over tasks; the change is paired by task",
        box=box.HORIZONTALS,
        show_lines=True,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in comparisons(old, new):
        style = {"better": "bold green", "worse": "bold red"}.get(one.change.verdict, "")
        table.add_row(
            one.metric.label,
            _two_lines(*show_estimate(one.metric, one.before)),
            _two_lines(*show_estimate(one.metric, one.after)),
            _two_lines(*show_change(one.metric, one.change)),
            _two_lines(one.change.verdict, "" if one.change.p is None else f"p = {show_p(one.change.p)}", style),
        )
    return table


def summary_table(rollouts: Sequence[Rollout]) -> Table:
    """One set of rollouts, one metric a row."""
    kept = finished(rollouts)
    table = Table(
        title=f"{len(kept)} rollouts on {len({r.task_id for r in kept})} tasks",
        caption="The interval covers 95%, over tasks",
        box=box.HORIZONTALS,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("interval", justify="right", no_wrap=True, style="dim")
    for metric in METRICS:
        table.add_row(metric.label, *show_estimate(metric, estimate(metric, kept)))
    return table


def run_summary(before: Sequence[Rollout], after: Sequence[Rollout]) -> dict[str, Any]:
    """summary.json of a training run: both sets and what changed between them."""
    return {"before": summarise(before), "after": summarise(after), "change": compare(before, after)}


def _two_lines(value: str, below: str, style: str = "") -> Text:
    return Text.assemble((value, style), "\n", (below, "dim")) if below else Text(value, style)


def show_value(metric: Metric, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.0f}%" if metric.share else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def show_estimate(metric: Metric, found: Estimate) -> tuple[str, str]:
    """Value and interval; "" where there is none."""
    if found.low is None or found.high is None:
        return show_value(metric, found.value), ""
    return show_value(metric, found.value), f"{show_value(metric, found.low)} to {show_value(metric, found.high)}"


def show_change(metric: Metric, found: Change) -> tuple[str, str]:
    """Signed change, in percentage points where the metric is a share, and its interval."""

    def signed(value: float | None) -> str:
        if value is None:
            return "–"
        text = f"{100 * value:+.0f}" if metric.share else f"{value:+,.1f}" if abs(value) < 100 else f"{value:+,.0f}"
        return "0" if text.strip("+-0.") == "" else text.replace("-", "−")

    unit = " points" if metric.share and found.value is not None else ""
    interval = f"{signed(found.low)} to {signed(found.high)}" if found.low is not None else ""
    return f"{signed(found.value)}{unit}", interval


def show_p(p: float | None) -> str:
    return "–" if p is None else "1" if p > 0.995 else "<.001" if p < 0.001 else f"{p:.{3 if p < 0.1 else 2}f}".lstrip("0")
