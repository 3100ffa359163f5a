"""`etude tasks`: make, prove, print, grade and hand over tasks.

Not here: any work (task_verbs.py).
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from etude.cli.options import Engine, Image, Json

tasks = App(name="tasks", help="Make, prove, print and grade tasks.")
AGENT = Group("With a model", sort_key=1)


@tasks.command
def build(
    source: str,
    /,
    *,
    out: Path,
    kinds: Annotated[
        tuple[Literal["feature_deletion", "bug_injection", "joined_features", "commit_replay", "refactor_back"], ...],
        Parameter(negative=(), help="What is made, in this order. (feature_deletion)", show_default=False),
    ] = ("feature_deletion",),
    modes: Annotated[
        tuple[Literal["remove", "stub"], ...],
        Parameter(negative=(), help="remove: the definition goes. stub: its body raises NotImplementedError. (both)", show_default=False),
    ] = ("remove", "stub"),
    level: Annotated[Literal["A", "B", "C"], Parameter(help="A: signatures and docstrings. B: names, behaviour. C: behaviour.")] = "A",
    visible: Annotated[float, Parameter(help="Share of the feature's tests that the instruction quotes.")] = 0.0,
    gates: Annotated[
        Literal["quick", "full"], Parameter(help="full: also repeated runs, each symbol by itself, mutants, left-overs.")
    ] = "full",
    limit: Annotated[int | None, Parameter(help="Try at most this many candidates of a kind (all).")] = None,
    jobs: Annotated[int, Parameter(help="Candidates checked at a time (0: one per core; of a list: 1).")] = 0,
    workers: Annotated[int, Parameter(help="Repositories of a list at a time (0: one per core).")] = 0,
    cluster: Annotated[str, Parameter(help="Spread a list over a Ray cluster: auto, local or ray://HOST:PORT.")] = "",
    agent: Annotated[
        str,
        Parameter(
            group=AGENT, help="Who removes features: the address of an OpenAI-compatible endpoint, local, or a recorded run (.jsonl)."
        ),
    ] = "",
    writer: Annotated[
        str,
        Parameter(group=AGENT, help="Who puts instructions better: the address of an endpoint, or local. (nobody)", show_default=False),
    ] = "",
    model: Annotated[str, Parameter(group=AGENT, help="The endpoint's model; for local, a model folder (the default model).")] = "",
    writer_model: Annotated[str, Parameter(group=AGENT, help="The same for the writer. (as --model)", show_default=False)] = "",
    runs: Annotated[int, Parameter(group=AGENT, help="Deletions to try.")] = 20,
    prices: Annotated[str, Parameter(group=AGENT, help="Dollars per million tokens, IN,OUT: what it costs is counted.")] = "",
    max_cost: Annotated[float | None, Parameter(group=AGENT, help="Dollars for one deletion.")] = None,
    max_total_cost: Annotated[float | None, Parameter(group=AGENT, help="Dollars for all of them, and for the writer.")] = None,
    key_env: Annotated[str, Parameter(group=AGENT, help="The environment variable that holds the endpoint's key.")] = "OPENAI_API_KEY",
    json: Json = False,
) -> None:
    """Build tasks from repositories by removing features that their tests notice. No model is needed.

    A build that was stopped goes on where it was: give the same command again.

    Parameters
    ----------
    source
        A folder, a git URL, a source archive, or NAME==VERSION of a PyPI source distribution that carries its tests;
        or a .txt file that names one of these a line.
    out
        The tasks folder to make.
    """
    from etude.errors import UserError
    from etude.synth.options import BuildOptions, WriterOptions
    from etude.task_verbs import agent_model, tasks_build, tasks_build_many, tasks_build_with_agent

    file = Path(source)
    many = file.suffix == ".txt" and file.is_file()
    if many and agent:
        raise UserError(f"--agent takes one repository, and {source} is a list; give its repositories one at a time, or leave --agent out")
    author = None
    if writer:
        author = WriterOptions(where=writer, model=writer_model or model, prices=prices, key_env=key_env, dollars=max_total_cost)
    options = BuildOptions(
        kinds=kinds,
        modes=modes,
        level=level,
        visible_share=visible,
        gates=gates,
        max_candidates=limit,
        jobs=jobs or int(many),
        writer=author,
    )
    if many:
        raise SystemExit(tasks_build_many(file, out, options, workers=workers, cluster=cluster, as_json=json))
    if agent:
        from etude.synth.agentic.limits import AgentLimits

        brain = agent_model(agent, model, prices=prices, key=os.environ.get(key_env, ""))
        small = {"turns": 8, "turn_tokens": 256} if agent == "local" else {}
        limits = AgentLimits(runs=runs, dollars=max_cost, total_dollars=max_total_cost, **small)
        raise SystemExit(tasks_build_with_agent(source, out, options, brain, limits, as_json=json))
    tasks_build(source, out, options, as_json=json)


@tasks.command
def check(folder: Path, task: str | None = None, /, *, sandbox: Engine = "bubblewrap", image: Image = "", json: Json = False) -> None:
    """Prove one task, or all of a folder, again: rest passes, feature fails, gold restores.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task (all).
    """
    from etude.task_verbs import tasks_check

    raise SystemExit(tasks_check(folder, task, sandbox=sandbox, image=image, as_json=json))


@tasks.command
def show(
    folder: Path,
    task: str | None = None,
    /,
    *,
    gold: bool = False,
    html: Annotated[Path | None, Parameter(help="Write a page to this file instead.")] = None,
) -> None:
    """Print a task for a person, or the list of all; or write them as a page.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task.
    gold
        Show the patch that solves it.
    """
    from etude.task_verbs import tasks_show

    tasks_show(folder, task, gold=gold, html=html)


@tasks.command
def export(
    folder: Path,
    task: str | None = None,
    /,
    *,
    out: Path,
    format: Annotated[
        Literal["harbor", "swebench", "swesmith", "parquet"], Parameter(help="harbor: a folder a task. The others: rows.")
    ] = "harbor",
    json: Json = False,
) -> None:
    """Write tasks in the formats of others: Harbor folders, or rows of SWE-bench or SWE-smith.

    Exporting again gives the same bytes. Rows lie in OUT/tasks.jsonl (parquet: OUT/tasks.parquet), their repositories in OUT/repos.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task (all).
    out
        The folder to write into.
    """
    from etude.task_verbs import tasks_export

    raise SystemExit(tasks_export(folder, task, out, format, as_json=json))


@tasks.command(name="import")
def import_(
    source: Path,
    /,
    *,
    out: Path,
    repos: Annotated[Path | None, Parameter(help="The repositories of rows, as owner__name: clones or plain folders.")] = None,
    check: Annotated[bool, Parameter(negative="--no-check", help="Keep only tasks whose gold patch scores 1 and the empty one 0.")] = True,
    json: Json = False,
) -> None:
    """Read tasks of others for training and evaluation: Harbor folders that etude wrote, rows of SWE-bench or SWE-smith.

    Parameters
    ----------
    source
        A Harbor task, a folder of them, a .jsonl, .json or .parquet file of rows, or what `etude tasks export` wrote.
    out
        The tasks folder to make, or to add to.
    """
    from etude.task_verbs import tasks_import

    raise SystemExit(tasks_import(source, out, repos, check=check, as_json=json))


@tasks.command
def restore(
    folder: Path,
    /,
    *,
    offline: Annotated[bool, Parameter(negative=(), help="Take only wheels that lie beside the locks.")] = False,
    json: Json = False,
) -> None:
    """Make environments that are missing from a tasks folder again, each from its lock.

    Exit code 1 where one cannot be made.

    Parameters
    ----------
    folder
        The tasks folder.
    """
    from etude.task_verbs import tasks_restore

    raise SystemExit(tasks_restore(folder, offline=offline, as_json=json))


@tasks.command
def rescrub(
    folder: Path,
    task: str | None = None,
    /,
    *,
    read: Annotated[list[Path] | None, Parameter(help="A file of the task's tree that a rollout read; may be given again.")] = None,
    json: Json = False,
) -> None:
    """Look once more for left-overs of what was removed, take them away, and prove the tasks without them.

    Where something goes, the task gets another id and is added to the folder; the old one stays, and `origin` names it. Training does the
    same with a task that a flagged rollout got at. Exit code 1 where something tells the answer and may not go.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task (all).
    """
    from etude.task_verbs import tasks_rescrub

    raise SystemExit(tasks_rescrub(folder, task, [str(path) for path in read or ()], as_json=json))


@tasks.command
def grade(
    folder: Path,
    task: str,
    /,
    *,
    patch: Annotated[str, Parameter(allow_leading_hyphen=True, help="A diff file, or - for standard input.")],
    ablation: Annotated[bool, Parameter(negative=(), help="If solved, also with the submitted bodies stubbed: tests must fail.")] = False,
    sandbox: Engine = "bubblewrap",
    image: Image = "",
    json: Json = False,
) -> None:
    """Grade anyone's diff: hidden tests in a fresh sandbox that receives the allowed source files only.

    Exit code 0 when solved, 1 when not, 3 when there is no verdict.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task.
    """
    from etude.task_verbs import tasks_grade

    raise SystemExit(tasks_grade(folder, task, patch, ablation=ablation, sandbox=sandbox, image=image, as_json=json))


@tasks.command
def pool(where: str, /, *, json: Json = False) -> None:
    """Show what the pool of a run knows: states of tasks, pass rates, arms, wishes for new ones, alarms.

    Parameters
    ----------
    where
        A run folder, a pool.sqlite, or the URL of a Postgres database.
    """
    from etude.task_verbs import tasks_pool

    tasks_pool(where, as_json=json)
