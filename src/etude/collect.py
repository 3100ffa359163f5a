"""Engine + sandboxes -> graded rollouts.

In: jobs (a task, a group, a seed each). Out: one Rollout per job, graded, in the order in which they end.
An agent hands its request to the engine, is sent the completion, runs its tools, and grades itself where it has ended, on one of
`workers` threads, while the engine goes on with the others. With an engine in reproducible mode a rollout depends on its job and the
weights alone, so the same jobs give the same rollouts, also when some were finished before (a resumed run hands in only the rest).

Not here: what an agent does (agent/loop.py), sampling (engine/), what is learned from a rollout (learn/).
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from etude.agent.loop import run_agent
from etude.config import AgentConfig
from etude.engine.protocol import Completion, Engine, Request
from etude.engine.serve import serve
from etude.errors import SandboxError
from etude.grade.grader import grade
from etude.grade.guards import ALWAYS, FIRST_SOLVE
from etude.render import Renderer
from etude.sandbox.protocol import Backend, Sandbox
from etude.store import TaskStore
from etude.types import Flag, Reward, Rollout, Task

log = logging.getLogger(__name__)

Agent = Generator[Request, Completion, Rollout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    rollout_id: str
    task: Task
    group: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """Where rollouts happen: the tasks, the sandboxes, the chat template and the agent's limits."""

    store: TaskStore
    backend: Backend
    renderer: Renderer
    agent: AgentConfig
    watched: Backend | None = None  # where the agent works, if its sandbox keeps a log; `backend` grades
    marks: Path | None = None  # a folder that knows which tasks this policy has solved; None: one for all who use the store


@dataclass(slots=True)
class _Open:
    """One rollout under way."""

    job: Job
    sandbox: Sandbox
    agent: Agent
    request: Request | None = None
    rollout: Rollout | None = None


def shaped(reward: Reward, weight: float) -> Reward:
    """`total` = 1 if solved, else weight x the share of fail_to_pass tests that pass. `solved` stays what it is."""
    share = reward.parts.get("fail_to_pass_share", 0.0)
    return replace(reward, total=1.0 if reward.solved else weight * share)


def graded(rollout: Rollout, task: Task, harness: Harness) -> Rollout:
    """The rollout with its reward, a policy's first solve of a task with the ablation too. Without a reward where a sandbox was lost."""
    if rollout.status in ("sandbox_lost", "interrupted"):
        return rollout
    if not rollout.patch:  # the check has proved that the cut alone scores 0
        reward = Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.0})
        return replace(rollout, reward=reward)
    mark = (harness.marks or harness.store.path / ".cache") / f"solved-{task.id}"
    checks = ALWAYS if mark.exists() else FIRST_SOLVE
    try:
        verdict = grade(task, rollout.patch, store=harness.store, backend=harness.backend, checks=checks)
    except SandboxError as error:
        return replace(rollout, error=f"not graded: {error}")
    if verdict.reward is None:
        return replace(rollout, error=f"not graded: {verdict.reason}")
    if verdict.solved:
        mark.mkdir(parents=True, exist_ok=True)
    flags = (Flag(detector=f"grader {verdict.guard}", turn=-1, evidence=verdict.reason),) if verdict.guard else ()
    return replace(rollout, reward=shaped(verdict.reward, harness.agent.shaping), flags=(*rollout.flags, *flags))


def collect(
    jobs: Sequence[Job],
    *,
    engine: Engine,
    harness: Harness,
    open_at_once: int = 32,
    workers: int = 2,
    on_tokens: Callable[[int], None] | None = None,
) -> Iterator[Rollout]:
    """Play every job to its end.

    Raises: UserError, EngineError. A failure of one sandbox is a rollout with status "sandbox_lost".
    """
    field = _Field(jobs, harness, open_at_once, workers)
    try:
        for request, completion in serve(engine, field.requests, on_tokens):
            field.advance(request.session, completion)
            yield from field.leave(engine)
        yield from field.leave(engine)
    finally:
        field.close(engine)


class _Field:
    """The rollouts under way: those that wait for the engine, those that run tools on a thread, those that have ended."""

    def __init__(self, jobs: Sequence[Job], harness: Harness, open_at_once: int, workers: int) -> None:
        self._waiting = deque(jobs)
        self._harness, self._open_at_once = harness, open_at_once
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="agent")
        self._open: dict[str, _Open] = {}
        self._stepped: SimpleQueue[Future[_Open]] = SimpleQueue()
        self._stepping = 0
        self._starting = 0
        self._ended: list[_Open] = []

    def requests(self, idle: bool) -> Sequence[Request] | None:
        """What has become ready for the engine since the last call; waits for something only if `idle`."""
        found: list[Request] = []
        while True:
            while self._waiting and len(self._open) + self._starting < self._open_at_once:
                self._starting += 1
                self._submit(_open, self._waiting.popleft(), self._harness)
            if not self._stepping:
                break
            try:
                future = self._stepped.get(block=idle and not found, timeout=1.0)
            except Empty:
                if idle and not found:
                    continue
                break
            self._stepping -= 1
            one = future.result()
            if one.job.rollout_id not in self._open:
                self._starting -= 1
                self._open[one.job.rollout_id] = one
            if one.request is not None:
                found.append(one.request)
            else:
                self._ended.append(self._open.pop(one.job.rollout_id))
        return None if not found and not self._open else found

    def advance(self, rollout_id: str, completion: Completion) -> None:
        self._submit(_step, self._open[rollout_id], completion, self._harness)

    def leave(self, engine: Engine) -> Iterator[Rollout]:
        while self._ended:
            one = self._ended.pop(0)
            engine.release(one.job.rollout_id)
            assert one.rollout is not None
            yield one.rollout

    def close(self, engine: Engine) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        while not self._stepped.empty():  # opened, but not taken in yet
            future = self._stepped.get()
            if not future.cancelled() and future.exception() is None:
                self._open[future.result().job.rollout_id] = future.result()
        for one in self._open.values():
            one.agent.close()
            one.sandbox.close()
            engine.release(one.job.rollout_id)

    def _submit(self, step: Callable[..., _Open], *arguments: object) -> None:
        self._stepping += 1
        self._pool.submit(step, *arguments).add_done_callback(self._stepped.put)


def _open(job: Job, harness: Harness) -> _Open:
    task = job.task
    environment = harness.store.environment(task.environment)
    sandbox = (harness.watched or harness.backend).open(harness.store.workspace(task), environment=environment, limits=task.limits)
    agent = run_agent(
        task,
        sandbox,
        harness.renderer,
        workspace=harness.store.workspace(task),
        limits=harness.agent,
        rollout_id=job.rollout_id,
        group=job.group,
        seed=job.seed,
        temperature=harness.agent.temperature,
    )
    return _step(_Open(job=job, sandbox=sandbox, agent=agent), None, harness)


def _step(one: _Open, answer: Completion | None, harness: Harness) -> _Open:
    """Until the agent's next request, or its end and grade."""
    try:
        one.request = next(one.agent) if answer is None else one.agent.send(answer)
    except StopIteration as end:
        one.request = None
        one.sandbox.close()
        one.rollout = graded(end.value, one.job.task, harness)
    return one
