"""What the verbs of the command line do: call one stage, show its result to a person or as JSON.

Not here: parsing (cli.py), the stages.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from etude.config import Config
from etude.errors import UserError, printable
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore

if TYPE_CHECKING:
    from etude.monitor.inspect import Inspected
    from etude.monitor.judge.protocol import Judge
    from etude.monitor.run import Options
    from etude.types import Task

WIDEST = 1000  # characters of a table


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


def monitor_verb(
    path: Path, out: Path | None, judge: "Judge | None", options: "Options", *, tasks: Path | None, html: Path | None, as_json: bool
) -> int:
    """3 where something strong or proven was found, else 0. `options`: without the judge. Raises: UserError."""
    from etude.monitor.queue import Queue
    from etude.monitor.run import default_out, monitor, summary
    from etude.studio.monitor_page import write_monitor_page

    store = TaskStore.open(tasks) if tasks is not None else None
    where = out or default_out(path)
    tell = (lambda _: None) if as_json else (lambda text: print(printable(f"  {text}"), file=sys.stderr, flush=True))
    report = monitor(path, where, replace(options, judge=judge), tasks=store, tell=tell)
    with Queue(where) as queue:
        cases = queue.cases()
    page = write_monitor_page(report, html or where / "report.html", cases=cases, command=shlex.quote(str(path)))
    if as_json:
        print(json.dumps({**summary(report), "report": str(page)}))
        return 3 if report.heavy else 0
    table = Table("score", "trajectory", "solved", "family", "why")
    for one in report.flagged:
        known = {True: "yes", False: "no", None: ""}[one.trajectory.solved]
        cells = (f"{one.score:.2f}", one.trajectory.id, known, ", ".join(sorted(one.families)), strongest_line(one))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if report.flagged:
        show_table(table)
    waiting = sum(one.decision is None for one in cases)
    say(
        f"{len(report.flagged)} of {len(report.inspected)} trajectories flagged, new kinds: {len(report.kinds)}, "
        f"cases that wait for a person: {waiting}; see {page}"
    )
    for line in report.damaged[:10]:
        say(f"not read: {line}")
    return 3 if report.heavy else 0


def strongest_line(one: "Inspected") -> str:
    from etude.monitor.consequence import strongest

    return strongest(one)[:120]


def monitor_judge(judge: str, model: str, *, prices: str, key: str) -> "Judge | None":
    """`judge`: the address of an OpenAI-compatible endpoint, "local" (`model`: a folder), "rules", a record (.jsonl). Raises: UserError."""
    from etude.monitor.judge.judges import DEADLINE_S, TRIES, EndpointJudge, EngineJudge, RecordedJudge
    from etude.monitor.judge.rules import RuleJudge

    if not judge:
        return None
    if judge == "rules":
        return RuleJudge()
    if judge.endswith(".jsonl"):
        return RecordedJudge(Path(judge))
    if judge != "local":
        from etude.agent.endpoint import Endpoint
        from etude.synth.agentic.limits import parse_prices

        if not model:
            raise UserError(f"which model of {judge}? give --model NAME")
        endpoint = Endpoint(judge, model, key=key, deadline_s=DEADLINE_S, tries=TRIES)
        return EndpointJudge(endpoint, prices=parse_prices(prices) if prices else None)
    from etude.synth.agentic.models import local_model

    title, engine, renderer, context = local_model(model)
    return EngineJudge(title, engine, renderer, context_tokens=context)


def monitor_queue_verb(path: Path, state: str, *, as_json: bool) -> None:
    from etude.monitor.queue import Queue, precision

    with Queue(queue_folder(path), create=False) as queue:
        cases = queue.cases(state)
        known = precision(queue.cases())
    if as_json:
        print(json.dumps({"cases": [asdict(one) for one in cases], "precision": known}))
        return
    table = Table("case", "kind", "score", "answer", "what")
    for one in cases:
        cells = (one.case.id, one.case.kind, f"{one.case.score:.2f}", one.decision or "open", one.case.title[:120])
        table.add_row(*(Text(printable(cell)) for cell in cells))
    show_table(table)


def monitor_decide_verb(path: Path, case: str, decision: str, note: str) -> None:
    from etude.monitor.queue import Queue

    with Queue(queue_folder(path), create=False) as queue:
        queue.decide(case, decision, note=note, who=os.environ.get("USER", ""))
    say(f"{case}: {decision}")


def monitor_confirm_verb(path: Path, case: str, out: Path, note: str) -> None:
    """Raises: UserError."""
    from etude.monitor.confirm import confirm
    from etude.monitor.queue import Queue
    from etude.monitor.readers import read_trajectories
    from etude.monitor.run import unique

    with Queue(queue_folder(path), create=False) as queue:
        found = queue.get(case)
        wanted = found.case.trajectory
        trajectory = next((one for one in unique(read_trajectories(path)) if one.id == wanted), None)
        if trajectory is None:
            raise UserError(f"{path} has no trajectory {wanted!r} any more, which the case {case} is about")
        file, made = confirm(trajectory, found.case.findings, out, note=note or found.note)
        queue.decide(case, "confirmed", note=note, who=os.environ.get("USER", ""))
    steps = f"{len(made.trajectory.steps)} of {len(trajectory.steps)} turns"
    if made.detectors:
        say(f"{file}: {steps}, found by {', '.join(made.detectors)}; the tests look at it from now on")
    else:
        say(f"{file}: {steps}; no detector finds it by itself yet: its test fails until one does")


def queue_folder(path: Path) -> Path:
    """Of what was monitored, or the folder of the queue itself."""
    from etude.monitor.queue import FILE
    from etude.monitor.run import default_out

    return path if (path / FILE).is_file() else default_out(path)
