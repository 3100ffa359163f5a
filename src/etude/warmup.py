"""The supervised warm start: a scripted expert's rollouts, with and without hints in context, learned by cross-entropy.

A small model knows no tool calls. The expert (agent/expert.py) knows the gold patch and has bad habits where no hint stands in its context,
so the model leaves with tool calls, with some of the answers, and with a rate of bad calls that hints then have to remove.

In: training tasks. Out: the model's weights, changed; rollouts/demonstrations.jsonl. Every demonstration is a real rollout in the sandbox.

Not here: reinforcement learning (train.py).
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from etude.agent.expert import Habits, demonstrate
from etude.collect import Harness
from etude.config import WarmupConfig
from etude.evaluate import seed_of
from etude.learn.sample import to_samples
from etude.runfolder import RunFolder
from etude.types import Rollout, Sample, Task

NAME = "demonstrations"


def demonstrations(
    tasks: Sequence[Task],
    config: WarmupConfig,
    *,
    seed: int,
    harness: Harness,
    run: RunFolder,
    workers: int = 2,
    on_rollout: Callable[[Rollout], None] = lambda rollout: None,
) -> list[Rollout]:
    """`config.per_task` demonstrations of every task, `hinted_share` of them with hints; those on disk are not played again."""
    wanted = []
    for task in tasks:
        for i in range(config.per_task):
            hinted = (i + 1) * config.hinted_share // 1 > i * config.hinted_share // 1
            wanted.append((task, seed_of(seed, "demonstration", task.id, i), hinted))
    known = {(r.task_id, r.seed): r for r in run.finished(NAME)}
    for rollout in known.values():
        on_rollout(rollout)
    habits = Habits.of_rate(config.bad_call_rate)

    def make(one: tuple[Task, int, bool]) -> Rollout:
        task, seed, hinted = one
        return demonstrate(
            task, harness.store, harness.backend, harness.renderer, seed=seed, hinted=hinted, habits=habits, limits=harness.agent
        )

    with ThreadPoolExecutor(workers, thread_name_prefix="expert") as pool:
        for rollout in pool.map(make, [one for one in wanted if (one[0].id, one[1]) not in known]):
            run.add_rollout(NAME, rollout)
            known[rollout.task_id, rollout.seed] = rollout
            on_rollout(rollout)
    return [known[task.id, seed] for task, seed, _ in wanted]


def usable(rollouts: Sequence[Rollout], *, context_tokens: int) -> list[Sample]:
    """Samples of the demonstrations that ended well and fit into the context."""
    ended = [r for r in rollouts if r.status == "finished"]
    samples = to_samples(ended, advantages={r.id: 0.0 for r in ended})
    return [s for s in samples if len(s.ids) <= context_tokens]


def batches(samples: Sequence[Sample], config: WarmupConfig, *, seed: int) -> list[list[Sample]]:
    """What each step learns: passes over the samples, each in another order. The same for the same arguments."""
    queue: list[Sample] = []
    rng = random.Random(seed_of(seed, "warm start"))
    while len(queue) < config.steps * config.batch:
        queue += rng.sample(samples, len(samples))
    return [queue[k * config.batch : (k + 1) * config.batch] for k in range(config.steps)]


def learning_rate(config: WarmupConfig, step: int) -> float:
    """Linear rise over the first tenth, then linear fall to a tenth. `step` counts from 0."""
    rise = max(1, config.steps // 10)
    return config.lr * min((step + 1) / rise, max(0.1, 1 - (step + 1 - rise) / max(1, config.steps - rise)))
