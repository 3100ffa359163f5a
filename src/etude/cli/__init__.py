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
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from etude import __version__
from etude.cli.monitor import watch
from etude.cli.options import Json
from etude.cli.tasks import build, tasks
from etude.config import Config
from etude.errors import EtudeError, UserError, printable
from etude.toml import read_toml

HELP = """Post-training for coding agents: real repositories in, a better model out.

Start with **etude demo**: it removes features from a small real library, lets a small model try to write them again in a sandbox,
and trains it with the reward and with hints at the turns that went wrong. A quarter of an hour on two cores."""

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
app.command(tasks)
app.command(watch)


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
