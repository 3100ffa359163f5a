"""The documented use: a Hugging Face MoE under FSDP2, groups by rule, one optimizer; and the same layout for a thousand ranks."""

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from etude.optim import ShardedMuon, muon_param_groups
from etude.optim.muon_config import MuonOptions
from tests.distributed.ranks import run_threads


def make_model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=64, attn_implementation="eager",
    )  # fmt: skip
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def train(model: nn.Module) -> dict[str, Tensor]:
    groups, _ = muon_param_groups(model)
    optimizer = ShardedMuon(groups, lr=0.01, options=MuonOptions(bucket_bytes=4096, replica_split=2))
    tokens = torch.arange(24).remainder(64).view(1, 24)
    for _ in range(2):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: parameter.full_tensor().detach() if hasattr(parameter, "full_tensor") else parameter.detach()
        for name, parameter in model.named_parameters()
    }


def test_a_moe_under_hsdp_moves_like_the_same_model_on_one_process() -> None:
    """Every rank sees the same tokens, and the mean of equal gradients is exact, so the weights must agree to the last bit."""
    models = [make_model() for _ in range(4)]
    for model in models:
        model.train()

    def worker() -> dict[str, Tensor]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = models[dist.get_rank()]
        for layer in model.model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)  # type: ignore[arg-type]
        fully_shard(model, mesh=mesh)
        return train(model)

    alone = train(make_model())
    for weights in run_threads(worker, 4):
        assert [name for name in alone if not torch.equal(weights[name], alone[name])] == []


def test_the_same_optimizer_is_laid_out_for_a_thousand_ranks_on_the_meta_device() -> None:
    dist.init_process_group("fake", rank=700, world_size=1024, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (16, 64), mesh_dim_names=("replicate", "shard"))
        with torch.device("meta"):
            model = make_model()
            fully_shard(model, mesh=mesh)
            groups, _ = muon_param_groups(model)
            optimizer = ShardedMuon(groups)
        assert len(optimizer.plan.loads) == 1024
        assert optimizer.part.rank == 700
        local = sum(parameter.to_local().numel() for _, parameter in groups[0]["params"])
        assert sum(piece.numel for bucket in optimizer.part.buckets for group in bucket.pieces for piece in group) == local
    finally:
        dist.destroy_process_group()
