"""The command line: one verb a stage, each with `--help`.

    etude demo                           everything, in order, on one small repository
    etude tasks build|check|show|grade   repository -> tasks; prove, print and grade them
    etude train                          tasks -> warm start -> rollouts -> a better model
    etude eval                           a model on tasks
    etude report                         a run folder -> report.html
    etude monitor                        trajectories -> which of them got at their reward in another way
    etude pretrain                       text and code -> a model trained further, or from scratch
    etude plan                           what an optimizer step of a model costs on a cluster, and the best layout
    etude sandbox                        is this machine able to contain code?

A user's mistake prints one line and exits with code 2. torch is imported by the verbs that need it, after parsing.

Not here: any work. Each verb calls one function of the stage it names.
"""

import errno
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Dict

from etude import __version__
from etude.config import Config
from etude.errors import EtudeError, UserError, printable
from etude.toml import read_toml

HELP = """Post-training for coding agents: real repositories in, a better model out.

Start with **etude demo**: it removes features from a small real library, lets a small model try to write them again in a sandbox,
and trains it with the reward and with hints at the turns that went wrong. a quarter of an hour on two cores."""

PIPE_CLOSED = 128 + 13  # as a shell reports SIGPIPE
MACHINE = {  # errors of the system that are the user's to mend
    errno.ENOSPC: "the disk is full; make room, then start the same command again",
    errno.EDQUOT: "the quota of the disk is used up; make room, then start the same command again",
    errno.EROFS: "it cannot be written; choose another folder",
    errno.EACCES: "choose another folder, or change its permissions",
    errno.EPERM: "choose another folder, or change its permissions",
    errno.ENOTDIR: "a part of this path is a file; choose another folder",
    errno.EISDIR: "this is a folder, and a file is needed",
    errno.EEXIST: "something else has this name already; choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its links lead in a circle",
}

app = App(name="etude", version=__version__, help=HELP, help_format="markdown", exit_on_error=False, print_error=False)
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False  # main() says how to go on
tasks = App(name="tasks", help="Make, prove, print and grade tasks.")
app.command(tasks)
watch = App(name="monitor", help="Find reward hacking in trajectories, and answer the cases that wait for a person.")
app.command(watch)

AGENT = Group("By an agent", sort_key=1)
JUDGE = Group("Judge", sort_key=1)
Json = Annotated[bool, Parameter(negative=(), help="Print one JSON object instead of text.")]


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
    model: Annotated[str, Parameter(group=AGENT, help="The endpoint's model; for local, a model folder (the default model).")] = "",
    runs: Annotated[int, Parameter(group=AGENT, help="Deletions to try.")] = 20,
    prices: Annotated[str, Parameter(group=AGENT, help="Dollars per million tokens, IN,OUT: what it costs is counted.")] = "",
    max_cost: Annotated[float | None, Parameter(group=AGENT, help="Dollars for one deletion.")] = None,
    max_total_cost: Annotated[float | None, Parameter(group=AGENT, help="Dollars for all of them.")] = None,
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
    from etude.synth.options import BuildOptions
    from etude.task_verbs import agent_model, tasks_build, tasks_build_many, tasks_build_with_agent

    file = Path(source)
    many = file.suffix == ".txt" and file.is_file()
    options = BuildOptions(
        kinds=kinds, modes=modes, level=level, visible_share=visible, gates=gates, max_candidates=limit, jobs=jobs or int(many)
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
def check(folder: Path, task: str | None = None, /, *, json: Json = False) -> None:
    """Prove one task, or all of a folder, again: rest passes, feature fails, gold restores.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task (all).
    """
    from etude.task_verbs import tasks_check

    raise SystemExit(tasks_check(folder, task, as_json=json))


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
def grade(
    folder: Path,
    task: str,
    /,
    *,
    patch: Annotated[str, Parameter(allow_leading_hyphen=True, help="A diff file, or - for standard input.")],
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

    raise SystemExit(tasks_grade(folder, task, patch, as_json=json))


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


Run = Annotated[Path, Parameter(help="The run folder.")]
Resume = Annotated[bool, Parameter(negative=(), help="Continue the run in this folder where it stopped.")]


@app.command
def demo(*, config: Annotated[Config, Parameter(name="*")] = Config(), run: Run = Path("runs/demo"), resume: Resume = False) -> None:
    """The main job: repository -> tasks -> warm start -> evaluation -> training with hints -> evaluation -> report."""
    from etude.demo import run_demo

    run_demo(config, run, resume=resume)


@app.command
def train(
    folder: Path,
    /,
    *,
    config: Annotated[Config, Parameter(name="*")] = Config(),
    run: Run = Path("runs/train"),
    resume: Resume = False,
) -> None:
    """Train a model on the tasks of a folder: rollouts, rewards, hints at the turns that went wrong.

    Parameters
    ----------
    folder
        The tasks folder.
    """
    from etude.verbs import train_verb

    train_verb(folder, config, run, resume=resume)


@app.command(name="eval")
def evaluate(
    folder: Path,
    /,
    *,
    config: Annotated[Config, Parameter(name="*")] = Config(),
    run: Run = Path("runs/eval"),
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Play a model on the tasks of a folder and report solved, invalid calls, turns and tokens with intervals.

    Parameters
    ----------
    folder
        The tasks folder.
    """
    from etude.verbs import eval_verb

    eval_verb(folder, config, run, resume=resume, as_json=json)


@app.command
def report(run: Path, /) -> None:
    """Write report.html of a run folder, from what is on disk.

    Parameters
    ----------
    run
        The run folder.
    """
    from etude.verbs import report_verb

    report_verb(run)


@watch.default
def monitor(
    path: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Where findings, queue and report go (PATH/monitor, or FILE.monitor).")] = None,
    html: Annotated[Path | None, Parameter(help="The report (report.html in OUT).")] = None,
    threshold: Annotated[float, Parameter(help="Score from which a trajectory is flagged; a proof always is.")] = 0.5,
    tasks: Annotated[Path | None, Parameter(help="The tasks folder: the judge then sees gold patches and hidden tests.")] = None,
    judge: Annotated[
        str,
        Parameter(
            group=JUDGE, help="Who reads what was found: an OpenAI-compatible endpoint, local, rules, or a judge.jsonl of an earlier run."
        ),
    ] = "",
    model: Annotated[str, Parameter(group=JUDGE, help="The endpoint's model; for local, a model folder (the default model).")] = "",
    prices: Annotated[str, Parameter(group=JUDGE, help="Dollars per million tokens, IN,OUT: what it costs is counted.")] = "",
    max_cost: Annotated[float | None, Parameter(group=JUDGE, help="Dollars for all judgements; needs --prices.")] = None,
    judge_all: Annotated[bool, Parameter(group=JUDGE, negative=(), help="Also what nothing was found in.")] = False,
    workers: Annotated[int, Parameter(group=JUDGE, help="Judgements at a time.")] = 4,
    key_env: Annotated[str, Parameter(group=JUDGE, help="The environment variable that holds the endpoint's key.")] = "OPENAI_API_KEY",
    json: Json = False,
) -> None:
    """Find reward hacking in trajectories: etude's run folders, ATIF, SWE-agent, mini-swe-agent, OpenHands.

    Exit code 0 when nothing was found, 3 when something strong or proven was, 2 when there is no trajectory.

    Parameters
    ----------
    path
        A file of trajectories, or a folder of them.
    """
    from etude.monitor.judge.protocol import JudgeLimits
    from etude.monitor.run import Options
    from etude.verbs import monitor_judge, monitor_verb

    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}, allowed is above 0, at most 1: 0.5 is the default")
    if max_cost is not None and not (max_cost > 0 and prices):
        raise UserError(f"max cost is {max_cost}: give an amount above 0, and --prices IN,OUT to count it by")
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    brain = monitor_judge(judge, model, prices=prices, key=os.environ.get(key_env, ""))
    limits = JudgeLimits(turns=8, answer_tokens=192) if judge == "local" else JudgeLimits()
    options = Options(limits=limits, total_dollars=max_cost, judge_all=judge_all, workers=workers, threshold=threshold)
    raise SystemExit(monitor_verb(path, out, brain, options, tasks=tasks, html=html, as_json=json))


@watch.command
def queue(
    path: Path,
    /,
    *,
    state: Annotated[Literal["open", "confirmed", "honest", "unsure"] | None, Parameter(help="Only those (all).")] = None,
    json: Json = False,
) -> None:
    """List the cases that wait for a person, and those that were answered.

    Parameters
    ----------
    path
        What was monitored, or the folder of its queue.
    """
    from etude.verbs import monitor_queue_verb

    monitor_queue_verb(path, state or "", as_json=json)


@watch.command
def decide(path: Path, case: str, answer: Literal["confirmed", "honest", "unsure"], /, *, note: str = "") -> None:
    """Answer a case. Every answer is kept; the last one counts.

    Parameters
    ----------
    path
        What was monitored, or the folder of its queue.
    case
        The id that `etude monitor queue` shows.
    note
        Why.
    """
    from etude.verbs import monitor_decide_verb

    monitor_decide_verb(path, case, answer, note)


@watch.command
def confirm(path: Path, case: str, /, *, out: Path, note: str = "") -> None:
    """Confirm a case and make a regression test of it: its trajectory, reduced, as a JSON file.

    Parameters
    ----------
    path
        What was monitored.
    case
        The id that `etude monitor queue` shows.
    out
        The folder of confirmed cases; the project's own tests look at tests/exploits_confirmed.
    note
        Why.
    """
    from etude.verbs import monitor_confirm_verb

    monitor_confirm_verb(path, case, out, note)


@app.command
def pretrain(
    file: Path,
    /,
    *settings: str,
    run: Run = Path("runs/pretrain"),
    resume: Resume = False,
    init: Annotated[
        str, Parameter(help="From scratch: KIND:KEY=VALUE,... over [init]; say qwen3_moe:hidden_size=512,num_experts=16.")
    ] = "",
) -> None:
    """Continued pretraining on folders of source text, JSONL or parquet: phases, sharded Muon, two meshes, checkpoints that move.

    The same command runs on one process and, with `torchrun --nproc-per-node N -m --` in front of it, on many.

    Parameters
    ----------
    file
        A TOML file with model, phases and their sources; configs/pretrain/laptop.toml is an example.
    settings
        Over the file: KEY=VALUE, such as mesh.ep=2 or phases.0.steps=10.
    """
    from etude.verbs import pretrain_verb

    pretrain_verb(file, settings, init, run, resume=resume)


@app.command
def plan(
    model: Path,
    /,
    *,
    ranks: Annotated[int | None, Parameter(help="World size; needed where the file does not say.")] = None,
    json: Json = False,
) -> None:
    """Cost of a layout before you pay for it: parameters, memory per rank, the optimizer step and what binds it, the best layouts.

    Starts no process and loads no weights; configs/plan/kimi-k2.toml is an example with every key.

    Parameters
    ----------
    model
        A TOML file with the model's dimensions and the cluster, or a Hugging Face folder or its config.json.
    """
    from etude.plan.run import run_plan

    run_plan(model, ranks=ranks, as_json=json)


@app.command
def sandbox(*, quick: Annotated[bool, Parameter(negative=(), help="Only look whether it can start.")] = False, json: Json = False) -> None:
    """Run the conformance suite of the sandbox on this machine."""
    from etude.verbs import sandbox_verb

    raise SystemExit(sandbox_verb(quick=quick, as_json=json))


@app.meta.default
def _with_config(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(help="A TOML file; options given on the command line win over it.")] = None,
) -> None:
    try:
        if config is not None:
            app.config = (Dict(_read_toml(config), source=str(config), use_commands_as_keys=False),)
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except ValueError as error:  # the checks of the configuration's own dataclasses
        raise UserError(str(error)) from None
    _call(command, bound)


def _read_toml(path: Path) -> dict[str, Any]:
    """Sections are tables; what is in them is checked with the options of the command line."""
    found = read_toml(path)
    for section in fields(Config)[1:]:
        if not isinstance(found.get(section.name, {}), dict):
            raise UserError(
                f"{path}: {section.name} is {found[section.name]!r}, but it is a section: write [{section.name}], then its keys"
            )
    return found


def _call(command: Any, bound: Any) -> None:
    try:
        command(*bound.args, **bound.kwargs)
    except KeyboardInterrupt:
        resumes = "--resume" if "resume" in bound.signature.parameters else "the same command" if command is build else ""
        raise KeyboardInterrupt(f"; what was finished is on disk ({resumes} goes on)" if resumes else "") from None
    finally:
        sys.stdout.flush()  # a reader that has gone is noticed here, not when Python ends


def main() -> None:
    """Run one verb; every user's mistake ends here as one line and exit code 2."""
    # Read by OpenMP when torch is loaded: threads that spin for work make every operation wait beside a busy sandbox (docs/log.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app.meta(exit_on_error=False, print_error=False)
    except (UserError, CycloptsError) as error:
        print(f"etude: {_one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except EtudeError as error:
        print(f"etude: {_one_line(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt as stop:
        print(f"etude: stopped{stop}", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # of `| head`: what is left to say goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED) from None
    except OSError as error:
        if error.errno not in MACHINE:
            raise
        where = f"{error.filename2 or error.filename or 'a file'}: {error.strerror}"  # of a copy the second is the new one
        print(f"etude: {_one_line(where)}; {MACHINE[error.errno]}", file=sys.stderr)
        raise SystemExit(2) from None


def _one_line(error: BaseException | str) -> str:
    return " ".join(printable(str(error)).split())
