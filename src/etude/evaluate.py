"""A policy on tasks: `rollouts_per_task` attempts each, graded, kept as they end.

In: an engine and tasks. Out: rollouts in the order of their jobs, every one on disk (rollouts/NAME.jsonl) the moment it ends; what is there
already is not played again. The seeds depend on the task and the attempt only, so that two policies meet the same draws.

Not here: what the numbers mean (studio/summary.py), how a rollout is played (collect.py).
"""

import hashlib
from collections.abc import Callable, Sequence

from etude.collect import Harness, Job, collect
from etude.engine.protocol import Engine
from etude.runfolder import RunFolder
from etude.types import Rollout, Task


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable, the same on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def group_jobs(name: str, tasks: Sequence[Task], size: int, seed: int) -> list[Job]:
    """One group of `size` jobs per task. Ids say where a rollout belongs: "step-0003/toolz-second-1f/2"."""
    jobs = []
    for task in tasks:
        group = f"{name}/{task.id}"
        jobs += [Job(rollout_id=f"{group}/{i}", task=task, group=group, seed=seed_of(seed, task.id, i)) for i in range(size)]
    return jobs


def play(
    name: str,
    jobs: Sequence[Job],
    *,
    engine: Engine,
    harness: Harness,
    run: RunFolder,
    open_at_once: int,
    on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    on_tokens: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """The rollouts of `jobs`, those on disk included, in the order of the jobs."""
    known = {rollout.id: rollout for rollout in run.finished(name)}
    for rollout in known.values():
        on_rollout(rollout)
    missing = [job for job in jobs if job.rollout_id not in known]
    for rollout in collect(missing, engine=engine, harness=harness, open_at_once=open_at_once, on_tokens=on_tokens):
        run.add_rollout(name, rollout)
        known[rollout.id] = rollout
        on_rollout(rollout)
    return [known[job.rollout_id] for job in jobs]
