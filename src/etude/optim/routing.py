"""Which parameter goes to Muon and in which units, which to AdamW; and a table that shows it.

    groups, audit = muon_param_groups(model)
    print(audit)

Rules, first match wins: the caller's (a pattern on the name); what is no matrix (one dimension, a single row or column, convolutions);
embeddings, output head, vision towers; the router (`router`); then by the name of the projection and, for attention, the head sizes that
the attention module itself carries, else the model's config: queries, keys and values by head, DeepSeek's latent attention, fused QKV,
fused gate and up, stacked experts. A trainable matrix that no rule knows is an error that names it: silently training it with the wrong
algorithm is how others found out after a run.

Not here: the units themselves (units.py), learning rates.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from etude.optim import units as u
from etude.optim.muon_config import Scale, update_scale
from etude.optim.units import Units

Algorithm = Literal["muon", "adamw"]
Rule = Units | Literal["muon", "adamw"]
"""What a caller's pattern leads to: units (and so Muon), muon for whole matrices, or adamw."""

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_EMBEDDINGS = {"embed_tokens", "embed_in", "embed_out", "wte", "wpe", "lm_head", "word_embeddings", "position_embeddings", "tok_embeddings"}
_VISION = {"visual", "vision_tower", "vision_model", "vision_encoder", "vision", "audio_tower", "multi_modal_projector", "mm_projector"}
_ROUTERS = {"router", "gate", "wg"}
_QUERY = {"q_proj", "wq", "query", "q_b_proj", "wq_b"}
_KEY_VALUE = {"k_proj", "v_proj", "wk", "wv", "key", "value"}
_OUTPUT = {"o_proj", "out_proj", "wo"}
_WHOLE = {
    "q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "wq_a", "wkv_a", "gate_proj", "up_proj", "down_proj", "fc1", "fc2", "fc_in", "fc_out",
    "c_fc", "c_proj", "dense", "dense_h_to_4h", "dense_4h_to_h", "w1", "w2", "w3", "wi", "wi_0", "wi_1",
    "in_proj", "in_proj_qkvz", "in_proj_qkv", "in_proj_z", "in_proj_ba", "in_proj_a", "in_proj_b", "g_proj",
}  # fmt: skip
_DIGITS = re.compile(r"(?<=\.)\d+(?=\.)")


class Route(NamedTuple):
    algorithm: Algorithm
    units: Units | None
    rule: str
    decay: bool = True


@dataclass(frozen=True, slots=True)
class AuditRow:
    name: str
    shape: tuple[int, ...]
    algorithm: Literal["muon", "adamw", "frozen"]
    units: str
    num_units: int
    unit_shapes: tuple[tuple[int, int], ...]
    scale: tuple[float, ...]
    """Factor on the learning rate per unit shape."""
    rule: str


@dataclass(frozen=True, slots=True)
class Audit:
    rows: tuple[AuditRow, ...]

    def __str__(self) -> str:
        """A table; layers that look alike share a line."""
        alike = Counter(
            (_DIGITS.sub("*", r.name), r.shape, r.algorithm, r.units, r.num_units, r.unit_shapes, r.scale, r.rule) for r in self.rows
        )
        lines = [("parameter", "count", "shape", "algorithm", "units", "unit shape", "scale", "rule")]
        for (name, shape, algorithm, units, num_units, unit_shapes, scale, rule), count in alike.items():
            what = f"{num_units} x {units}" if num_units > 1 else units
            shapes = " ".join(f"{rows}x{cols}" for rows, cols in unit_shapes)
            factors = " ".join(f"{factor:.3g}" for factor in scale)
            lines.append((name, str(count), "x".join(map(str, shape)), algorithm, what, shapes, factors, rule))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def muon_param_groups(
    model: nn.Module,
    *,
    rules: Mapping[str, Rule] | None = None,
    router: Algorithm = "adamw",
    heads_per_group: int = 1,
    output_by_head: bool = False,
    scale: Scale = "moonlight",
) -> tuple[list[dict[str, Any]], Audit]:
    """Parameter groups for ShardedMuon (Muon, AdamW with decay, AdamW without; empty ones left out) and the table of what went where.

    `rules`: patterns ("*.mixer.weight") before the built-in ones. `output_by_head`: the output projection by columns per head, which cuts
    its Newton-Schulz cost (76% of Kimi K2's dense part) but changes the update. `scale` only fills the table.
    ValueError: matrices that no rule knows, a pattern that matches nothing, units that do not tile, or nothing left for Muon.
    """
    context = _Context(model, dict(rules or {}), router, heads_per_group, output_by_head)
    groups: dict[str, dict[str, Any]] = {
        "muon": {"name": "muon", "algorithm": "muon", "params": [], "units": {}},
        "adamw": {"name": "adamw", "algorithm": "adamw", "params": []},
        "adamw_no_decay": {"name": "adamw_no_decay", "algorithm": "adamw", "params": [], "weight_decay": 0.0},
    }
    rows, unknown = [], []
    for raw, parameter in model.named_parameters():
        name = _clean(raw)
        shape = tuple(parameter.shape)
        if not parameter.requires_grad:
            rows.append(AuditRow(name, shape, "frozen", "", 0, (), (), "requires no gradient"))
            continue
        try:
            route = context.route(raw, name, parameter)
        except ValueError as error:
            raise ValueError(f"{name} {shape}: {error}") from None
        if route is None:
            unknown.append(f"{name} {shape}")
            continue
        if route.algorithm == "adamw":
            groups["adamw" if route.decay else "adamw_no_decay"]["params"].append((name, parameter))
            rows.append(AuditRow(name, shape, "adamw", "", 0, (), (), route.rule))
            continue
        units = route.units or Units()
        units.check(name, shape)
        groups["muon"]["params"].append((name, parameter))
        groups["muon"]["units"][name] = units
        shapes = units.shapes(shape)
        factors = tuple(update_scale(scale, *unit) for unit in shapes)
        rows.append(AuditRow(name, shape, "muon", units.label, units.count(shape), shapes, factors, route.rule))
    _complain(unknown, context.unused(), bool(groups["muon"]["params"]))
    return [group for group in groups.values() if group["params"]], Audit(tuple(rows))


def _complain(unknown: Sequence[str], unused: Sequence[str], any_muon: bool) -> None:
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise ValueError(
            f"no routing rule for {shown}: pass rules={{'*.its.name': 'muon'}} (whole matrices), 'adamw', or units, say row_heads(128, 8)"
        )
    if unused:
        raise ValueError(
            f"rule {unused[0]!r} matches no trainable parameter; it is tried on names such as model.layers.0.mlp.up_proj.weight"
        )
    if not any_muon:
        raise ValueError("the muon group has no parameters: every trainable one went to AdamW; check `rules`, or use AdamW alone")


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


class _Context:
    """The model's modules and config, and the caller's choices."""

    def __init__(self, model: nn.Module, rules: dict[str, Rule], router: Algorithm, heads_per_group: int, output_by_head: bool) -> None:
        self._modules = dict(model.named_modules())
        config: Any = getattr(model, "config", None)
        self._config: Any = config.get_text_config() if hasattr(config, "get_text_config") else config
        self._rules = rules
        self._used: set[str] = set()
        self._router, self._heads_per_group, self._output_by_head = router, heads_per_group, output_by_head

    def unused(self) -> list[str]:
        return [pattern for pattern in self._rules if pattern not in self._used]

    def route(self, raw: str, name: str, parameter: Tensor) -> Route | None:
        for pattern, rule in self._rules.items():
            if fnmatchcase(name, pattern):
                self._used.add(pattern)
                if isinstance(rule, Units):
                    return Route("muon", rule, f"rule {pattern}")
                if rule not in ("muon", "adamw"):
                    raise ValueError(f"rule {pattern!r}: {rule!r}; allowed are units, 'muon' and 'adamw'")
                return Route(rule, Units(), f"rule {pattern}", decay=parameter.ndim >= 2)
        holder, _, leaf = raw.rpartition(".")
        module = self._modules[holder]
        key, owner = leaf, module
        if leaf == "weight":
            parent, _, key = holder.rpartition(".")
            owner = self._modules.get(parent, module)
        return self._not_muon(name, key, parameter, module, owner) or self._matrix(key, parameter, module, owner)

    def _not_muon(self, name: str, key: str, parameter: Tensor, module: nn.Module, owner: nn.Module) -> Route | None:
        parts = set(name.split("."))
        if parameter.ndim < 2:
            return Route("adamw", None, "one dimension", decay=False)
        if parts & _VISION:
            return Route("adamw", None, "vision tower")
        if isinstance(module, nn.Embedding) or key in _EMBEDDINGS:
            return Route("adamw", None, "embedding or head", decay=False)
        if key.endswith("bias"):
            return Route("adamw", None, "bias", decay=False)
        if min(parameter.shape) == 1 and parameter.ndim == 2:
            return Route("adamw", None, "a single row or column", decay=False)
        if parameter.ndim > 3 or isinstance(module, torch.nn.modules.conv._ConvNd) or "conv" in key:
            return Route("adamw", None, "convolution")
        if key in _ROUTERS and parameter.ndim == 2 and (key != "gate" or self._is_router(parameter, owner)):
            return Route(self._router, Units(), "router")
        return None

    def _is_router(self, parameter: Tensor, owner: nn.Module) -> bool:
        counts = [getattr(self._config, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")]
        return hasattr(owner, "experts") or parameter.shape[0] in counts

    def _matrix(self, key: str, parameter: Tensor, module: nn.Module, owner: nn.Module) -> Route | None:
        if parameter.ndim == 3:
            return self._stack(key, parameter, owner)
        rows = parameter.shape[0]
        head_dim = self._size(owner, "head_dim")
        query_dim = self._size(owner, "qk_head_dim") or self._sum(owner, "qk_nope_head_dim", "qk_rope_head_dim") or head_dim
        if key in _QUERY:
            return self._by_rows(query_dim, rows, "query heads")
        if key in _KEY_VALUE:
            return self._by_rows(head_dim, rows, "key/value heads")
        if key in ("kv_b_proj", "wkv_b"):
            return self._by_rows(self._sum(owner, "qk_nope_head_dim", "v_head_dim"), rows, "latent key/value heads")
        if key in ("qkv_proj", "c_attn", "query_key_value", "Wqkv"):
            return self._fused_qkv(key, parameter, module, head_dim)
        if key == "gate_up_proj" and rows % 2 == 0:
            return Route("muon", u.gate_up(rows // 2), "fused gate and up")
        if key in _OUTPUT and self._output_by_head:
            width = self._size(owner, "v_head_dim") or head_dim
            if width is not None and parameter.shape[1] % width == 0:
                return Route("muon", u.column_heads(width, parameter.shape[1] // width, self._heads_per_group), "output heads")
        if key in _OUTPUT or key in _WHOLE:
            return Route("muon", u.whole(), "projection")
        return None

    def _stack(self, key: str, parameter: Tensor, owner: nn.Module) -> Route | None:
        """Stacked experts: transformers' experts modules say whether they are transposed and whether gate and up are side by side."""
        if key == "gate_up_proj":
            if not getattr(owner, "is_concatenated", True):
                return Route("muon", u.whole(), "experts, gate and up interleaved")
            columns = bool(getattr(owner, "is_transposed", False))
            return Route("muon", u.gate_up(parameter.shape[2 if columns else 1] // 2, columns=columns), "experts")
        if key in _WHOLE:
            return Route("muon", u.whole(), "experts")
        return None

    def _by_rows(self, head_rows: int | None, rows: int, rule: str) -> Route:
        if head_rows is None:
            return Route("muon", u.whole(), f"{rule}, size unknown")
        if rows % head_rows:
            raise ValueError(f"{rule}: {rows} rows are not a multiple of the head's {head_rows}; give this projection a rule of its own")
        return Route("muon", u.row_heads(head_rows, rows // head_rows, self._heads_per_group), rule)

    def _fused_qkv(self, key: str, parameter: Tensor, module: nn.Module, head_dim: int | None) -> Route | None:
        num_heads = getattr(self._config, "num_attention_heads", None)
        if num_heads is None:
            return None
        columns = type(module).__name__ == "Conv1D"  # GPT-2 keeps (in, out)
        size = parameter.shape[1 if columns else 0]
        known = [getattr(self._config, name, None) for name in ("num_key_value_heads", "num_kv_heads")]
        head = head_dim or size // (3 * num_heads)
        pairs = next((n for n in (*known, num_heads, 1) if isinstance(n, int) and head * (num_heads + 2 * n) == size), None)
        if pairs is None:
            return None
        if key == "query_key_value":
            return Route("muon", u.qkv_interleaved(num_heads, pairs, head, self._heads_per_group), "fused QKV, interleaved")
        return Route("muon", u.qkv_concatenated(num_heads, pairs, head, self._heads_per_group, columns=columns), "fused QKV")

    def _size(self, owner: nn.Module, key: str) -> int | None:
        """From the attention module, else from the config (hidden size over heads if it gives no head_dim)."""
        for holder in (owner, self._config):
            value = getattr(holder, key, None)
            if isinstance(value, int) and value > 0:
                return value
        heads, hidden = (getattr(self._config, k, None) for k in ("num_attention_heads", "hidden_size"))
        if key == "head_dim" and isinstance(heads, int) and isinstance(hidden, int):
            return hidden // heads
        return None

    def _sum(self, owner: nn.Module, first: str, second: str) -> int | None:
        a, b = self._size(owner, first), self._size(owner, second)
        return None if a is None or b is None else a + b
