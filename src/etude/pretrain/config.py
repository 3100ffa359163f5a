"""Every knob of `etude pretrain`: a TOML file of nested tables -> frozen dataclasses, checked, torch-free.

    config = load_pretrain_config(Path("configs/pretrain/laptop.toml"), overrides=["mesh.ep=2", "phases.0.steps=10"])

A wrong value or an unknown key raises UserError with what it was, what is allowed and what to do.

Not here: the loop (loop.py).
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from etude.corpus.sources import Source
from etude.errors import UserError

Schedule = Literal["constant", "linear", "cosine", "wsd"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "linear", "cosine", "wsd")
KINDS = ("llama", "qwen3_moe", "deepseek_v3")
DEFAULT = "default"
RESUMABLE = ("mesh", "checkpoints", "device", "threads", "peak_flops")
"""what may differ between a run and its continuation: nothing that the result depends on, but for the order of sums"""


def _require(name: str, value: Any, allowed: str, ok: bool, remedy: str) -> None:
    if not ok:
        raise UserError(f"{name} is {value!r}, allowed is {allowed}: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """A model from scratch, by its dimensions, under the names of transformers' config.json; used where `model.path` is empty."""

    kind: str = "llama"
    """llama, qwen3_moe or deepseek_v3"""
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
        _require("init.kind", self.kind, ", ".join(KINDS), self.kind in KINDS, "choose one of them, or load a folder with model.path")
        for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            _require(f"init.{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        ok = self.num_attention_heads % self.num_key_value_heads == 0
        _require("init.num_key_value_heads", self.num_key_value_heads, "a divisor of num_attention_heads", ok, "4 heads share 1, 2 or 4")


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

    def __post_init__(self) -> None:
        allowed = ("float32", "bfloat16")
        _require("model.compute_dtype", self.compute_dtype, " or ".join(allowed), self.compute_dtype in allowed, "choose one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of the two meshes; what is left of the world shards. See etude.parallel.Degrees."""

    replicate: int = 1
    cp: int = 1
    expert_replicate: int = 1
    ep: int = 1


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
        _require("optimizer.name", self.name, "adamw or muon", self.name in ("adamw", "muon"), "choose one of them")
        _require("optimizer.max_grad_norm", self.max_grad_norm, "above 0", self.max_grad_norm > 0, "inf: no clipping")
        _require("optimizer.weight_decay", self.weight_decay, "0 or more", self.weight_decay >= 0, "0.1 is usual")


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
        for name in ("steps", "seq_len", "batch", "micro_batch"):
            _require(f"{where}{name}", getattr(self, name), "1 or more", getattr(self, name) >= 1, "see the defaults")
        _require(f"{where}lr", self.lr, "above 0", self.lr > 0, "3e-4 suits a small model")
        _require(f"{where}schedule", self.schedule, ", ".join(SCHEDULES), self.schedule in SCHEDULES, "choose one of them")
        _require(f"{where}floor", self.floor, "0 to 1", 0 <= self.floor <= 1, "a share of lr")
        ok = self.warmup_steps >= 0 and self.decay_steps >= 0 and self.warmup_steps + self.decay_steps <= self.steps
        pair = (self.warmup_steps, self.decay_steps)
        _require(f"{where}warmup_steps, decay_steps", pair, f"0 or more, together at most steps = {self.steps}", ok, "make them shorter")
        ok = self.decay_steps == 0 or self.schedule == "wsd"
        _require(f"{where}decay_steps", self.decay_steps, "0 unless schedule is wsd", ok, "linear and cosine fall all the way")
        _require(f"{where}sources", [], "one or more", bool(self.sources), "add a [[phases.sources]] table with a path")


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
        _require("checkpoints.every", self.every, "1 or more", self.every >= 1, "100 is the default")
        _require("checkpoints.keep", self.keep, "1 or more", self.keep >= 1, "2 is the default")


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
        _require("device", self.device, "auto, cpu or cuda", self.device in ("auto", "cpu", "cuda"), "choose one of them")
        _require("phases", [], "one or more", bool(self.phases), "add a [[phases]] table")
        allowed = ("same", "float32", "bfloat16")
        _require("export_dtype", self.export_dtype, ", ".join(allowed), self.export_dtype in allowed, "choose one of them")

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
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name an existing TOML file") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        _override(found, override)
    return pretrain_config(found)


def pretrain_config(values: Mapping[str, Any]) -> PretrainConfig:
    """From nested dicts, as TOML has them. UserError for an unknown key or a wrong value."""
    _check_keys(values, PretrainConfig, "")
    try:
        return msgspec.convert(values, PretrainConfig)
    except msgspec.ValidationError as error:
        raise UserError(f"configuration: {error}") from None


def parse_init(text: str) -> Init:
    """ "qwen3_moe:hidden_size=512,num_hidden_layers=8" -> Init. UserError for an unknown kind or dimension."""
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {"kind": kind}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--init {text!r}: {part!r} has no value; write kind:key=value,key=value")
        (values if key in _known(Init) else values.setdefault("more", {}))[key] = _value(value)
    return pretrain_config({"init": values, "phases": [{"sources": [{"path": "-"}]}]}).init


def resumable(saved: PretrainConfig, given: PretrainConfig) -> None:
    """UserError where a run cannot be continued with another configuration; names the first key that differs."""
    for knob in fields(PretrainConfig):
        before, now = getattr(saved, knob.name), getattr(given, knob.name)
        if knob.name not in RESUMABLE and before != now:
            raise UserError(
                f"the run was begun with another {knob.name!r}, so this would be a different run; give the same file, or name a new folder "
                f"(what may change: {', '.join(RESUMABLE)})"
            )


def to_toml(config: PretrainConfig) -> str:
    """The whole configuration, as the TOML that makes it again."""
    lines: list[str] = []
    _table(dataclasses.asdict(config), "", lines)
    return "\n".join(lines).strip() + "\n"


def _table(values: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lists = {key: value for key, value in values.items() if isinstance(value, list | tuple) and value and isinstance(value[0], dict)}
    lines += [f"{json.dumps(key)} = {_toml(value)}" for key, value in values.items() if key not in tables and key not in lists]
    for key, value in tables.items():
        lines += ["", f"[{prefix}{json.dumps(key)}]"]
        _table(value, f"{prefix}{json.dumps(key)}.", lines)
    for key, items in lists.items():
        for item in items:
            lines += ["", f"[[{prefix}{json.dumps(key)}]]"]
            _table(item, f"{prefix}{json.dumps(key)}.", lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _known(kind: type) -> dict[str, Any]:
    return {knob.name: knob.type for knob in fields(kind)}


_NESTED: dict[tuple[type, str], type] = {
    (PretrainConfig, "model"): Model,
    (PretrainConfig, "init"): Init,
    (PretrainConfig, "mesh"): Mesh,
    (PretrainConfig, "optimizer"): OptimizerConfig,
    (PretrainConfig, "data"): Data,
    (PretrainConfig, "checkpoints"): Checkpoints,
    (PretrainConfig, "phases"): Phase,
    (Phase, "sources"): Source,
}


def _check_keys(values: Any, kind: type, where: str) -> None:
    if not isinstance(values, Mapping):
        raise UserError(f"configuration: {where.rstrip('.') or 'the file'} is {values!r}; it must be a table")
    known, hints = _known(kind), get_type_hints(kind)
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise UserError(f"unknown key {where}{key}; {f'did you mean {close[0]}?' if close else 'known are ' + ', '.join(known)}")
        choices = get_args(hints[key]) if get_origin(hints[key]) is Literal else (value,)
        _require(f"{where}{key}", value, ", ".join(map(str, choices)), value in choices, "choose one of them")
        inner = _NESTED.get((kind, key))
        if inner is not None:
            for item in value if isinstance(value, list) else [value]:
                _check_keys(item, inner, f"{where}{key}.")


def _override(found: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"{override!r} is no setting; write key=value, e.g. phases.0.steps=10")
    *path, last = name.strip().lstrip("-").split(".")
    at: Any = found
    for part in path:
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise UserError(f"{override!r}: {part!r} is no entry of a list of {len(at)}; count from 0")
            at = at[int(part)]
        else:
            at = at.setdefault(part, {})
    if not isinstance(at, dict):
        raise UserError(f"{override!r}: {'.'.join(path)} is no table")
    at[last] = _value(text)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
