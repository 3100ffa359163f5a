"""Every parameter of a model from its dimensions: name, shape, kind, and the units that Muon orthogonalises.

In: ModelDims. Out: list[Parameter] under the names and shapes of transformers' classes (a test holds them equal one for one), and
sums over it. The experts of a layer are two stacks, gate_up_proj [E, 2F, H] and down_proj [E, H, F], as transformers keeps them.

Not here: who holds what (layout.py), what it costs (cost.py).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from etude.plan.config import NEEDED, ModelDims, Optimizer

Kind = Literal["embedding", "output head", "attention", "dense FFN", "shared expert", "router", "routed expert", "norm", "bias", "vision"]
Algorithm = Literal["muon", "adamw", "frozen"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named parameter. A unit is a rectangle `unit` = (rows, columns) of a matrix; a stack holds matrices along dim 0."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    algorithm: Algorithm
    unit: tuple[int, int] | None = None
    """None: not on Muon."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def on_expert_mesh(self) -> bool:
        return self.kind == "routed expert"

    @property
    def num_units(self) -> int:
        return self.numel // math.prod(self.unit) if self.unit else 0

    @property
    def role(self) -> str:
        """The module's own name: `q_b_proj`, `experts.gate_up_proj`."""
        parts = self.name.removesuffix(".weight").split(".")
        return ".".join(parts[-2:]) if parts[-2:-1] in (["experts"], ["shared_experts"], ["mlp"]) else parts[-1]


def parameters(model: ModelDims, optimizer: Optimizer | None = None) -> list[Parameter]:
    return list(_parameters(model, optimizer or Optimizer()))


def _parameters(model: ModelDims, optimizer: Optimizer) -> Iterator[Parameter]:
    hidden = model.hidden_size
    root = "model.language_model" if model.model_type == "kimi_k25" else "model"
    if model.vision is not None:
        yield from _vision(model)
    yield Parameter(f"{root}.embed_tokens.weight", (model.vocab_size, hidden), "embedding", "adamw")
    for layer in range(model.num_hidden_layers):
        prefix = f"{root}.layers.{layer}"
        if model.kv_lora_rank:
            yield from _latent_attention(f"{prefix}.self_attn", model, optimizer)
        else:
            yield from _grouped_attention(f"{prefix}.self_attn", model, optimizer)
        if model.n_routed_experts and layer >= model.first_k_dense_replace:
            yield from _experts(f"{prefix}.mlp", model, optimizer)
        else:
            yield from _feed_forward(f"{prefix}.mlp", hidden, model.intermediate_size, "dense FFN", bias=model.mlp_bias)
        yield Parameter(f"{prefix}.input_layernorm.weight", (hidden,), "norm", "adamw")
        yield Parameter(f"{prefix}.post_attention_layernorm.weight", (hidden,), "norm", "adamw")
    yield Parameter(f"{root}.norm.weight", (hidden,), "norm", "adamw")
    if not model.tie_word_embeddings:
        yield Parameter("lm_head.weight", (model.vocab_size, hidden), "output head", "adamw")


def _matrix(name: str, rows: int, columns: int, kind: Kind, unit: tuple[int, int] | None = None) -> Parameter:
    if min(rows, columns) == 1:  # a vector in all but name: nothing to orthogonalise
        return Parameter(f"{name}.weight", (rows, columns), kind, "adamw")
    return Parameter(f"{name}.weight", (rows, columns), kind, "muon", unit or (rows, columns))


def _bias(name: str, rows: int) -> Parameter:
    return Parameter(f"{name}.bias", (rows,), "bias", "adamw")


def _latent_attention(at: str, model: ModelDims, optimizer: Optimizer) -> Iterator[Parameter]:
    """Multi-head latent attention: queries and keys/values go through a low-rank latent (DeepSeek-V2, arXiv 2405.04434)."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = model.qk_nope_head_dim + model.qk_rope_head_dim
    key_value = model.qk_nope_head_dim + model.v_head_dim
    by_head = optimizer.head_units
    if model.q_lora_rank:
        rank = model.q_lora_rank
        yield _matrix(f"{at}.q_a_proj", rank, hidden, "attention")
        if model.attention_bias:
            yield _bias(f"{at}.q_a_proj", rank)
        yield Parameter(f"{at}.q_a_layernorm.weight", (rank,), "norm", "adamw")
        yield _matrix(f"{at}.q_b_proj", heads * query, rank, "attention", (query, rank) if by_head else None)
    else:
        yield _matrix(f"{at}.q_proj", heads * query, hidden, "attention", (query, hidden) if by_head else None)
    rank = model.kv_lora_rank
    yield _matrix(f"{at}.kv_a_proj_with_mqa", rank + model.qk_rope_head_dim, hidden, "attention")
    if model.attention_bias:
        yield _bias(f"{at}.kv_a_proj_with_mqa", rank + model.qk_rope_head_dim)
    yield Parameter(f"{at}.kv_a_layernorm.weight", (rank,), "norm", "adamw")
    yield _matrix(f"{at}.kv_b_proj", heads * key_value, rank, "attention", (key_value, rank) if by_head else None)
    yield from _output(at, heads, model.v_head_dim, model, optimizer, bias=model.attention_bias)


def _grouped_attention(at: str, model: ModelDims, optimizer: Optimizer) -> Iterator[Parameter]:
    hidden, head = model.hidden_size, model.head_dim
    bias = model.attention_bias or model.model_type == "qwen2"
    for name, heads in (
        ("q_proj", model.num_attention_heads),
        ("k_proj", model.num_key_value_heads),
        ("v_proj", model.num_key_value_heads),
    ):
        yield _matrix(f"{at}.{name}", heads * head, hidden, "attention", (head, hidden) if optimizer.head_units else None)
        if bias:
            yield _bias(f"{at}.{name}", heads * head)
    yield from _output(at, model.num_attention_heads, head, model, optimizer, bias=model.attention_bias)
    if model.model_type.startswith("qwen3"):
        yield Parameter(f"{at}.q_norm.weight", (head,), "norm", "adamw")
        yield Parameter(f"{at}.k_norm.weight", (head,), "norm", "adamw")


def _output(at: str, heads: int, head: int, model: ModelDims, optimizer: Optimizer, *, bias: bool) -> Iterator[Parameter]:
    unit = (model.hidden_size, head) if optimizer.output_head_units else None
    yield _matrix(f"{at}.o_proj", model.hidden_size, heads * head, "attention", unit)
    if bias:
        yield _bias(f"{at}.o_proj", model.hidden_size)


def _feed_forward(at: str, hidden: int, width: int, kind: Kind, *, bias: bool = False) -> Iterator[Parameter]:
    for name, rows, columns in (("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)):
        yield _matrix(f"{at}.{name}", rows, columns, kind)
        if bias:
            yield _bias(f"{at}.{name}", rows)


def _experts(at: str, model: ModelDims, optimizer: Optimizer) -> Iterator[Parameter]:
    hidden, experts, width = model.hidden_size, model.n_routed_experts, model.moe_intermediate_size
    yield Parameter(f"{at}.experts.gate_up_proj", (experts, 2 * width, hidden), "routed expert", "muon", (width, hidden))
    yield Parameter(f"{at}.experts.down_proj", (experts, hidden, width), "routed expert", "muon", (hidden, width))
    on_muon = optimizer.router == "muon"
    yield Parameter(f"{at}.gate.weight", (experts, hidden), "router", optimizer.router, (experts, hidden) if on_muon else None)
    if model.n_shared_experts:
        yield from _feed_forward(f"{at}.shared_experts", hidden, width * model.n_shared_experts, "shared expert")


def _vision(model: ModelDims) -> Iterator[Parameter]:
    """Kimi K2.5's tower and projector: patches, learned positions, pre-norm blocks with biases, LayerNorm."""
    vision = model.vision
    assert vision is not None
    width, merged = vision.hidden_size, vision.hidden_size * math.prod(vision.merge_kernel_size)

    def frozen(name: str, *shape: int) -> Parameter:
        return Parameter(name, shape, "vision", "frozen")

    def linear(name: str, rows: int, columns: int) -> Iterator[Parameter]:
        yield frozen(f"{name}.weight", rows, columns)
        yield frozen(f"{name}.bias", rows)

    def norm(name: str) -> Iterator[Parameter]:
        yield frozen(f"{name}.weight", width)
        yield frozen(f"{name}.bias", width)

    at = "model.vision_tower"
    yield frozen(f"{at}.patch_embed.proj.weight", width, 3, vision.patch_size, vision.patch_size)
    yield frozen(f"{at}.patch_embed.proj.bias", width)
    yield frozen(f"{at}.patch_embed.pos_emb.position_embeddings", vision.pos_emb_height, vision.pos_emb_width, width)
    for layer in range(vision.num_hidden_layers):
        yield from norm(f"{at}.layers.{layer}.norm1")
        yield from norm(f"{at}.layers.{layer}.norm2")
        for name in ("proj", "q_proj", "k_proj", "v_proj"):
            yield from linear(f"{at}.layers.{layer}.attn.{name}", width, width)
        yield from linear(f"{at}.layers.{layer}.mlp.fc1", vision.intermediate_size, width)
        yield from linear(f"{at}.layers.{layer}.mlp.fc2", width, vision.intermediate_size)
    yield from norm(f"{at}.final_layernorm")
    yield from norm("model.mm_projector.pre_norm")
    yield from linear("model.mm_projector.in_proj", merged, merged)
    yield from linear("model.mm_projector.out_proj", model.hidden_size, merged)


@dataclass(frozen=True, slots=True)
class Bill:
    """A model as the planner prices it: equal parameters once with their number, so that thousands of layouts cost milliseconds."""

    groups: tuple[tuple[Parameter, int], ...]
    blocks: tuple[tuple[int, int], ...]
    """Distinct blocks as (elements on the dense mesh, elements on the expert mesh)."""
    ends: int
    """Elements of the embedding and the output head."""

    def select(self, *, experts: bool) -> list[tuple[Parameter, int]]:
        return [(one, count) for one, count in self.groups if one.on_expert_mesh == experts]


def bill(params: Iterable[Parameter]) -> Bill:
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    blocks: dict[str, list[int]] = {}
    ends = 0
    for one in params:
        groups.setdefault((one.role, one.shape, one.kind, one.algorithm, one.unit), []).append(one)
        before, layers, after = one.name.partition(".layers.")
        if layers:
            blocks.setdefault(f"{before}.{after.partition('.')[0]}", [0, 0])[one.on_expert_mesh] += one.numel
        elif one.kind in ("embedding", "output head"):
            ends += one.numel
    pairs = sorted({(dense, expert) for dense, expert in blocks.values()})
    return Bill(tuple((same[0], len(same)) for same in groups.values()), tuple(pairs), ends)


def total(params: Iterable[Parameter]) -> int:
    return sum(one.numel for one in params)


def active(params: Iterable[Parameter], model: ModelDims) -> int:
    """Language parameters that multiply one token: its experts, not the others; not the embedding table, of which one row is read.

    A tied table is counted once, as the output head that it also is.
    """
    count = 0
    for one in params:
        if one.kind == "routed expert":
            count += one.numel * model.num_experts_per_tok // model.n_routed_experts
        elif one.kind not in ("vision", "embedding") or (one.kind == "embedding" and model.tie_word_embeddings):
            count += one.numel
    return count


def is_moe(model: ModelDims) -> bool:
    return "n_routed_experts" in NEEDED[model.model_type]
