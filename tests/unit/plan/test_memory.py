"""Bytes of a rank, multiplied out."""

from dataclasses import replace

import pytest

from etude.plan.config import DenseDegrees, ExpertDegrees, Training
from etude.plan.layout import Layout
from etude.plan.memory import activations
from etude.plan.search import price
from etude.plan.shapes import bill, parameters
from tests.unit.plan import models

KIMI_LAYOUT = Layout(DenseDegrees(replicate=64, shard=8, split=8), ExpertDegrees(replicate=1, efsdp=64, ep=8))


def priced(config, layout):
    return price(layout, bill(parameters(config.model, config.optimizer)), config).memory


def test_kimi_shards_multiplied_out():
    memory = priced(models.kimi(512), KIMI_LAYOUT)
    experts = 60 * 48 * (4096 // 64 * 7168 + 7168 // 64 * 2048)
    per_head_and_whole = 61 * 101_122_048 + 3 * 18432 * 7168 + 60 * 3 * 2048 * 7168 + 60 * 384 * 7168
    adamw = 2 * 163840 * 7168 + 61 * 16384 + 7168
    assert memory.momentum == 4 * (experts + per_head_and_whole // 8)
    assert memory.master == memory.gradients == 4 * (experts + per_head_and_whole // 8 + adamw // 8)
    assert memory.adamw == 8 * adamw // 8


def test_the_gathered_blocks_hold_one_places_experts():
    memory = priced(models.kimi(512), KIMI_LAYOUT)
    block = 101_122_048 + 3 * 2048 * 7168 + 384 * 7168 + 16384 + 48 * 3 * 2048 * 7168
    ends = 2 * 163840 * 7168
    assert memory.gathered_weights == 2 * (2 * block + ends)
    assert memory.block_gradients == 6 * block
    narrower = priced(models.kimi(512), replace(KIMI_LAYOUT, expert=ExpertDegrees(replicate=1, efsdp=8, ep=64)))
    # with six experts a rank the first layer is the largest, whose feed-forward block is dense
    assert narrower.block_gradients == 6 * (101_122_048 + 3 * 18432 * 7168 + 16384)


def test_replicated_experts_cost_replicas_of_everything():
    once = priced(models.kimi(512), KIMI_LAYOUT)
    four = priced(models.kimi(512), replace(KIMI_LAYOUT, expert=ExpertDegrees(replicate=4, efsdp=16, ep=8)))
    shared = priced(models.kimi(512), KIMI_LAYOUT).adamw
    experts = 1_014_686_023_680 // 512
    assert four.master - once.master == 3 * 4 * experts
    assert four.momentum - once.momentum == 3 * 4 * experts
    assert four.adamw == shared


def test_buffers_of_buckets_and_of_the_largest_unit():
    config = models.kimi(512)
    memory = priced(config, KIMI_LAYOUT)
    m, n = 7168, 18432
    batch = 3  # there are only three units of this shape in the model, and four of a batch
    in_flight = 4 * 2 * 128e6
    assert memory.optimizer_buffers >= in_flight + 2 * (2 * m * n + 2 * m * m)
    assert memory.optimizer_buffers <= in_flight + 2 * batch * (2 * m * n + 2 * m * m) + 2 * 4 * (2 * 7168 * 8192 + 2 * 7168**2)


def test_the_fullest_moment_is_backward_or_the_optimizer_not_both():
    memory = priced(models.kimi(512), KIMI_LAYOUT)
    shards = memory.master + memory.frozen + memory.gradients + memory.momentum + memory.adamw
    backward = memory.gathered_weights + memory.block_gradients + memory.activations
    assert memory.total == shards + max(backward, memory.optimizer_buffers)


@pytest.mark.parametrize("model", [models.TINY_MOE, models.SMOLLM2_135M, models.QWEN3_30B_A3B])
def test_activations_grow_with_tokens_and_shrink_with_checkpointing(model):
    base = activations(model, Training(tokens_per_rank=2048))
    more = activations(model, Training(tokens_per_rank=4096))
    kept = activations(model, Training(tokens_per_rank=2048, checkpointing=False))
    assert base < more < 2 * base
    assert kept > base


def test_checkpointed_activations_of_a_small_dense_model_multiplied_out():
    training = Training(tokens_per_rank=10, logit_chunk_tokens=4)
    inputs, block = 30 * 576, 4 * 576 + 64 * 2 * (9 + 3) + 3 * 1536
    assert activations(models.SMOLLM2_135M, training) == 10 * 2 * (inputs + block) + 4 * 49152 * 8
