import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM, MixtralConfig, MixtralForCausalLM

from etude.errors import UserError
from etude.parallel.degrees import Degrees
from etude.parallel.experts import NAME, find_experts, load_balance, stacked_parameters
from etude.parallel.hsdp import apply_dual_mesh
from etude.parallel.mesh import DualMesh

SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}


def gpt_oss() -> nn.Module:
    """Transposed and biased experts with a gate of their own."""
    return GptOssForCausalLM(GptOssConfig(**SMALL, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, pad_token_id=0))


def mixtral() -> nn.Module:
    return MixtralForCausalLM(MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2))


@pytest.mark.parametrize("make", [gpt_oss, mixtral])
def test_other_families_go_through_the_same_dispatch(make: Callable[[], Any], world_of_one: None) -> None:
    torch.manual_seed(0)
    model = make()
    for name, parameter in model.named_parameters():
        if "bias" in name or "experts" in name:
            nn.init.normal_(parameter, std=0.2)
    reference = copy.deepcopy(model)
    reference.set_experts_implementation("eager")
    apply_dual_mesh(model, DualMesh(Degrees()))
    ids = torch.arange(24).view(2, 12)
    for each in (model, reference):
        each(input_ids=ids, use_cache=False).logits.square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(ours.grad.full_tensor(), expected, rtol=1e-4, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")
    assert sum(load_balance(model)[0].tokens) == 24 * 2


def test_statistics_of_a_model_without_experts_are_empty() -> None:
    assert load_balance(nn.Linear(2, 2)) == []


def test_parameters_that_are_not_stacked_are_refused(qwen3: Callable[..., Any]) -> None:
    name, experts = next(iter(find_experts(qwen3()).items()))
    assert set(stacked_parameters(name, experts)) == {"gate_up_proj", "down_proj"}
    experts.norm = nn.LayerNorm(8)
    with pytest.raises(UserError, match=r"layers.0.mlp.experts.norm.weight \(8,\) is not 8 stacked experts"):
        stacked_parameters(name, experts)


def test_the_dispatch_needs_its_group(qwen3: Callable[..., Any]) -> None:
    model = qwen3()
    model.set_experts_implementation(NAME)
    with pytest.raises(ValueError, match="needs apply_dual_mesh"):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long))
