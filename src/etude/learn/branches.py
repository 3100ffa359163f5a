"""Teacher branches: a hinted turn costs the tokens of hint and turn, not the whole context again.

A rollout's row is the trunk. The teacher reads ids[:s] + hint + ids[s:stop], which differs from the trunk only from s on, and
attention is causal: for the first s tokens its keys and values are the trunk's. So a trunk forward keeps every layer's keys and
values (`Trunk`), and a second, no-gradient forward runs all branches of a batch packed into one row, with their true positions; each
attends to its trunk's first s keys and to itself.

    trunk     t0 t1 ... t(s-1) | header turn ...
    branch                     \\ hint header turn           positions s, s+1, ...

On a CPU the two parts are two kernels whose results are merged by their log-sum-exp, so that the trunk's keys are neither copied nor
masked; elsewhere keys are joined and masked. Exact for plain causal attention only (model/attention.py): `branches_reason` says why a
model has to take `separate_hidden`, one full forward per hint, which is also the oracle.

    B rows, H query heads, K key/value heads, T tokens, D head size; M hidden states, one per token of a hinted turn

Not here: whose weights (teacher.py), what is done with the hidden states (step.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from etude.learn.head import hidden_states
from etude.model.attention import NAME, attention, causal, gather_gqa, lower_right, masked, plain_causal
from etude.types import HintSpan, Sample


@dataclass(slots=True)
class Trunk:
    """Keys and values of every layer, detached: [B, K, T, D] each. Use `plan` around the trunk's forward."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def plan(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.keys[layer], self.values[layer] = key.detach(), value.detach()
        return causal(layer, query, key, value, scaling)


@dataclass(frozen=True, slots=True)
class Branch:
    row: int  # of the trunk's batch
    prefix: int  # trunk tokens it reads: s
    ids: tuple[int, ...]  # hint, header, turn without its last token
    num_hint: int
    num_header: int  # trunk tokens between the splice and the turn's first sampled token

    @property
    def outputs(self) -> slice:
        """Places within the branch whose outputs predict the turn's tokens."""
        return slice(self.num_hint + self.num_header - 1, len(self.ids))


def branch_of(row: int, sample: Sample, span: HintSpan) -> Branch:
    ids = span.hint_ids + sample.ids[span.splice : span.stop - 1]
    return Branch(row, span.splice, ids, len(span.hint_ids), span.start - span.splice)


def branches_reason(model: nn.Module) -> str | None:
    """None if branches are exact for this model, else why not (one clause). Runs a forward of two tokens."""
    config: Any = model.config
    text = config.get_text_config()
    if not plain_causal(config):
        return "its attention is not plain causal"
    if text._attn_implementation != NAME:
        return f'it was loaded with attn_implementation="{text._attn_implementation}", not "{NAME}"'
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return "its rotary frequencies depend on the length of the context"
    trunk = Trunk()
    with torch.no_grad(), attention(trunk.plan):
        hidden_states(model, torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device))
    if set(trunk.keys) != set(range(text.num_hidden_layers)):
        return f"only {len(trunk.keys)} of its {text.num_hidden_layers} layers use the attention function"
    return None


@torch.no_grad()
def branch_hidden(model: nn.Module, trunk: Trunk, branches: Sequence[Branch], max_tokens: int = 8192) -> Tensor:
    """Teacher hidden states that predict the branches' turns, one after the other: [M, D]. At most `max_tokens` run at once."""
    device = trunk.keys[0].device
    found = []
    for group in _groups(branches, max_tokens):
        ids = torch.tensor([[i for branch in group for i in branch.ids]], device=device)
        positions = torch.cat([torch.arange(b.prefix, b.prefix + len(b.ids), device=device) for b in group])[None]
        with attention(_plan(trunk, group)):
            hidden_TD = hidden_states(model, ids, positions)[0]
        first = 0
        for branch in group:
            found.append(hidden_TD[first : first + len(branch.ids)][branch.outputs])
            first += len(branch.ids)
    return torch.cat(found)


@torch.no_grad()
def separate_hidden(model: nn.Module, branches: Sequence[Branch], rows: Sequence[Sequence[int]]) -> Tensor:
    """The same by one full-context forward per hint, for any causal model; `rows`: token ids of the trunks."""
    device = next(model.parameters()).device
    found = []
    for branch in branches:
        ids = torch.tensor([[*rows[branch.row][: branch.prefix], *branch.ids]], device=device)
        found.append(hidden_states(model, ids)[0, branch.prefix :][branch.outputs])
    return torch.cat(found)


def _groups(branches: Sequence[Branch], max_tokens: int) -> list[list[Branch]]:
    groups: list[list[Branch]] = []
    used = max_tokens
    for branch in branches:
        if used + len(branch.ids) > max_tokens:
            groups.append([])
            used = 0
        groups[-1].append(branch)
        used += len(branch.ids)
    return groups


def _plan(trunk: Trunk, branches: Sequence[Branch]) -> Any:
    def plan(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        keys, values = trunk.keys[layer], trunk.values[layer]
        outputs, first = [], 0
        for branch in branches:
            own = slice(first, first + len(branch.ids))
            past = slice(branch.row, branch.row + 1), slice(None), slice(0, branch.prefix)
            outputs.append(attend_after(query[:, :, own], keys[past], values[past], key[:, :, own], value[:, :, own], scaling))
            first = own.stop
        return torch.cat(outputs, 2)

    return plan


def attend_after(query: Tensor, past_key: Tensor, past_value: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attention of T new tokens to P past ones and, causally, to themselves: [1, H, T, D]. No gradient on the CPU path."""
    if past_key.shape[2] == 0:
        return causal(0, query, key, value, scaling)
    if query.device.type != "cpu" or torch.is_grad_enabled():
        key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
        return masked(query, key, value, lower_right(query.shape[2], key.shape[2], query.device), scaling)
    # Without a mask the queries of all heads that share keys may stand in one row: the keys are read once, not repeated.
    (_, num_heads, tokens, size), num_kv = query.shape, key.shape[1]
    grouped = query.reshape(1, num_kv, (num_heads // num_kv) * tokens, size)
    past, past_lse = _flash(grouped, past_key, past_value, False, scaling)
    key, value = gather_gqa(key, num_heads), gather_gqa(value, num_heads)
    own, own_lse = _flash(query, key, value, True, scaling)
    shape = (1, num_heads, tokens)
    share = torch.sigmoid(past_lse.reshape(shape) - own_lse.reshape(shape))[..., None].to(torch.promote_types(query.dtype, torch.float32))
    return torch.lerp(own.to(share.dtype), past.reshape(query.shape).to(share.dtype), share).to(query.dtype)


def _flash(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
    """The CPU kernel behind scaled_dot_product_attention, which also returns the log-sum-exp [B, H, T]."""
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, scale=scaling)
    return output, lse
