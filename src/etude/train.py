"""The loop: warm start, then steps of rollouts, hints and one optimizer update each. Every step ends in a checkpoint.

In: tasks, a model, a configuration, a run folder. Out: rollouts, hints, feedback and metrics in the run folder, and the trained model in
`model/` (a Hugging Face folder). One step:

    tasks -> a group of rollouts each, graded -> the monitor leaves out what cheated -> hints at bad turns -> samples -> gradients
          -> update -> teacher, pool, checkpoint

Everything random comes from (seed, step, task, attempt), so that a run that was killed goes on from its last checkpoint and ends with the
weights it would have had (bit for bit with model.dtype = "float32"; see docs/design.md, "Reproducible runs").

Not here: which tasks a step draws (curriculum.py), how gradients are made (learn/step.py), how rollouts are played (collect.py), what
a flag changes (monitor/consequence.py), the demonstrations (warmup.py).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from etude import warmup
from etude.collect import Harness
from etude.config import Config
from etude.curriculum import Curriculum
from etude.engine.local import LocalEngine
from etude.errors import NoSignal, UserError
from etude.evaluate import group_jobs, play
from etude.feedback.write import write_hints
from etude.learn.coefficient import Gap, coefficient, observe
from etude.learn.credit import Credit, group_advantages
from etude.learn.sample import to_samples
from etude.learn.stats import StepStats
from etude.learn.step import accumulate, accumulate_sft, denominators
from etude.learn.teacher import Teacher
from etude.metrics import Metrics
from etude.monitor import consequence
from etude.monitor.queue import Queue
from etude.optim.adamw import AdamW
from etude.optim.schedule import learning_rate
from etude.records import append_jsonl
from etude.runfolder import RunFolder
from etude.types import Hint, Rollout, Task
from etude.view import View

LR_FLOOR = 0.1  # of rl.lr, reached after the last step
PATIENCE = 3  # steps without one informative group before the run gives up


@dataclass(slots=True)
class Learner:
    """What changes while training, and so what a checkpoint holds."""

    model: nn.Module
    optimizer: AdamW
    teacher: Teacher | None = None
    gap: Gap = field(default_factory=Gap)
    phase: str = "warmup"  # or "rl"
    step: int = 0  # finished steps of the phase
    informative: int = 0  # informative groups so far

    def save(self, folder: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "teacher": None if self.teacher is None else self.teacher.state_dict(),
            "gap": asdict(self.gap),
            "phase": self.phase,
            "step": self.step,
            "informative": self.informative,
        }
        torch.save(state, folder / "state.pt")

    def load(self, folder: Path, config: Config) -> None:
        state = torch.load(folder / "state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.phase, self.step, self.informative = state["phase"], state["step"], state["informative"]
        if self.phase == "rl":
            self.start_rl(config)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        self.gap = Gap(**state["gap"])

    def start_rl(self, config: Config) -> None:
        """A fresh optimizer, and the teacher from the weights as they are."""
        self.phase = "rl"
        self.optimizer = AdamW(self.model.named_parameters(), weight_decay=config.rl.weight_decay)
        self.teacher = Teacher(self.model, config.feedback.teacher, config.feedback.ema_rate)


def resume(learner: Learner, run: RunFolder, config: Config) -> None:
    """The state of the newest whole checkpoint, if there is one."""
    found = run.checkpoints()
    if found:
        learner.load(found[-1], config)


def warm_start(
    learner: Learner, tasks: Sequence[Task], config: Config, *, harness: Harness, run: RunFolder, metrics: Metrics, view: View
) -> None:
    """Does nothing when it is done already."""
    settings = config.warmup
    if learner.phase != "warmup":
        return
    if settings.steps:
        view.stage("demonstrations", total=len(tasks) * settings.per_task)
        begun = time.monotonic()
        rollouts = warmup.demonstrations(
            tasks, settings, seed=config.seed, harness=harness, run=run, on_rollout=lambda rollout: view.advance()
        )
        metrics.log("stage", name="demonstrations", seconds=time.monotonic() - begun)
        samples = warmup.usable(rollouts, context_tokens=config.agent.context_tokens)
        if not samples:
            raise UserError("no demonstration fits agent.context_tokens: raise it, or choose easier tasks")
        if len(samples) < len(rollouts):
            view.note(f"{len(rollouts) - len(samples)} of {len(rollouts)} demonstrations are too long for the context and left out")
        plan = warmup.batches(samples, settings, seed=config.seed)
        view.stage("warm start", total=settings.steps)
        view.advance(learner.step)
        begun, tokens = time.monotonic(), 0
        for k in range(learner.step, settings.steps):
            stats = accumulate_sft(learner.model, plan[k], loss=config.loss)
            learner.optimizer.clip(config.rl.max_grad_norm)
            learner.optimizer.step(warmup.learning_rate(settings, k))
            learner.optimizer.zero_grad()
            learner.step = k + 1
            tokens += stats.counts["input_tokens"]
            loss, rate = stats.mean("sft_loss", "sampled_tokens"), tokens / (time.monotonic() - begun)
            metrics.log("warmup", step=k + 1, loss=loss, tokens=tokens, tokens_per_s=rate)
            view.advance()
            view.numbers(loss=loss, tokens_per_s=rate)
            if (k + 1) % settings.checkpoint_every == 0 and k + 1 < settings.steps:
                run.checkpoint(f"warmup-{k + 1:04d}", learner.save, keep=config.rl.keep_checkpoints)
        metrics.log("stage", name="warm start", seconds=time.monotonic() - begun)
    learner.start_rl(config)
    learner.step = 0
    run.checkpoint("step-0000", learner.save, keep=config.rl.keep_checkpoints)


def train(
    learner: Learner,
    tasks: Sequence[Task],
    config: Config,
    *,
    engine: LocalEngine,
    harness: Harness,
    run: RunFolder,
    metrics: Metrics,
    view: View,
) -> None:
    """The steps that are left. Raises: NoSignal, UserError."""
    with Curriculum(tasks, config, run=run, harness=harness, step=learner.step, view=view) as curriculum:
        for k in range(learner.step, config.rl.steps):
            name = f"step-{k + 1:04d}"
            jobs = group_jobs(name, curriculum.tasks(k), config.rl.group_size, curriculum.seed(k))
            view.stage(f"step {k + 1} of {config.rl.steps}", total=len(jobs))
            begun = time.monotonic()
            engine.version = learner.step
            rollouts = play(
                name,
                jobs,
                engine=engine,
                harness=harness,
                run=run,
                open_at_once=config.rl.slots,
                on_rollout=lambda rollout: view.advance(),
                on_tokens=rate_shower(view),
            )
            collected = time.monotonic()
            view.note(f"{name}: learning from {len(rollouts)} rollouts")
            watched = consequence.watch(rollouts, {job.task.id: job.task for job in jobs}, config.monitor)
            row = learn(learner, rollouts, config, harness=harness, run=run, name=name, watched=watched)
            row.update(collect_s=collected - begun, train_s=time.monotonic() - collected)
            row["tokens_per_s"] = row["sampled_tokens"] / row["collect_s"]
            metrics.log("step", **row)
            metrics.log("pool", **curriculum.report(k, [rollout for rollout in watched.learned if rollout.id not in watched.silent]))
            if config.monitor.enabled:
                metrics.log("monitor", **consequence.metrics(watched))
                write_watched(run, name, watched, curriculum.quarantine(k, watched.quarantined, watched.quotes))
            view.numbers(
                **{key: row[key] for key in ("reward_mean", "solved", "invalid_call_rate", "feedback_kl", "informative_groups", "hints")}
            )
            run.checkpoint(name, learner.save, keep=config.rl.keep_checkpoints)
            require_signal(learner.informative, k + 1, steps=config.rl.steps, reward_mean=row["reward_mean"])


def require_signal(informative: int, step: int, *, steps: int, reward_mean: float) -> None:
    """Raises NoSignal where none of the groups of the first `step` steps was informative, after PATIENCE steps or at the end."""
    if informative == 0 and (step >= PATIENCE or step == steps):
        raise NoSignal(
            f"not one group of the first {step} steps was informative: the rollouts of each group got the same reward "
            f"(mean {reward_mean:.2f}). Take easier tasks, larger groups, a longer warm start, or a higher agent.shaping"
        )


def learn(
    learner: Learner,
    rollouts: Sequence[Rollout],
    config: Config,
    *,
    harness: Harness,
    run: RunFolder,
    name: str,
    watched: consequence.Watched | None = None,
) -> dict[str, Any]:
    """One optimizer step from graded rollouts; hints and feedback go to the run folder. Returns the metrics of the step.

    `watched`: what the monitor leaves of them to learn from (default: all).
    """
    learned, silent = (rollouts, frozenset[str]()) if watched is None else (watched.learned, watched.silent)
    speaking = [rollout for rollout in learned if rollout.id not in silent] if config.rl.max_hints else []
    hints = [hint for rollout in speaking for hint in write_hints(rollout, max_per_rollout=config.rl.max_hints)]
    credit = group_advantages(learned)
    samples = to_samples(learned, hints, harness.renderer, advantages=credit.advantages)
    use_hints = bool(hints) and learner.teacher is not None
    feedback = config.feedback if use_hints else None
    weight = coefficient(config.feedback, learner.gap)
    stats = accumulate(
        learner.model,
        samples,
        loss=config.loss,
        denominators=denominators(samples, config.loss, feedback, version=learner.step, num_rollouts=len(learned)),
        feedback=feedback,
        teacher=learner.teacher if use_hints else None,
        feedback_weight=weight if use_hints else None,
        version=learner.step,
    )
    rl = config.rl
    lr = learning_rate(learner.step, peak=rl.lr, total_steps=rl.steps, warmup_steps=rl.warmup_steps, shape=rl.schedule, floor=LR_FLOOR)
    moves = stats.counts["skipped"] < len(samples)
    grad_norm = learner.optimizer.clip(config.rl.max_grad_norm) if moves else 0.0
    if moves:
        learner.optimizer.step(lr)
        learner.optimizer.zero_grad()
        if learner.teacher is not None:
            learner.teacher.update()
    learner.gap = observe(config.feedback, learner.gap, stats.mean("feedback_open_kl", "open_tokens"))
    learner.step += 1
    learner.informative += credit.informative
    _write_feedback(run, name, hints, stats)
    return step_row(
        rollouts, credit, stats, step=learner.step, weight=weight if use_hints else 0.0, lr=lr, grad_norm=grad_norm, hints=len(hints)
    )


def step_row(
    rollouts: Sequence[Rollout], credit: Credit, stats: StepStats, *, step: int, weight: float, lr: float, grad_norm: float, hints: int
) -> dict[str, Any]:
    graded = [r.reward for r in rollouts if r.reward is not None]
    calls = sum(r.usage.calls for r in rollouts)
    return {
        "step": step,
        "reward_mean": _mean([reward.total for reward in graded]),
        "solved": _mean([float(reward.solved) for reward in graded]),
        "fail_to_pass_share": _mean([reward.parts.get("fail_to_pass_share", 0.0) for reward in graded]),
        "invalid_call_rate": sum(r.usage.invalid_calls for r in rollouts) / max(1, calls),
        "informative_groups": credit.informative,
        "groups": credit.groups,
        "ungraded": credit.ungraded,
        "hints": hints,
        "hinted_tokens": stats.counts.get("hinted_tokens", 0),
        "gate_share": stats.mean("gate_open", "hinted_turns"),
        "feedback_kl": stats.mean("feedback_kl", "hinted_tokens"),
        "lambda": weight,
        "rl_loss": stats.mean("rl_loss", "sampled_tokens"),
        "grad_norm": grad_norm,
        "lr": lr,
        "logprob_gap": stats.mean("sampler_gap", "sampled_tokens"),
        "entropy": stats.mean("entropy", "sampled_tokens"),
        "skipped_samples": stats.counts.get("skipped", 0),
        "trained_tokens": stats.counts.get("input_tokens", 0),
        "sampled_tokens": sum(r.usage.sampled_tokens for r in rollouts),
    }


def write_watched(run: RunFolder, name: str, watched: consequence.Watched, quarantined: Mapping[str, str]) -> None:
    """What was flagged, for people: a file a step, the tasks that are held and what scrubbing them again came to, the queue."""
    if not watched.flagged:
        return
    (run.path / "monitor").mkdir(exist_ok=True)
    run.write_lines(f"monitor/{name}.jsonl", consequence.rows(watched))
    if quarantined:
        run.write_json("monitor/quarantine.json", {**(run.read_json("monitor/quarantine.json") or {}), **quarantined})
    with Queue(run.path / "monitor") as queue:
        queue.add(map(consequence.queued, watched.flagged))


def _write_feedback(run: RunFolder, name: str, hints: Sequence[Hint], stats: StepStats) -> None:
    path = run.path / "hints" / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    for hint in hints:
        append_jsonl(path, hint)
    run.write_lines(f"feedback/{name}.jsonl", [asdict(turn) for turn in stats.hinted])


def rate_shower(view: View) -> Callable[[int], None]:
    """Shows sampled tokens per second, tools included."""
    begun, tokens = time.monotonic(), 0

    def show(n: int) -> None:
        nonlocal tokens
        tokens += n
        view.numbers(tokens_per_s=tokens / max(1e-9, time.monotonic() - begun))

    return show


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
