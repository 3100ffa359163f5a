"""report.html: one run as one page that needs nothing else: no script, no request, inline style, charts drawn here as SVG.

In: a run folder (config.toml, metrics.jsonl, tasks.json, rollouts/, hints/, feedback/; whatever is there, so an unfinished run has a page
too). Out: report.html in it, written whole or not at all.

The page says what happened: each number that is compared has its interval, and one that did not improve is said to have not improved.

Not here: how numbers are estimated (summary.py), what a transcript shows (transcript.py), what a browser draws (charts.py, templates/).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from etude import __version__
from etude.render import Renderer
from etude.studio import charts, summary
from etude.studio.curves import stage_times, step_charts, steps_table
from etude.studio.disk import Run, read_run
from etude.studio.live import rough_time
from etude.studio.templates import environment_for_pages
from etude.studio.transcript import Entry, Token, clip, legend, transcript
from etude.types import Rollout

PAGE_BYTES = 8_000_000  # a browser opens this at once, also on a phone
ENTRY_BYTES, TOKEN_BYTES = 200, 70  # of markup around a message, around a coloured token
TASK_GROUPS = {"train": "Training tasks", "held_out": "Held-out tasks"}
STATUS = {
    "finished": "finished",
    "out_of_turns": "out of turns",
    "out_of_tokens": "out of tokens",
    "out_of_time": "out of time",
    "sandbox_lost": "sandbox lost",
    "interrupted": "interrupted",
}


def write_report(run_folder: Path, renderer: Renderer | None, *, page_bytes: int = PAGE_BYTES) -> Path:
    """Write report.html into the run folder and return its path. Without a renderer the tokens of hinted turns are bars, not text.

    Transcripts stop at about `page_bytes`; the page names the file and line of those it leaves out.
    """
    run = read_run(run_folder)
    environment = environment_for_pages()
    environment.globals.update(clip=clip, status=STATUS, show_share=show_share, token_title=token_title)
    page = environment.get_template("report.html.j2").render(page_values(run, renderer, page_bytes))
    path = run_folder / "report.html"
    partial = path.with_name(".report.html.partial")
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, path)
    return path


def page_values(run: Run, renderer: Renderer | None, page_bytes: int) -> dict[str, Any]:
    before, after, alone = (summary.finished(run.rollouts.get(name, [])) for name in ("before", "after", "evaluate"))
    compared = summary.comparisons(before, after)
    featured = pick_turn(run)
    return {
        "run": run,
        "title": title(run),
        "facts": facts(run),
        "version": __version__,
        "findings": findings(before, after, compared),
        "headline": headline(compared),
        "alone": headline(summary.comparisons([], alone)) if alone else [],
        "alone_counts": (len(alone), len({r.task_id for r in alone})),
        "counts": {name: (len(rollouts), len({r.task_id for r in rollouts})) for name, rollouts in (("before", before), ("after", after))},
        "charts": step_charts(run.metrics),
        "steps_table": steps_table(run.metrics),
        "stages": stage_times(run.metrics),
        "task_groups": task_groups(run, before, after),
        "featured": featured,
        "featured_hinted": featured is not None and num_hints(run, featured) > 0,
        "featured_entries": None if featured is None else show_rollout(run, featured, renderer),
        "legend": legend(),
        "sets": rollout_sets(run, renderer, featured, page_bytes),
        "settings": settings(run.config),
    }


def title(run: Run) -> str:
    source = run.config.get("tasks", {}).get("source", "")
    return source or run.name


def facts(run: Run) -> list[str]:
    """One line about what this run was."""
    model = run.config.get("model", {}).get("path") or ("SmolLM2-135M-Instruct" if run.config else "")
    steps = {int(record["step"]) for record in run.metrics if record["kind"] == "step"}
    tasks = [f"{len(tasks)} {TASK_GROUPS.get(group, group).lower()}" for group, tasks in run.tasks.items() if tasks]
    seconds = max((record["t"] for record in run.metrics), default=0.0)
    found = [
        Path(model).name,
        *tasks,
        f"{len(steps)} training steps" if steps else "",
        f"seed {run.config['seed']}" if "seed" in run.config else "",
    ]
    return [fact for fact in [*found, f"{rough_time(seconds)} of work" if seconds else ""] if fact]


# The result


def findings(before: Sequence[Rollout], after: Sequence[Rollout], compared: Sequence[summary.Comparison]) -> list[dict[str, str]]:
    """What became of each quality metric, in words, as it happened."""
    if not before or not after:
        missing = "before" if not before else "after"
        return [{"verdict": "not measured", "text": f"Nothing to compare yet: the evaluation {missing} training is not there."}]
    return [{"verdict": one.change.verdict, "text": sentence(one)} for one in compared if one.metric.better != 0]


def sentence(one: summary.Comparison) -> str:
    name = {"solved": "Solved rollouts", "fail_to_pass_share": "Hidden tests passed", "invalid_call_rate": "Invalid calls"}[one.metric.name]
    old, new = (summary.show_value(one.metric, found.value) for found in (one.before, one.after))
    match one.change.verdict:
        case "better" | "worse":
            direction = "rose" if (one.change.value or 0) > 0 else "fell"
            ending = "." if one.change.verdict == "better" else ": worse than before training."
            return f"{name} {direction} from {old} to {new}{ending}"
        case "unchanged":
            return f"{name} did not improve: {old} before, {new} after."
        case "too few tasks":
            return f"{name}: {old} before, {new} after; {one.change.tasks} tasks are too few to call it a change."
        case "not measured":
            return f"{name} could not be compared: no task was measured both times."
        case _:
            chance = f"the difference may be chance (p = {summary.show_p(one.change.p)})"
            return f"{name} did not clearly improve: {old} before, {new} after; {chance}."


def headline(compared: Sequence[summary.Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "label": one.metric.label,
            "before": summary.show_estimate(one.metric, one.before),
            "after": summary.show_estimate(one.metric, one.after),
            "change": summary.show_change(one.metric, one.change),
            "p": "" if one.change.p is None else summary.show_p(one.change.p),
            "verdict": one.change.verdict,
            "plot": interval_plot(one),
        }
        for one in compared
    ]


def interval_plot(one: summary.Comparison) -> Markup:
    marks = [
        charts.Mark(name=name, value=found.value, low=found.low, high=found.high)
        for name, found in (("before", one.before), ("after" if one.before.value is not None else "value", one.after))
        if found.value is not None
    ]
    if not marks:
        return Markup("")
    ends = [v for mark in marks for v in (mark.value, mark.low, mark.high) if v is not None]
    top = charts.ticks(0.0, max(ends), 2)[-1]
    label = f"{one.metric.label}, before and after"
    if one.metric.share:
        return charts.interval_row(marks, label=label, bounds=(0.0, min(top, 1.0)), show=charts.percent)
    return charts.interval_row(marks, label=label, bounds=(0.0, top), show=charts.short)


# Tasks


MODES = {"remove": "removed", "stub": "stubbed"}


def task_groups(run: Run, before: Sequence[Rollout], after: Sequence[Rollout]) -> list[dict[str, Any]]:
    trained = summary.finished([r for name, rollouts in run.rollouts.items() if name.startswith("step-") for r in rollouts])
    groups = []
    for group, tasks in run.tasks.items():
        rows = [task_row(task, {"before": before, "train": trained, "after": after}) for task in tasks]
        columns = [name for name in ("before", "train", "after") if any(row[name] is not None for row in rows)]
        groups.append({"name": TASK_GROUPS.get(group, group), "rows": rows, "columns": columns})
    return groups


def task_row(task: Mapping[str, Any], tried: Mapping[str, Sequence[Rollout]]) -> dict[str, Any]:
    symbols = [symbol_parts(symbol) for symbol in task.get("symbols", ())]
    lines = sum(num_lines for _, _, num_lines in symbols)
    mode = str(task.get("mode", ""))
    size = [str(task.get("band", "")), f"{lines} lines" if lines else "", MODES.get(mode, mode)]
    return {
        "id": task["id"],
        "symbols": [name for _, name, _ in symbols],
        "files": sorted({path for path, _, _ in symbols if path}),
        "size": ", ".join(part for part in size if part),
        "fail_to_pass": count(task.get("fail_to_pass")),
        "pass_to_pass": count(task.get("pass_to_pass")),
        "instruction": task.get("instruction", ""),
        **{name: tally(task["id"], rollouts) for name, rollouts in tried.items()},
    }


def symbol_parts(symbol: Any) -> tuple[str, str, int]:
    """(path, name, lines) of a symbol: its record, or "path:name"."""
    if isinstance(symbol, dict):
        return symbol.get("path", ""), symbol.get("qualname", "?"), symbol.get("num_lines", 0)
    path, _, name = str(symbol).rpartition(":")
    return path, name, 0


def count(tests: Any) -> str:
    """Tests as a list, or as their number."""
    return "–" if tests is None else str(tests if isinstance(tests, int) else len(tests))


def tally(task_id: str, rollouts: Sequence[Rollout]) -> tuple[int, int] | None:
    """(solved, graded) of one task; None where it was not tried."""
    graded = [r.reward.solved for r in rollouts if r.task_id == task_id and r.reward is not None]
    return (sum(graded), len(graded)) if graded else None


def show_share(pair: tuple[int, int] | None) -> str:
    return "–" if pair is None else f"{pair[0]}/{pair[1]}"


# Rollouts


def token_title(token: Token) -> str:
    """What hovering over a token says."""
    last = token.first + token.count - 1
    where = f"token {token.first}" if token.count == 1 else f"tokens {token.first} to {last}"
    return f"{where}: {charts.short(token.kl)} nats"


def pick_turn(run: Run) -> Rollout | None:
    """The rollout to show in full: the one whose hint moved a turn most, among hints that were let through; else any with a hint; else
    a solved one; else the longest."""
    everyone = {r.id: r for name, rollouts in run.rollouts.items() if name != "demonstrations" for r in rollouts}
    moved = [
        ((f.gate is None or f.gate > 0, sum(f.token_kl) / len(f.token_kl)), key[0])
        for key, rows in run.feedback.items()
        for f in rows
        if f.token_kl and key[0] in everyone
    ]
    if moved:
        return everyone[max(moved)[1]]
    hinted = [key[0] for key in run.hints if key[0] in everyone]
    if hinted:
        return everyone[hinted[0]]
    return max(everyone.values(), key=lambda r: (r.reward is not None and r.reward.solved, r.usage.turns), default=None)


def show_rollout(run: Run, rollout: Rollout, renderer: Renderer | None) -> list[Entry]:
    instruction = next((t.get("instruction", "") for tasks in run.tasks.values() for t in tasks if t["id"] == rollout.task_id), "")
    return transcript(rollout, hints=run.hints, feedback=run.feedback, renderer=renderer, instruction=instruction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rollout of the list."""

    rollout: Rollout
    line: int  # in its file, from 1
    num_hints: int
    featured: bool
    entries: list[Entry] | None  # None: left out


def rollout_sets(run: Run, renderer: Renderer | None, featured: Rollout | None, room: int) -> list[dict[str, Any]]:
    """Every rollout as one line, with its transcript while the page has room: evaluations first, then the latest steps."""
    ends = [name for name in ("after", "before") if name in run.rollouts]
    order = [*ends, *(name for name in reversed(run.rollouts) if name not in ends)]
    shown: dict[str, list[Row]] = {}
    for name in order:
        latest = {rollout.id: (line, rollout) for line, rollout in enumerate(run.rollouts[name], start=1)}
        rows = []
        for line, rollout in latest.values():
            entries = show_rollout(run, rollout, renderer) if room > 0 and rollout is not featured else None
            room -= 0 if entries is None else size(entries)
            rows.append(Row(rollout=rollout, line=line, num_hints=num_hints(run, rollout), featured=rollout is featured, entries=entries))
        shown[name] = rows
    return [
        {"name": name, "label": stage_label(name), "rows": shown[name], "solved": tally_all(shown[name])}
        for name in run.rollouts
        if shown[name]
    ]


def stage_label(name: str) -> str:
    """ "step-0003" -> "step 3"; the evaluations by what they are."""
    kind, _, count = name.partition("-")
    known = {"before": "evaluation before training", "after": "evaluation after training", "demonstrations": "the expert's demonstrations"}
    return f"step {int(count)}" if kind == "step" and count.isdigit() else known.get(name, name)


def num_hints(run: Run, rollout: Rollout) -> int:
    return len({key for key in (*run.hints, *run.feedback) if key[0] == rollout.id})


def size(entries: Sequence[Entry]) -> int:
    """About how many bytes of page the entries make."""
    texts = sum(len(clip(e.text)[0]) + sum(len(call.raw) for call in e.calls) + ENTRY_BYTES for e in entries)
    return texts + sum(TOKEN_BYTES * len(one.tokens) for e in entries for one in e.hinted)


def tally_all(rows: Sequence[Row]) -> tuple[int, int]:
    graded = [row.rollout.reward.solved for row in rows if row.rollout.reward is not None]
    return sum(graded), len(graded)


def settings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sections of the configuration, those at the top level first."""
    top = {name: value for name, value in config.items() if not isinstance(value, dict)}
    sections = [("run", top), *((name, value) for name, value in config.items() if isinstance(value, dict))]
    return [
        {"name": name, "rows": [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in values.items()]}
        for name, values in sections
        if values
    ]
