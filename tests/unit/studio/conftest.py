"""A run folder as a training run leaves it, made up: tasks, rollouts with good and bad calls, hints, KL per token, metrics.

`python tests/unit/studio/conftest.py FOLDER [MODEL_FOLDER]` writes one with its report, to look at.
"""

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from etude.config import Config, to_toml
from etude.metrics import Metrics
from etude.records import append_jsonl, encode
from etude.render import Renderer
from etude.types import Environment, Hint, Observation, Repo, Reward, Rollout, Segment, Symbol, Task, ToolCall, Turn, Usage

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = 'You repair a Python repository. Answer with one call: <tool_call>{"name": ..., "arguments": {...}}</tool_call>'
HINT = "Reminder: the available tools are list, read, search, edit, write, run, finish."
NAMES = (
    "second",
    "juxt",
    "partition_all",
    "sliding_window",
    "topk",
    "countby",
    "unique",
    "curry",
    "memoize",
    "keyfilter",
    "assoc_in",
    "pluck",
)
GOOD = (
    ("search", {"pattern": "def first", "path": "toolz"}, "toolz/itertoolz.py:371: def first(seq):"),
    (
        "read",
        {"path": "toolz/itertoolz.py", "start": 371, "lines": 30},
        'def first(seq):\n    """ The first element in a sequence """\n    ...',
    ),
    (
        "edit",
        {
            "path": "toolz/itertoolz.py",
            "old": "def nth(n, seq):",
            "new": "def second(seq):\n    seq = iter(seq)\n    next(seq)\n    return next(seq)",
        },
        "1 replacement in toolz/itertoolz.py",
    ),
    ("run", {"command": "python -m pytest -q toolz/tests/test_itertoolz.py"}, "1 failed, 61 passed"),
    ("finish", {}, "finished"),
)
BAD = (
    (
        "search_files",
        {"query": "def second"},
        "unknown_tool",
        "unknown tool 'search_files'; the tools are list, read, search, edit, write, run, finish",
    ),
    ("edit", {"path": "toolz/itertoolz.py", "find": "def nth"}, "bad_arguments", "edit: old is missing"),
    ("", {}, "malformed_call", "malformed call: it is not valid JSON"),
)


def tiny_renderer() -> Renderer:
    """One token per byte, ChatML."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Renderer(tokenizer.to_str(), CHATML, special={"eos_token": "<|im_end|>"})


def make_task(name: str, index: int) -> Task:
    path = f"toolz/{('itertoolz', 'functoolz', 'dicttoolz')[index % 3]}.py"
    tests = tuple(f"toolz/tests/test_{path[6:-3]}.py::test_{name}_{i}" for i in range(1 + index % 3))
    return Task(
        id=f"toolz-{name.replace('_', '-')}-{index:02x}",
        repo=Repo(name="toolz", digest="0" * 64, import_roots=(".",), test_paths=("toolz/tests",), source="toolz==1.0.0 sdist"),
        environment=Environment(python="3.11", requirements=("pytest==8.4.0",), digest="0" * 64),
        instruction=f"The function `{name}` of {path} is gone. Write it again: its hidden tests call it with lists and iterators.",
        cut="",
        gold="",
        fail_to_pass=tests,
        pass_to_pass=tuple(f"toolz/tests/test_core.py::test_{i}" for i in range(170 + index)),
        symbols=(Symbol(path=path, qualname=name, line=40 * index + 1, num_lines=9 + index),),
        mode="stub" if index % 2 else "remove",
    )


def make_turn(
    renderer: Renderer, context: tuple[int, ...], call: tuple[str, dict, str, str | None], rng: random.Random, version: int
) -> Turn:  # type: ignore[type-arg]
    name, arguments, answer, error = call
    raw = json.dumps({"name": name, "arguments": arguments}) if name else '{"name": "edit", "arguments": {"path": '
    text = ("I look for the place first. " if rng.random() < 0.5 else "") + f"<tool_call>{raw}</tool_call>"
    sampled = renderer.assistant(text)
    return Turn(
        context_ids=(*context, *renderer.header),
        header_tokens=len(renderer.header),
        sampled_ids=sampled,
        logprobs=tuple(-rng.expovariate(3) for _ in sampled),
        versions=(version,) * len(sampled),
        text=text,
        calls=(ToolCall(name=name, arguments=arguments, raw=raw),),
        observations=(Observation(text=answer, error=error),),  # type: ignore[arg-type]
    )


def make_rollout(renderer: Renderer, task: Task, name: str, number: int, *, bad: float, solve: float, version: int = 0) -> Rollout:
    rng = random.Random(f"{name}/{task.id}/{number}")
    context = renderer.opening([("system", SYSTEM), ("user", task.instruction)])
    turns: list[Turn] = []
    for good in GOOD:
        while rng.random() < bad and len(turns) < 7:
            tool, arguments, error, answer = rng.choice(BAD)
            turns.append(make_turn(renderer, context, (tool, arguments, answer, error), rng, version))
            context = renderer.following(answer, closed=True)
        turns.append(make_turn(renderer, context, (*good, None), rng, version))
        context = renderer.following(good[2], closed=True)
        if len(turns) >= 8:
            break
    finished = turns[-1].calls[0].name == "finish"
    solved = finished and rng.random() < solve
    share = 1.0 if solved else rng.choice((0.0, 0.0, 0.5)) if finished else 0.0
    invalid = sum(turn.observations[0].error is not None for turn in turns)
    return Rollout(
        id=f"{name}/{task.id}/{number}",
        task_id=task.id,
        group=f"{name}/{task.id}",
        seed=rng.randrange(2**31),
        status="finished" if finished else "out_of_turns",
        segments=(Segment(turns=tuple(turns)),),
        reward=Reward(total=1.0 if solved else 0.3 * share, solved=solved, parts={"solved": float(solved), "fail_to_pass_share": share}),
        usage=Usage(
            sampled_tokens=sum(len(t.sampled_ids) for t in turns),
            context_tokens=sum(len(t.context_ids) for t in turns),
            turns=len(turns),
            calls=len(turns),
            invalid_calls=invalid,
            wall_s=3.0 * len(turns),
        ),
    )


def add_hints(folder: Path, name: str, rollout: Rollout) -> int:
    """A hint and a KL per token for the first bad turns of a rollout. The KL sits on the name of the tool, as it should."""
    rng = random.Random(rollout.id)
    bad = [i for i, turn in enumerate(rollout.segments[0].turns) if turn.observations[0].error is not None][:2]
    for i in bad:
        turn = rollout.segments[0].turns[i]
        writer = str(turn.observations[0].error)
        append_jsonl(folder / "hints" / f"{name}.jsonl", Hint(rollout_id=rollout.id, segment=0, turn=i, writer=writer, text=HINT))
        peak = len(turn.sampled_ids) * 0.4
        kl = [round(3.4 * math.exp(-(((t - peak) / 2.5) ** 2)) + rng.expovariate(30), 4) for t in range(len(turn.sampled_ids))]
        row = {"rollout_id": rollout.id, "segment": 0, "turn": i, "writer": writer, "gate": float(rng.random() < 0.8), "token_kl": kl}
        with (folder / "feedback" / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    return len(bad)


def make_run(folder: Path, renderer: Renderer, *, steps: int = 4, held_out: int = 8, attempts: int = 4, improves: bool = True) -> Path:
    for name in ("rollouts", "hints", "feedback"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(to_toml(Config(seed=7)))
    tasks = [make_task(NAMES[i % len(NAMES)], i) for i in range(held_out + 2 * steps)]
    held, train = tasks[:held_out], tasks[held_out:]
    (folder / "tasks.json").write_text(
        json.dumps({"train": [json.loads(encode(t)) for t in train], "held_out": [json.loads(encode(t)) for t in held]})
    )
    ticks = (30.0 * i for i in range(10_000))
    with Metrics(folder / "metrics.jsonl", clock=lambda: next(ticks)) as metrics:
        for step in range(1, 11):
            metrics.log("warmup", step=step, loss=2.6 * math.exp(-step / 4) + 0.4, tokens=4000, tokens_per_s=205.0)
        for name, seconds in (("build tasks", 41.0), ("warm start", 188.0), ("evaluate before", 96.0)):
            metrics.log("stage", name=name, seconds=seconds)
        for task in held:
            for i in range(attempts):
                append_jsonl(folder / "rollouts" / "before.jsonl", make_rollout(renderer, task, "before", i, bad=0.42, solve=0.06))
        for step in range(1, steps + 1):
            done = (step - 1) / max(steps - 1, 1) if improves else 0.0
            make_step(folder, renderer, metrics, step, train[2 * step - 2 : 2 * step], bad=0.42 - 0.3 * done, solve=0.1 + 0.15 * done)
        bad, solve = (0.1, 0.2) if improves else (0.42, 0.06)
        for task in held:
            for i in range(attempts):
                append_jsonl(
                    folder / "rollouts" / "after.jsonl", make_rollout(renderer, task, "after", i, bad=bad, solve=solve, version=steps)
                )
        metrics.log("stage", name="evaluate after", seconds=88.0)
    return folder


def make_step(folder: Path, renderer: Renderer, metrics: Metrics, step: int, tasks: list[Task], *, bad: float, solve: float) -> None:
    name = f"step-{step:04}"
    rollouts = [make_rollout(renderer, task, name, i, bad=bad, solve=solve, version=step - 1) for task in tasks for i in range(6)]
    hints = 0
    for rollout in rollouts:
        append_jsonl(folder / "rollouts" / f"{name}.jsonl", rollout)
        hints += add_hints(folder, name, rollout)
    rewards = {task.id: {r.reward.total for r in rollouts if r.task_id == task.id and r.reward} for task in tasks}
    calls = sum(r.usage.calls for r in rollouts)
    metrics.log(
        "step",
        step=step,
        reward_mean=sum(r.reward.total for r in rollouts if r.reward) / len(rollouts),
        solved=sum(r.reward.solved for r in rollouts if r.reward) / len(rollouts),
        fail_to_pass_share=sum(r.reward.parts["fail_to_pass_share"] for r in rollouts if r.reward) / len(rollouts),
        invalid_call_rate=sum(r.usage.invalid_calls for r in rollouts) / calls,
        informative_groups=sum(len(values) > 1 for values in rewards.values()),
        groups=len(tasks),
        hints=hints,
        hinted_tokens=hints * 30,
        gate_share=0.7 + 0.03 * step,
        feedback_kl=0.4 / step + 0.03,
        rl_loss=0.01 * math.sin(step),
        grad_norm=1.2 / step,
        lr=2e-5,
        logprob_gap=0.041 + 0.004 * math.cos(step),
        entropy=0.8 - 0.03 * step,
        sampled_tokens=sum(r.usage.sampled_tokens for r in rollouts),
        collect_s=48.0 + 2 * step,
        train_s=21.0,
        tokens_per_s=240.0 + 3 * step,
        **{"lambda": 1.0 / step},
    )
    metrics.log("stage", name=f"step {step}", seconds=70.0 + 2 * step)


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return tiny_renderer()


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory, renderer: Renderer) -> Path:
    """A small run; read it, do not write into it."""
    return make_run(tmp_path_factory.mktemp("runs") / "demo", renderer, steps=2, attempts=2)


@pytest.fixture
def rollout(renderer: Renderer) -> Callable[..., Rollout]:
    """A rollout whose first turn says `text` and whose first observation says `answer`."""

    def make(text: str, answer: str = "nothing", **values: object) -> Rollout:
        made = make_rollout(renderer, make_task("second", 0), "step-0001", 0, bad=0.0, solve=0.0)
        first, *rest = made.segments[0].turns
        first = replace(first, text=text, sampled_ids=renderer.assistant(text), calls=(), observations=(Observation(text=answer),))
        return replace(made, segments=(Segment(turns=(first, *rest)),), **values)  # type: ignore[arg-type]

    return make


if __name__ == "__main__":
    from etude.studio.report import write_report

    chosen = Renderer.from_folder(Path(sys.argv[2])) if len(sys.argv) > 2 else tiny_renderer()
    print(write_report(make_run(Path(sys.argv[1]), chosen), chosen))
