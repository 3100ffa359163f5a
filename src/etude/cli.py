"""The command line: one verb a stage, each with `--help`.

    etude demo                           everything, in order, on one small repository
    etude tasks build|check|show|grade   repository -> tasks; prove, print and grade them
    etude train                          tasks -> warm start -> rollouts -> a better model
    etude eval                           a model on tasks
    etude report                         a run folder -> report.html
    etude sandbox                        is this machine able to contain code?

A user's mistake prints one line and exits with code 2. torch is imported by the verbs that need it, after parsing.

Not here: any work. Each verb calls one function of the stage it names.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Toml

from etude import __version__
from etude.config import Config
from etude.errors import EtudeError, UserError

HELP = """Post-training for coding agents: real repositories in, a better model out.

Start with **etude demo**: it removes features from a small real library, lets a small model try to write them again in a sandbox,
and trains it with the reward and with hints at the turns that went wrong. 15 to 20 minutes on two cores."""

app = App(name="etude", version=__version__, help=HELP, help_format="markdown", exit_on_error=False, print_error=False)
tasks = App(name="tasks", help="Make, prove, print and grade tasks.")
app.command(tasks)

Json = Annotated[bool, Parameter(negative=(), help="Print one JSON object instead of text.")]


@tasks.command
def build(
    source: str,
    /,
    *,
    out: Path,
    modes: Annotated[
        tuple[Literal["remove", "stub"], ...], Parameter(help="remove: the definition goes. stub: its body raises NotImplementedError.")
    ] = (
        "remove",
        "stub",
    ),
    limit: Annotated[int | None, Parameter(help="Try at most this many candidates (all).")] = None,
    jobs: Annotated[int, Parameter(help="Candidates checked at a time (0: one per core).")] = 0,
    json: Json = False,
) -> None:
    """Build tasks from a repository by removing features that its tests notice. No model is needed.

    Parameters
    ----------
    source
        A folder, a git URL, a source archive, or NAME==VERSION of a PyPI source distribution that carries its tests.
    out
        The tasks folder to make.
    """
    from etude.verbs import tasks_build

    tasks_build(source, out, modes=modes, limit=limit, jobs=jobs, as_json=json)


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
    from etude.verbs import tasks_check

    raise SystemExit(tasks_check(folder, task, as_json=json))


@tasks.command
def show(folder: Path, task: str | None = None, /, *, gold: bool = False) -> None:
    """Print a task for a person, or the list of all.

    Parameters
    ----------
    folder
        The tasks folder.
    task
        The id of one task.
    gold
        Show the patch that solves it.
    """
    from etude.verbs import tasks_show

    tasks_show(folder, task, gold=gold)


@tasks.command
def grade(
    folder: Path, task: str, /, *, patch: Annotated[str, Parameter(help="A diff file, or - for standard input.")], json: Json = False
) -> None:
    """Grade anyone's diff: hidden tests in a fresh sandbox that receives the allowed source files only.

    Exit code 0 when solved, 1 when not, 3 when there is no verdict.
    """
    from etude.verbs import tasks_grade

    raise SystemExit(tasks_grade(folder, task, patch, as_json=json))


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
            app.config = (Toml(config, must_exist=True, use_commands_as_keys=False),)
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except FileNotFoundError as error:
        raise UserError(f"no configuration file {error.filename}; name an existing TOML file after --config") from None
    except ValueError as error:  # the checks of the configuration's own dataclasses
        raise UserError(str(error)) from None
    _call(command, bound)


def _call(command: Any, bound: Any) -> None:
    command(*bound.args, **bound.kwargs)


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
    except KeyboardInterrupt:
        print("etude: stopped; what was finished is on disk (--resume goes on)", file=sys.stderr)
        raise SystemExit(130) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
