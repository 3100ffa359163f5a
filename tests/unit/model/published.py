"""Folders with the keys, dtypes and files of published models, tiny: Qwen3-MoE, DeepSeek-V3, and Kimi K2.5 with packed experts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from etude.model.int4 import dequantize, quantize
from etude.model.shards import targets

VOCABULARY = 320
GROUP = 16


def qwen3(experts: int) -> nn.Module:
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=experts, num_experts_per_tok=2,
            max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip


def deepseek_config(experts: int) -> DeepseekV3Config:
    return DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, first_k_dense_replace=1,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        n_routed_experts=experts, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, max_position_embeddings=64,
        tie_word_embeddings=False,
    )  # fmt: skip


def kimi(experts: int) -> nn.Module:
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"pos_emb_height": 4, "pos_emb_width": 4}
    config = Kimi_K25Config(
        text_config=deepseek_config(experts).to_dict(), vision_config=vision, projection_hidden_size=16, image_token_id=318,
        video_token_id=319, tie_word_embeddings=False,
    )  # fmt: skip
    return Kimi_K25ForConditionalGeneration(config)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "qwen3": qwen3,
    "deepseek": lambda experts: DeepseekV3ForCausalLM(deepseek_config(experts)),
    "kimi": kimi,
}


def publish(name: str, folder: Path, experts: int) -> tuple[Any, dict[str, Tensor]]:
    """A folder with the keys, dtypes and files of the published model, and the weights it stands for, in fp32."""
    torch.manual_seed(0)
    model = MODELS[name](experts)
    with torch.no_grad():
        for tensor in targets(model).values():
            tensor.copy_(torch.randn(tensor.shape).bfloat16())
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    if name == "kimi":  # transformers 5.24 writes back other names than Kimi's own
        renames = {
            "language_model.model.blocks.": "language_model.model.layers.",
            "model.mm_projector": "mm_projector",
            "vision_tower.encoder.patch_embed": "vision_tower.patch_embed",
        }
        for old, new in renames.items():
            stored = {key.replace(old, new) if key.startswith(old) else key: tensor for key, tensor in stored.items()}
    expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    if name != "qwen3":
        stored = {key: tensor if "e_score" in key else tensor.bfloat16() for key, tensor in stored.items()}
    if name == "kimi":
        stored = pack_experts(stored, expected)
        about = json.loads((folder / "config.json").read_text())
        about["text_config"]["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
        (folder / "config.json").write_text(json.dumps(about))
    if name == "deepseek":
        stored["model.layers.2.eh_proj.weight"] = torch.ones(3, 2, dtype=torch.bfloat16)  # multi-token prediction: no place in the model
    write_files(folder, stored, files=3)
    return model.config, expected


def pack_experts(stored: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    packed = {}
    for key, tensor in stored.items():
        found = re.search(r"\.experts\.(\d+)\.(gate|up|down)_proj\.weight$", key)
        if found is None:
            packed[key] = tensor
            continue
        entries, scale = quantize(tensor, GROUP)
        packed |= {f"{key}_packed": entries, f"{key}_scale": scale, f"{key}_shape": torch.tensor(tensor.shape)}
        values = dequantize(entries, scale, tensor.shape[1], torch.float32)
        stack = key[: found.start()].replace("language_model.model", "model.language_model") + ".experts."
        expert, part = int(found[1]), found[2]
        if part == "down":
            expected[f"{stack}down_proj"][expert] = values
        else:
            rows = len(values)
            expected[f"{stack}gate_up_proj"][expert, rows * (part == "up") : rows * (1 + (part == "up"))] = values
    return packed


def write_files(folder: Path, stored: dict[str, Tensor], files: int) -> None:
    (folder / "model.safetensors").unlink()
    where = {key: f"model-{i % files + 1:05d}-of-{files:05d}.safetensors" for i, key in enumerate(sorted(stored))}
    for file in set(where.values()):
        save_file({key: tensor.contiguous() for key, tensor in stored.items() if where[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def stored_in(folder: Path) -> dict[str, Tensor]:
    return {key: tensor for file in sorted(folder.glob("*.safetensors")) for key, tensor in load_file(file).items()}
