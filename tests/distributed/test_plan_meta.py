"""The planner against the real thing: transformers' classes on the meta device, laid out by FSDP2 over a fake world of 1,024 ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from etude.parallel.degrees import Degrees
from etude.parallel.hsdp import apply_dual_mesh
from etude.parallel.mesh import DualMesh
from etude.plan.config import DenseDegrees, ExpertDegrees
from etude.plan.layout import Layout, local_shape
from etude.plan.meta import meta_model
from etude.plan.search import price
from etude.plan.shapes import active, bill, parameters, total
from tests.unit.plan import models

WORLD = 1024


@contextmanager
def fake_rank(rank: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def shapes_of(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in module.named_parameters()}


@pytest.mark.parametrize(
    "model",
    [
        models.TINY_MOE,
        replace(models.TINY_MOE, q_lora_rank=24, attention_bias=True),
        replace(models.TINY_MOE, model_type="kimi_k2", n_shared_experts=2),
        replace(models.SMOLLM2_135M, attention_bias=True, mlp_bias=True),
        replace(models.SMOLLM2_135M, model_type="mistral"),
        models.QWEN2_7B,
        models.QWEN3_8B,
        models.QWEN3_30B_A3B,
        models.DEEPSEEK_V3,
    ],
    ids=lambda model: model.model_type,
)
def test_closed_forms_are_the_models_named_parameters(model):
    assert {one.name: one.shape for one in parameters(model)} == shapes_of(meta_model(model))


def test_kimi_k25_is_the_planned_trillion():
    model = models.kimi().model
    built = meta_model(model)
    assert type(built).__name__ == "Kimi_K25ForConditionalGeneration"
    planned = parameters(model)
    assert {one.name: one.shape for one in planned} == shapes_of(built)
    count = sum(one.numel() for one in built.parameters())
    assert count == total(planned)
    assert count / 1e12 == pytest.approx(1.027, abs=0.0005)
    assert round(active(planned, model) / 1e9) == 32


LAYOUTS = {
    "cut experts, narrow dense": ({"replicate": 128, "shard": 8}, {"expert_replicate": 1, "efsdp": 128, "ep": 8}),
    "whole experts, wide dense": ({"replicate": 1, "shard": 512, "cp": 2}, {"expert_replicate": 8, "efsdp": 16, "ep": 8}),
    "many ep, other replicas": ({"replicate": 4, "shard": 256}, {"expert_replicate": 2, "efsdp": 8, "ep": 64}),
}


@pytest.mark.parametrize(("dense", "expert"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("rank", [0, 777])
def test_kimi_k25_laid_out_over_1024_ranks_has_the_planned_sizes(dense, expert, rank):
    config = models.kimi(WORLD)
    model = replace(config.model, num_hidden_layers=3, vision=replace(config.model.vision, num_hidden_layers=1))
    layout = Layout(DenseDegrees(**dense), ExpertDegrees(replicate=expert["expert_replicate"], efsdp=expert["efsdp"], ep=expert["ep"]))
    planned = {one.name: local_shape(one, layout, rank) for one in parameters(model)}
    assert local_pieces(model, dense | expert, rank) == planned


def local_pieces(model, degrees, rank):
    built = meta_model(model)
    with fake_rank(rank):
        apply_dual_mesh(built, DualMesh(Degrees(**degrees)), param_dtype=torch.bfloat16)
        pieces = {}
        for name, one in built.named_parameters():
            assert isinstance(one, DTensor), name
            pieces[name] = tuple(one.to_local().shape)
    return pieces


@pytest.mark.slow
def test_all_61_layers_on_the_best_layout_hold_the_planned_bytes():
    from etude.plan.report import make_report

    config = models.kimi(WORLD)
    best = make_report(config).best
    assert best.expert is not None
    dense = {"replicate": best.dense.replicate, "shard": best.dense.shard, "cp": best.dense.cp}
    expert = {"expert_replicate": best.expert.replicate, "efsdp": best.expert.efsdp, "ep": best.expert.ep}
    pieces = local_pieces(config.model, dense | expert, 0)
    frozen = {one.name for one in parameters(config.model) if one.algorithm == "frozen"}
    held = sum(torch.Size(shape).numel() for name, shape in pieces.items() if name not in frozen)
    assert best.memory.master == config.training.master_bytes * held
    made = bill(parameters(config.model, config.optimizer))
    assert price(Layout(best.dense, best.expert), made, config).memory == best.memory
