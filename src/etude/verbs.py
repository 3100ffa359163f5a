"""What the verbs of the command line do: call one stage, show its result to a person or as JSON.

Not here: parsing (cli.py), the stages.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from etude.config import Config
from etude.errors import UserError, printable
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.view import View

if TYPE_CHECKING:
    from etude.formats.transfer import Format
    from etude.synth.options import BuildOptions
    from etude.types import Task

WIDEST = 1000  # characters of a table
NO_VERDICT = 3  # exit code of `etude tasks grade`


def checked_backend() -> Bubblewrap:
    backend = Bubblewrap()
    backend.check()
    return backend


def chosen_tasks(store: TaskStore, task: str | None = None) -> "list[Task]":
    """One task, or all. UserError where there is none."""
    chosen = store.tasks() if task is None else [store.get(task)]
    if not chosen:
        raise UserError(f"{store.path} holds no task yet; finish its build: `etude tasks build SOURCE --out {store.path}`")
    return chosen


def say(text: str) -> None:
    """One line, whatever is in it."""
    print(" ".join(printable(text).split()))


def show_table(table: Table) -> None:
    """As wide as it is: a name that is cut short cannot be copied."""
    console = Console()
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum)
    console.print(table)


def tasks_build(source: str, out: Path, options: "BuildOptions", *, as_json: bool) -> None:
    from etude.studio.live import Live
    from etude.synth.build import Progress
    from etude.synth.foreign.build import build_any

    with Live(f"etude tasks build: {source}", ["fetch", "baseline", "tasks"]) as view:
        stage = ""

        def tell(progress: Progress) -> None:
            nonlocal stage
            if progress.stage != stage:
                stage = progress.stage
                view.stage(stage, total=progress.total)
            view.advance(1 if progress.done else 0)
            if progress.note:
                view.note(progress.note)

        report = build_any(source, out, options=options, backend=Bubblewrap(), progress=tell)
    if as_json:
        print(json.dumps(asdict(report)))
        return
    table = Table("mode", "candidates tried", "valid tasks")
    for mode in report.tried:
        table.add_row(mode, str(report.tried[mode]), str(report.valid.get(mode, 0)))
    say(f"{out}: {len(report.tasks)} tasks from {source}")
    show_table(table)
    for file, why in report.skipped.items():
        say(f"skipped {file}: {why}")
    say(f"{report.stable_tests} stable tests, {report.sandbox_runs} sandbox runs, {report.seconds:.0f} s")


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
        for reason, count in reasons(outcomes)[:12]:
            say(f"{count} x {reason}")
        say(f"{out}: {sum(outcome.num_tasks for outcome in outcomes)} tasks of {len(sources)} repositories")
    return 0 if any(outcome.num_tasks for outcome in outcomes) else 1


def tasks_check(folder: Path, task: str | None, *, as_json: bool) -> int:
    from etude.studio.live import Live
    from etude.synth.check import check_task

    store = TaskStore.open(folder)
    backend, chosen = checked_backend(), chosen_tasks(store, task)
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


def tasks_grade(folder: Path, task: str, patch: str, *, as_json: bool) -> int:
    from etude.grade.grader import grade

    store = TaskStore.open(folder)
    chosen = store.get(task)
    verdict = grade(chosen, read_patch(patch), store=store, backend=checked_backend())
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


def train_verb(folder: Path, config: Config, run: Path, *, resume: bool) -> None:
    found = chosen_tasks(TaskStore.open(folder))

    from etude.demo import choose, run_all

    if not resume:
        choose(found, config)  # before the run folder is made
    run_all(config, run, tasks=folder, title="etude train", again=resume)


def eval_verb(folder: Path, config: Config, path: Path, *, resume: bool, as_json: bool) -> None:
    store = TaskStore.open(folder)
    found = chosen_tasks(store)

    from etude.demo import check_model, evaluate_stage, open_run, open_session
    from etude.studio.live import Live
    from etude.studio.summary import summarise, summary_table

    backend = checked_backend()
    check_model(config)
    config, run = open_run(config, path, again=resume)
    tasks = found[: config.evaluate.tasks or None]
    with Live(f"etude eval: {folder}", ["evaluate"]) as view:
        session = open_session(config, run, store, backend, view)
        rollouts = evaluate_stage("evaluate", tasks, session, title="evaluate")
        session.engine.close()
    run.write_json("summary.json", summarise(rollouts))
    if as_json:
        print(json.dumps(summarise(rollouts)))
    else:
        Console().print(summary_table(rollouts))


def report_verb(path: Path) -> None:
    from etude.demo import model_folder, saved_config
    from etude.render import Renderer
    from etude.studio.report import write_report

    if not (path / "config.toml").exists():
        raise UserError(f"{path} is no run folder: it has no config.toml; name one that etude demo, train or eval has made")
    folder = model_folder(saved_config(path))
    try:
        print(write_report(path, Renderer.from_folder(folder)))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def sandbox_verb(*, quick: bool, as_json: bool) -> int:
    from etude.sandbox.conformance import run_conformance

    backend = checked_backend()
    if quick:
        print("[]" if as_json else "the sandbox can start on this machine; `etude sandbox` runs all checks")
        return 0
    results = run_conformance(backend)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        table = Table("check", "result", "why")
        for result in results:
            verdict = Text("holds", style="green") if result.ok else Text("fails", style="red")
            table.add_row(result.name, verdict, Text(printable(result.detail)))
        Console().print(table)
    return 0 if all(result.ok for result in results) else 1


def pretrain_verb(file: Path, settings: Sequence[str], init: str, run: Path, *, resume: bool) -> None:
    """`init`: as parse_init reads it, instead of the file's [init] and model.path. Raises: UserError, EtudeError."""
    from etude.pretrain.config import load_pretrain_config, parse_init, stages

    config = load_pretrain_config(file, settings)
    if init:
        config = replace(config, init=parse_init(init), model=replace(config.model, path=""))
    from etude.pretrain.loop import run_pretrain
    from etude.studio.live import Live

    if os.environ.get("RANK", "0") != "0":
        run_pretrain(config, run, resume=resume)
        return
    with Live(f"etude pretrain: {file}", stages(config)) as view:
        result = run_pretrain(config, run, resume=resume, view=view)
    Console().print(Text(str(result)), soft_wrap=True)
