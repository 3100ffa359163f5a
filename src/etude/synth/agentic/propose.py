"""Feature deletion by an agent: every run of it may give one Proposal, which is proven like that of any other kind.

In: a model, limits, a folder for records; out: Ideas, in a fixed order, whose `make` plays one run in a sandbox on the original. Runs know
nothing of each other; each begins at another page of suggestions. A run that has a record (record.py) is played from it: the model is not
asked, and the same Proposal comes out.

    tasks/.builds/agent/<hash>.jsonl   one run; the hash is of the repository, the model, the prompt, the limits and the run's number

Not here: the tools (desk.py), what is accepted (accept.py), the build (run.py).
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.agent.loop import run_agent
from etude.agent.meter import Meter, Purse
from etude.agent.policy import play
from etude.agent.tools import Tool
from etude.config import AgentConfig
from etude.engine.protocol import Completion, Request
from etude.errors import SandboxError
from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.agentic.accept import Coverage
from etude.synth.agentic.desk import Desk
from etude.synth.agentic.limits import AgentLimits, Model
from etude.synth.agentic.prompt import deletion_prompt
from etude.synth.agentic.record import Recorder
from etude.synth.candidates import Candidate, find_candidates
from etude.synth.cut import CutError
from etude.synth.options import BuildOptions
from etude.synth.proposal import FEATURE_DELETION, Idea, Made, Proposal
from etude.synth.workshop import Baseline, Workshop
from etude.types import Environment, Rollout, Task

ROW = "agent"
PROMPT_CHARS = 20_000
UNDOCUMENTED = Environment(python="", requirements=(), digest="")  # the harness does not look at it

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to, before its proof."""

    name: str  # of the idea
    key: str  # of its record
    submitted: bool
    reason: str  # why there is nothing to prove; "" if there is
    feature: str
    turns: int
    input_tokens: int
    output_tokens: int
    dollars: float | None  # None: no prices are known


@dataclass
class Proposer:
    """The runs of one model on one repository; used by many threads."""

    model: Model
    limits: AgentLimits
    folder: Path  # of records
    tell: Tell = lambda _: None
    runs: dict[str, Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Proposal | str] = {}
        self._purse = Purse(self.limits.total_dollars)

    def find(self, workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
        coverage = Coverage(workshop, baseline)
        candidates = find_candidates(
            workshop.index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN), max_share=options.max_share
        )
        prompt = deletion_prompt(workshop, baseline, self.limits)
        for number in range(self.limits.runs):
            key = self._key(workshop, prompt, number)
            may_spend = hashlib.sha256(f"{key} {self.limits.dollars} {self.limits.total_dollars}".encode()).hexdigest()
            name = f"{ROW} {self.model.name} {number} {may_spend[:8]}"
            make = partial(self._make, coverage, candidates, prompt, number, key, name)
            yield Idea(kind=FEATURE_DELETION, name=name, group=name, row=ROW, make=make)

    def _key(self, workshop: Workshop, prompt: str, number: int) -> str:
        told = replace(self.limits, runs=1, dollars=None, total_dollars=None)
        parts = (workshop.repo.digest, self.model.name, prompt, repr(told), str(number))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def _make(self, coverage: Coverage, candidates: Sequence[Candidate], prompt: str, number: int, key: str, name: str) -> Proposal:
        """Raises: CutError with why nothing came of the run, SandboxError, UserError where the model cannot be asked."""
        with self._lock:
            known = self._made.get(name)
        if known is None:
            known = self._play(coverage, candidates, prompt, number, key, name)
            with self._lock:
                self._made[name] = known
        if isinstance(known, str):
            raise CutError(known)
        return known

    def _play(self, coverage: Coverage, candidates: Sequence[Candidate], prompt: str, number: int, key: str, name: str) -> Proposal | str:
        workshop, limits = coverage.workshop, self.limits
        desk = Desk(coverage, candidates, name=name, page=number, test_runs=limits.test_runs)
        meter = Meter(prices=self.model.prices, max_tokens=limits.tokens, max_dollars=limits.dollars, purse=self._purse)
        head = {
            "model": self.model.name,
            "repo": workshop.repo.name,
            "digest": workshop.repo.digest,
            "run": number,
            "prices": [self.model.prices.input, self.model.prices.output] if self.model.prices else None,
            "limits": asdict(limits),
        }
        recorder = Recorder(self.folder / f"{key}.jsonl", head, self.model.renderer, meter, self.model.policy(key, meter, limits))

        def ask(request: Request) -> Completion | None:
            completion = recorder(request)
            cost = f", ${meter.dollars:.3f}" if meter.prices else ""
            self.tell(f"agent {number}: turn {len(recorder.said)}, {meter.input_tokens + meter.output_tokens:,} tokens{cost}")
            return completion

        try:
            rollout = self._rollout(workshop, desk.tools, prompt, number, key, ask)
        finally:
            self.model.end(key)
        if rollout.status == "sandbox_lost":
            raise SandboxError(rollout.error or "the sandbox was lost")
        reason = "" if desk.proposal else _why(rollout, desk, meter)
        run = Run(
            name=name,
            key=key,
            submitted=desk.proposal is not None,
            reason=reason,
            feature=desk.submission.feature if desk.submission else "",
            turns=rollout.usage.turns,
            input_tokens=meter.input_tokens,
            output_tokens=meter.output_tokens,
            dollars=meter.dollars if meter.prices else None,
        )
        said = desk.submission
        end = {"end": rollout.status, **asdict(run), "symbols": said.symbols if said else (), "summary": said.summary if said else ""}
        if not meter.is_broke:  # else it goes on when there is more to spend
            recorder.close(rollout.segments[0].turns, end)
        with self._lock:
            self.runs[name] = run
        return replace(desk.proposal, evidence={**desk.proposal.evidence, **_evidence(self.model.name, run)}) if desk.proposal else reason

    def _rollout(
        self,
        workshop: Workshop,
        tools: Mapping[str, Tool],
        prompt: str,
        number: int,
        key: str,
        ask: Callable[[Request], Completion | None],
    ) -> Rollout:
        limits, unit = self.limits, self.model.unit
        context = min(limits.context_tokens, self.model.context_tokens or limits.context_tokens)
        config = AgentConfig(
            turns=limits.turns,
            context_tokens=context * unit,
            turn_tokens=min(limits.turn_tokens, context) * 2 * unit if unit > 1 else min(limits.turn_tokens, context),
            observation_chars=limits.observation_chars,
            instruction_chars=PROMPT_CHARS,
            temperature=limits.temperature,
        )
        job = Task(
            id=key,
            repo=workshop.repo,
            environment=UNDOCUMENTED,
            instruction=prompt,
            cut="",
            gold="",
            fail_to_pass=(),
            pass_to_pass=(),
            symbols=(),
            limits=workshop.limits,
        )
        with workshop.open(workshop.original) as sandbox:
            agent = run_agent(
                job,
                sandbox,
                self.model.renderer,
                workspace=workshop.original,
                limits=config,
                rollout_id=key,
                group=key,
                seed=limits.seed * 1_000_003 + number,
                temperature=limits.temperature,
                tools=tools,
            )
            return play(agent, ask)


def _evidence(model: str, run: Run) -> dict[str, Any]:
    told = {"agent": model, "agent_run": run.key, "turns": run.turns, "input_tokens": run.input_tokens, "output_tokens": run.output_tokens}
    return {**told, **({} if run.dollars is None else {"dollars": round(run.dollars, 6)})}


def _why(rollout: Rollout, desk: Desk, meter: Meter) -> str:
    """Why a run gave nothing, in one line."""
    if rollout.status == "finished":
        return f"the agent's deletion was refused {len(desk.refused)} times, last: {desk.refused[-1]}"
    ends = {"out_of_turns": "its turns are used up", "out_of_tokens": "its context is full"}
    end = meter.stopped or ends.get(rollout.status, "it fell silent")
    last = f"; its last submission was refused: {desk.refused[-1]}" if desk.refused else ""
    return f"the agent submitted nothing that holds: {end}{last}"
