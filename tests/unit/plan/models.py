"""Published models and small ones for the planner's tests."""

from pathlib import Path
from typing import Any

from etude.plan.config import Cluster, ModelDims, Optimizer, PlanConfig, load_plan_config

KIMI_TOML = Path(__file__).parents[3] / "configs" / "plan" / "kimi-k2.toml"

LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_V3 = ModelDims(
    model_type="deepseek_v3", vocab_size=129280, hidden_size=7168, num_hidden_layers=61, first_k_dense_replace=3,
    intermediate_size=18432, num_attention_heads=128, n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
    n_shared_experts=1, tie_word_embeddings=False, **LATENT,
)  # fmt: skip
QWEN3_30B_A3B = ModelDims(
    model_type="qwen3_moe", vocab_size=151936, hidden_size=2048, num_hidden_layers=48, intermediate_size=6144, num_attention_heads=32,
    num_key_value_heads=4, head_dim=128, n_routed_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, tie_word_embeddings=False,
)  # fmt: skip
QWEN3_8B = ModelDims(
    model_type="qwen3", vocab_size=151936, hidden_size=4096, num_hidden_layers=36, intermediate_size=12288, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
)  # fmt: skip
QWEN2_7B = ModelDims(
    model_type="qwen2", vocab_size=152064, hidden_size=3584, num_hidden_layers=28, intermediate_size=18944, num_attention_heads=28,
    num_key_value_heads=4, head_dim=128, tie_word_embeddings=False,
)  # fmt: skip
LLAMA3_8B = ModelDims(
    model_type="llama", vocab_size=128256, hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
)  # fmt: skip
SMOLLM2_135M = ModelDims(
    model_type="llama", vocab_size=49152, hidden_size=576, num_hidden_layers=30, intermediate_size=1536, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip
TINY_MOE = ModelDims(
    model_type="deepseek_v3", vocab_size=512, hidden_size=64, num_hidden_layers=3, first_k_dense_replace=1, intermediate_size=96,
    num_attention_heads=4, q_lora_rank=0, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, tie_word_embeddings=False,
)  # fmt: skip


def kimi(ranks: int = 512) -> PlanConfig:
    return load_plan_config(KIMI_TOML, ranks=ranks)


def planned(model: ModelDims, ranks: int, **optimizer: Any) -> PlanConfig:
    return PlanConfig(model=model, cluster=Cluster(ranks=ranks), optimizer=Optimizer(**optimizer))
