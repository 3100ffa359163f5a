"""The numbers of a training run over its steps: charts, one table of all of them, and where the time went.

In: lines of metrics.jsonl. Out: charts and rows for the template. A chart without a single value is left out.

Not here: how a chart is drawn (charts.py), before and after (report.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from etude.studio import charts
from etude.studio.live import clock_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure: a title, what it means, the drawing, and the names of its series."""

    title: str
    note: str
    svg: Markup
    names: tuple[str, ...]
    bars: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A chart of lines: which metrics it shows."""

    title: str
    note: str
    keys: tuple[tuple[str, str], ...]  # name in the legend, name in metrics.jsonl
    share: bool = False


PLANS = (
    Plan(title="Reward", note="mean over the rollouts of the step", keys=(("reward", "reward_mean"),)),
    Plan(
        title="Tests",
        note="rollouts that solve their task; share of the hidden tests that pass",
        keys=(("solved", "solved"), ("tests passed", "fail_to_pass_share")),
        share=True,
    ),
    Plan(
        title="Invalid calls",
        note="unknown tool, malformed call or bad arguments, of all calls",
        keys=(("invalid calls", "invalid_call_rate"),),
        share=True,
    ),
    Plan(
        title="Informative groups",
        note="task groups whose rollouts differ in reward; only they move the reward loss",
        keys=(("informative", "informative_share"),),
        share=True,
    ),
    Plan(
        title="Feedback KL",
        note="nats per token of the hinted turns, from the student to the hinted teacher",
        keys=(("KL", "feedback_kl"),),
    ),
    Plan(title="Weight of the feedback", note="lambda", keys=(("lambda", "lambda"),)),
    Plan(title="Hints let through", note="share of hints that made the bad turn less likely", keys=(("gate", "gate_share"),), share=True),
    Plan(title="Log-probability gap", note="sampler against trainer on the sampled tokens, mean, nats", keys=(("gap", "logprob_gap"),)),
    Plan(title="Reward loss", note="the reward's part of the loss", keys=(("loss", "rl_loss"),)),
    Plan(title="Gradient norm", note="before clipping", keys=(("norm", "grad_norm"),)),
    Plan(title="Entropy", note="nats per sampled token", keys=(("entropy", "entropy"),)),
    Plan(title="Sampling speed", note="tokens per second", keys=(("tokens/s", "tokens_per_s"),)),
)
FAMILY = "family_"  # of the keys that count flagged rollouts by family
STAGE_SECONDS = (("collecting rollouts", "collect_s"), ("training", "train_s"))


def step_charts(metrics: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Every chart that has something to show."""
    rows = step_rows(metrics)
    steps = [int(row["step"]) for row in rows]
    found = []
    for plan in PLANS:
        series = _series(rows, plan.keys)
        if series:
            svg = charts.line_chart(series, steps, label=f"{plan.title}: {plan.note}", share=plan.share)
            found.append(Chart(title=plan.title, note=plan.note, svg=svg, names=tuple(s.name for s in series)))
    seconds = _series(rows, STAGE_SECONDS)
    if seconds:
        svg = charts.stacked_bars(seconds, steps, label="Seconds per step", unit=" s")
        found.append(Chart(title="Time per step", note="seconds", svg=svg, names=tuple(s.name for s in seconds), bars=True))
    flagged = {int(record["step"]): record for record in metrics if record["kind"] == "monitor"}
    families = sorted({name for record in flagged.values() for name in record if name.startswith(FAMILY)})
    if families:
        parts = [
            charts.Series(name=name.removeprefix(FAMILY), values=[number(flagged.get(step, {}).get(name)) for step in steps])
            for name in families
        ]
        svg = charts.stacked_bars(parts, steps, label="Flagged rollouts per step, by family", unit=" rollouts")
        note = "rollouts with a finding of each family, left out of the step or punished as monitor.consequence says"
        found.append(Chart(title="Flagged by the monitor", note=note, svg=svg, names=tuple(s.name for s in parts), bars=True))
    warmup = {int(record["step"]): record for record in metrics if record["kind"] == "warmup"}
    loss = _series(list(warmup.values()), (("loss", "loss"),))
    if loss:
        svg = charts.line_chart(loss, list(warmup), label="Loss of the warm start", x_label="warm-up step")
        found.append(Chart(title="Warm start", note="loss on the expert's demonstrations, nats per token", svg=svg, names=("loss",)))
    return found


def _series(rows: Sequence[Mapping[str, Any]], keys: Sequence[tuple[str, str]]) -> list[charts.Series]:
    series = [charts.Series(name=label, values=[number(row.get(key)) for row in rows]) for label, key in keys]
    return [one for one in series if any(value is not None for value in one.values)]


def step_rows(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The last line of each training step, with the share of informative groups."""
    rows = {int(record["step"]): dict(record) for record in metrics if record["kind"] == "step"}
    for row in rows.values():
        groups, informative = number(row.get("groups")), number(row.get("informative_groups"))
        row["informative_share"] = informative / groups if groups and informative is not None else None
    return [rows[step] for step in sorted(rows)]


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def steps_table(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All numbers of all steps: names, and per step the values as text."""
    rows = step_rows(metrics)
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("kind", "step", "t", "informative_share")))
    values = [[charts.short(v) if (v := number(row.get(name))) is not None else "–" for name in names] for row in rows]
    return {"names": names, "steps": [row["step"] for row in rows], "rows": values}


def stage_times(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Seconds per stage of the run, in order; a stage that was entered twice is added up."""
    seconds: dict[str, float] = {}
    for record in metrics:
        if record["kind"] == "stage":
            parts = {str(record.get("name", "?")): record.get("seconds")}
        elif record["kind"] == "step":
            parts = {"training: rollouts": record.get("collect_s"), "training: learning": record.get("train_s")}
        else:
            continue
        for name, part in parts.items():
            if (value := number(part)) is not None:
                seconds[name] = seconds.get(name, 0.0) + value
    longest = max(seconds.values(), default=0.0) or 1.0
    return [{"name": name, "time": clock_time(value), "share": value / longest} for name, value in seconds.items()]
