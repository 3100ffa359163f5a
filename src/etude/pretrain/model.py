"""The model and optimizer of a pretraining run: from a folder or from dimensions, on the meshes, with its cost in FLOPs.

    model = build(config, phase, mesh, device); optimizer, routing = make_optimizer(model, config.optimizer)

Weights from scratch depend on the seed and the parameter's name alone, so they are equal on any mesh: matrices normal with
`initializer_range`, norms 1, biases 0; a stacked parameter is drawn expert by expert.

Not here: steps (loop.py), formats (model/).
"""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig

from etude.corpus.tokens import end_token, read_tokenizer
from etude.errors import EtudeError, UserError
from etude.model.export import check_export
from etude.model.shards import allocate, empty_model, load_shards, local_box, local_tensor, targets
from etude.optim import muon_param_groups
from etude.optim.adamw import decays
from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.sharded_muon import ShardedMuon
from etude.parallel import DualMesh, apply_dual_mesh, use_context
from etude.parallel.experts import find_experts
from etude.pretrain.config import Init, OptimizerConfig, PretrainConfig

KINDS = {"llama": "LlamaConfig", "qwen3_moe": "Qwen3MoeConfig", "deepseek_v3": "DeepseekV3Config"}
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12, "GB200": 2500e12}  # dense bf16 FLOP/s, vendor's figures
T = TypeVar("T")
_TILE = 64  # rows of embeddings in whole tiles
_EMBEDDINGS = ("embed_tokens", "wte", "embed_in")


def model_config(config: PretrainConfig, phase: int, end: int) -> Any:
    """The transformers config of a phase: rope changes of all phases up to it, and room for its rows. UserError where they do not fit."""
    if config.model.path:
        path = Path(config.model.path)
        if not (path / "config.json").is_file():
            raise UserError(f"model folder {path} has no config.json: it is not a Hugging Face model folder (nothing is downloaded)")
        read = AutoConfig.from_pretrained  # no code of the folder runs, and nobody is asked whether it may
        found = _accepted(f"model folder {path}", lambda: read(path, local_files_only=True, trust_remote_code=False))
    else:
        longest = max(each.seq_len for each in config.phases if not each.rope) if any(not p.rope for p in config.phases) else 0
        found = _from_init(config.init, -(-_tokens(config.tokenizer_folder) // _TILE) * _TILE, end, longest)
    text = found.get_text_config()
    most: Any = getattr(text, "max_position_embeddings", None)
    for each in config.phases[: phase + 1]:
        if each.rope and (most is None or not hasattr(text, "rope_parameters")):
            raise UserError(f"phase {each.name!r} has rope, and the model {text.model_type!r} has no rotary embeddings: remove it")
        if each.rope:
            text.rope_parameters = {**(text.rope_parameters or {}), **each.rope}
            most = text.max_position_embeddings = max(most, each.seq_len)
    ids = _tokens(config.tokenizer_folder)
    if ids > text.vocab_size:
        raise UserError(
            f"the tokenizer in {config.tokenizer_folder} has {ids} tokens and the model {text.vocab_size}: they do not belong together; "
            "set model.tokenizer to the model's own"
        )
    seq_len = config.phases[phase].seq_len
    if most is not None and seq_len > most:
        raise UserError(
            f"phase {config.phases[phase].name!r}: seq_len {seq_len} is above the model's max_position_embeddings "
            f'{most}; add rope = {{rope_type = "yarn", factor = ...}} to the phase, or lower seq_len'
        )
    return found


def check_models(config: PretrainConfig, end: int) -> None:
    """What would only show when a later phase begins, before anything is computed. UserError where a phase has no model that works."""
    for i, phase in enumerate(config.phases):
        hf_config = model_config(config, i, end)
        if i == 0 or phase.rope:
            what = f"phase {phase.name!r} with rope = {phase.rope}" if phase.rope else "the model's config"
            use_context(_accepted(what, partial(empty_model, hf_config)))


def _accepted(what: str, work: Callable[[], T]) -> T:
    """What transformers makes of values that are the user's: whatever it raises then, they are wrong."""
    try:
        return work()
    except EtudeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what}: transformers refuses it ({type(error).__name__}: {reason[:250]}); mend that value") from error


def _tokens(tokenizer: Path) -> int:
    return int(read_tokenizer(tokenizer).get_vocab_size())


def _from_init(init: Init, vocabulary: int, end: int, longest: int) -> Any:
    values: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": init.hidden_size, "num_hidden_layers": init.num_hidden_layers,
        "intermediate_size": init.intermediate_size, "num_attention_heads": init.num_attention_heads,
        "num_key_value_heads": init.num_key_value_heads, "rope_parameters": {"rope_type": "default", "rope_theta": init.rope_theta},
        "initializer_range": init.initializer_range, "tie_word_embeddings": init.tie_word_embeddings,
        "max_position_embeddings": max(longest, 1), "bos_token_id": None, "eos_token_id": end, "pad_token_id": None,
    }  # fmt: skip
    if init.kind != "deepseek_v3":
        values["head_dim"] = init.head_dim
    if init.kind != "llama":
        experts = "num_experts" if init.kind == "qwen3_moe" else "n_routed_experts"
        values |= {experts: init.num_experts, "num_experts_per_tok": init.num_experts_per_tok}
        values["moe_intermediate_size"] = init.moe_intermediate_size
    return _accepted("init", lambda: getattr(transformers, KINDS[init.kind])(**{**values, **init.more}))


def build(
    config: PretrainConfig, phase: int, mesh: DualMesh, device: str, *, fill: bool = True, note: Callable[[str], None] = lambda text: None
) -> nn.Module:
    """The model on the meshes. `fill`: with the folder's weights or new ones; else zeros, for a checkpoint to fill."""
    hf_config = model_config(config, phase, end=0 if config.model.path else end_token(config.tokenizer_folder))
    model = _accepted("the model's config", lambda: empty_model(hf_config))
    for name, parameter in model.named_parameters():
        if any(part in config.model.freeze for part in name.split(".")):
            parameter.requires_grad_(False)
    use_context(model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    model._etude_sizes = sizes  # type: ignore[assignment]  # of whole parameters: a stack that EP cuts reports its part
    dtype = torch.bfloat16 if config.model.compute_dtype == "bfloat16" else None
    apply_dual_mesh(model, mesh, param_dtype=dtype, checkpoint=config.model.checkpoint)
    allocate(model, device)
    model.train()
    if config.model.path:
        check_export(model, Path(config.model.path))  # not after days of training
    if fill and config.model.path:
        report = load_shards(model, Path(config.model.path))
        note(f"{config.model.path}: read {report.read_bytes >> 20} MiB, held {report.peak_bytes >> 20} MiB at most on rank 0")
    elif fill:
        initialize(model, config.seed, float(hf_config.get_text_config().initializer_range))
    note(f"{sum(sizes.values()) / 1e6:.1f}M parameters, {active_parameters(model) / 1e6:.1f}M in a token's products")
    return model


@torch.no_grad()
def initialize(model: nn.Module, seed: int, spread: float) -> None:
    """New weights into the local shards; see the module's docstring."""
    for name, tensor in targets(model).items():
        mine, local = local_box(tensor), local_tensor(tensor)
        if not isinstance(tensor, nn.Parameter):
            continue
        if tensor.ndim < 2:
            local.fill_(0.0 if name.endswith("bias") else 1.0)
        elif tensor.ndim == 3:
            for i, expert in enumerate(range(*mine[0])):
                local[i].copy_(_drawn(tuple(tensor.shape[1:]), f"{seed} {name} {expert}", spread)[_slices(mine[1:])])
        else:
            local.copy_(_drawn(tuple(tensor.shape), f"{seed} {name}", spread)[_slices(mine)])


def _slices(box: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def _drawn(shape: tuple[int, ...], key: str, spread: float) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def make_optimizer(model: nn.Module, settings: OptimizerConfig) -> tuple[torch.optim.Optimizer, str]:
    """The optimizer, and a table of what it does to which parameter. UserError where Muon finds nothing to do."""
    if settings.name == "muon":
        try:
            groups, audit = muon_param_groups(model, router=settings.router)
        except ValueError as error:
            raise UserError(f'optimizer muon: {error}; or set optimizer.name = "adamw"') from error
        options = MuonOptions(newton_schulz=NewtonSchulz(dtype=settings.newton_schulz_dtype))
        sharded = ShardedMuon(
            groups, weight_decay=settings.weight_decay, options=options, momentum=settings.momentum, betas=settings.betas, eps=settings.eps
        )
        return sharded, str(audit)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in trained if decays(name, parameter)]
    rest = [(name, parameter) for name, parameter in trained if not decays(name, parameter)]
    named = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW([group for group in named if group["params"]], lr=0.0, betas=settings.betas, eps=settings.eps)
    return adamw, "\n".join(f"{name} adamw" for name, _ in trained)


def active_parameters(model: nn.Module) -> float:
    """Weights that multiply each token: all matrices but the embeddings' table, of the experts those that a token goes to."""
    sizes: dict[str, int] = model._etude_sizes  # type: ignore[assignment]
    experts = find_experts(model)
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    total = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or not _is_language(model, name):
            continue
        owner = next((module for key, module in experts.items() if name.startswith(f"{key}.")), None)
        if any(part in name for part in _EMBEDDINGS) and not text.tie_word_embeddings:
            continue
        share = 1.0 if owner is None else text.num_experts_per_tok / owner.num_experts
        total += sizes[_clean(name)] * share
    return total


def _clean(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def _is_language(model: nn.Module, name: str) -> bool:
    return not any(part in ("vision_tower", "mm_projector", "visual", "vision_model") for part in name.split("."))


def flops_per_step(model: nn.Module, positions: NDArray[np.int64]) -> float:
    """Of forward and backward over these rows, as MFU counts them (work done again by checkpointing is not counted):

        6 N tokens + 6 layers heads (d_qk + d_v) sum over tokens of (position + 1)

    N: `active_parameters`; d_qk, d_v: sizes of a head's keys and values; a token at position p of its document attends to p + 1 keys.
    After PaLM (Chowdhery et al., 2022, appendix B), with causal attention within documents counted exactly. MFU divides by seconds, ranks
    and the rank's peak FLOP/s.
    """
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):
        sizes = text.qk_nope_head_dim + text.qk_rope_head_dim + text.v_head_dim
    else:
        sizes = 2 * head
    attention = 6.0 * text.num_hidden_layers * text.num_attention_heads * sizes * float((positions + 1).sum())
    total: float = 6.0 * active_parameters(model) * positions.size + attention
    return total


def peak_flops(config: PretrainConfig, device: str) -> float:
    """Of one rank: as configured, a known GPU's, or what a matrix product of the compute dtype reaches here."""
    if config.peak_flops:
        return config.peak_flops
    if device == "cuda":
        name = torch.cuda.get_device_name()
        for chip in sorted(PEAKS, key=len, reverse=True):
            if chip in name:
                return PEAKS[chip]
    size = 4096 if device == "cuda" else 512
    matrix = torch.ones(size, size, dtype=getattr(torch, config.model.compute_dtype), device=device)
    best = 0.0
    for _ in range(4):
        begun = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        best = max(best, 2 * size**3 / (time.perf_counter() - begun))
    return best


__all__ = ["active_parameters", "build", "check_models", "flops_per_step", "initialize", "make_optimizer", "model_config", "peak_flops"]
