"""The planned model as transformers builds it, on the meta device: no memory, the true names and shapes.

Not here: the closed forms (shapes.py), which a test holds equal to these.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from etude.plan.config import ModelDims

if TYPE_CHECKING:
    from torch import nn

FAMILY_OF = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}
"""Language models that are another family's class."""


def meta_model(model: ModelDims) -> "nn.Module":
    """An unmodified transformers model with the plan's dimensions, every parameter on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {name: value for name, value in asdict(model).items() if value and name not in ("name", "model_type", "vision")}
    given |= {"tie_word_embeddings": model.tie_word_embeddings}
    family = FAMILY_OF.get(model.model_type, model.model_type)
    if family == "deepseek_v3":
        heads = model.num_attention_heads
        given |= {"num_key_value_heads": heads, "first_k_dense_replace": model.first_k_dense_replace, "n_group": 1, "topk_group": 1}
        given["q_lora_rank"] = model.q_lora_rank or None
    if family == "qwen3_moe":
        given["num_experts"] = given.pop("n_routed_experts")
    with torch.device("meta"):
        if model.model_type == "kimi_k25":
            return _kimi_k25(model, {"model_type": family, **given})
        built: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **given))
    return built


def _kimi_k25(model: ModelDims, text: dict[str, object]) -> "nn.Module":
    from transformers.models.kimi_k25 import Kimi_K25Config, Kimi_K25ForConditionalGeneration

    if model.vision is None:
        raise ValueError("model.vision is missing: the kimi_k25 classes always have a vision tower; describe it under [model.vision]")
    vision = {name: value for name, value in asdict(model.vision).items() if name != "merge_kernel_size"}
    vision["merge_kernel_size"] = list(model.vision.merge_kernel_size)
    config = Kimi_K25Config(
        text_config=text,
        vision_config=vision,
        projection_hidden_size=model.vision.hidden_size,
        tie_word_embeddings=model.tie_word_embeddings,
    )
    built: nn.Module = Kimi_K25ForConditionalGeneration._from_config(config)
    return built
