"""A world of one over gloo, worlds of any size that exist on paper, and small models of each family."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from etude.parallel.mesh import start


@pytest.fixture
def world_of_one() -> Iterator[None]:
    start()
    yield
    dist.destroy_process_group()


@pytest.fixture
def fake_world() -> Iterator[Callable[[int, int], None]]:
    """fake_world(size, rank): collectives do nothing; for layouts."""

    def begin(size: int, rank: int) -> None:
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def qwen3() -> Callable[..., nn.Module]:
    """Grouped-query attention."""

    def make(**changes: object) -> nn.Module:
        torch.manual_seed(0)
        fields: dict[str, object] = {
            "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2,
            "max_position_embeddings": 64, "tie_word_embeddings": False, "initializer_range": 0.2,
        }  # fmt: skip
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**fields, **changes}))

    return make


@pytest.fixture
def deepseek() -> Callable[..., nn.Module]:
    """Multi-head latent attention, a dense first block, a shared expert."""

    def make(**changes: object) -> nn.Module:
        torch.manual_seed(0)
        fields: dict[str, object] = {
            "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
            "first_k_dense_replace": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 12,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "max_position_embeddings": 64, "tie_word_embeddings": False,
            "initializer_range": 0.2,
        }  # fmt: skip
        return DeepseekV3ForCausalLM(DeepseekV3Config(**{**fields, **changes}))

    return make
