"""One rollout: the model's turns and the tools' answers, until it finishes or a limit is reached. Token in, token out.

In: a task, an open sandbox over its workspace, the pieces of the chat template. `run_agent` is a generator: it yields a Request (the whole
context as ids), is sent a Completion, and returns the Rollout. So whoever drives it decides where samples come from, how many rollouts
run side by side, and when to stop. What was sampled goes into the next context as it is, never through text.

Limits count turns and tokens. A sandbox that is lost, a limit and an interruption are statuses of a Rollout that holds what there was.

Not here: batching (collect.py), what tools do (tools.py), grading.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from inspect import GEN_CREATED, getgeneratorstate
from pathlib import Path

from etude.agent.calls import parse_calls
from etude.agent.prompt import opening_messages
from etude.agent.tools import TOOLS, Bench, Tool, no_call, open_bench, run_call
from etude.config import AgentConfig
from etude.engine.protocol import Completion, Request
from etude.errors import SandboxError
from etude.languages.shell import shell_of
from etude.render import Renderer
from etude.sandbox.protocol import Sandbox
from etude.tree import make_patch
from etude.types import INVALID_CALLS, Observation, Rollout, Segment, Status, Task, ToolCall, Turn, Usage

Agent = Generator[Request, Completion, Rollout]
Hinter = Callable[[Sequence[Turn]], str | None]  # the turns so far -> a hint for the coming one
MAX_CALLS = 8  # of one message: bounds what a single turn can cost


class Interrupted(Exception):
    """Thrown into an agent by `interrupt`."""


def run_agent(
    task: Task,
    sandbox: Sandbox,
    renderer: Renderer,
    *,
    workspace: Path,
    limits: AgentConfig,
    rollout_id: str,
    group: str,
    seed: int,
    temperature: float,
    hinter: Hinter | None = None,
    tools: Mapping[str, Tool] = TOOLS,
) -> Agent:
    """`workspace`: what the sandbox was made from; the patch is taken against it. `hinter`: puts hints into the context (warm start only).
    `tools`: what it may call, where that is not what an agent has that solves tasks.

    The same completions give the same Rollout, but for its wall time.
    """
    begun = time.monotonic()
    opening = renderer.opening(opening_messages(task, instruction_chars=limits.instruction_chars, tools=tools))
    turns: list[Turn] = []
    bench: Bench | None = None
    error, patch, runner = None, "", task.environment.runner
    try:
        bench = open_bench(
            sandbox, task.repo, limits=task.limits, observation_chars=limits.observation_chars, tools=tools, runner=runner
        )  # fmt: skip
        ask = _Asker(session=rollout_id, seed=seed, temperature=temperature, limits=limits, stop_ids=renderer.stop_ids)
        status = yield from _play_turns(opening, turns, bench, renderer, ask, hinter)
    except Interrupted:
        status = "interrupted"
    except SandboxError as lost:
        status, error = "sandbox_lost", _one_line(lost)
    if status != "sandbox_lost":
        try:
            patch, error = workspace_patch(sandbox, workspace, links=shell_of(runner).links)
        except SandboxError as lost:
            status, error = "sandbox_lost", _one_line(lost)
    return Rollout(
        id=rollout_id,
        task_id=task.id,
        group=group,
        seed=seed,
        status=status,
        segments=(Segment(turns=tuple(turns)),),
        patch=patch,
        usage=usage(turns, time.monotonic() - begun),
        error=error,
        log=tuple(bench.log) if bench is not None and bench.log is not None else None,
    )


def interrupt(agent: Agent) -> Rollout:
    """Stop an agent between turns and take what there is. Its sandbox must still be open."""
    if getgeneratorstate(agent) == GEN_CREATED:
        next(agent)
    try:
        agent.throw(Interrupted())
    except StopIteration as end:
        rollout: Rollout = end.value
        return rollout
    raise AssertionError("an interrupted agent asked for another turn")


def usage(turns: Sequence[Turn], wall_s: float) -> Usage:
    observations = [o for turn in turns for o in turn.observations]
    return Usage(
        sampled_tokens=sum(len(turn.sampled_ids) for turn in turns),
        context_tokens=sum(len(turn.context_ids) for turn in turns),
        turns=len(turns),
        calls=len(observations),
        invalid_calls=sum(o.error in INVALID_CALLS for o in observations),
        wall_s=wall_s,
    )


def workspace_patch(sandbox: Sandbox, workspace: Path, *, links: Container[str] = ()) -> tuple[str, str | None]:
    """Everything the agent changed as a git patch, and one line about what could not be part of it. Raises: SandboxError.

    `links`: those that were made for the agent are no change of its own.
    """
    refused = []
    with tempfile.TemporaryDirectory(prefix="etude-patch-") as folder:
        before, after = Path(folder, "before"), Path(folder, "after")
        before.mkdir()
        after.mkdir()
        for change in sandbox.changes():
            original = workspace / change.path
            if change.kind == "refused" and change.path in links:
                continue
            if change.kind == "refused":
                refused.append(change.path)
                continue
            if original.is_file() and not original.is_symlink():
                _copy(original.read_bytes(), before / change.path, executable=bool(original.stat().st_mode & 0o100))
            if change.data is not None:
                _copy(change.data, after / change.path, executable=change.executable)
        patch = make_patch(before, after)
    note = f"left out of the patch (a link, a device or too large): {', '.join(sorted(refused)[:5])}" if refused else None
    return patch, note


def _copy(data: bytes, target: Path, *, executable: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755 if executable else 0o644)


class _Asker:
    """Writes the requests of one rollout."""

    def __init__(self, *, session: str, seed: int, temperature: float, limits: AgentConfig, stop_ids: tuple[int, ...]) -> None:
        self.limits = limits
        self._session, self._seed, self._temperature, self._stop_ids = session, seed, temperature, stop_ids

    def __call__(self, ids: Sequence[int], turn: int) -> Request:
        room = self.limits.context_tokens - len(ids)
        return Request(
            session=self._session,
            ids=tuple(ids),
            max_tokens=min(self.limits.turn_tokens, room),
            temperature=self._temperature,
            seed=turn_seed(self._seed, turn),
            stop_ids=self._stop_ids,
        )


def turn_seed(seed: int, turn: int) -> int:
    """Seeds of turns that have nothing to do with each other, in 63 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{turn}".encode(), digest_size=8).digest(), "big") >> 1


def _play_turns(
    opening: tuple[int, ...], turns: list[Turn], bench: Bench, renderer: Renderer, ask: _Asker, hinter: Hinter | None
) -> Generator[Request, Completion, Status]:
    """Appends to `turns`, so that an exception leaves what there was."""
    ids: list[int] = []
    added = opening
    while not bench.finished:
        if len(turns) >= ask.limits.turns:
            return "out_of_turns"
        hint = hinter(turns) if hinter is not None else None
        context = (*added, *(renderer.hint(hint) if hint else ()), *renderer.header)
        if len(ids) + len(context) >= ask.limits.context_tokens:
            return "out_of_tokens"
        ids += context
        completion = yield ask(ids, len(turns))
        ids += completion.ids
        observations = _act(context, completion, turns, bench, renderer)
        text = "\n".join(o.text for o in observations)
        added = renderer.following(text, closed=renderer.closes(completion.ids))
    return "finished"


def _act(context: tuple[int, ...], completion: Completion, turns: list[Turn], bench: Bench, renderer: Renderer) -> list[Observation]:
    """Run the calls of a turn and add it to `turns`, also where the sandbox is lost half way."""
    text = renderer.sampled_text(completion.ids)
    bench.turn = len(turns)
    calls: list[ToolCall] = []
    observations: list[Observation] = []
    try:
        for parsed in parse_calls(text):
            calls.append(parsed.call)
            if len(calls) > MAX_CALLS:
                observations.append(Observation(text=f"error: only the first {MAX_CALLS} calls of a message are run", error="tool_failed"))
                break
            observations.append(run_call(parsed, bench))
            if bench.finished:
                break
        if not calls:
            observations.append(no_call(bench, cut_off=not completion.stopped))
    except SandboxError:
        observations.append(Observation(text="error: the sandbox was lost", error="tool_failed"))
        raise
    finally:
        turn = Turn(
            context_ids=context,
            header_tokens=len(renderer.header),
            sampled_ids=completion.ids,
            logprobs=completion.logprobs,
            versions=completion.versions,
            text=text,
            calls=tuple(calls),
            observations=tuple(observations),
        )
        turns.append(turn)
    return observations


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
