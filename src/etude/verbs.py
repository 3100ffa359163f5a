"""What the verbs of the command line do: call one stage, show its result to a person or as JSON.

Not here: parsing (cli.py), the stages.
"""

import json
import os
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
