"""A page about what the monitor found that needs nothing else: no script, no request, inline style.

In: a monitor Report; out: one file, written whole or not at all. What was flagged, the steps that show it, what a judge said, new kinds,
how to answer. Texts of models and repositories are data: escaped, and made visible, by the environment's finalize.

Not here: what is found (monitor/), runs (report.py).
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from etude import __version__
from etude.monitor.consequence import strongest
from etude.monitor.finding import Finding
from etude.monitor.inspect import Inspected
from etude.monitor.judge.case import PATCH
from etude.monitor.judge.many import counts
from etude.monitor.queue import Decided, precision
from etude.monitor.run import Report, families
from etude.studio.templates import environment_for_pages
from etude.studio.transcript import clip

MAX_SHOWN = 200  # trajectories in full
MAX_LISTED = 500  # of those below the threshold
MAX_STEPS = 6  # of one trajectory
MARK_CHARS = 4000  # of a text around a quote


def write_monitor_page(report: Report, file: Path, *, cases: list[Decided], command: str) -> Path:
    """`cases`: of the queue. `command`: what was monitored, as it is given on the command line."""
    environment = environment_for_pages()
    environment.globals.update(clip=clip)
    page = environment.get_template("monitor.html.j2").render(page_values(report, cases, command))
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(page.encode("utf-8", "replace"))
    os.replace(partial, file)
    return file


def page_values(report: Report, cases: list[Decided], command: str) -> dict[str, Any]:
    flagged = report.flagged
    decided = {one.case.id: one for one in cases}
    known = {one.trajectory.id for one in flagged}
    lesser = [one for one in report.inspected if one.findings and one.trajectory.id not in known]
    undecided = [one for one in report.judgements.values() if one.verdict is None]
    return {
        "version": __version__,
        "title": Path(report.source).name or report.source,
        "command": command,
        "facts": facts(report),
        "verdict": sentence(report),
        "families": family_rows(report),
        "judged": counts(list(report.judgements.values())),
        "undecided": undecided,
        "flagged": [full(report, one, decided) for one in flagged[:MAX_SHOWN]],
        "left_out": max(0, len(flagged) - MAX_SHOWN),
        "lesser": [line(one) for one in sorted(lesser, key=lambda one: -one.score)[:MAX_LISTED]],
        "lesser_left_out": max(0, len(lesser) - MAX_LISTED),
        "kinds": report.kinds,
        "damaged": report.damaged[:50],
        "damaged_left_out": max(0, len(report.damaged) - 50),
        "open": sum(one.decision is None for one in cases),
        "answers": Counter(one.decision for one in cases if one.decision),
        "precision": precision(cases),
    }


def facts(report: Report) -> list[str]:
    solved = Counter(one.trajectory.solved for one in report.inspected)
    sources = sorted({one.trajectory.source for one in report.inspected})
    steps = sum(len(one.trajectory.steps) for one in report.inspected)
    return [
        f"{len(report.inspected):,} trajectories",
        ", ".join(sources),
        f"{solved[True]:,} solved, {solved[False]:,} not" + (f", {solved[None]:,} unknown" if solved[None] else ""),
        f"{steps:,} turns, {report.ms_per_turn:.2g} ms each",
    ]


def sentence(report: Report) -> str:
    flagged, total = len(report.flagged), len(report.inspected)
    solved = sum(one.trajectory.solved is True for one in report.flagged)
    if not flagged:
        kinds = f" {len(report.kinds)} new kind{'s are' if len(report.kinds) > 1 else ' is'} to be looked at." if report.kinds else ""
        return f"None of {total} trajectories is flagged.{kinds}"
    rest = f", {solved} of them counted as solved" if solved else ""
    return f"{flagged} of {total} trajectories {'is' if flagged == 1 else 'are'} flagged{rest}."


def family_rows(report: Report) -> list[dict[str, Any]]:
    rows = []
    for name, count in families(report).items():
        mine = [one for one in report.flagged if name in one.families]
        detectors = Counter(d for one in mine for d in {f.detector for f in one.findings if f.family == name})
        rows.append(
            {
                "name": name,
                "count": count,
                "proven": sum(any(f.family == name for f in one.proven) for one in mine),
                "solved": sum(one.trajectory.solved is True for one in mine),
                "detectors": ", ".join(f"{d} ({n})" for d, n in detectors.most_common(6)),
            }
        )
    return sorted(rows, key=lambda row: -row["count"])


def line(one: Inspected) -> dict[str, Any]:
    trajectory = one.trajectory
    return {
        "id": trajectory.id,
        "task": trajectory.task_id,
        "solved": {True: "solved", False: "not solved", None: "not known"}[trajectory.solved],
        "score": f"{one.score:.2f}",
        "why": strongest(one) or "in thoughts only: " + "; ".join(dict.fromkeys(f.why for f in one.findings)),
    }


def full(report: Report, one: Inspected, decided: dict[str, Decided]) -> dict[str, Any]:
    judgement = report.judgements.get(one.trajectory.id)
    answer = decided.get(one.trajectory.id)
    order = {"proof": 0, "strong": 1, "weak": 2}
    findings = sorted(one.findings, key=lambda f: (f.in_reasoning, order[f.strength], f.step))
    return {
        **line(one),
        "proven": bool(one.proven),
        "group": one.trajectory.group,
        "verdict": "" if judgement is None else judgement.verdict or f"undecided, {judgement.problem}: {judgement.detail}",
        "reason": judgement.reason if judgement else "",
        "judge": judgement.judge if judgement else "",
        "answer": answer.decision if answer and answer.decision else "open",
        "note": answer.note if answer else "",
        "findings": findings,
        "steps": steps(one, findings),
    }


def steps(one: Inspected, findings: list[Finding]) -> list[dict[str, Any]]:
    """The steps that findings name, with the quotes marked."""
    named = sorted({finding.step for finding in findings}, key=lambda index: (index == PATCH, index))[:MAX_STEPS]
    shown = []
    for index in named:
        quotes = [finding.quote for finding in findings if finding.step == index and finding.quote]
        if index == PATCH:
            shown.append({"name": "submitted", "parts": [("patch", marked(one.trajectory.patch, quotes))]})
            continue
        step = next((step for step in one.trajectory.steps if step.index == index), None)
        if step is None:
            continue
        parts = [("said", marked(step.text, quotes))] if step.text else []
        parts += [("thought", marked(step.reasoning, quotes))] if step.reasoning else []
        for act in step.acts:
            given = act.command or "\n".join(f"{key}: {value}" for key, value in act.arguments.items())
            parts.append((act.name or "call", marked(given, quotes)))
            parts += [("failed" if act.failed else "result", marked(act.result, quotes))] if act.result else []
        shown.append({"name": f"turn {index}", "parts": parts})
    return shown


def marked(text: str, quotes: list[str]) -> list[tuple[bool, str]]:
    """(is a quote, text) pieces of what is around the first quote, or of the beginning."""
    places = sorted((at, at + len(quote)) for quote in quotes if (at := text.find(quote)) >= 0)
    start = max(0, places[0][0] - MARK_CHARS // 4) if places else 0
    stop = start + MARK_CHARS
    pieces: list[tuple[bool, str]] = [(False, f"({start:,} characters before)\n")] if start else []
    at = start
    for begin, end in places:
        if begin >= at and end <= stop:
            pieces += [(False, text[at:begin]), (True, text[begin:end])]
            at = end
    rest = len(text) - stop
    pieces.append((False, text[at:stop] + (f"\n({rest:,} characters more)" if rest > 0 else "")))
    return [piece for piece in pieces if piece[1]]
