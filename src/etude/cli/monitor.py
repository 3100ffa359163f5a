"""`etude monitor`: find reward hacking, and answer the cases that wait for a person.

Not here: any work (verbs.py).
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from etude.cli.options import Json
from etude.errors import UserError

watch = App(name="monitor", help="Find reward hacking in trajectories, and answer the cases that wait for a person.")
JUDGE = Group("Judge", sort_key=1)


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
