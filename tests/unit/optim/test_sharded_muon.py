"""The optimizer on one process and on ranks as threads: bits of torch.optim, state, errors that name, launches under any timing."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from etude.errors import EtudeError
from etude.optim import ShardedMuon
from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.muon_reference import ReferenceMuon
from etude.optim.muon_transport import CountingTransport, TorchTransport, Work
from etude.optim.units import row_heads
from tests.distributed.ranks import RankError, run_threads


def randoms(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(tensor.to(dtype)) for tensor in randoms(*shapes)]


def give_gradients(named: Sequence[nn.Parameter], step: int) -> None:
    for parameter, gradient in zip(named, randoms(*(tuple(p.shape) for p in named), seed=100 + step), strict=True):
        parameter.grad = gradient.to(parameter.dtype)


SHAPES = [(24, 40), (40, 24), (16, 16), (1, 8)]


@pytest.mark.parametrize(("scale", "theirs"), [("moonlight", "match_rms_adamw"), ("keller", "original")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_whole_matrices_move_like_torch_muon_bit_for_bit(scale: Any, theirs: str, nesterov: bool) -> None:
    ours, torchs = parameters(*SHAPES), parameters(*SHAPES)
    optimizer = ShardedMuon(ours, lr=0.02, options=MuonOptions(scale=scale), nesterov=nesterov)
    reference = torch.optim.Muon(torchs, lr=0.02, adjust_lr_fn=theirs, nesterov=nesterov)
    for step in range(3):
        for named, some in ((ours, optimizer), (torchs, reference)):
            give_gradients(named, step)
            some.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    for a, b in zip(ours, torchs, strict=True):
        assert torch.equal(optimizer.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"])


def test_bfloat16_weights_keep_torchs_momentum_and_stay_within_one_rounding_of_its_weights() -> None:
    """torch adds a bf16 update by kernels that round differently for tall and wide matrices; ours rounds once, always."""
    ours, torchs = parameters(*SHAPES, dtype=torch.bfloat16), parameters(*SHAPES, dtype=torch.bfloat16)
    optimizer, reference = ShardedMuon(ours, lr=0.02), torch.optim.Muon(torchs, lr=0.02, adjust_lr_fn="match_rms_adamw")
    for named, some in ((ours, optimizer), (torchs, reference)):
        give_gradients(named, 0)
        some.step()
    for a, b in zip(ours, torchs, strict=True):
        assert torch.equal(optimizer.state[a]["momentum_buffer"], reference.state[b]["momentum_buffer"])
        torch.testing.assert_close(a, b, rtol=2**-7, atol=2**-9)


def test_adamw_groups_move_like_torch_adamw_bit_for_bit() -> None:
    shapes = [(64,), (6, 64), (0, 4), (8, 16)]
    ours, torchs = parameters(*shapes), parameters(*shapes)
    matrix = nn.Parameter(torch.ones(4, 4))
    settings = {"lr": 0.01, "weight_decay": 0.2}
    optimizer = ShardedMuon([{"params": [matrix]}, {"params": ours, "algorithm": "adamw", **settings}])
    reference = torch.optim.AdamW(torchs, betas=(0.9, 0.95), fused=True, **settings)  # type: ignore[arg-type]
    for step in range(3):
        for named, some in ((ours, optimizer), (torchs, reference)):
            give_gradients(named, step)
            some.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    assert [optimizer.state[p]["step"].item() for p in ours] == [3.0] * 4


def test_adamw_gives_the_same_bits_however_a_parameter_is_cut() -> None:
    (full,) = parameters((331,))
    pieces = [nn.Parameter(piece.clone()) for piece in full.detach().split([5, 64, 1, 100, 161])]
    matrices = parameters((4, 4), (4, 4))
    whole = ShardedMuon([{"params": matrices[:1]}, {"params": [full], "algorithm": "adamw"}], lr=0.01)
    cut = ShardedMuon([{"params": matrices[1:]}, {"params": pieces, "algorithm": "adamw"}], lr=0.01)
    for step in range(3):
        give_gradients([full], step)
        for piece, gradient in zip(pieces, full.grad.split([5, 64, 1, 100, 161]), strict=True):  # type: ignore[union-attr]
            piece.grad = gradient
        whole.step()
        cut.step()
    assert torch.equal(full, torch.cat([piece.detach() for piece in pieces]))
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(whole.state[full][key], torch.cat([cut.state[piece][key] for piece in pieces]))
    assert [cut.state[piece]["step"].item() for piece in pieces] == [3.0] * 5


@pytest.mark.parametrize("cautious", [False, True])
def test_a_missing_gradient_counts_as_zero(cautious: bool) -> None:
    ours, zeros, oracle = (parameters((12, 8), (8, 6)) for _ in range(3))
    optimizers = [ShardedMuon(p, lr=0.02, cautious_weight_decay=cautious) for p in (ours, zeros)]
    reference = ReferenceMuon([(str(i), p) for i, p in enumerate(oracle)], lr=0.02, cautious=cautious)
    for step in range(3):
        for named in (ours, zeros, oracle):
            give_gradients(named, step)
            if step == 1:
                named[0].grad = torch.zeros(12, 8) if named is zeros else None
        for optimizer in (*optimizers, reference):
            optimizer.step()
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(ours, zeros, oracle, strict=True))


def test_cautious_decay_shrinks_only_where_the_update_does_too() -> None:
    cautious, plain = (nn.Parameter(torch.tensor([[1.0, -1.0], [2.0, 1.0]])) for _ in range(2))
    for parameter, flag in ((cautious, True), (plain, False)):
        optimizer = ShardedMuon([parameter], lr=0.1, weight_decay=0.5, cautious_weight_decay=flag)
        parameter.grad = torch.diag(torch.tensor([3.0, 3.0])) + torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        optimizer.step()
    difference = (cautious - plain).detach()
    assert torch.equal(difference != 0, torch.tensor([[False, True], [True, False]]))
    torch.testing.assert_close(difference, torch.tensor([[0.0, -0.05], [0.1, 0.0]]))


def test_a_group_has_its_own_rate_and_a_closure_is_evaluated_with_gradients() -> None:
    slow, fast = parameters((6, 4)), parameters((6, 4))
    optimizer = ShardedMuon([{"params": slow, "lr": 0.0}, {"params": fast}], lr=0.1)

    def closure() -> Tensor:
        loss = (slow[0] * slow[0]).sum() + (fast[0] ** 3).sum()
        loss.backward()
        return loss

    start = slow[0].detach().clone()
    assert optimizer.step(closure).item() != 0
    assert torch.equal(slow[0], start)
    assert not torch.equal(fast[0], start)


def test_saving_and_loading_continues_bit_for_bit_and_keeps_the_momentum_dtype() -> None:
    options = MuonOptions(momentum_dtype="bfloat16")

    def make() -> tuple[list[nn.Parameter], ShardedMuon]:
        named = parameters((12, 8), (6,))
        groups = [{"params": [("w", named[0])]}, {"params": [("b", named[1])], "algorithm": "adamw"}]
        return named, ShardedMuon(groups, lr=0.02, options=options)

    ours, optimizer = make()
    other, resumed = make()
    for step in range(4):
        if step == 2:
            with torch.no_grad():
                for a, b in zip(other, ours, strict=True):
                    a.copy_(b)
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            assert resumed.state[other[0]]["momentum_buffer"].dtype == torch.bfloat16
        give_gradients(ours, step)
        optimizer.step()
        if step >= 2:
            give_gradients(other, step)
            resumed.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))
    assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}
    assert not {"units", "plan"} & set(optimizer.state_dict()["param_groups"][0])


def test_groups_that_make_no_sense_are_refused_by_name() -> None:
    matrix, vector = parameters((4, 6), (6,))
    with pytest.raises(ValueError, match=r"bias \(6,\): Muon takes matrices and stacks of matrices; route it to adamw"):
        ShardedMuon([{"params": [("w", matrix), ("bias", vector)]}])
    with pytest.raises(ValueError, match=r"w \(4, 6\): rows blocks \[3, 3\] add up to 6, not 4"):
        ShardedMuon([{"params": [("w", matrix)], "units": {"w": row_heads(3, 2)}}])
    with pytest.raises(ValueError, match="units for 'v', which is no parameter"):
        ShardedMuon([{"params": [("w", matrix)], "units": {"v": row_heads(2, 2)}}])
    with pytest.raises(ValueError, match="bias: algorithm 'lion': allowed are muon and adamw"):
        ShardedMuon([{"params": [("w", matrix)]}, {"params": [("bias", vector)], "algorithm": "lion"}])
    with pytest.raises(ValueError, match="no parameter is routed to Muon"):
        ShardedMuon([{"params": [("bias", vector)], "algorithm": "adamw"}])
    with pytest.raises(ValueError, match=r"unknown settings \['nestrov'\]: allowed per group are lr"):
        ShardedMuon([matrix], nestrov=False)
    with pytest.raises(ValueError, match="fixed when it is made"):
        ShardedMuon([matrix]).add_param_group({"params": [vector]})


def test_a_state_routed_otherwise_is_refused() -> None:
    matrix, vector = parameters((4, 6), (6,))
    groups: list[dict[str, Any]] = [{"params": [matrix]}, {"params": [vector], "algorithm": "adamw"}]
    state = ShardedMuon(groups).state_dict()
    with pytest.raises(ValueError, match=r"the state's groups use \['muon', 'adamw'\], this optimizer's \['adamw', 'muon'\]"):
        ShardedMuon(groups[::-1]).load_state_dict(state)


def test_a_step_that_fails_poisons_the_optimizer_until_a_state_is_loaded() -> None:
    (matrix,) = parameters((4, 6))
    optimizer = ShardedMuon([matrix])
    state = optimizer.state_dict()
    matrix.grad = torch.zeros(4, 6)
    optimizer.state[matrix]["momentum_buffer"] = torch.zeros(3, 3)
    with pytest.raises(RuntimeError):
        optimizer.step()
    with pytest.raises(EtudeError, match="stopped inside an earlier step"):
        optimizer.step()
    state["state"][0]["momentum_buffer"] = torch.zeros(4, 6)
    optimizer.load_state_dict(state)
    optimizer.step()


def sharded(world: int, shapes: Sequence[tuple[int, ...]]) -> tuple[list[tuple[str, nn.Parameter]], Any]:
    mesh = init_device_mesh("cpu", (world,))
    named = [(f"w{i}", nn.Parameter(distribute_tensor(t, mesh, [Shard(0)]))) for i, t in enumerate(randoms(*shapes))]
    for (_, parameter), gradient in zip(named, randoms(*shapes, seed=1), strict=True):
        parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)])
    return named, mesh


def test_ranks_that_would_do_different_steps_name_the_first_difference() -> None:
    def worker() -> str:
        named, _ = sharded(2, [(8, 6), (8, 4)])
        heads = 4 if dist.get_rank() == 0 else 2
        with pytest.raises(EtudeError) as error:
            ShardedMuon([{"params": named, "units": {"w1": row_heads(8 // heads, heads)}}])
        return str(error.value)

    first, second = run_threads(worker, 2)
    assert first == second
    assert first.startswith("ranks 0 and 1 would not do the same Muon step; first difference: rank 0 has w1 (8, 4) muon (2, 2, 2, 2)")


def test_ranks_with_different_options_say_so() -> None:
    def worker() -> None:
        named, _ = sharded(2, [(8, 6)])
        options = MuonOptions(max_inflight=2 + dist.get_rank())
        with pytest.raises(EtudeError, match="first difference: rank 0 has MuonOptions"):
            ShardedMuon(named, options=options)

    run_threads(worker, 2)


def test_a_gradient_that_is_not_reduced_yet_is_refused_by_name() -> None:
    def worker() -> None:
        named, mesh = sharded(2, [(8, 6)])
        optimizer = ShardedMuon(named)
        named[0][1].grad = distribute_tensor(torch.ones(8, 6), mesh, [Replicate()])
        with pytest.raises(ValueError, match=r"w0: its gradient is .*Replicate.*: reduce gradients before the step"):
            optimizer.step()

    run_threads(worker, 2)


@dataclass
class Slow:
    """A finished exchange that says so only after a random number of questions."""

    work: Work
    questions: int

    def is_completed(self) -> bool:
        self.questions -= 1
        return self.questions < 0

    def wait(self) -> object:
        return self.work.wait()


@dataclass
class Erratic(TorchTransport):
    """Completes exchanges at random, differently on each rank."""

    chance: random.Random = field(default_factory=random.Random)

    def all_to_all(self, *arguments: Any) -> Work:  # type: ignore[override]
        return Slow(super().all_to_all(*arguments), self.chance.randrange(6))


@pytest.mark.parametrize("max_inflight", [1, 3])
def test_any_timing_gives_the_same_bits_and_the_same_launches(max_inflight: int) -> None:
    shapes = [(8 + 4 * i, 12) for i in range(6)]
    adam_shapes = [(10, 3), (4, 5)]

    def worker() -> tuple[list[Tensor], list[int], list[int]]:
        named, _ = sharded(4, shapes)
        adam = [nn.Parameter(tensor) for tensor in randoms(*adam_shapes)]
        give_gradients(adam, 0)
        counter = CountingTransport(Erratic(chance=random.Random(f"{max_inflight} {dist.get_rank()}")))
        options = MuonOptions(bucket_bytes=1, max_inflight=max_inflight)
        adamw = {"params": [(f"a{i}", p) for i, p in enumerate(adam)], "algorithm": "adamw"}
        optimizer = ShardedMuon([{"params": named}, adamw], lr=0.02, options=options, transport=counter)
        optimizer.step()
        foretold = [collective.sent_bytes for collective in optimizer.part.collectives]
        return [parameter.full_tensor().detach() for _, parameter in named], counter.launches, foretold  # type: ignore[attr-defined]

    oracle = [nn.Parameter(tensor) for tensor in randoms(*shapes)]
    for parameter, gradient in zip(oracle, randoms(*shapes, seed=1), strict=True):
        parameter.grad = gradient
    ReferenceMuon([(str(i), p) for i, p in enumerate(oracle)], lr=0.02).step()
    for weights, launches, foretold in run_threads(worker, 4):
        assert all(torch.equal(a, b) for a, b in zip(weights, oracle, strict=True))
        assert launches == foretold
        assert len(launches) == 2 * len(shapes)


def test_replicas_that_share_in_two_hops_get_the_same_bits_at_any_timing() -> None:
    shapes = [(9, 12), (16, 12), (8, 20), (5, 12)]

    def worker() -> tuple[list[Tensor], list[int], list[int]]:
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("replicate", "shard"))
        placements = [Replicate(), Shard(0)]
        named = [(f"w{i}", nn.Parameter(distribute_tensor(t, mesh, placements))) for i, t in enumerate(randoms(*shapes))]
        for (_, parameter), gradient in zip(named, randoms(*shapes, seed=1), strict=True):
            parameter.grad = distribute_tensor(gradient, mesh, placements)
        counter = CountingTransport(Erratic(chance=random.Random(dist.get_rank())))
        options = MuonOptions(bucket_bytes=1, max_inflight=2, replica_split=4, share_hops=2)
        optimizer = ShardedMuon(named, lr=0.02, options=options, transport=counter)
        optimizer.step()
        foretold = [collective.sent_bytes for collective in optimizer.part.collectives]
        return [parameter.full_tensor().detach() for _, parameter in named], counter.launches, foretold  # type: ignore[attr-defined]

    oracle = [nn.Parameter(tensor) for tensor in randoms(*shapes)]
    for parameter, gradient in zip(oracle, randoms(*shapes, seed=1), strict=True):
        parameter.grad = gradient
    ReferenceMuon([(str(i), p) for i, p in enumerate(oracle)], lr=0.02).step()
    for weights, launches, foretold in run_threads(worker, 8):
        assert all(torch.equal(a, b) for a, b in zip(weights, oracle, strict=True))
        assert launches == foretold
        assert len(launches) == 4 * len(shapes)


def test_the_order_of_parameters_changes_no_bits() -> None:
    shapes = [(8, 12), (16, 12), (8, 20), (24, 12)]

    def worker(reverse: bool) -> dict[str, Tensor]:
        named, _ = sharded(4, shapes)
        ShardedMuon(named[::-1] if reverse else named, lr=0.02).step()
        return {name: parameter.full_tensor().detach() for name, parameter in named}  # type: ignore[attr-defined]

    forward, backward = (run_threads(worker, 4, reverse)[0] for reverse in (False, True))
    assert all(torch.equal(forward[name], backward[name]) for name in forward)


def test_the_gathering_reference_gives_the_same_bits_on_dtensors() -> None:
    options = replace(MuonOptions(), newton_schulz=NewtonSchulz(dtype="float32"))

    def worker() -> bool:
        shapes = [(9, 12), (16, 6)]
        ours, _ = sharded(4, shapes)
        theirs, _ = sharded(4, shapes)
        ShardedMuon(ours, lr=0.02, options=options).step()
        ReferenceMuon(theirs, lr=0.02, options=options).step()
        return all(torch.equal(a.full_tensor(), b.full_tensor()) for (_, a), (_, b) in zip(ours, theirs, strict=True))  # type: ignore[attr-defined]

    assert run_threads(worker, 4) == [True] * 4


def test_a_rank_that_fails_among_threads_is_reported_with_its_traceback() -> None:
    def worker() -> None:
        if dist.get_rank() == 1:
            raise KeyError("lost")
        dist.barrier()

    with pytest.raises(RankError, match=r"(?s)rank 1 of 2:.*KeyError: 'lost'"):
        run_threads(worker, 2)
