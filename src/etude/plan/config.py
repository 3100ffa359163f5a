"""What `etude plan` is told: a model's dimensions, a cluster, the optimizer, a layout or the degrees to search.

In: a TOML file whose tables are the dataclasses below, or a Hugging Face folder with a config.json (model only; the rest takes its
defaults). Out: PlanConfig. Every key is checked; UserError names the key, what is allowed and what to do. Torch-free.

Not here: parameter shapes (shapes.py), degrees that fit a world (layout.py).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from etude.errors import UserError
from etude.toml import read_table, read_toml

Variant = Literal["standard", "symmetric", "gram", "gram-symmetric"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionDims:
    """A frozen vision tower with its projector, as transformers' Kimi_K25VisionConfig names it."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    patch_size: int
    pos_emb_height: int
    pos_emb_width: int
    merge_kernel_size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDims:
    """Dimensions under the names of transformers' config.json. 0 means that the model has no such part."""

    name: str = ""
    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    """Width of the dense feed-forward blocks."""
    num_attention_heads: int
    tie_word_embeddings: bool
    num_key_value_heads: int = 0
    head_dim: int = 0
    q_lora_rank: int = 0
    """Latent rank of the queries (multi-head latent attention); 0: one full q_proj."""
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    first_k_dense_replace: int = 0
    """So many first layers have a dense feed-forward block in place of experts."""
    n_routed_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    n_shared_experts: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    vision: VisionDims | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator: the vendor's figures."""

    peak_flops: float
    """Dense bf16 matrix multiplication, FLOP/s."""
    hbm_bytes: float
    hbm_bytes_per_s: float


CHIPS: dict[str, Chip] = {
    "h100": Chip(peak_flops=989e12, hbm_bytes=80e9, hbm_bytes_per_s=3.35e12),
    "h200": Chip(peak_flops=989e12, hbm_bytes=141e9, hbm_bytes_per_s=4.8e12),
    "b200": Chip(peak_flops=2250e12, hbm_bytes=180e9, hbm_bytes_per_s=8e12),
    "gb200": Chip(peak_flops=2500e12, hbm_bytes=186e9, hbm_bytes_per_s=8e12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines. A link's speed is bytes per second, one way, per accelerator."""

    ranks: int
    gpus_per_node: int = 8
    """Accelerators that reach each other over the fast link."""
    chip: str = "h100"
    intra_bytes_per_s: float = 450e9
    inter_bytes_per_s: float = 50e9
    collective_latency_s: float = 20e-6
    """Start of one collective."""
    message_latency_s: float = 1e-6
    """Added for every further peer of a collective."""
    efficiency: float = 0.6
    """Share of peak FLOP/s that the Newton-Schulz matrix products are assumed to reach."""
    usable_hbm: float = 0.9
    """Share of HBM that may be planned; the rest is for communicators, fragmentation and the CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Sharded Muon: what is orthogonalised in which pieces, and how it travels."""

    newton_schulz: Variant = "standard"
    steps: int = 5
    head_units: bool = True
    """q, k, v (and the up-projections of latent attention) one head at a time; false: whole matrices."""
    output_head_units: bool = False
    """The output projection by columns of a head; false: whole, as most implementations do."""
    router: Literal["muon", "adamw"] = "adamw"
    wire_bytes: int = 2
    momentum_bytes: int = 4
    bucket_bytes: float = 128e6
    """Bytes a rank sends in one leg of a bucket."""
    max_inflight: int = 4
    batch: int = 4
    """Equal units of one batched Newton-Schulz."""
    target_s: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What memory depends on besides the optimizer."""

    tokens_per_rank: int = 4096
    """Tokens of one micro-batch on one rank, after context parallelism."""
    weight_bytes: int = 2
    master_bytes: int = 4
    gradient_bytes: int = 4
    checkpointing: bool = True
    """Keep a block's input and compute the block again in the backward pass."""
    logit_chunk_tokens: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseDegrees:
    """The dense mesh: HSDP over replicate x (shard x cp), cp fastest."""

    replicate: int
    shard: int
    cp: int = 1
    split: int = 1
    """So many replicas share the Newton-Schulz work, then send each other the updates; 1: every replica does all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertDegrees:
    """The expert mesh: replicate x efsdp x ep, ep fastest."""

    replicate: int
    efsdp: int
    ep: int
    split: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """A layout to be priced beside the ones found."""

    dense: DenseDegrees
    expert: ExpertDegrees | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Degrees that may be tried."""

    cp: tuple[int, ...] = (1,)
    """Context parallelism is set by the sequence length, not by the optimizer, so it is given."""
    ep: tuple[int, ...] = ()
    """Expert parallel degrees; empty: every one that divides the experts and the ranks."""
    max_replicate: int = 0
    """Largest replicate degree of either mesh; 0: no limit."""
    shown: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Columns and rows of the tables that need no layout."""

    chips: tuple[str, ...] = ()
    """Empty: the cluster's."""
    ranks: tuple[int, ...] = ()
    """Empty: half, one, two and four times the cluster's."""
    efficiencies: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    model: ModelDims
    cluster: Cluster
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: Training = field(default_factory=Training)
    layout: LayoutTable | None = None
    search: Search = field(default_factory=Search)
    report: Report = field(default_factory=Report)
    chips: dict[str, Chip] = field(default_factory=lambda: dict(CHIPS))

    def chip(self, name: str | None = None) -> Chip:
        name = name or self.cluster.chip
        if name not in self.chips:
            raise UserError(f"no chip {name!r}; known are {', '.join(sorted(self.chips))}: name one or describe it under [chips.{name}]")
        return self.chips[name]


ATTENTION_GQA = ("num_key_value_heads", "head_dim")
ATTENTION_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERTS = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
DEEPSEEK = (*ATTENTION_MLA, *EXPERTS, "n_shared_experts", "first_k_dense_replace")
NEEDED: dict[str, tuple[str, ...]] = {
    "llama": ATTENTION_GQA,
    "mistral": ATTENTION_GQA,
    "qwen2": ATTENTION_GQA,
    "qwen3": ATTENTION_GQA,
    "qwen3_moe": (*ATTENTION_GQA, *EXPERTS),
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "kimi_k25": DEEPSEEK,
}
"""model_type -> the dimensions that it needs beside those that every model has."""
MAY_BE_ZERO = ("q_lora_rank", "first_k_dense_replace", "n_shared_experts")
LINKS = ("intra_bytes_per_s", "inter_bytes_per_s")
LATENCIES = ("collective_latency_s", "message_latency_s")
LEAST, MOST = 1e-12, 1e30
"""What is called a number above 0: products of two stay finite and above 0."""
MOST_RANKS, MOST_LAYERS = 1 << 24, 10_000
ALIASES = {"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts"}


def load_plan_config(path: Path, *, ranks: int | None) -> PlanConfig:
    """`path`: a .toml file, a folder with config.json, or a config.json. `ranks` wins over the file's cluster.ranks."""
    if path.is_dir() or path.suffix == ".json":
        if ranks is None:
            raise UserError(f"{path} describes a model but no cluster: say how many accelerators with --ranks, e.g. --ranks 64")
        return checked(PlanConfig(model=read_hf(path), cluster=Cluster(ranks=ranks)))
    if not path.is_file():
        raise UserError(f"no file {path}; give a plan's TOML file or a Hugging Face folder with config.json")
    tables = read_toml(path)
    if ranks is not None and isinstance(tables.setdefault("cluster", {}), dict):
        tables["cluster"]["ranks"] = ranks
    model = tables.get("model")
    if isinstance(model, dict) and "path" in model:
        if len(model) > 1:
            raise UserError(f"[model] has `path` and other keys; with `path` the dimensions come from its config.json: keep one ({path})")
        if not isinstance(model["path"], str):
            raise UserError(f"{path}: `model.path` is {model['path']!r}, expected str")
        tables["model"] = read_hf(path.parent / model["path"])
    elif isinstance(model, dict):
        tables["model"] = read_model(model, str(path))
    config: PlanConfig = read_table(PlanConfig, tables, file=str(path))
    return checked(replace(config, chips=CHIPS | config.chips))


def read_hf(path: Path) -> ModelDims:
    """A config.json of a family in NEEDED; keys that do not concern a shape are passed over."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"no {file}; give a folder that `save_pretrained` or a model hub wrote")
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    names = ("text_config", "vision_config")
    parts = {name: {} if whole.get(name) is None else whole[name] for name in names} if isinstance(whole, dict) else {}
    if not parts or not all(isinstance(part, dict) for part in parts.values()):
        raise UserError(f"{file} is no model's config.json: the file and its text_config and vision_config must be JSON objects")
    model_type = whole.get("model_type")
    data = whole | parts["text_config"] | {"model_type": model_type}
    data = {ALIASES.get(key, key): value for key, value in data.items()}
    if model_type == "qwen3_moe" and (data.get("decoder_sparse_step", 1) != 1 or data.get("mlp_only_layers")):
        raise UserError(f"{file} mixes dense and expert layers (decoder_sparse_step, mlp_only_layers); write its dimensions as TOML")
    width, heads = data.get("hidden_size"), data.get("num_attention_heads")
    if model_type in ("llama", "mistral", "qwen2") and data.get("head_dim") is None and isinstance(width, int) and isinstance(heads, int):
        data["head_dim"] = width // max(1, heads)
    kept = {one.name: data[one.name] for one in fields(ModelDims) if data.get(one.name) is not None and one.name != "vision"}
    if "q_lora_rank" in data and data["q_lora_rank"] is None:
        kept["q_lora_rank"] = 0
    vision = parts["vision_config"]
    if vision:
        kept["vision"] = {one.name: vision[one.name] for one in fields(VisionDims) if one.name in vision}
    kept["name"] = file.parent.resolve().name
    return read_model(kept, str(file))


def read_model(data: dict[str, Any], file: str) -> ModelDims:
    """The table [model]; UserError where a dimension is missing that the family needs."""
    data = {ALIASES.get(key, key): value for key, value in data.items()}
    model: ModelDims = read_table(ModelDims, data, file=file, where="model")
    for name in NEEDED.get(model.model_type, ()):
        if name not in data:
            zero = " (0 where the model has none)" if name in MAY_BE_ZERO else ""
            raise UserError(f"{file}: [model] lacks `{name}`, which {model.model_type} needs; add it{zero}")
    return model


def checked(config: PlanConfig) -> PlanConfig:
    """What one field cannot know about another. Raises UserError."""
    model = config.model
    if model.model_type not in NEEDED:
        raise UserError(f"model_type {model.model_type!r} is not planned for; known are {', '.join(NEEDED)}")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", *NEEDED[model.model_type])
    for name in needed:
        value = getattr(model, name)
        if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
            raise UserError(f"model.{name} is {value}, allowed for {model.model_type} is a number above 0")
    for name in unused(model):
        raise UserError(f"{model.model_type} has no {name}, yet model.{name} is {getattr(model, name)!r}: remove it or change model_type")
    if model.first_k_dense_replace > model.num_hidden_layers:
        raise UserError(f"first_k_dense_replace is {model.first_k_dense_replace}, more than the {model.num_hidden_layers} layers")
    if model.num_experts_per_tok > model.n_routed_experts:
        raise UserError(f"num_experts_per_tok is {model.num_experts_per_tok}, more than the {model.n_routed_experts} experts")
    if model.vision is not None:
        check_numbers("model.vision", model.vision, [one.name for one in fields(VisionDims)])
        check_each("model.vision.merge_kernel_size", model.vision.merge_kernel_size or (0,))
    check_numbers("cluster", config.cluster, ("gpus_per_node", "ranks", *LINKS, "efficiency", "usable_hbm"))
    check_numbers(
        "optimizer", config.optimizer, ("steps", "wire_bytes", "momentum_bytes", "bucket_bytes", "max_inflight", "batch", "target_s")
    )
    check_numbers("training", config.training, ("tokens_per_rank", "weight_bytes", "master_bytes", "gradient_bytes", "logit_chunk_tokens"))
    check_numbers("search", config.search, ("shown",))
    for table, record, names in (("cluster", config.cluster, LATENCIES), ("search", config.search, ("max_replicate",))):
        for name in names:
            if not 0 <= getattr(record, name) < math.inf:
                raise UserError(f"{table}.{name} is {getattr(record, name)}, allowed is a number of 0 or more")
    layers, ranks = model.num_hidden_layers, config.cluster.ranks
    for key, number, most in (("model.num_hidden_layers", layers, MOST_LAYERS), ("cluster.ranks", ranks, MOST_RANKS)):
        if number > most:
            raise UserError(f"{key} is {number}, allowed is {most} at most: more would take minutes to search")
    check_each("report.ranks", config.report.ranks)
    check_each("report.efficiencies", config.report.efficiencies, most=1.0)
    for name, share in (("efficiency", config.cluster.efficiency), ("usable_hbm", config.cluster.usable_hbm)):
        if share > 1:
            raise UserError(f"cluster.{name} is {share}, a share of the peak: give a number above 0 and up to 1")
    for name, chip in config.chips.items():
        check_numbers(f"chips.{name}", chip, [one.name for one in fields(Chip)])
    for name in (config.cluster.chip, *config.report.chips):
        config.chip(name)
    if config.layout is not None and (config.layout.expert is None) != (model.n_routed_experts == 0):
        has = "has experts: add [layout.expert]" if model.n_routed_experts else "has no experts: remove [layout.expert]"
        raise UserError(f"the model {has}")
    return config


def unused(model: ModelDims) -> list[str]:
    """Dimensions that are set although the family has no such part."""
    parts = {*ATTENTION_GQA, *DEEPSEEK} - {*NEEDED[model.model_type]}
    if NEEDED[model.model_type] is DEEPSEEK:
        parts -= {*ATTENTION_GQA}  # transformers' config carries both; latent attention has one key and value head per query head
    return sorted(name for name in parts if getattr(model, name))


def check_numbers(table: str, record: Any, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, tuple):
            check_each(f"{table}.{name}", (value,))


def check_each(name: str, values: Sequence[float], most: float = MOST) -> None:
    for value in values:
        if not LEAST <= value <= most:
            upper = "" if most == MOST else f" and up to {most:g}"
            raise UserError(f"{name} is {value}, allowed is a number above 0{upper}")
