"""A build whose features an agent chooses, with what it cost and what came of it.

In: a source, a model, limits; out: the BuildReport of any other build and an AgentReport. Progress is told through the build's own: one
event for every turn of a run (stage "tasks", done 0) and one for every candidate that is decided.

Not here: the build (build.py), one run (propose.py).
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from etude.errors import UserError
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.agentic.limits import AgentLimits, Model
from etude.synth.agentic.propose import ROW, Proposer, Run
from etude.synth.build import BuildReport, Progress, Report, build_tasks
from etude.synth.kinds import FINDERS
from etude.synth.options import BuildOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One candidate."""

    run: Run
    task: str  # id; "": none
    reason: str  # why there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    model: str
    outcomes: tuple[Outcome, ...]

    @property
    def valid(self) -> int:
        return sum(bool(outcome.task) for outcome in self.outcomes)

    @property
    def valid_share(self) -> float:
        return self.valid / len(self.outcomes) if self.outcomes else 0.0

    @property
    def input_tokens(self) -> int:
        return sum(outcome.run.input_tokens for outcome in self.outcomes)

    @property
    def output_tokens(self) -> int:
        return sum(outcome.run.output_tokens for outcome in self.outcomes)

    @property
    def dollars(self) -> float | None:
        """None where no prices were given."""
        known = [outcome.run.dollars for outcome in self.outcomes if outcome.run.dollars is not None]
        return sum(known) if known else None

    def line(self) -> str:
        """For people."""
        runs, tokens = len(self.outcomes), self.input_tokens + self.output_tokens
        told = f"{self.model}: {self.valid} of {runs} candidates valid ({self.valid_share:.0%}), {tokens:,} tokens"
        if self.dollars is None:
            return told + (f", {tokens // self.valid:,} a valid task" if self.valid else "")
        return f"{told}, ${self.dollars:.2f}" + (f", ${self.dollars / self.valid:.3f} a valid task" if self.valid else "")


class NoTask(UserError):
    """An agent's build that gave nothing; `report` says what it cost."""

    def __init__(self, message: str, report: AgentReport) -> None:
        super().__init__(message)
        self.report = report


def build_with_agent(
    source: str,
    out: Path,
    *,
    model: Model,
    limits: AgentLimits = AgentLimits(),
    options: BuildOptions = BuildOptions(),
    backend: Backend,
    progress: Report | None = None,
) -> tuple[BuildReport, AgentReport]:
    """Build tasks of `source` whose features `model` chooses, beside those that are in `out`. Of `options` kinds, modes and max_candidates
    do not count: they are `limits.runs` deletions. A build that was stopped goes on; what a model has said is not asked again.

    Raises: UserError (NoTask where nothing came of any run), SandboxError.
    """
    if (limits.dollars or limits.total_dollars) and model.prices is None:
        raise UserError("a limit in dollars needs prices; give dollars for a million tokens of input and of output, such as 0.25,2")
    lock = threading.Lock()

    def say(event: Progress) -> None:
        with lock:
            if progress is not None:
                progress(event)

    def tell(note: str) -> None:
        say(Progress(stage="tasks", done=0, total=limits.runs, note=note))

    proposer = Proposer(model, limits, out / ".builds" / "agent", tell)
    options = replace(options, kinds=(ROW,), max_candidates=limits.runs)
    try:
        report = build_tasks(source, out, options=options, backend=backend, progress=say, finders={**FINDERS, ROW: proposer.find})
    except UserError as error:
        if not proposer.runs:
            raise
        spent = AgentReport(model=model.name, outcomes=tuple(_outcome(run, {}, {}) for run in _ordered(proposer)))
        raise NoTask(f"{error}; {spent.line()}", spent) from None
    tasks = {str(task.evidence.get("agent_run")): task.id for task in TaskStore.open(out).tasks() if task.id in report.tasks}
    outcomes = tuple(_outcome(run, tasks, report.rejected) for run in _ordered(proposer))
    return report, AgentReport(model=model.name, outcomes=outcomes)


def _ordered(proposer: Proposer) -> list[Run]:
    return [proposer.runs[name] for name in sorted(proposer.runs, key=lambda name: int(name.split()[-2]))]


def _outcome(run: Run, tasks: Mapping[str, str], rejected: Mapping[str, str]) -> Outcome:
    task = tasks.get(run.key, "")
    return Outcome(run=run, task=task, reason="" if task else rejected.get(run.name, run.reason))
