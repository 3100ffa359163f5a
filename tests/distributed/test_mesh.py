"""Eight gloo ranks on the two meshes against one process: one spawn, many checks.

The file is also the program of the ranks: it imports once, then forks them. A check runs on all ranks; rank 0 compares.
"""

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from etude.errors import UserError
from etude.parallel.checkpoint import latest, load, save
from etude.parallel.clip import clip_gradients
from etude.parallel.context import context_inputs, cut, join, next_tokens, use_context
from etude.parallel.degrees import Degrees
from etude.parallel.experts import find_experts, load_balance
from etude.parallel.hsdp import apply_dual_mesh
from etude.parallel.mesh import DualMesh, start

WORLD = 8
ROWS, TOKENS, VOCABULARY = 4, 16, 40
FLAGSHIP = Degrees(shard=4, cp=2, ep=8)
REPLICATED = Degrees(replicate=2, cp=4, expert_replicate=2, efsdp=2, ep=2)


def qwen3(num_experts: int = 8) -> nn.Module:
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=num_experts, num_experts_per_tok=2,
            max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.2,
        )
    )  # fmt: skip


def deepseek_config(num_experts: int) -> DeepseekV3Config:
    return DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, first_k_dense_replace=1,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        n_routed_experts=num_experts, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, max_position_embeddings=64,
        tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip


def deepseek(num_experts: int) -> nn.Module:
    return DeepseekV3ForCausalLM(deepseek_config(num_experts))


def kimi(num_experts: int) -> nn.Module:
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Kimi_K25Config(
        text_config=deepseek_config(num_experts).to_dict(), vision_config={**vision, "pos_emb_height": 4, "pos_emb_width": 4},
        projection_hidden_size=16, image_token_id=38, video_token_id=39, tie_word_embeddings=False,
    )  # fmt: skip
    return Kimi_K25ForConditionalGeneration(config)


MODELS: dict[str, Callable[[int], nn.Module]] = {"qwen3": qwen3, "deepseek": deepseek, "kimi": kimi}


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of packed documents: whole, in two, in many, in three."""
    ids = torch.randint(0, 36, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
    lengths = ([16], [5, 11], [1, 3, 7, 2, 3], [4, 4, 8])
    return ids, torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100)


def on_meshes(model: nn.Module, mesh: DualMesh, ids: Tensor, positions: Tensor, count: int) -> Tensor:
    """Forward and backward of this rank's share; returns the loss summed over ranks."""
    mine = slice(*(ROWS // mesh.degrees.batch * (mesh.batch_rank + i) for i in (0, 1)))
    labels = cut(next_tokens(ids, positions), mesh.cp)[mine]
    loss = summed(model(**context_inputs(model, mesh.cp, ids[mine], positions[mine])).logits, labels) / count
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total


def alone(model: nn.Module, ids: Tensor, positions: Tensor, count: int) -> Tensor:
    """The same on one process, through transformers' own attention and experts."""
    loss = summed(model(input_ids=ids, position_ids=positions, use_cache=False).logits, next_tokens(ids, positions)) / count
    loss.backward()
    return loss.detach()


def prepare(model: nn.Module, degrees: Degrees, **options: Any) -> DualMesh:
    mesh = meshes(degrees)
    use_context(model)
    apply_dual_mesh(model, mesh, **options)
    return mesh


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Whole gradients by name: a collective."""
    return {name: None if p.grad is None else whole(p.grad).clone() for name, p in model.named_parameters()}


def same(ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None]) -> None:
    """fp32: what is left is the order of sums."""
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        mine = ours[name]
        if gradient is None or mine is None:
            assert not any(found is not None and bool(found.any()) for found in (mine, gradient)), name
        else:
            torch.testing.assert_close(
                mine, gradient, rtol=2e-5, atol=2e-6 * float(gradient.abs().max() + 1e-3), msg=lambda m, n=name: f"{n}: {m}"
            )


@cache
def meshes(degrees: Degrees) -> DualMesh:
    return DualMesh(degrees)


@dataclass
class Run:
    """One forward and backward on the meshes, compared with one process."""

    model: Any
    mesh: DualMesh
    gradients: dict[str, Tensor | None]
    reference: Any
    """the model on one process with its gradients; on rank 0"""


def equals_one_process(
    name: str,
    degrees: Degrees,
    *,
    num_experts: int = 8,
    change: Callable[[Any], object] = lambda _: None,
    data: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> Run:
    ids, positions = data or batch()
    torch.manual_seed(0)
    model = MODELS[name](num_experts)
    change(model)
    reference = copy.deepcopy(model)
    count = int((next_tokens(ids, positions) != -100).sum())
    mesh = prepare(model, degrees, **options)
    loss = on_meshes(model, mesh, ids, positions, count)
    run = Run(model, mesh, gradients(model), reference)

    def compare() -> None:
        torch.testing.assert_close(loss, alone(reference, ids, positions, count), rtol=1e-6, atol=0)
        same(run.gradients, gradients(reference))

    on_rank_0(compare)
    return run


def on_rank_0(compare: Callable[[], None]) -> None:
    """Raises on all ranks where it fails on rank 0, so that they stay in step."""
    problem = [""]
    if dist.get_rank() == 0:
        try:
            compare()
        except AssertionError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem)
    assert not problem[0], problem[0]


@cache
def flagship() -> Run:
    return equals_one_process("qwen3", FLAGSHIP)


@cache
def replicated() -> Run:
    """Both replicate degrees, experts cut by ep and FSDP, cp above ep."""
    return equals_one_process("qwen3", REPLICATED)


CHECKS: dict[str, Callable[[Path], None]] = {}


def check(run: Callable[[Path], None]) -> Callable[[Path], None]:
    CHECKS[run.__name__] = run
    return run


@check
def cp_2_and_ep_8_train_qwen3_moe_on_8_ranks(_: Path) -> None:
    flagship()


@check
def cp_2_and_ep_8_train_deepseek_v3_on_8_ranks(_: Path) -> None:
    equals_one_process("deepseek", FLAGSHIP)


@check
def cp_2_and_ep_8_train_kimi_k25_with_a_frozen_vision_tower_on_8_ranks(_: Path) -> None:
    equals_one_process("kimi", FLAGSHIP, change=lambda model: model.model.vision_tower.requires_grad_(False))


@check
def replicas_of_both_parts_give_the_gradients_of_one_process(_: Path) -> None:
    placements = replicated().model.model.layers[0].mlp.experts.gate_up_proj.placements
    assert [type(placement).__name__ for placement in placements] == ["Replicate", "_StridedShard", "Shard"]


@check
def replicas_of_the_dense_part_alone_do(_: Path) -> None:
    equals_one_process("qwen3", Degrees(replicate=4, cp=2, efsdp=8))


@check
def replicas_of_the_experts_alone_do(_: Path) -> None:
    equals_one_process("deepseek", Degrees(shard=4, cp=2, expert_replicate=4, ep=2))


@check
def experts_that_do_not_fit_whole_are_cut_by_rows(_: Path) -> None:
    run = equals_one_process("qwen3", Degrees(shard=4, cp=2, expert_replicate=2, efsdp=2, ep=2), num_experts=6)
    for experts in find_experts(run.model).values():
        assert experts.gate_up_proj.placements == (Replicate(), Shard(1), Shard(0))


@check
def activation_checkpointing_changes_no_gradient_and_no_statistics(_: Path) -> None:
    run = equals_one_process("deepseek", FLAGSHIP, checkpoint=True)
    (layer,) = load_balance(run.model)
    assert sum(layer.tokens) == ROWS * TOKENS * 2


@check
def statistics_count_every_token_of_every_rank(_: Path) -> None:
    layers, chosen = load_balance(replicated().model), []
    assert sum(load_balance(replicated().model)[0].tokens) == 0
    if dist.get_rank() == 0:
        reference, (ids, positions) = replicated().reference, batch()
        for name, module in reference.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda _, __, out: chosen.append(torch.bincount(out[2].flatten(), minlength=8)))
        reference(input_ids=ids, position_ids=positions, use_cache=False)
        for layer, counts in zip(layers, chosen, strict=True):
            assert layer.tokens == tuple(counts.tolist())
            assert layer.expert_max_over_mean == pytest.approx(float(counts.max() / counts.float().mean()))
            assert layer.rank_max_over_mean == pytest.approx(float(counts.view(2, 4).sum(1).max() / (ROWS * TOKENS)))


@check
def an_expert_without_tokens_has_a_zero_gradient(_: Path) -> None:
    """Neither has a rank of the EP group that receives nothing, nor one whose own tokens have no label."""
    ids, positions = batch()
    positions[1] = 0  # sixteen documents of one token

    def avoid_the_last_four(model: Any) -> None:
        model.model.layers[1].mlp.gate.e_score_correction_bias[4:] = -10.0

    run = equals_one_process("deepseek", FLAGSHIP, change=avoid_the_last_four, data=(ids, positions))
    assert load_balance(run.model)[0].tokens[4:] == (0, 0, 0, 0)
    for parameter in run.model.model.layers[1].mlp.experts.parameters():
        assert bool(parameter.grad.to_local().any()) == (dist.get_rank() < 4)


@check
def clipping_is_that_of_one_process(_: Path) -> None:
    for run in (flagship(), replicated()):
        expected = float(torch.stack([g.norm() for g in run.gradients.values()]).norm())
        assert clip_gradients(run.model.parameters(), expected / 2) == pytest.approx(expected, rel=1e-6)
        same(gradients(run.model), {name: g / 2 for name, g in run.gradients.items()})


@check
def micro_batches_add_up_with_and_without_their_reduction(_: Path) -> None:
    """The gradients of one micro-batch twice are twice its gradients."""
    ids, positions = batch()
    count = int((next_tokens(ids, positions) != -100).sum())
    for run, reduce_first in ((flagship(), True), (replicated(), False)):
        run.model.zero_grad()
        for reduce in (reduce_first, True):
            run.model.set_requires_gradient_sync(reduce)
            on_meshes(run.model, run.mesh, ids, positions, count)
        same(gradients(run.model), {name: 2 * g for name, g in run.gradients.items()})


@check
def chunks_join_to_the_row_and_gradients_flow_back(_: Path) -> None:
    mesh = meshes(REPLICATED)
    row = torch.arange(2 * 16 * 3.0).view(2, 16, 3)
    mine = cut(row, mesh.cp).requires_grad_()
    assert mine.shape == (2, 4, 3)
    joined = join(mine, mesh.cp)
    assert torch.equal(joined, row)
    (joined * row).sum().backward()
    assert torch.equal(mine.grad, 4 * cut(row, mesh.cp))  # every rank's loss counts


@check
def degrees_of_another_world_are_refused(_: Path) -> None:
    with pytest.raises(UserError, match=r"have 4 ranks \(dense replicate 1 x shard 2 x cp 2 = 4.*the world has\s8"):
        DualMesh(Degrees(shard=2, cp=2, ep=4))


class Momentum(torch.optim.Optimizer):
    """A small optimizer with state like the parameters, on local tensors (AdamW through DTensor takes seconds to plan)."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.to_local().mul_(0.9).add_(p.grad.to_local())
                    p.to_local().sub_(group["lr"] * momentum.to_local())


def train(model: Any, mesh: DualMesh, optimizer: Momentum, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        on_meshes(model, mesh, *batch(seed=step), 50)
        optimizer.step()


def state_of(model: Any, optimizer: Momentum) -> dict[str, Tensor]:
    """Parameters and momentum, whole: a collective."""
    found = {name: whole(p.detach()).clone() for name, p in model.named_parameters()}
    return found | {f"{name}.momentum": whole(optimizer.state[p]["momentum"]).clone() for name, p in model.named_parameters()}


def fresh(degrees: Degrees, seed: int = 5) -> tuple[Any, DualMesh, Momentum]:
    torch.manual_seed(seed)
    model = qwen3()
    mesh = prepare(model, degrees)
    return model, mesh, Momentum(model.parameters())


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


@check
def a_checkpoint_loads_on_other_meshes_exactly_and_the_run_goes_on_bit_for_bit(folder: Path) -> None:
    run = replicated()
    optimizer = Momentum(run.model.parameters())
    train(run.model, run.mesh, optimizer, range(2))
    saved = state_of(run.model, optimizer)
    for step in (0, 2):  # the second replaces the first
        save(folder / "step-2", run.model, optimizer, extra={"step": step})
    if dist.get_rank() == 0:
        torch.save(saved, folder / "saved.pt")
    train(run.model, run.mesh, optimizer, range(2, 3))
    expected = state_of(run.model, optimizer)
    for degrees in (REPLICATED, FLAGSHIP):
        model, mesh, optimizer = fresh(degrees)
        assert load(folder / "step-2", model, optimizer) == {"step": 2}
        assert equal(state_of(model, optimizer), saved)
        train(model, mesh, optimizer, range(2, 3))
        if degrees == REPLICATED:
            assert equal(state_of(model, optimizer), expected)


def a_checkpoint_loads_in_a_world_of_one(folder: Path) -> None:
    start()
    meshes.cache_clear()
    model, mesh, optimizer = fresh(Degrees())
    load(folder / "step-2", model, optimizer)
    assert equal(state_of(model, optimizer), torch.load(folder / "saved.pt"))
    train(model, mesh, optimizer, range(2, 3))
    dist.destroy_process_group()


def a_rank_that_is_killed_is_an_error_on_the_others(folder: Path) -> None:
    """Last, as the group is broken after it. Rank 7 dies between forward and backward while a checkpoint is half written."""
    run = flagship()
    (folder / ".step-3.partial").mkdir(exist_ok=True)
    if dist.get_rank() == WORLD - 1:
        run.model.lm_head.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError):
        train(run.model, run.mesh, Momentum(run.model.parameters()), range(20))
    assert latest(folder) == folder / "step-2"


def main(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_checks, args=(rank, folder)) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    record(a_checkpoint_loads_in_a_world_of_one, folder, 0)


def run_checks(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    warnings.simplefilter("ignore")
    for run in CHECKS.values():
        failed = torch.tensor(float(record(run, folder, rank)))
        dist.all_reduce(failed)
    record(a_rank_that_is_killed_is_an_error_on_the_others, folder, rank)


def record(run: Callable[[Path], None], folder: Path, rank: int) -> bool:
    """Run a check; leave a file with the traceback, empty if there is none. Whether it failed."""
    problem = ""
    try:
        run(folder)
    except BaseException:  # of a rank: the test reads it
        problem = traceback.format_exc()
    (folder / f"{run.__name__}.{rank}").write_text(problem)
    return bool(problem)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    subprocess.run([sys.executable, __file__, str(folder)], check=False, timeout=600, env=environment)
    return folder


LAST = (a_checkpoint_loads_in_a_world_of_one, a_rank_that_is_killed_is_an_error_on_the_others)


@pytest.mark.parametrize("name", [*CHECKS, *(run.__name__ for run in LAST)])
def test_on_eight_ranks(name: str, reports: Path) -> None:
    found = sorted(reports.glob(f"{name}.*"))
    assert found, "no rank ran it"
    assert [report.read_text() for report in found] == [""] * len(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
