"""Rollouts from an engine and the real sandbox: graded, in any order the same, and nothing left open when it stops half way."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from etude.agent.calls import write_call
from etude.agent.expert import solution
from etude.collect import Harness, Job, collect, shaped
from etude.config import AgentConfig
from etude.engine.protocol import Completion, Request
from etude.grade.grader import grade
from etude.types import Reward

FINISH = write_call("finish", {"message": "done"})


class Script:
    """An engine that says what `texts` has for a session, turn by turn, and knows which sessions were released."""

    version = 0

    def __init__(self, renderer, texts: Callable[[str], Sequence[str]]) -> None:
        self.renderer, self.texts = renderer, texts
        self.turns: dict[str, int] = {}
        self.released: set[str] = set()

    def generate(self, requests: Sequence[Request], *, on_tokens=None) -> list[Completion]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> Completion:
        turn = self.turns.get(request.session, 0)
        self.turns[request.session] = turn + 1
        ids = self.renderer.assistant(self.texts(request.session)[turn])
        return Completion(ids=ids, logprobs=(0.0,) * len(ids), versions=(self.version,) * len(ids), stopped=True)

    def release(self, session: str) -> None:
        self.released.add(session)

    def close(self) -> None:
        pass


@pytest.fixture
def harness(pocket_store, backend, renderer) -> Harness:
    return Harness(store=pocket_store, backend=backend, renderer=renderer, agent=AgentConfig(context_tokens=100_000, turn_tokens=10_000))


@pytest.fixture
def gold(pocket_store) -> list[str]:
    task = pocket_store.get("pocket-slugify")
    return [call.text for call in solution(task, pocket_store.workspace(task), pocket_store.solved_tree(task))]


def jobs(task, *names: str) -> list[Job]:
    return [Job(rollout_id=name, task=task, group="g", seed=i) for i, name in enumerate(names)]


def test_gold_is_solved_doing_nothing_is_not_and_a_break_is_not(harness, renderer, gold):
    task = harness.store.get("pocket-slugify")
    broken = [write_call("write", {"path": "pocket/text.py", "content": "raise OSError\n"}), FINISH]
    texts = {"gold": gold, "nothing": [FINISH], "broken": broken}
    engine = Script(renderer, texts.__getitem__)
    found = {r.id: r for r in collect(jobs(task, *texts), engine=engine, harness=harness)}
    assert {name: r.reward.solved for name, r in found.items()} == {"gold": True, "nothing": False, "broken": False}
    assert {name: r.reward.total for name, r in found.items()} == {"gold": 1.0, "nothing": 0.0, "broken": 0.0}
    assert engine.released == set(texts)


def test_more_jobs_than_may_be_open_give_the_same_rollouts_in_any_order_and_number(harness, renderer, gold):
    task = harness.store.get("pocket-slugify")
    all_jobs = jobs(task, "a", "b", "c", "d")

    def texts(name: str) -> list[str]:
        return gold if name in "ac" else [FINISH]

    def run(some: Sequence[Job], at_once: int) -> dict:
        found = collect(some, engine=Script(renderer, texts), harness=harness, open_at_once=at_once)
        return {r.id: replace(r, usage=replace(r.usage, wall_s=0.0)) for r in found}

    whole = run(all_jobs, 4)
    assert run(list(reversed(all_jobs)), 2) == whole
    assert run(all_jobs[1:3], 1) == {name: whole[name] for name in "bc"}


def test_a_stop_half_way_leaves_no_sandbox_open(harness, renderer, gold):
    task = harness.store.get("pocket-slugify")
    opened = []

    class Watching:
        def check(self) -> None:
            pass

        def open(self, *arguments, **keywords):
            opened.append(harness.backend.open(*arguments, **keywords))
            return opened[-1]

    class Stopping(Script):
        def generate(self, requests, *, on_tokens=None):
            if any(self.turns.get(r.session, 0) >= 1 for r in requests):
                raise KeyboardInterrupt
            return super().generate(requests)

    engine = Stopping(renderer, lambda name: gold)
    with pytest.raises(KeyboardInterrupt):
        list(collect(jobs(task, "a", "b"), engine=engine, harness=replace(harness, backend=Watching())))
    assert len(opened) == 2
    for sandbox in opened:
        with pytest.raises(Exception, match="closed"):
            sandbox.run(["true"])


def test_the_first_solve_of_a_task_by_a_policy_is_graded_with_the_ablation_and_no_later_one(harness, renderer, gold, tmp_path):
    task = harness.store.get("pocket-slugify")
    grade(task, task.gold, store=harness.store, backend=harness.backend)  # from now on the task's facts are known
    wrong = [write_call("write", {"path": "pocket/text.py", "content": "def slugify(text, sep='-'):\n    return text\n"}), FINISH]
    opened = []

    class Counting:
        def check(self) -> None:
            pass

        def open(self, *arguments, **keywords):
            opened.append(1)
            return harness.backend.open(*arguments, **keywords)

    def sandboxes(run: str, texts: list[str]) -> tuple[int, bool]:
        opened.clear()
        graded = replace(harness, backend=Counting(), watched=harness.backend, marks=tmp_path / run)
        (rollout,) = collect(jobs(task, "a"), engine=Script(renderer, lambda name: texts), harness=graded)
        return len(opened), rollout.reward.solved

    alone, ablated_and_inverted = 1, 2
    assert sandboxes("first run", wrong) == (alone, False)
    assert sandboxes("first run", gold) == (alone + ablated_and_inverted, True)
    assert sandboxes("first run", gold) == (alone, True)
    assert sandboxes("second run", gold) == (alone + ablated_and_inverted, True)


def test_shaping_pays_for_tests_that_pass_and_never_as_much_as_solving():
    unsolved = Reward(total=0.0, solved=False, parts={"fail_to_pass_share": 0.5})
    assert shaped(unsolved, 0.3).total == pytest.approx(0.15)
    assert shaped(Reward(total=1.0, solved=True, parts={"fail_to_pass_share": 1.0}), 0.3).total == 1.0
