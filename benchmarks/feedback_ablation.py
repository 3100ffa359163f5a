"""Does a hint at the turn that went wrong do more than the reward alone, and is it the hint that does it?

A tiny tool-using model (tiny_agent.py) is warmed up on noisy demonstrations, then trained by reinforcement learning; the arms differ in
what enters the loss:

    reward        the reward only
    hint          reward + feedback KL with the hint that fits the error          x teacher: ema, live, frozen
    shuffled      reward + feedback KL with another error's hint (placebo, equal length)
    hint_only     feedback KL only, every advantage is zero

Everything between the rollouts and the gradient is etude.learn: credit, samples, prefix-shared branches, gate, lambda, teacher, losses.
All arms of a seed start from one warm-started checkpoint and see the same tasks. At the end of each training, over fresh episodes:

    invalid_rate   invalid calls / calls        accuracy   share of right answers        turns   per episode
    collapsed      trainings that ended below half of their start's accuracy, or that answer at once: fewer than 1.2 turns an episode
    runaway        trainings that ended with more invalid calls than the reward alone left on the same seed

    python -m benchmarks.feedback_ablation --results FILE.jsonl [--jobs N] [--seeds N] [--quick]

Each finished training is appended to FILE at once, and a second call does only what is missing; warm starts are kept in FILE.starts/.
Not here: the world and the model (tiny_agent.py), the loss (etude.learn).
"""

import argparse
import copy
import hashlib
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaForCausalLM

from benchmarks.common import report
from benchmarks.tiny_agent import HINTS, OTHER_KIND, TURN_TOKENS, Episode, Habits, Play, build_model, evaluate, play, warm_start
from etude.config import FeedbackConfig, LossConfig, TeacherKind
from etude.learn.coefficient import Gap, coefficient, observe
from etude.learn.credit import group_advantages
from etude.learn.sample import to_samples
from etude.learn.stats import StepStats, metrics
from etude.learn.step import accumulate, denominators
from etude.learn.teacher import Teacher
from etude.types import Hint, Reward, Rollout, Segment, Turn

HALF_OF_START = 0.5  # collapsed below this share of the start's accuracy,
ANSWERS_AT_ONCE = 1.2  # or below so many turns an episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    hints: Literal["none", "true", "shuffled"] = "none"
    teacher: TeacherKind = "ema"
    reward: bool = True

    @property
    def name(self) -> str:
        if self.hints == "none":
            return "reward"
        kind = "shuffled" if self.hints == "shuffled" else "hint" if self.reward else "hint_only"
        return f"{kind}/{self.teacher}"


TEACHERS: tuple[TeacherKind, ...] = ("ema", "live", "frozen")
ARMS: tuple[Arm, ...] = (
    Arm(),
    *(Arm(hints="true", teacher=teacher) for teacher in TEACHERS),
    *(Arm(hints="shuffled", teacher=teacher) for teacher in TEACHERS),
    *(Arm(hints="true", teacher=teacher, reward=False) for teacher in TEACHERS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One size of the experiment. Feedback: the package's defaults with lambda 0.3; at 1 the hints slow the reward down (docs/log.md)."""

    warm_steps: int = 600
    steps: int = 60
    groups: int = 8
    group_size: int = 8
    lr: float = 5e-4
    max_grad_norm: float = 1.0
    curve_every: int = 20
    curve_episodes: int = 128
    episodes: int = 1024  # of the final evaluation
    habits: Habits = field(default_factory=Habits)
    loss: LossConfig = field(default_factory=lambda: LossConfig(tokens_per_rollout=12, micro_batch_tokens=2048, chunk_tokens=4096))
    feedback: FeedbackConfig = field(default_factory=lambda: FeedbackConfig(weight=0.3))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def warm_digest(self) -> str:
        return hashlib.sha256(json.dumps([self.warm_steps, self.episodes, asdict(self.habits)]).encode()).hexdigest()[:12]


QUICK = Settings(warm_steps=100, steps=4, groups=4, curve_every=2, curve_episodes=64, episodes=128)


class HintTokens:
    """The renderer of this world: a hint's text is the name of its kind."""

    def hint(self, text: str) -> tuple[int, ...]:
        return HINTS[text]


def to_rollout(play_: Play, group: str, index: int, version: int) -> Rollout:
    """The play as a record: turns of added and sampled tokens. Every turn's last context token is the header."""
    turns = []
    begin = 0
    starts = [t for t, sampled in enumerate(play_.sampled) if sampled][::TURN_TOKENS]
    for start in starts:
        stop = start + TURN_TOKENS
        turns.append(
            Turn(
                context_ids=tuple(play_.ids[begin:start]),
                header_tokens=1,
                sampled_ids=tuple(play_.ids[start:stop]),
                logprobs=tuple(play_.logprobs[start:stop]),
                versions=(version,) * TURN_TOKENS,
                text="",
            )
        )
        begin = stop
    reward = Reward(total=play_.episode.reward, solved=play_.episode.reward == 1)
    segments = (Segment(turns=tuple(turns)),)
    return Rollout(
        id=f"{group}-{index}", task_id=group, group=group, seed=index, status="finished", segments=segments, reward=reward
    )  # fmt: skip


def write_hints(play_: Play, rollout: Rollout, shuffled: bool) -> Iterator[Hint]:
    """One hint for every bad turn; `shuffled`: that of the other kind of error."""
    starts = [t for t, sampled in enumerate(play_.sampled) if sampled][::TURN_TOKENS]
    for start, kind in play_.bad_turns:
        text = OTHER_KIND[kind] if shuffled else kind
        yield Hint(rollout_id=rollout.id, segment=0, turn=starts.index(start), writer=kind, text=text)


@dataclass(slots=True)
class Training:
    """One training's state: the student, its optimizer, its teacher, lambda's state."""

    model: LlamaForCausalLM
    arm: Arm
    settings: Settings
    seed: int
    step: int = 0
    gap: Gap = field(default_factory=Gap)
    teacher: Teacher | None = None
    optimizer: torch.optim.Optimizer = field(init=False)
    tasks: random.Random = field(init=False)
    sampling: torch.Generator = field(init=False)
    feedback: FeedbackConfig | None = None

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.settings.lr, weight_decay=0.0)
        self.tasks = random.Random(self.seed + 1)
        self.sampling = torch.Generator().manual_seed(self.seed + 1)
        if self.arm.hints != "none":
            self.feedback = replace(self.settings.feedback, teacher=self.arm.teacher)
            self.teacher = Teacher(self.model, self.arm.teacher, self.feedback.ema_rate)


def rl_step(run: Training) -> dict[str, float]:
    """Roll out, hint, accumulate, update. Metrics of the step."""
    settings, feedback = run.settings, run.feedback
    tasks = [run.tasks.getrandbits(32) for _ in range(settings.groups)]
    plays = play(run.model, [Episode(task) for task in tasks for _ in range(settings.group_size)], run.sampling)
    rollouts = [to_rollout(p, f"{run.step}-{i // settings.group_size}", i, run.step) for i, p in enumerate(plays)]
    hints: list[Hint] = []
    if run.arm.hints != "none":
        hints = [h for p, r in zip(plays, rollouts, strict=True) for h in write_hints(p, r, run.arm.hints == "shuffled")]
    credit = group_advantages(rollouts)
    advantages = credit.advantages if run.arm.reward else dict.fromkeys(credit.advantages, 0.0)
    samples = to_samples(rollouts, hints, HintTokens(), advantages=advantages)
    weight = 0.0 if feedback is None else coefficient(feedback, run.gap)
    run.optimizer.zero_grad()
    stats = accumulate(
        run.model,
        samples,
        loss=settings.loss,
        denominators=denominators(samples, settings.loss, feedback, version=run.step),
        feedback=feedback,
        teacher=run.teacher,
        feedback_weight=weight,
        version=run.step,
    )
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.max_grad_norm)
    run.optimizer.step()
    if run.teacher is not None:
        run.teacher.update()
    if feedback is not None:
        run.gap = observe(feedback, run.gap, stats.mean("feedback_open_kl", "open_tokens"))
    run.step += 1
    return step_metrics(stats) | {"lambda": weight, "gradient_norm": float(norm), "informative": credit.informative_share}


def step_metrics(stats: StepStats) -> dict[str, float]:
    keep = ("policy/entropy", "feedback/open_token_kl", "feedback/gate_share", "step/hinted_turns")
    return {name: value for name, value in metrics(stats).items() if name in keep}


@dataclass(frozen=True, slots=True)
class Start:
    model: LlamaForCausalLM
    evaluation: dict[str, float]


def train(start: Start, arm: Arm, seed: int, settings: Settings) -> dict[str, Any]:
    """One training from a warm start: its end, its start, its curve and whether it collapsed."""
    begun = time.process_time()
    run = Training(copy.deepcopy(start.model), arm, settings, seed)
    curve = []
    for step in range(settings.steps):
        found = rl_step(run)
        if step % settings.curve_every == 0:
            curve.append({"step": step, **evaluate(run.model, settings.curve_episodes), **found})
    after, before = evaluate(run.model, settings.episodes), start.evaluation
    collapsed = after["accuracy"] < HALF_OF_START * before["accuracy"] or after["turns"] < ANSWERS_AT_ONCE
    result = {"arm": arm.name, "seed": seed, **after, "collapsed": collapsed, "start": before}
    return {**result, "cpu_s": round(time.process_time() - begun, 1), "curve": curve}


def load_start(folder: Path, seed: int, settings: Settings) -> Start:
    """The warm-started model of this seed and how it plays; trained now if the folder has none."""
    path = folder / f"{settings.warm_digest}-{seed}.pt"
    model = build_model(seed, attention="etude")
    if not path.exists():
        weights = warm_start(seed, settings.warm_steps, settings.habits).state_dict()
        model.load_state_dict(weights)
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save({"weights": weights, "evaluation": evaluate(model, settings.episodes)}, partial)
        partial.replace(path)
    saved = torch.load(path)
    model.load_state_dict(saved["weights"])
    return Start(model, saved["evaluation"])


def finished(results: Path, settings: Settings) -> list[dict[str, Any]]:
    """Trainings of these settings in the file. A torn last line is left out."""
    found = []
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("settings") == settings.digest:
            found.append(record)
    return found


def run_one(job: tuple[Arm, int, Settings, Path, Path]) -> dict[str, Any]:
    """One training in this process, on one thread; its record is appended to the results before it returns."""
    arm, seed, settings, results, starts = job
    torch.set_num_threads(1)
    record = {"settings": settings.digest, **train(load_start(starts, seed, settings), arm, seed, settings)}
    with results.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return record


def warm_up(job: tuple[int, Settings, Path]) -> int:
    seed, settings, starts = job
    torch.set_num_threads(1)
    load_start(starts, seed, settings)
    return seed


def run_all(settings: Settings, arms: Sequence[Arm], num_seeds: int, results: Path, jobs: int) -> list[dict[str, Any]]:
    """Every training that the file lacks, seed by seed; then all records of these settings."""
    starts = results.with_name(results.name + ".starts")
    done = {(record["arm"], record["seed"]) for record in finished(results, settings)}
    missing = [(arm, seed, settings, results, starts) for seed in range(num_seeds) for arm in arms if (arm.name, seed) not in done]
    begun = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for _ in pool.imap_unordered(warm_up, [(seed, settings, starts) for seed in sorted({seed for _, seed, *_ in missing})]):
            pass
        for count, record in enumerate(pool.imap_unordered(run_one, missing), 1):
            print(
                f"{count}/{len(missing)} {record['arm']:>16} seed {record['seed']}: accuracy {record['start']['accuracy']:.2f} -> "
                f"{record['accuracy']:.2f}, invalid {record['start']['invalid_rate']:.3f} -> {record['invalid_rate']:.3f}, turns "
                f"{record['turns']:.2f}{', COLLAPSED' if record['collapsed'] else ''} ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
    wanted = {arm.name for arm in arms}
    return [record for record in finished(results, settings) if record["arm"] in wanted and record["seed"] < num_seeds]


def summary(records: Iterable[dict[str, Any]], arms: Sequence[Arm]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """(rows for people: mean and range over seeds, the same as numbers per arm: means)."""
    records = list(records)
    starts = list({record["seed"]: record["start"] for record in records}.values())
    rewarded = {record["seed"]: record["invalid_rate"] for record in records if record["arm"] == Arm().name}
    rows = [row("start", starts)]
    found = {}
    for arm in arms:
        own = [record for record in records if record["arm"] == arm.name]
        if own:
            counts = {
                "collapsed": sum(record["collapsed"] for record in own),
                "runaway": sum(record["invalid_rate"] > rewarded.get(record["seed"], 1.0) for record in own),
            }
            rows.append(row(arm.name, own) | counts)
            means = {key: statistics.mean(record[key] for record in own) for key in ("invalid_rate", "accuracy", "turns")}
            found[arm.name] = {**means, "seeds": len(own), **counts}
    return rows, found


def row(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def spread(key: str, digits: int) -> str:
        values = [record[key] for record in records]
        return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"

    shown = {"invalid_rate": spread("invalid_rate", 3), "accuracy": spread("accuracy", 3), "turns": spread("turns", 2)}
    return {"arm": name, **shown, "seeds": len(records), "collapsed": None, "runaway": None}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feedback_ablation", description="Hints against rewards on a tiny agent.")
    parser.add_argument("--results", type=Path, help="JSONL file that finished trainings are appended to (default: a temporary one)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--seeds", type=int, help="seeds of every arm (default 5; 1 with --quick)")
    parser.add_argument("--arms", help="comma-separated names of arms (default: all)")
    parser.add_argument("--quick", action="store_true", help="one seed and a few steps: shows that it runs, proves nothing")
    options = parser.parse_args(arguments)
    by_name = {arm.name: arm for arm in ARMS}
    names = options.arms.split(",") if options.arms else list(by_name)
    if unknown := sorted(set(names) - set(by_name)):
        parser.error(f"unknown arms {', '.join(unknown)}: choose from {', '.join(by_name)}")
    settings = QUICK if options.quick else Settings()
    num_seeds = options.seeds or (1 if options.quick else 5)
    arms = [by_name[name] for name in names]
    with tempfile.TemporaryDirectory() as scratch:
        records = run_all(settings, arms, num_seeds, options.results or Path(scratch) / "results.jsonl", options.jobs)
    rows, found = summary(records, arms)
    report("feedback_ablation", rows, {"arms": found, "quick": options.quick, "settings": settings.digest})


if __name__ == "__main__":
    main()
