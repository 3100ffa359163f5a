from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

from etude.errors import UserError
from etude.parallel.context import context_inputs, use_context
from etude.parallel.degrees import Degrees
from etude.parallel.hsdp import apply_dual_mesh, find_blocks
from etude.parallel.mesh import DualMesh, start

Make = Callable[..., Any]
FakeWorld = Callable[[int, int], None]


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.to_local().shape) for name, p in model.named_parameters()}


def test_each_rank_of_a_big_world_holds_its_share(deepseek: Make, fake_world: FakeWorld) -> None:
    fake_world(64, 37)
    with torch.device("meta"):
        model = deepseek()
    apply_dual_mesh(model, DualMesh(Degrees(replicate=4, shard=4, cp=4, expert_replicate=4, efsdp=4, ep=4)))
    experts, attention = model.model.layers[1].mlp.experts, model.model.layers[1].self_attn
    assert tuple(experts.gate_up_proj.shape) == (8, 32, 32)
    assert tuple(experts.gate_up_proj.to_local().shape) == (2, 8, 32)  # 8 experts / ep, 32 rows / efsdp
    assert experts.gate_up_proj.placements == (Replicate(), Shard(1), Shard(0))
    assert tuple(attention.o_proj.weight.to_local().shape) == (2, 32)  # 32 rows / (shard x cp)
    assert attention.o_proj.weight.placements == (Replicate(), Shard(0))
    assert sum(p.numel() for p in model.parameters() if p.is_meta) == sum(p.numel() for p in deepseek().parameters())


def test_whole_experts_go_to_a_rank_where_they_fit(deepseek: Make, fake_world: FakeWorld) -> None:
    fake_world(64, 37)
    with torch.device("meta"):
        model = deepseek()
    apply_dual_mesh(model, DualMesh(Degrees(shard=64, expert_replicate=8, efsdp=4, ep=2)))
    assert shapes(model)["model.layers.1.mlp.experts.down_proj"] == (1, 32, 16)


def test_a_vision_tower_has_blocks_too(deepseek: Make, fake_world: FakeWorld) -> None:
    fake_world(4, 0)
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = Kimi_K25Config(text_config=deepseek().config.to_dict(), vision_config=vision, projection_hidden_size=16)
    with torch.device("meta"):
        model = Kimi_K25ForConditionalGeneration(config)
    assert len(find_blocks(model)) == 3 + 2
    apply_dual_mesh(model, DualMesh(Degrees(shard=4, ep=4)))
    use_context(model)
    assert config.vision_config._attn_implementation != config.text_config._attn_implementation


@pytest.mark.parametrize(
    ("changes", "degrees", "problem"),
    [
        ({}, Degrees(shard=16, ep=16), "ep = 16 does not divide the model's 8 experts"),
        (
            {"moe_intermediate_size": 12},
            Degrees(shard=32, ep=2, efsdp=16),
            r"gate_up_proj \(8, 24, 32\): efsdp = 16 divides neither the 4 experts of an EP rank \(ep = 2\) nor the 24 rows",
        ),
        ({"mlp_only_layers": [0, 1]}, Degrees(shard=2, ep=2), "ep = 2, and Qwen3MoeForCausalLM has no experts"),
    ],
)
def test_degrees_that_cannot_cut_the_experts_are_refused(
    qwen3: Make, fake_world: FakeWorld, changes: dict[str, Any], degrees: Degrees, problem: str
) -> None:
    fake_world(degrees.world, 0)
    with torch.device("meta"):
        model = qwen3(**changes)
    with pytest.raises(UserError, match=problem):
        apply_dual_mesh(model, DualMesh(degrees))


def test_a_model_without_known_blocks_is_refused_unless_they_are_given(world_of_one: None) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mesh = DualMesh(Degrees())
    with pytest.raises(UserError, match="Sequential has no transformer block"):
        apply_dual_mesh(model, mesh)
    apply_dual_mesh(model, mesh, blocks=list(model))
    model(torch.ones(2, 4)).sum().backward()
    assert model[0].weight.grad.placements == (Replicate(), Shard(0))


def test_mixed_precision_keeps_shards_gradients_and_routers_in_fp32(deepseek: Make, world_of_one: None) -> None:
    start()  # there is a group already: nothing happens
    ids, positions = torch.arange(24).view(2, 12), torch.arange(12).expand(2, 12)
    losses, dtypes = [], {}
    for dtype in (None, torch.bfloat16):
        model, mesh = deepseek(), DualMesh(Degrees())
        use_context(model)
        apply_dual_mesh(model, mesh, param_dtype=dtype)
        for name, module in model.named_modules():
            if name.endswith(("mlp.gate", "q_a_proj")):
                module.register_forward_pre_hook(lambda module, _, name=name: dtypes.__setitem__(name, module.weight.dtype))
        logits = model(**context_inputs(model, mesh.cp, ids, positions)).logits
        losses.append(logits.float().square().mean())
        losses[-1].backward()
    assert dtypes["model.layers.1.mlp.gate"] == torch.float32
    assert dtypes["model.layers.1.self_attn.q_a_proj"] == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert losses[0] != losses[1]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0)
