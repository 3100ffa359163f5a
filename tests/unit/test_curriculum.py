"""What a run draws: by the pool or uniformly, the same after a kill, with tasks made in the background where it is asked for."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from etude.collect import Harness
from etude.config import AgentConfig, Config, PoolConfig, RLConfig
from etude.curriculum import Curriculum
from etude.errors import UserError
from etude.growth import grown_folder
from etude.records import encode
from etude.runfolder import RunFolder
from etude.store import TaskStore
from etude.types import Reward, Rollout, Task, Usage
from etude.view import Silent


@pytest.fixture
def harness(pocket_store, backend, renderer, tmp_path) -> Harness:
    """Its tasks are this test's own, the repository is everybody's."""
    store = TaskStore.open(grown_folder(tmp_path, pocket_store))
    return Harness(store=store, backend=backend, renderer=renderer, agent=AgentConfig())


@pytest.fixture
def tasks(pocket_store) -> list[Task]:
    return [replace(pocket_store.get("pocket-slugify"), id=f"task-{k}") for k in range(8)]


@contextmanager
def opened(path, tasks, harness, *, step=0, steps=4, **pool):
    path.mkdir(exist_ok=True)
    config = Config(pool=PoolConfig(**pool), rl=RLConfig(steps=steps, tasks_per_step=2, group_size=2))
    with Curriculum(tasks, config, run=RunFolder(path), harness=harness, step=step, view=Silent()) as curriculum:
        yield curriculum


def rollouts(step: int, drawn: list[Task]) -> list[Rollout]:
    """Half of each group is solved, and one rollout of each has no verdict."""
    return [
        Rollout(
            id=f"{step}/{task.id}/{k}",
            task_id=task.id,
            group=f"{step}/{task.id}",
            seed=0,
            status="finished" if k < 2 else "sandbox_lost",
            segments=(),
            reward=Reward(total=float(k == 0), solved=k == 0) if k < 2 else None,
            usage=Usage(sampled_tokens=10, context_tokens=5),
        )
        for task in drawn
        for k in range(3)
    ]


def names(found: list[Task]) -> list[str]:
    return [task.id for task in found]


@pytest.mark.parametrize("draw", ["pool", "uniform"])
def test_no_task_is_drawn_twice_and_outcomes_are_recorded(tmp_path, tasks, harness, draw):
    with opened(tmp_path / "run", tasks, harness, draw=draw) as curriculum:
        drawn = []
        for step in range(4):
            drawn += (found := curriculum.tasks(step))
            row = curriculum.report(step, rollouts(step, found))
        assert sorted(names(drawn)) == sorted(names(tasks))
        assert row["active"] == 8
        assert {(one.samples, one.solved, one.cost) for one in curriculum.pool.outcomes()} == {(2, 1, 45.0)}


@pytest.mark.parametrize("draw", ["pool", "uniform"])
def test_a_run_killed_before_a_checkpoint_draws_what_it_would_have_drawn(tmp_path, tasks, harness, draw):
    with opened(tmp_path / "whole", tasks, harness, draw=draw) as curriculum:
        expected = []
        for step in range(4):
            expected.append(names(found := curriculum.tasks(step)))
            curriculum.report(step, rollouts(step, found))
    for step in range(2):
        with opened(tmp_path / "killed", tasks, harness, draw=draw) as curriculum:
            curriculum.report(0, rollouts(0, curriculum.tasks(0)))
            curriculum.report(1, rollouts(1, curriculum.tasks(1))[: 3 * step])
    found = []
    with opened(tmp_path / "killed", tasks, harness, step=1, draw=draw) as curriculum:
        for step in range(1, 4):
            found.append(names(drawn := curriculum.tasks(step)))
            curriculum.report(step, rollouts(step, drawn))
    assert found == expected[1:]


@pytest.mark.parametrize("pool", [{}, {"draw": "uniform"}, {"max_draws": 2}])
def test_too_few_tasks_are_told_before_the_first_step(tmp_path, tasks, harness, pool):
    few = tasks[:3]
    with (
        pytest.raises(UserError, match=r"rl.steps x rl.tasks_per_step = 8 but there are 3"),
        opened(tmp_path / "run", few, harness, **pool),
    ):
        pass


def test_seeds_of_rollouts_differ_between_steps_only_where_a_task_may_come_again(tmp_path, tasks, harness):
    with opened(tmp_path / "once", tasks, harness) as curriculum:
        assert curriculum.seed(0) == curriculum.seed(1)
    with opened(tmp_path / "again", tasks, harness, max_draws=0) as curriculum:
        assert curriculum.seed(0) != curriculum.seed(1)


def test_tasks_that_were_left_over_are_taken_in_two_steps_after_they_were_wished_for(tmp_path, tasks, harness):
    for task in tasks:
        (harness.store.path / f"{task.id}.json").write_bytes(encode(task))

    def play(folder) -> list[list[str]]:
        with opened(tmp_path / folder, tasks[:4], harness, grow=True, wait=True) as curriculum:
            drawn = []
            for step in range(4):
                drawn.append(names(found := curriculum.tasks(step)))
                curriculum.report(step, rollouts(step, found))
            return drawn

    drawn = play("a")
    assert set(drawn[0] + drawn[1]) == {"task-0", "task-1", "task-2", "task-3"}
    assert set(drawn[2] + drawn[3]) - set(names(tasks[:4]))
    assert play("b") == drawn


@pytest.fixture
def leaky(pocket, pocket_store, lay_down, tmp_path) -> Task:
    """Its repository holds what was cut, in a log."""
    folder = lay_down(tmp_path / "leaky", {**pocket, "debug.log": pocket["pocket/text.py"]})
    task = pocket_store.get("pocket-slugify")
    return replace(task, id="pocket-slugify-00000000", repo=replace(task.repo, digest=pocket_store.add_snapshot(folder)))


def test_a_task_that_leaked_is_scrubbed_and_its_stand_in_comes_from_the_next_step_on_also_after_a_kill(tmp_path, leaky, tasks, harness):
    def play(curriculum, step: int) -> list[str]:
        drawn = names(found := curriculum.tasks(step))
        curriculum.report(step, rollouts(step, found))
        return drawn

    with opened(tmp_path / "run", [leaky, tasks[0], tasks[1]], harness, steps=1) as curriculum:
        play(curriculum, 0)
        told = curriculum.quarantine(0, {leaky.id: "r: leak, a log"}, lambda task: ["cat debug.log"])
        play(curriculum, 1)
    stands = told[leaky.id].removeprefix("r: leak, a log; scrubbed again: ").partition(" ")[0]
    assert told[leaky.id].endswith(f"{stands} stands for it, without debug.log")
    assert TaskStore.open(tmp_path / "run/grown").get(stands).origin == (leaky.id,)
    with opened(tmp_path / "run", [leaky, tasks[0], tasks[1]], harness, step=1, steps=1) as curriculum:
        entries = {entry.id: entry for entry in curriculum.pool.entries()}
        assert (entries[stands].admitted, entries[stands].held) == (1, "")
        assert entries[leaky.id].held.startswith("scrub it again: r: leak")


def test_a_task_without_left_overs_is_held_for_a_person(tmp_path, tasks, harness):
    with opened(tmp_path / "run", tasks, harness) as curriculum:
        told = curriculum.quarantine(0, {"task-0": "r: judge, talks to it"}, lambda task: ["print('clean')"])
        assert told == {"task-0": "r: judge, talks to it; scrubbed again: clean, nothing is left that tells what was removed"}
        assert len(curriculum.pool.entries()) == len(tasks)
