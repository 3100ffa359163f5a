"""Every knob of `etude pretrain`: a TOML file of nested tables -> frozen dataclasses, checked, torch-free.

    config = load_pretrain_config(Path("configs/pretrain/laptop.toml"), overrides=["mesh.ep=2", "phases.0.steps=10"])

A wrong value or an unknown key raises UserError with what it was, what is allowed and what to do.

Not here: the loop (loop.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from etude.corpus.sources import Source
from etude.errors import UserError
from etude.toml import read_table, read_toml, read_value, require, write_toml

Kind = Literal["llama", "qwen3_moe", "deepseek_v3"]
Schedule = Literal["constant", "linear", "cosine", "wsd"]
DEFAULT = "default"
RESUMABLE = ("mesh", "checkpoints", "device", "threads", "peak_flops", "data")
"""what may differ between a run and its continuation: nothing that the result depends on, but for the order of sums"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """A model from scratch, by its dimensions, under the names of transformers' config.json; used where `model.path` is empty."""

    kind: Kind = "llama"
    hidden_size: int = 256
    num_hidden_layers: int = 4
    intermediate_size: int = 688
    """of dense feed-forward blocks"""
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 192
    rope_theta: float = 10000.0
    initializer_range: float = 0.02
    """standard deviation of every matrix"""
    tie_word_embeddings: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    """any further key of the model's config.json, e.g. kv_lora_rank"""

    def __post_init__(self) -> None:
        names = ["hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
        if self.kind != "llama":
            names += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
        for name in names:
            require(f"init.{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        ok = self.kind == "llama" or self.num_experts_per_tok <= self.num_experts
        require("init.num_experts_per_tok", self.num_experts_per_tok, f"up to num_experts = {self.num_experts}", ok, "2 of 8 is usual")
        ok = self.num_attention_heads % self.num_key_value_heads == 0
        require("init.num_key_value_heads", self.num_key_value_heads, "a divisor of num_attention_heads", ok, "4 heads share 1, 2 or 4")
        require("init.head_dim", self.head_dim, "an even number", self.head_dim % 2 == 0, "rotary embeddings turn pairs")
        require("init.rope_theta", self.rope_theta, "a number above 0", 0 < self.rope_theta < math.inf, "10000 is usual")
        ok = 0 < self.initializer_range < math.inf
        require("init.initializer_range", self.initializer_range, "a number above 0", ok, "0.02 is usual")
        twice = sorted({knob.name for knob in fields(self)} & set(self.more))
        require("init.more", twice, "keys that [init] does not have itself", not twice, "set them in [init]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    path: str = ""
    """a Hugging Face folder to continue from; "default": the default model's; empty: from scratch with the dimensions in [init]"""
    tokenizer: str = ""
    """a folder with tokenizer.json; empty: that of `path`, or of the default model"""
    freeze: tuple[str, ...] = ("vision_tower", "vision_model", "visual", "mm_projector", "multi_modal_projector")
    """parameters with one of these parts in their name are kept as they are"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """of forward and backward; the weights that are trained are float32"""
    checkpoint: bool = False
    """keep only the input of each block, and compute the block again in backward: less memory, a third more work"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the two meshes; what is left of the world shards. See etude.parallel.Degrees."""

    replicate: int = 1
    cp: int = 1
    expert_replicate: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for knob in fields(self):
            require(f"mesh.{knob.name}", getattr(self, knob.name), "1 or more", getattr(self, knob.name) >= 1, "1 does not cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    name: Literal["adamw", "muon"] = "muon"
    """muon: ShardedMuon for matrices, AdamW for the rest; adamw: AdamW for all"""
    weight_decay: float = 0.1
    """of matrices; norms, biases and embeddings have none"""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95
    """of Muon"""
    newton_schulz_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """of Muon's orthogonalisation; on a CPU float32 is faster"""
    router: Literal["adamw", "muon"] = "adamw"
    max_grad_norm: float = 1.0
    """the global norm is clipped to this"""

    def __post_init__(self) -> None:
        require("optimizer.max_grad_norm", self.max_grad_norm, "above 0", self.max_grad_norm > 0, "inf: no clipping")
        ok = 0 <= self.weight_decay < math.inf
        require("optimizer.weight_decay", self.weight_decay, "0 or more", ok, "0.1 is usual")
        require("optimizer.betas", self.betas, "two of 0 up to below 1", all(0 <= beta < 1 for beta in self.betas), "[0.9, 0.95] is usual")
        require("optimizer.momentum", self.momentum, "0 up to below 1", 0 <= self.momentum < 1, "0.95 is usual")
        require("optimizer.eps", self.eps, "a number above 0", 0 < self.eps < math.inf, "1e-8 is usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: str = "bulk"
    steps: int = 100
    seq_len: int = 1024
    """tokens of a row"""
    batch: int = 8
    """rows of a step, over all ranks"""
    micro_batch: int = 1
    """rows of one forward and backward on one rank: memory grows with it"""
    lr: float = 3e-4
    schedule: Schedule = "wsd"
    """after the rise: constant; linear or cosine down to the floor; wsd: constant, then a line down over the last `decay_steps`"""
    warmup_steps: int = 0
    decay_steps: int = 0
    """of wsd"""
    floor: float = 0.0
    """the last rate, as a share of `lr`"""
    supervised: bool = False
    """sources are conversations; the loss counts what the assistant wrote, each conversation is whole in one row"""
    fresh_optimizer: bool = False
    """start without the momentum of the phase before"""
    rope: dict[str, Any] = field(default_factory=dict)
    """changes to rope_parameters from here on, e.g. {rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 4096}"""
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        where = f"phase {self.name!r}: "
        for name in ("steps", "batch", "micro_batch"):
            require(f"{where}{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        require(f"{where}seq_len", self.seq_len, "2 or more", self.seq_len >= 2, "a token is learnt from the one before it")
        require(f"{where}lr", self.lr, "a number above 0", 0 < self.lr < math.inf, "3e-4 suits a small model")
        require(f"{where}floor", self.floor, "0 to 1", 0 <= self.floor <= 1, "a share of lr")
        ok = self.warmup_steps >= 0 and self.decay_steps >= 0 and self.warmup_steps + self.decay_steps <= self.steps
        pair = (self.warmup_steps, self.decay_steps)
        require(f"{where}warmup_steps, decay_steps", pair, f"0 or more, together at most steps = {self.steps}", ok, "make them shorter")
        ok = self.decay_steps == 0 or self.schedule == "wsd"
        require(f"{where}decay_steps", self.decay_steps, "0 unless schedule is wsd", ok, "linear and cosine fall all the way")
        for name, remedy in (("factor", "2 doubles the context"), ("rope_theta", "10000 is usual")):
            value = self.rope.get(name, 1.0)
            ok = type(value) in (int, float) and 0 < value < math.inf
            require(f"{where}rope.{name}", value, "a number above 0", ok, remedy)
        require(f"{where}sources", [], "one or more", bool(self.sources), "add a [[phases.sources]] table with a path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    cache: str = ""
    """folder of tokenized sources; empty: $XDG_CACHE_HOME/etude/tokens"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    every: int = 100
    """steps; the end of a phase always has one"""
    keep: int = 2
    """older ones are removed"""

    def __post_init__(self) -> None:
        require("checkpoints.every", self.every, "1 or more", self.every >= 1, "100 is the default")
        require("checkpoints.keep", self.keep, "1 or more", self.keep >= 1, "2 is the default")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """One run. The tables of the TOML file have these names; phases are [[phases]], each with [[phases.sources]]."""

    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    """of a rank's CPU work; 0: torch's choice"""
    peak_flops: float = 0.0
    """of one rank, for MFU; 0: a known GPU's figure, else measured with a matrix product at the start"""
    model: Model = field(default_factory=Model)
    init: Init = field(default_factory=Init)
    mesh: Mesh = field(default_factory=Mesh)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: Data = field(default_factory=Data)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    export_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """of the Hugging Face folder at the end; same: as in the folder that the run began with, packed experts too (from scratch: float32);
    weights that moved by less than half a step of four bits are rounded back then, so bfloat16 keeps more of the training"""
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        require("threads", self.threads, "0 or more", self.threads >= 0, "0 is torch's choice")
        ok = 0 <= self.peak_flops < math.inf
        require("peak_flops", self.peak_flops, "0 or more", ok, "0 takes a known GPU's figure, or measures it")
        require("phases", [], "one or more", bool(self.phases), "add a [[phases]] table")

    @property
    def num_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def tokenizer_folder(self) -> Path:
        return Path(self.model.tokenizer or self.model.path)


def stages(config: PretrainConfig) -> list[str]:
    """What a view of the run is told of, in order."""
    phases = [f"phase {i + 1} of {len(config.phases)}: {phase.name}" for i, phase in enumerate(config.phases)]
    return ["tokens", *phases, "export"]


def load_pretrain_config(path: Path, overrides: Sequence[str] = ()) -> PretrainConfig:
    """From a TOML file; `overrides` are "key.key=value" with a TOML value (a bare word is a text). UserError for anything wrong."""
    found = read_toml(path)
    for override in overrides:
        _override(found, override)
    return pretrain_config(found, str(path))


def pretrain_config(values: Mapping[str, Any], file: str = "configuration") -> PretrainConfig:
    """From nested dicts, as TOML has them. UserError for an unknown key or a wrong value; it begins with `file`."""
    config: PretrainConfig = read_table(PretrainConfig, values, file=file)
    return config


def parse_init(text: str) -> Init:
    """ "qwen3_moe:hidden_size=512,num_hidden_layers=8" -> Init. UserError for an unknown kind or dimension."""
    kind, _, rest = text.partition(":")
    if kind not in get_args(Kind):
        kinds = ", ".join(get_args(Kind))
        raise UserError(f"--init {text!r}: {kind!r} is none of {kinds}; to continue a model, set model.path=FOLDER (or default) instead")
    known = {knob.name for knob in fields(Init)} - {"kind", "more"}
    values: dict[str, Any] = {"kind": kind}
    more: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UserError(f"--init {text!r}: {part!r} has no value; write kind:key=value,key=value")
        (values if key in known else more)[key] = read_value(value)
    init: Init = read_table(Init, {**values, "more": more}, file=f"--init {text!r}", where="init")
    return init


def resumable(saved: PretrainConfig, given: PretrainConfig) -> None:
    """UserError where a run cannot be continued with another configuration; names the first key that differs."""
    for knob in fields(PretrainConfig):
        if knob.name in RESUMABLE:
            continue
        found = _difference(asdict(saved)[knob.name], asdict(given)[knob.name], knob.name)
        if found:
            raise UserError(
                f"the run was begun with another {found}, so this would be a different run; give the same file, or name a new folder "
                f"(what may change: {', '.join(RESUMABLE)})"
            )


def _difference(before: Any, now: Any, where: str) -> str:
    """The first key whose value differs, with both; empty: none."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.keys() == now.keys():
        return next(filter(None, (_difference(before[key], now[key], f"{where}.{key}") for key in before)), "")
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        return next(filter(None, (_difference(*pair, f"{where}.{i}") for i, pair in enumerate(zip(before, now, strict=True)))), "")
    return "" if before == now else f"{where} ({str(before)[:60]} then, {str(now)[:60]} now)"


def to_toml(config: PretrainConfig) -> str:
    """The whole configuration, as the TOML that makes it again."""
    return write_toml(asdict(config))


def _override(found: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    *path, last = name.strip().lstrip("-").split(".")
    if not equals or not last:
        raise UserError(f"{override!r} is no setting; write key=value, e.g. phases.0.steps=10")
    if not override.isprintable() and any("\ud800" <= char <= "\udfff" for char in override):
        raise UserError(f"{override!r} is not UTF-8, and a run's configuration is: rename what it names")
    at: Any = found
    for i, part in enumerate(path):
        if isinstance(at, list):
            if not part.isdecimal() or int(part) >= len(at):
                raise UserError(f"{override!r}: {part!r} is no entry of a list of {len(at)}; count from 0")
            at = at[int(part)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        else:
            raise UserError(f"{override!r}: {'.'.join(path[:i])} is no table")
    if not isinstance(at, dict):
        raise UserError(f"{override!r}: {'.'.join(path)} is no table")
    at[last] = read_value(text)
