"""Bytes on rank 0, which holds the most of every parameter, by kind. Exact where it is shards, an estimate where it is activations.

FSDP2 with mixed precision: the sharded parameters are the fp32 master; a block's weights are gathered in bf16 while it runs, the next
block's with it; its gradient is whole for a moment, in bf16 and as the fp32 input of the reduce-scatter.

Not here: what fits (search.py compares with the chip's HBM).
"""

from dataclasses import dataclass

from etude.plan.config import ModelDims, Optimizer, PlanConfig, Training
from etude.plan.cost import MeshWork
from etude.plan.layout import Layout
from etude.plan.shapes import Bill

GATHERED_BLOCKS = 2
"""The block that runs and the one being gathered."""
REDUCE_BYTES = 4
"""Gradients are reduced in fp32."""
ADAMW_STATE_BYTES = 8
"""Two fp32 moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank."""

    master: float
    gathered_weights: float
    frozen: float
    gradients: float
    block_gradients: float
    momentum: float
    adamw: float
    optimizer_buffers: float
    activations: float
    """An estimate: balanced experts, fused attention, the figures of one micro-batch."""

    @property
    def total(self) -> float:
        shards = self.master + self.frozen + self.gradients + self.momentum + self.adamw
        # gathered weights and activations are gone when the optimizer's buffers are there
        return shards + max(self.gathered_weights + self.block_gradients + self.activations, self.optimizer_buffers)


def memory(bill: Bill, meshes: list[MeshWork], layout: Layout, config: PlanConfig) -> Memory:
    optimizer, training = config.optimizer, config.training
    muon, adamw = sum(work.muon_elements for work in meshes), sum(work.adamw_elements for work in meshes)
    ep = layout.expert.ep if layout.expert else 1
    block = max(dense + expert // ep for dense, expert in bill.blocks)
    return Memory(
        master=float(training.master_bytes * (muon + adamw)),
        gathered_weights=float(training.weight_bytes * (GATHERED_BLOCKS * block + bill.ends)),
        frozen=float(training.weight_bytes * sum(work.frozen_elements for work in meshes)),
        gradients=float(training.gradient_bytes * (muon + adamw)),
        block_gradients=float((training.weight_bytes + REDUCE_BYTES) * block),
        momentum=float(optimizer.momentum_bytes * muon),
        adamw=float(ADAMW_STATE_BYTES * adamw),
        optimizer_buffers=optimizer_buffers(bill, muon, optimizer),
        activations=activations(config.model, training),
    )


def optimizer_buffers(bill: Bill, muon: int, optimizer: Optimizer) -> float:
    """Send and receive buffers of the buckets in flight, and scratch for a batch of the largest units: X and Gram matrix, twice."""
    in_flight = optimizer.max_inflight * 2 * min(optimizer.bucket_bytes, optimizer.wire_bytes * muon)
    scratch = 0.0
    for param, count in bill.groups:
        if param.unit is not None:
            m, n = min(param.unit), max(param.unit)
            batch = min(optimizer.batch, param.num_units * count)
            scratch = max(scratch, 2.0 * batch * (2 * m * n + 2 * m * m))
    return in_flight + scratch


def activations(model: ModelDims, training: Training) -> float:
    """bf16 inputs of every block, plus what one block keeps for its backward pass (of all blocks without checkpointing), plus logits."""
    tokens, width = training.tokens_per_rank, training.weight_bytes
    if model.kv_lora_rank:
        head = 2 * (model.qk_nope_head_dim + model.qk_rope_head_dim) + 2 * model.v_head_dim
        attention = model.num_attention_heads * head + model.q_lora_rank + model.kv_lora_rank
    else:
        attention = model.head_dim * 2 * (model.num_attention_heads + model.num_key_value_heads)
    dense = 3 * model.intermediate_size
    routed = model.num_experts_per_tok * (2 * model.hidden_size + 3 * model.moe_intermediate_size)
    routed += 3 * model.moe_intermediate_size * model.n_shared_experts
    feed_forward = max(dense if model.first_k_dense_replace or not model.n_routed_experts else 0, routed)
    block = 4 * model.hidden_size + attention + feed_forward
    layers = model.num_hidden_layers
    kept = layers * model.hidden_size + block if training.checkpointing else layers * block
    logits = min(tokens, training.logit_chunk_tokens) * model.vocab_size * 8  # fp32 logits and their gradient
    return float(tokens * width * kept + logits)
