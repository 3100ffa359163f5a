"""Engine + sandboxes -> graded rollouts.

In: jobs (a task, a group, a seed each). Out: one Rollout per job, graded, in the order in which they end.
The agents advance in rounds: every open one hands in its request, the engine answers all of them in one batch, then each runs
its tools, and grades itself where it has ended, on `workers` threads. Nothing depends on the clock, so the same jobs with the
same weights give the same rollouts, also when some of them were finished before (a resumed run hands in only the rest).

Not here: what an agent does (agent/loop.py), sampling (engine/), what is learned from a rollout (learn/).
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from etude.agent.loop import run_agent
from etude.config import AgentConfig
from etude.engine.protocol import Completion, Engine, Request
from etude.errors import SandboxError
from etude.grade.grader import grade
from etude.render import Renderer
from etude.sandbox.protocol import Backend, Sandbox
from etude.store import TaskStore
from etude.types import Reward, Rollout, Task

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
    """The rollout with its reward. A lost sandbox, here or before, leaves it without one."""
    if rollout.status in ("sandbox_lost", "interrupted"):
        return rollout
    if not rollout.patch:  # the check has proved that the cut alone scores 0
        reward = Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.0})
        return replace(rollout, reward=reward)
    try:
        verdict = grade(task, rollout.patch, store=harness.store, backend=harness.backend)
    except SandboxError as error:
        return replace(rollout, error=f"not graded: {error}")
    if verdict.reward is None:
        return replace(rollout, error=f"not graded: {verdict.reason}")
    return replace(rollout, reward=shaped(verdict.reward, harness.agent.shaping))


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
    waiting = list(reversed(jobs))
    active: list[_Open] = []
    pool = ThreadPoolExecutor(workers, thread_name_prefix="agent")
    try:
        while waiting or active:
            fresh = [waiting.pop() for _ in range(min(open_at_once - len(active), len(waiting)))]
            active += pool.map(lambda job: _open(job, harness), fresh)
            asking = [one for one in active if one.request is not None]
            answers = engine.generate([one.request for one in asking if one.request is not None], on_tokens=on_tokens) if asking else []
            list(pool.map(lambda one, answer: _step(one, answer, harness), asking, answers))
            for one in active:
                if one.rollout is not None:
                    engine.release(one.job.rollout_id)
                    yield one.rollout
            active = [one for one in active if one.rollout is None]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for one in active:
            one.agent.close()
            one.sandbox.close()
            engine.release(one.job.rollout_id)


def _open(job: Job, harness: Harness) -> _Open:
    task = job.task
    environment = harness.store.environment(task.environment)
    sandbox = harness.backend.open(harness.store.workspace(task), environment=environment, limits=task.limits)
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
    one = _Open(job=job, sandbox=sandbox, agent=agent)
    _step(one, None, harness)
    return one


def _step(one: _Open, answer: Completion | None, harness: Harness) -> None:
    """Until the agent's next request, or its end and grade."""
    try:
        one.request = next(one.agent) if answer is None else one.agent.send(answer)
    except StopIteration as end:
        one.request = None
        one.sandbox.close()
        one.rollout = graded(end.value, one.job.task, harness)
