"""What the verbs of the command line do: call one stage, show its result to a person or as JSON.

Not here: parsing (cli.py), the stages.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from etude.config import Config
from etude.errors import UserError
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore

if TYPE_CHECKING:
    from etude.types import Task

NO_VERDICT = 3  # exit code of `etude tasks grade`


def checked_backend() -> Bubblewrap:
    backend = Bubblewrap()
    backend.check()
    return backend


def chosen_tasks(store: TaskStore, task: str | None) -> "list[Task]":
    return store.tasks() if task is None else [store.get(task)]


def tasks_grade(folder: Path, task: str, patch: str, *, as_json: bool) -> int:
    from etude.grade.grader import grade

    store = TaskStore.open(folder)
    if patch == "-":
        text = sys.stdin.read()
    elif Path(patch).is_file():
        text = Path(patch).read_text(encoding="utf-8")
    else:
        raise UserError(f"no file {patch}; --patch takes a diff file, or - for standard input")
    verdict = grade(store.get(task), text, store=store, backend=checked_backend())
    if as_json:
        print(json.dumps(asdict(verdict)))
    else:
        passed = sum(outcome == "passed" for outcome in verdict.fail_to_pass.values())
        print(f"{'solved' if verdict.solved else verdict.verdict if verdict.verdict != 'graded' else 'not solved'}: {verdict.reason}")
        print(f"fail_to_pass: {passed} of {len(store.get(task).fail_to_pass)}")
        for path, why in verdict.refused:
            print(f"refused: {path} ({why})")
    if verdict.verdict == "no_verdict":
        return NO_VERDICT
    return 0 if verdict.solved else 1


def train_verb(folder: Path, config: Config, run: Path, *, resume: bool) -> None:
    from etude.demo import run_all

    run_all(config, run, tasks=folder, title="etude train", again=resume)


def eval_verb(folder: Path, config: Config, path: Path, *, resume: bool, as_json: bool) -> None:
    from etude.demo import evaluate_stage, open_run, open_session
    from etude.studio.live import Live
    from etude.studio.summary import summarise, summary_table

    backend = checked_backend()
    config, run = open_run(config, path, again=resume)
    store = TaskStore.open(folder)
    tasks = store.tasks()[: config.evaluate.tasks or None]
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
    import tomllib

    from etude.config import from_toml
    from etude.demo import model_folder
    from etude.render import Renderer
    from etude.studio.report import write_report

    config = path / "config.toml"
    if not config.exists():
        raise UserError(f"{path} is no run folder: it has no config.toml; name one that etude demo, train or eval has made")
    try:
        folder = model_folder(from_toml(config.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise UserError(f"{config}: {error}") from None
    print(write_report(path, Renderer.from_folder(folder)))


def sandbox_verb(*, quick: bool, as_json: bool) -> int:
    from etude.sandbox.conformance import run_conformance

    backend = checked_backend()
    if quick:
        return 0
    results = run_conformance(backend)
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        table = Table("check", "result", "why")
        for result in results:
            table.add_row(result.name, "[green]holds[/]" if result.ok else "[red]fails[/]", result.detail)
        Console().print(table)
    return 0 if all(result.ok for result in results) else 1
