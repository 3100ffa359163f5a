"""What only real processes show: asynchronous exchanges, checkpoints read on other meshes and worlds, a rank that is killed.

One spawn for each world size; a spawn runs many checks. The dual mesh here is torch's own DeviceMesh: dense (replicate, shard), experts
(replicate, efsdp, ep), replicate degrees of their own.
"""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from etude.errors import EtudeError
from etude.optim import ShardedMuon
from etude.optim.muon_config import MuonOptions
from etude.optim.muon_reference import ReferenceMuon
from etude.optim.muon_transport import CountingTransport, TorchTransport, Work
from etude.optim.units import column_heads, gate_up, row_heads
from tests.distributed.ranks import run_ranks

UNITS = {"query": row_heads(12, 6), "output": column_heads(16, 4), "experts": gate_up(16)}
SHAPES = {"query": (72, 40), "output": (40, 64), "experts": (8, 32, 24), "norm": (40,), "head": (24, 40)}
Degrees = tuple[tuple[int, int], tuple[int, int, int]]
"""Dense (replicate, shard) and expert (replicate, efsdp, ep)."""


class Model(nn.Module):
    """Parameters only: gradients are made up, so that every world sees the same ones."""

    def __init__(self, degrees: Degrees | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        dense = expert = None
        if degrees is not None:
            dense = init_device_mesh("cpu", degrees[0], mesh_dim_names=("replicate", "shard"))
            expert = init_device_mesh("cpu", degrees[1], mesh_dim_names=("replicate", "efsdp", "ep"))
        for name, shape in SHAPES.items():
            full = torch.randn(*shape, generator=generator)
            self.register_parameter(name, nn.Parameter(self.place(name, full, expert if name == "experts" else dense)))

    @staticmethod
    def place(name: str, full: Tensor, mesh: DeviceMesh | None) -> Tensor:
        if mesh is None:
            return full
        return distribute_tensor(full, mesh, [Replicate(), Shard(1), Shard(0)] if name == "experts" else [Replicate(), Shard(0)])

    def give_gradients(self, step: int) -> None:
        generator = torch.Generator().manual_seed(1000 + step)
        for name, parameter in self.named_parameters():
            full = torch.randn(*SHAPES[name], generator=generator)
            parameter.grad = self.place(name, full, parameter.device_mesh if isinstance(parameter, DTensor) else None)


def make_optimizer(model: Model, options: MuonOptions | None = None, transport: Any = None) -> ShardedMuon:
    named = dict(model.named_parameters())
    muon = {"params": [(name, named[name]) for name in UNITS], "units": UNITS}
    adamw = {"params": [(name, named[name]) for name in ("norm", "head")], "algorithm": "adamw"}
    return ShardedMuon([muon, adamw], lr=0.02, options=options or MuonOptions(), transport=transport)


def train(model: Model, optimizer: ShardedMuon, steps: range) -> None:
    for step in steps:
        model.give_gradients(step)
        optimizer.step()
        optimizer.zero_grad()


def full_values(model: Model, optimizer: ShardedMuon) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        for key, tensor in {"weight": parameter.detach(), **optimizer.state[parameter]}.items():
            found[f"{name}.{key}"] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
    return found


def save(model: Model, optimizer: ShardedMuon, folder: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(model: Model, optimizer: ShardedMuon, folder: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    both = {"model": weights, "optimizer": state}
    dcp.load(both, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])


def resumed(degrees: Degrees, folder: Path, options: MuonOptions | None = None) -> dict[str, Tensor]:
    """A model with other values, loaded from the checkpoint after step 2 and trained to step 4."""
    model = Model(degrees)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = make_optimizer(model, options)
    load(model, optimizer, folder)
    train(model, optimizer, range(2, 4))
    return full_values(model, optimizer)


def differences(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    return [name for name in wanted if not torch.equal(ours[name], wanted[name])]


def eight_ranks(folder: Path) -> dict[str, Any]:
    first: Degrees = ((4, 2), (2, 2, 2))
    model = Model(first)
    counter = CountingTransport()
    optimizer = make_optimizer(model, transport=counter)
    train(model, optimizer, range(2))
    save(model, optimizer, folder / "two")
    train(model, optimizer, range(2, 4))
    wanted = full_values(model, optimizer)
    reference = Model(None)
    oracle = ReferenceMuon([(name, p) for name, p in reference.named_parameters() if name in UNITS], UNITS, lr=0.02)
    for step in range(4):
        reference.give_gradients(step)
        oracle.step()
    foretold = [collective.sent_bytes for collective in optimizer.part.collectives]
    return {
        "reference": [name for name in UNITS if not torch.equal(wanted[f"{name}.weight"], reference.get_parameter(name).detach())],
        "launches": counter.launches == foretold * 4,
        "same meshes": differences(resumed(first, folder / "two"), wanted),
        "experts 2 to 8, replicas 4 to 1": differences(resumed(((1, 8), (1, 1, 8)), folder / "two"), wanted),
        "shared by replicas": differences(resumed(((8, 1), (4, 2, 1)), folder / "two", MuonOptions(replica_split=4)), wanted),
        "shared in two hops": differences(resumed(((8, 1), (4, 2, 1)), folder / "two", MuonOptions(replica_split=4, share_hops=2)), wanted),
        "wanted": wanted if dist.get_rank() == 0 else None,
    }


def four_ranks(folder: Path, wanted: dict[str, Tensor]) -> dict[str, Any]:
    other_world = differences(resumed(((2, 2), (1, 2, 2)), folder / "two"), wanted)
    model = Model(((1, 4), (1, 2, 2)))
    zeros = Model(((1, 4), (1, 2, 2)))
    counter = CountingTransport()
    optimizer, with_zeros = make_optimizer(model, transport=counter), make_optimizer(zeros)
    for step in range(3):  # an expert without tokens and a missing gradient, on some ranks only
        for some, missing in ((model, True), (zeros, False)):
            some.give_gradients(step)
            for name in ("experts", "output", "norm"):
                parameter = some.get_parameter(name)
                assert isinstance(parameter, DTensor)
                if (dist.get_rank() + step) % 2:
                    parameter.grad = None if missing else torch.zeros_like(parameter)
        optimizer.step()
        with_zeros.step()
    return {
        "other world": other_world,
        "missing gradients": differences(full_values(model, optimizer), full_values(zeros, with_zeros)),
        "launches": len(counter.launches) == 3 * len(optimizer.part.collectives),
    }


@pytest.mark.slow
def test_checkpoints_continue_bit_for_bit_on_the_same_and_on_other_meshes_and_worlds(tmp_path: Path) -> None:
    found = run_ranks(eight_ranks, 8, tmp_path)
    wanted, *_ = [result.pop("wanted") for result in found]
    for result in found:
        assert result.pop("launches")
        assert not any(result.values()), result
    for result in run_ranks(four_ranks, 4, tmp_path, wanted):
        assert result.pop("launches")
        assert not any(result.values()), result


@dataclass
class Killer(TorchTransport):
    """Ends its process without a word at the third exchange of rank 2."""

    count: int = field(default=0)

    def all_to_all(self, *arguments: Any) -> Work:  # type: ignore[override]
        self.count += 1
        if dist.get_rank() == 2 and self.count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().all_to_all(*arguments)


def one_is_killed() -> list[str]:
    model = Model(((1, 4), (1, 2, 2)))
    optimizer = make_optimizer(model, MuonOptions(bucket_bytes=1, max_inflight=1), Killer())
    model.give_gradients(0)
    messages = []
    for _ in range(2):
        try:
            optimizer.step()
        except EtudeError as error:
            messages.append(str(error))
    return messages


@pytest.mark.slow
def test_a_rank_killed_inside_a_step_is_a_clear_error_on_the_others() -> None:
    results = run_ranks(one_is_killed, 4, timeout_s=60, may_die=(2,))
    assert results[2] is None
    survivors = [results[rank] for rank in (0, 1, 3)]
    for first, second in survivors:
        assert first.startswith("a Muon step failed; if another rank ended, restart all from the last checkpoint: ")
        assert second.startswith("the optimizer stopped inside an earlier step")
