"""Which tasks each step of a training run draws, and what the pool learns from a step.

    with Curriculum(tasks, config, run=run, harness=harness, step=0, view=view) as curriculum:
        chosen = curriculum.tasks(step)
        ...rollouts...
        row = curriculum.report(step, rollouts)

pool.draw = "pool": by pass rates (pool/); what is recorded carries its step, so that a resumed run forgets what its checkpoint has not seen
and draws the same again. With pool.grow, tasks are made in the background: from what is left over, by writing a task at another level, by
building; training does not wait for them unless pool.wait is set. pool.draw = "uniform": a shuffle by the seed, each task once; outcomes
are recorded all the same.

The run's name in the pool stands in pool.json of the run folder: a database may be shared.

Not here: rollouts (collect.py), the learning (train.py).
"""

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from etude.collect import Harness
from etude.config import Config
from etude.errors import EtudeError, UserError
from etude.evaluate import seed_of
from etude.growth import Growth, builder, grown_folder, releveler, scrubber
from etude.pool.entry import CHANGES, entry_of
from etude.pool.grow import Grower
from etude.pool.pool import Pool
from etude.runfolder import RunFolder
from etude.store import TaskStore
from etude.types import Rollout, Task
from etude.view import View

LAG = 2  # steps between a wish and its task, where they are waited for
LOOK_S = 0.2  # between two looks while waiting


class Curriculum:
    def __init__(self, tasks: Sequence[Task], config: Config, *, run: RunFolder, harness: Harness, step: int, view: View) -> None:
        """`step`: finished ones. Raises: UserError where there are not enough tasks, or the pool cannot be opened."""
        self._config, self._harness, self._run, self._view = config, harness, run, view
        self._known = {task.id: task for task in tasks}
        self._plan = uniform_plan(tasks, config) if config.pool.draw == "uniform" else None
        if self._plan is None and not config.pool.grow:
            check_supply(len(tasks), config)
        name = run.read_json("pool.json") or {"run": f"{run.path.name}-{uuid.uuid4().hex[:8]}"}
        run.write_json("pool.json", name)
        url = config.pool.url or str(run.path / "pool.sqlite")
        self.pool = Pool(url, config.pool, group_size=config.rl.group_size, run=name["run"])
        self.pool.rewind(step)
        self.pool.register(entry_of(task) for task in tasks)
        self._pools = [self.pool]
        self._scrub = scrubber(harness.store, lambda: grown_folder(run.path, harness.store), harness.backend)
        self._grower = self._start_growing() if config.pool.grow else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._grower is not None:
            self._grower.close()
        for pool in self._pools:
            pool.close()

    def tasks(self, step: int) -> list[Task]:
        """The tasks of a step, counted from 0. Raises: UserError where none is left."""
        size = self._config.rl.tasks_per_step
        if self._plan is not None:
            return self._plan[step]
        if self._grower is not None:
            new = self._take_in(step)
            if new:
                self._view.note(f"{len(new)} new tasks: {', '.join(new[:3])}{', ...' if len(new) > 3 else ''}")
        drawn = self.pool.draw(size, seed=seed_of(self._config.seed, "draw"), step=step)
        return [self._task(name) for name in drawn.tasks]

    def seed(self, step: int) -> int:
        """Of the step's rollouts. A task that may come again must not meet the same random numbers."""
        return self._config.seed if self._plan is not None or self._config.pool.max_draws == 1 else seed_of(self._config.seed, step)

    def report(self, step: int, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Records each group's outcome, wishes for tasks; returns what the pool looks like then."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.task_id, []).append(rollout)
        for name, members in groups.items():
            graded = [rollout.reward for rollout in members if rollout.reward is not None]
            if graded:
                self.pool.record(
                    name,
                    step,
                    [reward.solved for reward in graded],
                    [reward.total for reward in graded],
                    cost=float(sum(rollout.usage.sampled_tokens + rollout.usage.context_tokens for rollout in members)),
                    key=f"{step:06d}/{name}",
                )
        wished = 0
        if self._grower is not None:
            target = round(self._config.pool.frontier * self._config.rl.tasks_per_step)
            wished = len(self.pool.wish(step=step, can=CHANGES, target=target))
        seen = self.pool.view(step + 1)
        for one in seen.tasks.values():
            for alarm in one.alarms:
                if alarm.version == step:
                    self._view.note(f"alarm: {one.entry.id} went from {alarm.before:.0%} solved to {alarm.after:.0%}; it is quarantined")
        states = Counter(str(one.state) for one in seen.tasks.values())
        return {
            "frontier": len(seen.frontier),
            "wished": wished,
            "made": sum(bool(one.entry.wish) for one in seen.tasks.values()),
            **states,
        }

    def quarantine(self, step: int, found: Mapping[str, str], quotes: Callable[[str], Sequence[str]]) -> dict[str, str]:
        """Tasks that let a rollout count as solved that did not solve them, and why: none is drawn again before somebody releases it.

        Each is scrubbed again; where that takes something away, what is left is another task, proven again, and may be drawn from the next
        step on. Returns task -> why it is held, and what the scrub came to. `quotes`: task -> what was seen of its rollouts.
        """
        told = {}
        for name, why in found.items():
            self.pool.hold(name, f"scrub it again: {why}"[:500])
            told[name] = f"{why}; scrubbed again: {self._rescrub(step, name, quotes(name))}"
            self._view.note(f"{name} is quarantined: {told[name]}"[:500])
        return told

    def _rescrub(self, step: int, name: str, quotes: Sequence[str]) -> str:
        try:
            done = self._scrub(self._task(name), quotes)
        except EtudeError as error:
            return f"not done, {error}"
        if done.made is None:
            return f"{done.outcome}, {done.why}"
        self._known[done.made.id] = done.made
        self.pool.stand_in(entry_of(done.made), step=step + 1)
        return f"{done.made.id} stands for it, {done.why}"

    def _take_in(self, step: int) -> list[str]:
        if not self._config.pool.wait:
            return self.pool.admit(step=step)
        due = step - LAG
        while self.pool.pending(upto=due):
            time.sleep(LOOK_S)
        return self.pool.admit(step=step, upto=due)

    def _task(self, name: str) -> Task:
        if name not in self._known:
            for folder in (self._run.path / "grown", self._harness.store.path):
                if (folder / f"{name}.json").is_file():
                    self._known[name] = TaskStore.open(folder).get(name)
                    break
            else:
                raise UserError(f"the pool names the task {name}, but its file is gone from {self._harness.store.path}")
        return self._known[name]

    def _start_growing(self) -> Grower:
        store, other = self._harness.store, self.pool.again()
        self._pools.append(other)
        split = self._run.read_json("tasks.json") or {}
        held_out = [store.get(row["id"]) for row in split.get("held_out", ())]
        grown = grown_folder(self._run.path, store)
        growth = Growth(
            (store.path, grown),
            taken=lambda: [entry.id for entry in other.entries()],
            held_out=held_out,
            build=builder(store, grown, self._harness.backend),
            relevel=releveler(store, grown, self._harness.backend),
        )
        return Grower(self.pool, growth.make, keep=lambda task: None, deadline_s=self._config.pool.deadline_s).__enter__()


def uniform_plan(tasks: Sequence[Task], config: Config) -> list[list[Task]]:
    """The tasks of each step, none twice. Raises: UserError where there are not enough."""
    check_supply(len(tasks), config)
    order = random.Random(seed_of(config.seed, "order")).sample(list(tasks), len(tasks))
    size = config.rl.tasks_per_step
    return [order[k * size : (k + 1) * size] for k in range(config.rl.steps)]


def check_supply(count: int, config: Config) -> None:
    """Raises: UserError where the run asks for more groups than its tasks may be drawn for."""
    pooled = config.pool.draw == "pool"
    draws = config.pool.max_draws if pooled else 1
    needed = config.rl.steps * (round(config.rl.tasks_per_step * config.pool.oversample) if pooled else config.rl.tasks_per_step)
    if draws and needed > count * draws:
        times = "no task is trained on twice" if draws == 1 else f"no task is trained on more than {draws} times"
        raise UserError(
            f"rl.steps x rl.tasks_per_step = {needed} but there are {count} training tasks, and {times}: "
            "lower one of the two, or build more tasks"
        )
