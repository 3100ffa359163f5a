"""What `etude tasks` does: call one stage, show its result to a person or as JSON.

Not here: parsing (cli.py), the other verbs (verbs.py), the stages.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from etude.errors import UserError, printable
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.verbs import checked_backend, chosen_tasks, say, show_table
from etude.view import View

if TYPE_CHECKING:
    from etude.formats.transfer import Format
    from etude.sandbox.protocol import Backend
    from etude.studio.live import Live
    from etude.synth.agentic.limits import AgentLimits, Model
    from etude.synth.build import BuildReport, Progress
    from etude.synth.options import BuildOptions

NO_VERDICT = 3  # exit code of `etude tasks grade`


def tasks_build(source: str, out: Path, options: "BuildOptions", *, as_json: bool) -> None:
    from etude.synth.foreign.build import build_any

    with _build_view(source) as view:
        report = build_any(source, out, options=options, backend=Bubblewrap(), progress=_stages(view))
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        _show_build(report, out, source)


def tasks_build_with_agent(source: str, out: Path, options: "BuildOptions", model: "Model", limits: "AgentLimits", *, as_json: bool) -> int:
    """Exit code 1 where no run came to a task."""
    from etude.synth.agentic.run import NoTask, build_with_agent

    with _build_view(source) as view:
        try:
            report, told = build_with_agent(
                source, out, model=model, limits=limits, options=options, backend=Bubblewrap(), progress=_stages(view)
            )
        except NoTask as error:
            report, told = None, error.report
    if as_json:
        print(json.dumps({"build": report and asdict(report), "agent": asdict(told)}, default=str))
    else:
        for number, outcome in enumerate(told.outcomes):
            say(f"run {number}: {outcome.task or outcome.reason}")
        if report:
            _show_build(report, out, source)
        say(told.line())
    return 0 if report else 1


def agent_model(agent: str, model: str, *, prices: str, key: str) -> "Model":
    """See choose_model."""
    from etude.synth.agentic.models import choose_model

    return choose_model(agent, model, prices=prices, key=key)


def _build_view(source: str) -> "Live":
    from etude.studio.live import Live

    return Live(f"etude tasks build: {source}", ["fetch", "baseline", "tasks"])


def _stages(view: View) -> "Callable[[Progress], None]":
    stage = ""

    def tell(progress: "Progress") -> None:
        nonlocal stage
        if progress.stage != stage:
            stage = progress.stage
            view.stage(stage, total=progress.total)
        view.advance(1 if progress.done else 0)
        if progress.note:
            view.note(progress.note)

    return tell


def _show_build(report: "BuildReport", out: Path, source: str) -> None:
    from etude.synth.many import reasons_of

    table = Table("mode or kind", "candidates tried", "valid tasks")
    for row in report.tried:
        table.add_row(row, str(report.tried[row]), str(report.valid.get(row, 0)))
    say(f"{out}: {len(report.tasks)} tasks from {source}")
    show_table(table)
    if report.writer:
        say(_writer_line(report.writer))
    for reason, count in reasons_of(asdict(report))[:12]:
        say(f"{count} x {reason}")
    for file, why in report.skipped.items():
        say(f"skipped {file}: {why}")
    more = f", {len(report.inapplicable)} ideas did not apply" if report.inapplicable else ""
    say(f"{report.stable_tests} stable tests, {report.sandbox_runs} sandbox runs{more}, {report.seconds:.0f} s")


def _writer_line(told: Mapping[str, Any]) -> str:
    tokens = told["input_tokens"] + told["output_tokens"]
    refused = "".join(f", {count} not: {why}" for why, count in told["refused"].items())
    cost = "" if told["dollars"] is None else f", ${told['dollars']:.2f}"
    asked = f"asked {told['asked']} times, {told['failed']} without an answer, {told['kept']} answers were there"
    return f"{told['model']} wrote {told['taken']} instructions{refused}; {asked}, {tokens:,} tokens{cost}"


def tasks_build_many(file: Path, out: Path, options: "BuildOptions", *, workers: int, cluster: str, as_json: bool) -> int:
    from etude.studio.live import Live
    from etude.synth.many import Event, build_many, read_list, reasons

    sources = read_list(file)
    workers = workers or len(os.sched_getaffinity(0))
    checked_backend()
    with Live(f"etude tasks build: {len(sources)} repositories", ["repositories"]) as view:
        view.stage("repositories", total=len(sources))

        def tell(event: Event) -> None:
            view.advance(1 if event.outcome else 0)
            view.note(f"{event.source}: {event.note}")

        outcomes = build_many(sources, out, options=options, workers=workers, cluster=cluster, progress=tell)
    if as_json:
        print(json.dumps([asdict(outcome) for outcome in outcomes]))
    else:
        table = Table("repository", "stable tests", "tried", "valid", "share", "minutes", "valid an hour", "if none")
        for outcome in outcomes:
            share = f"{outcome.num_tasks / outcome.num_tried:.0%}" if outcome.num_tried else ""
            rate = f"{3600 * outcome.num_tasks / outcome.seconds:.0f}" if outcome.num_tasks else ""
            numbers = [str(outcome.report.get("stable_tests", "")), str(outcome.num_tried), str(outcome.num_tasks), share]
            cells = [outcome.source, *numbers, f"{outcome.seconds / 60:.1f}", rate, outcome.message]
            table.add_row(*(Text(" ".join(printable(cell).split())) for cell in cells))
        show_table(table)
        for outcome in outcomes:
            if outcome.report.get("writer"):
                say(f"{outcome.source}: {_writer_line(outcome.report['writer'])}")
        for reason, count in reasons(outcomes)[:12]:
            say(f"{count} x {reason}")
        say(f"{out}: {sum(outcome.num_tasks for outcome in outcomes)} tasks of {len(sources)} repositories")
    return 0 if any(outcome.num_tasks for outcome in outcomes) else 1


def tasks_check(folder: Path, task: str | None, *, sandbox: str, image: str, as_json: bool) -> int:
    from etude.studio.live import Live
    from etude.synth.check import check_task

    store = TaskStore.open(folder)
    backend, chosen = chosen_backend(sandbox, image), chosen_tasks(store, task)
    reports = []
    with Live(f"etude tasks check: {folder}", ["check"]) as view:
        view.stage("check", total=len(chosen))
        for one in chosen:
            reports.append(check_task(one, store, backend))
            view.advance()
    if as_json:
        print(json.dumps([asdict(report) for report in reports]))
    else:
        for report in reports:
            for problem in report.problems:
                say(f"{report.task_id}: {problem}")
        say(f"{sum(report.ok for report in reports)} of {len(reports)} tasks hold")
    return 0 if all(report.ok for report in reports) else 1


def tasks_show(folder: Path, task: str | None, *, gold: bool, html: Path | None) -> None:
    from etude.split import difficulty_key
    from etude.synth.show import show_task

    store = TaskStore.open(folder)
    if html is not None:
        from etude.studio.task_page import write_task_page

        say(f"wrote {write_task_page(store, html, task=task)}")
        return
    if task is not None:
        Console().print(show_task(store.get(task), store, gold=gold))
        return
    table = Table("task", "band", "lines", "to pass", "to keep", title="from easy to hard")
    for one in sorted(chosen_tasks(store), key=difficulty_key):
        lines = sum(symbol.num_lines for symbol in one.symbols)
        table.add_row(one.id, Text(printable(one.band)), str(lines), str(len(one.fail_to_pass)), str(len(one.pass_to_pass)))
    show_table(table)


def tasks_pool(where: str, *, as_json: bool) -> None:
    from etude.pool.show import show_pool

    found = show_pool(where, as_json=as_json)
    print(found) if isinstance(found, str) else Console().print(found)


def tasks_export(folder: Path, task: str | None, out: Path, format: "Format", *, as_json: bool) -> int:
    from etude.formats.transfer import export_tasks
    from etude.studio.live import Live

    store = TaskStore.open(folder)
    with Live(f"etude tasks export: {folder}", [format]) as view:
        report = export_tasks(store, out, format=format, task=task, say=_teller(view, format))
    return _transferred(asdict(report), out, as_json)


def tasks_import(source: Path, out: Path, repos: Path | None, *, check: bool, as_json: bool) -> int:
    from etude.formats.transfer import import_tasks
    from etude.studio.live import Live

    backend = checked_backend() if check else None
    with Live(f"etude tasks import: {source}", ["import"]) as view:
        report = import_tasks(source, out, repos=repos, backend=backend, say=_teller(view, "import"))
    return _transferred(asdict(report), out, as_json)


def tasks_rescrub(folder: Path, task: str | None, read: list[str], *, as_json: bool) -> int:
    """Exit code 1 where a task is stuck."""
    from etude.growth import scrubber
    from etude.studio.live import Live

    store = TaskStore.open(folder)
    again = scrubber(store, lambda: folder, checked_backend())
    found = []
    with Live(f"etude tasks rescrub: {folder}", ["tasks"]) as view:
        chosen = chosen_tasks(store, task)
        view.stage("tasks", total=len(chosen))
        for one in chosen:
            found.append(done := again(one, read))
            view.advance()
            view.note(f"{one.id}: {done.outcome}")
    rows = [{**asdict(replace(done, made=None)), "made": done.made and done.made.id} for done in found]
    if as_json:
        print(json.dumps(rows))
    else:
        for done in found:
            say(f"{done.task}: {done.outcome}, {done.why}" + (f"; now {done.made.id}" if done.made else ""))
    return 1 if any(done.outcome == "stuck" for done in found) else 0


def tasks_restore(folder: Path, *, offline: bool, as_json: bool) -> int:
    """Exit code 1 where an environment cannot be made."""
    from etude.studio.live import Live
    from etude.synth.restore import restore_environments

    store = TaskStore.open(folder)
    with Live(f"etude tasks restore: {folder}", ["environments"]) as view:
        found = restore_environments(store, fetch=not offline, say=_teller(view, "environments"))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
        return 0 if all(each.ok for each in found) else 1
    table = Table("environment", "tasks", "packages", "outcome")
    for each in found:
        table.add_row(each.digest[:12], str(each.num_tasks), str(len(each.packages)), each.outcome if each.ok else "not made")
    show_table(table)
    for each in found:
        if not each.ok:
            say(f"{each.digest[:12]}: {each.outcome}")
    say(f"{folder}: {sum(each.ok for each in found)} of {len(found)} environments are there")
    return 0 if all(each.ok for each in found) else 1


def _teller(view: View, stage: str) -> Callable[[int, int, str], None]:
    """Tells a view about (done, total or 0, note)."""
    seen: int | None = None

    def tell(done: int, total: int, note: str) -> None:
        nonlocal seen
        if seen is None:
            view.stage(stage, total=total or None)
        view.advance(done - (seen or 0))
        view.note(note)
        seen = done

    return tell


def _transferred(report: dict[str, Any], out: Path, as_json: bool) -> int:
    """Exit code 1 where a task was refused."""
    if as_json:
        print(json.dumps(report, default=str))
    else:
        for name, why in report["refused"].items():
            say(f"refused {name}: {why}")
        say(f"{out}: {len(report['tasks'])} tasks" + (f", {len(report['refused'])} refused" if report["refused"] else ""))
    return 1 if report["refused"] else 0


def chosen_backend(sandbox: str, image: str) -> "Backend":
    """`sandbox`: bubblewrap or docker; `image`: of docker, "" for its own. Raises: UserError where it does not work on this machine."""
    if sandbox != "docker":
        if image:
            raise UserError(f"--image {image} is for --sandbox docker; {sandbox} has no images")
        return checked_backend()
    from etude.sandbox.docker import IMAGE, Docker

    backend = Docker(image or IMAGE)
    backend.check()
    return backend


def tasks_grade(folder: Path, task: str, patch: str, *, ablation: bool, sandbox: str, image: str, as_json: bool) -> int:
    from etude.grade.grader import grade
    from etude.grade.guards import ALWAYS, FIRST_SOLVE

    store = TaskStore.open(folder)
    chosen = store.get(task)
    checks = FIRST_SOLVE if ablation else ALWAYS
    verdict = grade(chosen, read_patch(patch), store=store, backend=chosen_backend(sandbox, image), checks=checks)
    if as_json:
        print(json.dumps(asdict(verdict)))
    else:
        passed = sum(outcome == "passed" for outcome in verdict.fail_to_pass.values())
        say(f"{'solved' if verdict.solved else verdict.verdict if verdict.verdict != 'graded' else 'not solved'}: {verdict.reason}")
        say(f"fail_to_pass: {passed} of {len(chosen.fail_to_pass)}")
        for path, why in verdict.refused:
            say(f"refused: {path} ({why})")
    if verdict.verdict == "no_verdict":
        return NO_VERDICT
    return 0 if verdict.solved else 1


def read_patch(name: str) -> str:
    """Byte for byte: line ends as they are, what is not UTF-8 as lone surrogates, and no more than is needed to call it too large."""
    from etude.grade.grader import MAX_PATCH_CHARS

    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            return file.read(4 * MAX_PATCH_CHARS + 1).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}; --patch takes a diff file, or - for standard input") from None
