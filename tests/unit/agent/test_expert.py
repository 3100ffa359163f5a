import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude import tree
from etude.agent.calls import parse_calls
from etude.agent.expert import Habits, Step, bad_call, demonstrate, plan, solution
from etude.agent.hints import hint_text
from etude.agent.loop import run_agent
from etude.agent.policy import ScriptedPolicy, play
from etude.config import AgentConfig
from etude.render import Renderer
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Rollout, Task

NONE = Habits(unknown_tool=0, malformed_call=0, bad_arguments=0, edit_not_found=0, finished_untested=0)
LayDown = Callable[[Path, dict[str, str | bytes]], Path]


def calls_of(task: Task, before: Path, after: Path) -> list[tuple[str, dict[str, object]]]:
    return [(call.name, call.arguments) for call in solution(task, before, after)]


def errors(rollout: Rollout) -> list[str | None]:
    return [o.error for turn in rollout.segments[0].turns for o in turn.observations]


def test_a_stub_is_replaced_by_one_short_edit(store: TaskStore, task: Task) -> None:
    assert calls_of(task, store.workspace(task), store.solved_tree(task)) == [
        ("search", {"pattern": "def add("}),
        ("edit", {"path": "calc/ops.py", "old": "raise NotImplementedError", "new": "return a + b"}),
        ("run", {"command": "pytest -q tests/test_ops.py"}),
        ("finish", {"message": "done"}),
    ]


def test_the_test_file_that_goes_with_the_source_is_run(store: TaskStore, task: Task) -> None:
    several = replace(task, pass_to_pass=("tests/test_a.py::t", "tests/with space/test_ops.py::t[x::y]", "tests/test_z.py::t"))
    assert calls_of(several, store.workspace(task), store.solved_tree(task))[-2] == (
        "run",
        {"command": "pytest -q 'tests/with space/test_ops.py'"},
    )
    assert calls_of(replace(task, pass_to_pass=()), store.workspace(task), store.solved_tree(task))[-2] == ("run", {"command": "pytest -q"})


def test_a_removed_feature_is_put_back_in_every_file(pocket_store: TaskStore, backend: Backend, renderer: Renderer) -> None:
    task = pocket_store.get("pocket-slugify")
    rollout = demonstrate(task, pocket_store, backend, renderer, seed=0, hinted=False, habits=NONE)
    assert (rollout.status, rollout.patch) == ("finished", task.gold)
    assert set(errors(rollout)) == {None}
    assert [turn.calls[0].name for turn in rollout.segments[0].turns][-2:] == ["run", "finish"]


BLOCK = "def a():\n    raise NotImplementedError\n\n\n"


@pytest.mark.parametrize(
    ("before", "after", "edits"),
    [
        pytest.param("x = 1\ny = 2\n", "x = 1\ny = 3\n", 1, id="a line"),
        pytest.param(BLOCK + BLOCK.replace("a", "b"), BLOCK + "def b():\n    return 1\n\n\n", 1, id="one of two equal stubs"),
        pytest.param(BLOCK * 2, "def a():\n    x = 1\n    return x\n\n\n" * 2, 2, id="both of two equal functions"),
        pytest.param("a\nb\nc\n", "a\nnew\nb\nc\n", 1, id="a line more"),
        pytest.param("a\nb\nc\n", "a\nc\n", 1, id="a line less"),
        pytest.param("a\nb\n", "new\na\nb\n", 1, id="at the beginning"),
        pytest.param("a\nb\n", "a\nb\nnew\n", 1, id="at the end"),
        pytest.param("a\nb", "a\nb\n", 1, id="a last line end more"),
        pytest.param("", "a\n", 0, id="an empty file filled"),
        pytest.param("a\n", "", 1, id="emptied"),
        pytest.param("same\n" * 60, "same\n" * 30 + "new\n" + "same\n" * 30, 0, id="nothing unique near: the file is written"),
        pytest.param("a = 1\r\nb = 2\r\n", "a = 1\r\nc = 3\r\nb = 2\r\n", 1, id="CRLF"),
        pytest.param("a = 1\r\nb = 2\nb\n", "a = 1\r\nc = 3\nd\nb\n", 1, id="mixed line ends"),
        pytest.param("if x:\n\n    y\n", "if x:\n\n    'ü'\n\n\n    z\n", 1, id="blank lines and non-ASCII"),
        pytest.param(None, "new file\n", 0, id="a new file"),
        pytest.param("old file\n", None, 0, id="a removed file"),
    ],
)
def test_any_change_of_text_is_made_exactly(
    before: str | None, after: str | None, edits: int, lay_down: LayDown, tmp_path: Path, task: Task, backend: Backend, renderer: Renderer
) -> None:
    both: dict[str, str | bytes] = {"other.txt": "x\n"}
    old = lay_down(tmp_path / "old", {**both, **({"f.py": before} if before is not None else {})})
    new = lay_down(tmp_path / "new", {**both, **({"f.py": after} if after is not None else {})})
    steps = plan(task, old, new, random.Random(0), hinted=False, habits=NONE)
    names = Counter(parse_calls(step.text)[0].call.name for step in steps)
    assert names["edit"] == edits
    limits = AgentConfig(turns=20, context_tokens=20_000, turn_tokens=4000)
    with backend.open(old, limits=task.limits) as sandbox:
        agent = run_agent(task, sandbox, renderer, workspace=old, limits=limits, rollout_id="r", group="g", seed=0, temperature=1.0)
        rollout = play(agent, ScriptedPolicy([step.text for step in steps], renderer))
    assert rollout.patch == tree.make_patch(old, new)


def test_a_file_that_is_no_utf8_is_refused_in_one_line(lay_down: LayDown, tmp_path: Path, task: Task) -> None:
    old, new = lay_down(tmp_path / "old", {"f.py": b"\xff1\n"}), lay_down(tmp_path / "new", {"f.py": b"\xff2\n"})
    with pytest.raises(ValueError, match=r"^the expert cannot edit f\.py: it is not UTF-8$"):
        solution(task, old, new)


def planned(store: TaskStore, task: Task, *, hinted: bool, habits: Habits = Habits(), seeds: int = 400) -> list[list[Step]]:
    before, after = store.workspace(task), store.solved_tree(task)
    return [plan(task, before, after, random.Random(seed), hinted=hinted, habits=habits) for seed in range(seeds)]


def test_the_same_seed_gives_the_same_plan(store: TaskStore, task: Task) -> None:
    for hinted in (False, True):
        assert planned(store, task, hinted=hinted, seeds=20) == planned(store, task, hinted=hinted, seeds=20)
        assert len({tuple(steps) for steps in planned(store, task, hinted=hinted, seeds=20)}) > 5


def test_bad_calls_come_at_their_rates_and_only_without_hints(store: TaskStore, task: Task) -> None:
    clean = {step.text for step in plan(task, store.workspace(task), store.solved_tree(task), random.Random(0), hinted=False, habits=NONE)}
    habits = Habits.of_rate(0.3)
    without, with_hints = planned(store, task, hinted=False, habits=habits), planned(store, task, hinted=True, habits=habits)
    good = sum(step.text in clean for steps in without for step in steps)
    bad = sum(step.text not in clean for steps in without for step in steps)
    per_edit = habits.edit_not_found * len(without)
    assert abs((bad - per_edit) / good - 0.3) < 0.05
    untested = sum(not any('"run"' in step.text for step in steps) for steps in without)
    assert abs(untested / len(without) - habits.finished_untested) < 0.06
    assert not any(step.hint for steps in without for step in steps)
    assert all(step.text in clean for steps in with_hints for step in steps)
    assert all(len(steps) == 4 and any(step.hint for step in steps) for steps in with_hints)


def test_hints_have_the_words_that_feedback_uses_and_fit_the_coming_call(store: TaskStore, task: Task) -> None:
    seen: Counter[str] = Counter()
    for steps in planned(store, task, hinted=True):
        for step in steps:
            if step.hint is None:
                continue
            tool = parse_calls(step.text)[0].call.name
            allowed = {kind: hint_text(kind, tool) for kind in ("unknown_tool", "malformed_call", "bad_arguments")}
            allowed |= {"edit_not_found": hint_text("edit_not_found")} if tool == "edit" else {}
            allowed |= {"finished_untested": hint_text("finished_untested")} if tool == "run" else {}
            seen[next(kind for kind, text in allowed.items() if text == step.hint)] += 1
    assert len(seen) == 5


@pytest.mark.parametrize("kind", ["unknown_tool", "malformed_call", "bad_arguments", "edit_not_found"])
def test_each_bad_habit_has_its_error_and_is_recovered_from(
    kind: str, store: TaskStore, task: Task, backend: Backend, renderer: Renderer
) -> None:
    rollout = demonstrate(task, store, backend, renderer, seed=1, hinted=False, habits=replace(NONE, **{kind: 1.0}))
    expected = [None, kind, None, None, None] if kind == "edit_not_found" else [kind, None] * 4
    assert errors(rollout) == expected
    assert (rollout.status, rollout.patch) == ("finished", task.gold)


def test_leaving_the_tests_out_is_a_finished_rollout_with_its_error(
    store: TaskStore, task: Task, backend: Backend, renderer: Renderer
) -> None:
    rollout = demonstrate(task, store, backend, renderer, seed=1, hinted=False, habits=replace(NONE, finished_untested=1.0))
    assert (rollout.status, errors(rollout)) == ("finished", [None, None, "finished_untested"])


def test_a_demonstration_with_hints_holds_them_in_its_context(store: TaskStore, task: Task, backend: Backend, renderer: Renderer) -> None:
    rollout = demonstrate(task, store, backend, renderer, seed=3, hinted=True)
    assert (rollout.status, rollout.patch, set(errors(rollout))) == ("finished", task.gold, {None})
    shown = [renderer.decode(turn.context_ids) for turn in rollout.segments[0].turns]
    assert any("<|im_start|>system\nReminder: " in text for text in shown)
    assert all(text.endswith("<|im_start|>assistant\n") for text in shown)


def test_a_call_that_only_looks_bad_is_refused() -> None:
    with pytest.raises(ValueError, match="'tool_failed' is no bad call"):
        bad_call("run", {"command": "ls"}, "tool_failed")
