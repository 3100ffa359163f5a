"""The main job: one small real repository in, a better model and a report out.

    build tasks -> demonstrations -> warm start -> evaluate before -> steps -> evaluate after -> report

Everything lies in the run folder; a run that was stopped or killed goes on with `resume` and redoes nothing that was finished. The same
stages are verbs of their own (cli.py).

Not here: any stage. This file only puts them in a row.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from etude.collect import Harness
from etude.config import Config, from_toml, to_toml
from etude.engine.local import LocalEngine
from etude.errors import UserError
from etude.evaluate import group_jobs, play
from etude.metrics import Metrics, truncate
from etude.model.load import default_model, load_model
from etude.optim.adamw import AdamW
from etude.render import Renderer
from etude.runfolder import RunFolder, write_atomically
from etude.sandbox.bubblewrap import Bubblewrap
from etude.split import difficulty_key, split_by_file
from etude.store import TaskStore
from etude.studio.live import Live
from etude.studio.report import write_report
from etude.studio.summary import end_table, run_summary
from etude.train import Learner, rate_shower, resume, train, warm_start
from etude.types import Rollout, Task
from etude.view import View

EXPECTED_S = {
    "build tasks": 60.0,
    "demonstrations": 25.0,
    "warm start": 165.0,
    "evaluate before": 90.0,
    "evaluate after": 80.0,
    "report": 2.0,
}
STEP_S = 95.0  # one step of the loop on two cores; only weighs the progress bar


@dataclass(slots=True)
class Session:
    """What the stages of one run share."""

    config: Config
    run: RunFolder
    harness: Harness
    learner: Learner
    engine: LocalEngine
    metrics: Metrics
    view: View


def run_demo(config: Config, path: Path, *, resume: bool) -> None:
    """Raises: UserError, NoSignal."""
    run_all(config, path, tasks=None, title="etude demo", again=resume)


def run_all(config: Config, path: Path, *, tasks: Path | None, title: str, again: bool) -> None:
    """Every stage; `tasks` is a tasks folder, or None to build one in the run folder. Raises: UserError, NoSignal."""
    backend = Bubblewrap()
    backend.check()
    check_model(config)
    config, run = open_run(config, path, again=again)
    stages = stage_names(config, build=tasks is None)
    expected = {name: EXPECTED_S.get(name, STEP_S) for name in stages}
    with Live(f"{title}: {tasks or config.tasks.source}", stages, expected_s=expected) as view:
        begun = time.monotonic()
        store = build_stage(config, run.path / "tasks", backend, view) if tasks is None else TaskStore.open(tasks)
        built_s = time.monotonic() - begun if tasks is None else 0.0
        train_tasks, held_out = chosen_before(run, store) or choose(store.tasks(), config)
        view.note(f"{len(train_tasks)} tasks to train on, {len(held_out)} held out, no source file in common")
        before, after = play_stages(config, run, store, backend, train_tasks, held_out, view, built_s=built_s)
        view.stage("report")
        report = finish(run, before, after, Renderer.from_folder(model_folder(config)))
    console = Console()
    console.print(end_table(before, after))
    console.print(f"report: {report}", soft_wrap=True)


def stage_names(config: Config, *, build: bool) -> list[str]:
    steps = [f"step {k + 1} of {config.rl.steps}" for k in range(config.rl.steps)]
    warm = ["demonstrations", "warm start"] if config.warmup.steps else []
    return [*(["build tasks"] if build else []), *warm, "evaluate before", *steps, "evaluate after", "report"]


def open_run(config: Config, path: Path, *, again: bool) -> tuple[Config, RunFolder]:
    """The run folder and the configuration: a new run writes it down, a resumed one goes on with what it wrote. Raises: UserError."""
    run = RunFolder.create(path, resume=again)
    if again:
        return saved_config(path), run
    write_atomically(path / "config.toml", to_toml(config))
    return config, run


def saved_config(path: Path) -> Config:
    """What the run in this folder was started with. Raises: UserError."""
    file = path / "config.toml"
    try:
        return from_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): mend it, or start anew in another run folder") from None


def build_stage(config: Config, folder: Path, backend: Bubblewrap, view: View) -> TaskStore:
    """The tasks of config.tasks.source; those of a finished build are taken as they are."""
    from etude.synth.build import BuildOptions, Progress, build_tasks
    from etude.synth.cut import Mode

    def tell(progress: Progress) -> None:
        if progress.stage == "tasks":
            if progress.done == 1:
                view.stage("build tasks", total=progress.total)
            view.advance()
        if progress.note:
            view.note(progress.note)

    view.stage("build tasks")
    if not (folder / "built").exists():
        modes: tuple[Mode, ...] = ("remove", "stub") if config.tasks.mode == "both" else (config.tasks.mode,)
        options = BuildOptions(modes=modes, max_candidates=config.tasks.candidates)
        build_tasks(config.tasks.source, folder, options=options, backend=backend, progress=tell)
        write_atomically(folder / "built", f"{config.tasks.source}\n")
    return TaskStore.open(folder)


def chosen_before(run: RunFolder, store: TaskStore) -> tuple[list[Task], list[Task]] | None:
    """What a run that is resumed trains on and holds out: its folder of tasks may have grown since."""
    rows = run.read_json("tasks.json")
    if not rows:
        return None
    train_tasks, held_out = ([store.get(row["id"]) for row in rows[side]] for side in ("train", "held_out"))
    return train_tasks, held_out


def choose(tasks: Sequence[Task], config: Config) -> tuple[list[Task], list[Task]]:
    """(train, held out) of the easiest band, without a source file in common, `evaluate.tasks` held out. Raises: UserError."""
    easiest = sorted(tasks, key=difficulty_key)[: config.tasks.easiest or None]
    train_tasks, held_out = split_by_file(easiest, held_out_share=config.tasks.held_out_share)
    if not train_tasks or not held_out:
        raise UserError(
            f"{len(tasks)} tasks give {len(train_tasks)} to train on and {len(held_out)} to hold out without a source file in common: "
            "build more tasks, or raise tasks.held_out_share"
        )
    return train_tasks, held_out[: config.evaluate.tasks or None]


def check_model(config: Config) -> None:
    """Before anything is written. Raises: UserError."""
    if config.model.path and not (Path(config.model.path) / "config.json").is_file():
        raise UserError(f"model.path is {config.model.path!r}, which is no Hugging Face model folder: it has no config.json")


def model_folder(config: Config) -> Path:
    return Path(config.model.path) if config.model.path else default_model()


def open_session(config: Config, run: RunFolder, store: TaskStore, backend: Bubblewrap, view: View) -> Session:
    """Loads the model and, where there is one, the newest checkpoint."""
    import torch

    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    folder = model_folder(config)
    model = load_model(folder, getattr(torch, config.model.dtype))
    watched = Bubblewrap(log=True) if config.monitor.enabled else None
    harness = Harness(
        store=store,
        backend=backend,
        renderer=Renderer.from_folder(folder),
        agent=config.agent,
        watched=watched,
        marks=run.path / "solved",
    )
    learner = Learner(model=model, optimizer=AdamW(model.named_parameters(), weight_decay=0.0))
    resume(learner, run, config)
    done = learner.step if learner.phase == "rl" else 0
    truncate(run.path / "metrics.jsonl", done if learner.phase == "rl" else learner.step, warmup=learner.phase == "warmup")
    engine = LocalEngine(model, slots=config.rl.slots, reproducible=config.model.dtype == "float32", version=done)
    return Session(
        config=config, run=run, harness=harness, learner=learner, engine=engine, metrics=Metrics(run.path / "metrics.jsonl"), view=view
    )


def play_stages(
    config: Config,
    run: RunFolder,
    store: TaskStore,
    backend: Bubblewrap,
    train_tasks: Sequence[Task],
    held_out: Sequence[Task],
    view: View,
    *,
    built_s: float = 0.0,
) -> tuple[list[Rollout], list[Rollout]]:
    """Warm start, evaluation, training, evaluation. Returns the held-out rollouts before and after."""
    run.write_json("tasks.json", {"train": [task_row(t) for t in train_tasks], "held_out": [task_row(t) for t in held_out]})
    session = open_session(config, run, store, backend, view)
    learner, harness, metrics = session.learner, session.harness, session.metrics
    if built_s:
        metrics.log("stage", name="build tasks", seconds=built_s)
    warm_start(learner, train_tasks, config, harness=harness, run=run, metrics=metrics, view=view)
    before = evaluate_stage("before", held_out, session)
    train(learner, train_tasks, config, engine=session.engine, harness=harness, run=run, metrics=metrics, view=view)
    after = evaluate_stage("after", held_out, session)
    save_model(session)
    session.engine.close()
    metrics.close()
    return before, after


def evaluate_stage(name: str, tasks: Sequence[Task], session: Session, *, title: str = "") -> list[Rollout]:
    """Held-out rollouts of the weights as they are; "before" is kept from the time before training."""
    jobs = group_jobs(name, tasks, session.config.evaluate.rollouts_per_task, session.config.seed)
    session.view.stage(title or f"evaluate {name}", total=len(jobs))
    begun = time.monotonic()
    rollouts = play(
        name,
        jobs,
        engine=session.engine,
        harness=session.harness,
        run=session.run,
        open_at_once=session.config.rl.slots,
        on_rollout=lambda rollout: session.view.advance(),
        on_tokens=rate_shower(session.view),
    )
    session.metrics.log("stage", name=f"evaluate {name}", seconds=time.monotonic() - begun)
    return rollouts


def save_model(session: Session) -> None:
    """The trained model as a Hugging Face folder in the run folder."""
    from etude.model.load import save_model as save

    save(session.learner.model, model_folder(session.config), session.run.path / "model")


def finish(run: RunFolder, before: Sequence[Rollout], after: Sequence[Rollout], renderer: Renderer) -> Path:
    run.write_json("summary.json", run_summary(before, after))
    return write_report(run.path, renderer)


def task_row(task: Task) -> dict[str, Any]:
    """What a run remembers of a task."""
    return {
        "id": task.id,
        "instruction": task.instruction,
        "symbols": [f"{s.path}:{s.qualname}" for s in task.symbols],
        "mode": task.mode,
        "band": task.band,
        "fail_to_pass": len(task.fail_to_pass),
        "pass_to_pass": len(task.pass_to_pass),
    }
