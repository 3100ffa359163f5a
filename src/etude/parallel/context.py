"""Context parallelism and packed documents, for unmodified transformers models.

    use_context(model)                                          # once: the attention function, before or after apply_dual_mesh
    inputs = context_inputs(model, mesh.cp, ids, positions)     # every step: this rank's tokens, and what attention must know
    logits = model(**inputs).logits                             # of this rank's tokens
    labels = cut(next_tokens(ids, positions), mesh.cp)          # in the same order

    B rows, T tokens of a row over all ranks, C ranks of the cp group, S = T / 2C, D head size

A row is cut in 2C chunks of S tokens; rank i holds chunks i and 2C-1-i, so that causal work is even. Rotary positions come from
`position_ids`, which count from 0 in each document; attention never leaves a document. Keys and values are gathered through the cache
interface, which a layer calls before its attention: our cache's `update` all-gathers over the cp group and backward reduce-scatters. For
GQA these are keys and values after rotary embedding; for MLA the latents, before they are expanded (K2: 1.2 KB a token instead of 41 KB).

Attention (registered as "etude_context") then runs once per piece of a document that lies in a chunk: queries [a, b) of a document that
starts at s see keys [s, b), lower-right causal. No mask over the whole row exists, and no masked-out block is computed. C = 1 is the
same code with one chunk.

Refused: sliding windows, logit caps, sinks, dropout, layers other than attention that mix tokens (linear attention, state spaces: they
would not see the other ranks' tokens, nor documents), rotary embeddings that depend on the length (the ranks would disagree).
Not here: cutting parameters (hsdp.py), packing documents into rows.
"""

import inspect
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.bias import causal_lower_right
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from etude.errors import UserError

NAME = "etude_context"

# Arguments with which transformers asks for attention that is not plain causal; each is None (or absent) when not in use.
_SPECIAL = ("sliding_window", "softcap", "s_aux", "position_bias")
_NO_ATTENTION = ("state_size", "ssm_state_size", "mamba_d_state", "linear_num_key_heads", "linear_attn_config", "layers_block_type")
_BY_LENGTH = ("dynamic", "longrope")  # rotary embeddings whose frequencies depend on the largest position in the batch


# torch 2.13 renamed both and warns on the names that 2.10 knows.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Piece(NamedTuple):
    """Queries [query, query + num_queries) of this rank see keys [key, key + num_keys) of the row; both end with the same token."""

    query: int
    num_queries: int
    key: int
    num_keys: int


def use_context(model: nn.Module) -> None:
    """Let the language model's attention go through this module; a vision tower keeps its own. UserError for models it is wrong for."""
    config: Any = model.config
    text = config.get_text_config()
    other = sorted({layer for layer in getattr(text, "layer_types", None) or () if layer != "full_attention"})
    other += [field for field in _NO_ATTENTION if getattr(text, field, None) is not None]
    if other:
        raise UserError(
            f"{type(model).__name__} has layers that are not plain attention ({', '.join(other)}): no documents or context parallelism"
        )
    kind = (getattr(text, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind in _BY_LENGTH:
        raise UserError(f'rope_type is "{kind}", whose frequencies depend on the length of the batch; use "yarn", "linear" or "default"')
    name = next((key for key in config.sub_configs if getattr(config, key, None) is text), None)
    model.set_attn_implementation(NAME if name is None else {name: NAME})  # type: ignore[operator]
    if text._attn_implementation != NAME:
        raise UserError(f"{type(model).__name__} does not call transformers' attention interface: no context parallelism for it")


def context_inputs(model: nn.Module, cp: DeviceMesh, input_ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
    """Arguments of the model for this rank's tokens. `input_ids` and `position_ids` [B, T] are those of whole rows, equal on the cp ranks.

    ValueError where T is not a multiple of 2C or a row does not start a document.
    """
    layout = Layout(position_ids, cp)
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {
        "input_ids": cut(input_ids, cp),
        "position_ids": cut(position_ids, cp),
        "use_cache": False,
        cache: _GatheredKeys(cp),
        "context_layout": layout,
    }


def cut(row_BT: Tensor, cp: DeviceMesh) -> Tensor:
    """This rank's tokens of [B, T, ...]: chunks i and 2C-1-i -> [B, T / C, ...]."""
    spans = spans_of(cp.get_local_rank(), cp.size(), row_BT.shape[1])
    return torch.cat([row_BT[:, start:end] for start, end in spans], dim=1)


def join(mine: Tensor, cp: DeviceMesh) -> Tensor:
    """The inverse of `cut`: [B, T / C, ...] of all cp ranks -> [B, T, ...], in order. Gradients flow back to every rank."""
    gathered = _gather(mine.reshape(mine.shape[0], 1, mine.shape[1], -1), cp)
    return gathered.reshape(mine.shape[0], -1, *mine.shape[2:])


def next_tokens(input_ids: Tensor, position_ids: Tensor, ignore: int = -100) -> Tensor:
    """Labels [B, T]: the following token, `ignore` at each document's end. Of whole rows: shifting must come before cutting."""
    labels = torch.full_like(input_ids, ignore)
    follows = position_ids[:, 1:] == position_ids[:, :-1] + 1
    labels[:, :-1] = torch.where(follows, input_ids[:, 1:], ignore)
    return labels


class Layout:
    """Which keys each of this rank's queries sees: pieces per row."""

    def __init__(self, position_ids: Tensor, cp: DeviceMesh) -> None:
        positions = position_ids.detach().cpu()
        if bool((positions[:, 0] != 0).any()):
            raise ValueError(f"position_ids start at {positions[:, 0].tolist()}: a row must start with position 0 of a document")
        self.num_rows, self.num_tokens = positions.shape
        spans = spans_of(cp.get_local_rank(), cp.size(), self.num_tokens)
        self.num_queries = sum(end - start for start, end in spans)
        starts = [[0, *((row[1:] != row[:-1] + 1).nonzero().flatten() + 1).tolist(), self.num_tokens] for row in positions]
        self.rows: dict[tuple[Piece, ...], list[int]] = {}
        """rows with equal pieces are computed together"""
        for index, row in enumerate(starts):
            self.rows.setdefault(tuple(pieces_of(row, spans)), []).append(index)


def spans_of(rank: int, ranks: int, num_tokens: int) -> list[tuple[int, int]]:
    """The ranges of a row of `num_tokens` that a cp rank holds; adjacent ones are one. ValueError where the chunks are uneven."""
    if ranks == 1:
        return [(0, num_tokens)]
    if num_tokens % (2 * ranks):
        raise ValueError(f"a row has {num_tokens} tokens: cp = {ranks} needs a multiple of {2 * ranks}; pad it with a document of its own")
    size = num_tokens // (2 * ranks)
    first, second = rank * size, (2 * ranks - 1 - rank) * size
    return [(first, second + size)] if first + size == second else [(first, first + size), (second, second + size)]


def pieces_of(starts: list[int], spans: list[tuple[int, int]]) -> list[Piece]:
    """The parts of documents (which begin at `starts`; its last entry is the row's end) within the spans."""
    found, offset = [], 0
    for low, high in spans:
        for start, end in pairwise(starts):
            first, last = max(start, low), min(end, high)
            if first < last:
                found.append(Piece(offset + first - low, last - first, start, last - start))
        offset += high - low
    return found


class _GatheredKeys:
    """A cache that stores nothing: `update` returns keys and values (or latents) of the whole row."""

    def __init__(self, cp: DeviceMesh) -> None:
        self._cp = cp

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Two [B, K, T / C, D], of equal K but any D -> two [B, K, T, D], in one collective."""
        sizes = [key_states.shape[-1], value_states.shape[-1]]
        key, value = torch.split(_gather(torch.cat((key_states, value_states), dim=-1), self._cp), sizes, dim=-1)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _gather(mine: Tensor, cp: DeviceMesh) -> Tensor:
    """[B, K, T / C, D] of every rank -> [B, K, T, D]."""
    if cp.size() == 1:
        return mine
    gathered: Tensor = _GatherChunks.apply(mine, cp.get_group())  # type: ignore[no-untyped-call]
    return gathered


class _GatherChunks(torch.autograd.Function):
    """All-gather over the token dim, chunks in order; backward sums over ranks and scatters."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        batch, heads, tokens, size = mine.shape
        ranks = group.size()
        parts = mine.new_empty(ranks, batch, heads, 2, tokens // 2, size)
        _all_gather(parts.view(ranks * batch, heads, tokens, size), mine.contiguous(), group=group)
        chunks = torch.cat((parts[..., 0, :, :], parts[..., 1, :, :].flip(0)))
        return chunks.permute(1, 2, 0, 3, 4).reshape(batch, heads, ranks * tokens, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient, ranks = gradients[0], ctx.group.size()
        batch, heads, tokens, size = gradient.shape
        chunks = gradient.reshape(batch, heads, 2 * ranks, tokens // (2 * ranks), size).permute(2, 0, 1, 3, 4)
        parts = torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=-2).contiguous()
        mine = gradient.new_empty(batch, heads, tokens // ranks, size)
        _reduce_scatter(mine, parts.view(ranks * batch, *mine.shape[1:]), group=ctx.group)
        return mine, None


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    context_layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query [B, H, T / C, D], key and value [B, K, T, D] -> [B, T / C, H, D of values]."""
    special = [name for name in _SPECIAL if options.get(name) is not None] + ["attention_mask"] * (attention_mask is not None)
    if special or dropout or not getattr(module, "is_causal", True):
        raise ValueError(
            f'attention "{NAME}" is plain causal within documents; this layer asks for {", ".join(special) or "dropout or no causality"}'
        )
    if context_layout is None:
        raise ValueError(f'attention "{NAME}" needs to know the documents: call model(**context_inputs(model, mesh.cp, ...))')
    if key.shape[2] != context_layout.num_tokens or query.shape[2] != context_layout.num_queries:
        raise ValueError(
            f"{key.shape[2]} keys for rows of {context_layout.num_tokens} tokens: the cache argument was dropped on the way "
            "(transformers' own gradient checkpointing does); use apply_dual_mesh(..., checkpoint=True)"
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows: list[Tensor | None] = [None] * context_layout.num_rows
    for pieces, members in context_layout.rows.items():
        q, k, v = (states if len(members) == context_layout.num_rows else states[members] for states in (query, key, value))
        for index, output in zip(members, torch.cat([_attend(q, k, v, piece, scaling) for piece in pieces], dim=2), strict=True):
            rows[index] = output
    return torch.stack([row for row in rows if row is not None]).transpose(1, 2).contiguous(), None


def _attend(query: Tensor, key: Tensor, value: Tensor, piece: Piece, scaling: float) -> Tensor:
    q = query[:, :, piece.query : piece.query + piece.num_queries]
    k, v = (states[:, :, piece.key : piece.key + piece.num_keys] for states in (key, value))
    gqa = query.shape[1] != key.shape[1]
    if piece.num_queries == piece.num_keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa)
    mask = causal_lower_right(piece.num_queries, piece.num_keys)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=gqa)


ALL_ATTENTION_FUNCTIONS.register(NAME, _forward)
