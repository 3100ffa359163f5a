"""Sharded Muon equals full-matrix Muon to the last bit: every sharding, shape and kind of unit, over dtypes, replica splits and buckets.

Eight ranks as threads. Shards are cut by hand with torch.chunk, in the order the case names, so the layout code is checked too. Each step
also launches exactly the collectives and bytes that the plan foretold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from etude.optim import ShardedMuon
from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.muon_reference import ReferenceMuon
from etude.optim.muon_transport import CountingTransport
from etude.optim.units import Units, column_heads, gate_up, qkv_concatenated, qkv_interleaved, row_blocks, row_heads, whole
from tests.distributed.ranks import run_threads

WORLD = 8
STEPS = 3
MESHES = {
    "fsdp": ((8,), ("shard",)),
    "hsdp": ((4, 2), ("replicate", "shard")),
    "hsdp_wide": ((2, 4), ("replicate", "shard")),
    "ddp": ((8,), ("replicate",)),
    "expert": ((2, 2, 2), ("replicate", "efsdp", "ep")),
    "expert_whole": ((1, 8), ("efsdp", "ep")),
    "expert_replicas": ((4, 2), ("replicate", "ep")),
    "fsdp_tp": ((4, 2), ("shard", "tp")),
}


WHOLE = whole()


@dataclass(frozen=True)
class Spec:
    """One parameter; `cuts`: (mesh axis, tensor dim) in the order in which they cut."""

    mesh: str | None
    shape: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...] = ()
    units: Units = WHOLE
    count: int = 1


CASES = {
    "fsdp rows": [Spec("fsdp", (32, 48), ((0, 0),), count=5)],
    "fsdp columns": [Spec("fsdp", (24, 32), ((0, 1),), count=3)],
    "fsdp uneven rows": [Spec("fsdp", (18, 40), ((0, 0),), count=3)],
    "fsdp empty shards": [Spec("fsdp", (5, 40), ((0, 0),), count=2)],
    "one matrix on eight ranks": [Spec("fsdp", (40, 24), ((0, 0),))],
    "hsdp": [Spec("hsdp", (32, 48), ((1, 0),), count=5)],
    "ddp": [Spec("ddp", (16, 24), (), count=3), Spec("ddp", (8, 40), ())],
    "rows per head, heads across ranks": [Spec("fsdp", (72, 40), ((0, 0),), row_heads(12, 6), 2)],
    "rows per head, some heads whole": [Spec("fsdp", (40, 24), ((0, 0),), row_heads(4, 10), 2)],
    "two heads per group, a last single one": [Spec("hsdp", (40, 24), ((1, 0),), row_heads(8, 5, 2), 2)],
    "grouped-query fused QKV": [Spec("fsdp", (64, 40), ((0, 0),), qkv_concatenated(4, 2, 8))],
    "interleaved fused QKV": [Spec("hsdp_wide", (64, 40), ((1, 0),), qkv_interleaved(4, 2, 8, 2))],
    "row list": [Spec("fsdp", (56, 40), ((0, 0),), row_blocks([40, 8, 8]), 2)],
    "columns per head": [Spec("fsdp", (40, 64), ((0, 0),), column_heads(16, 4), 2)],
    "latent heads on hsdp": [Spec("hsdp_wide", (96, 32), ((1, 0),), row_heads(24, 4), 2)],
    "experts cut in rows": [Spec("expert", (8, 16, 24), ((2, 0), (1, 1)), count=2)],
    "experts, fused gate and up": [Spec("expert", (4, 32, 12), ((2, 0), (1, 1)), gate_up(16))],
    "experts whole per rank": [Spec("expert_whole", (8, 16, 24), ((1, 0),), count=2)],
    "experts whole, replicated": [Spec("expert_replicas", (6, 16, 12), ((1, 0),), gate_up(8))],
    "experts strided": [Spec("expert", (8, 16, 24), ((2, 0), (1, 0)))],
    "fewer experts than ranks": [Spec("expert_whole", (5, 16, 24), ((1, 0),))],
    "fsdp over tensor parallel, both dims": [Spec("fsdp_tp", (16, 24), ((0, 0), (1, 1)), count=2)],
    "fsdp over tensor parallel, strided": [Spec("fsdp_tp", (32, 24), ((1, 0), (0, 0)), row_heads(8, 4), 2)],
    "plain tensors": [Spec(None, (16, 24), (), count=2), Spec(None, (3, 8, 12))],
    "two meshes at once": [
        Spec("hsdp", (32, 48), ((1, 0),), count=2),
        Spec("expert", (8, 16, 24), ((2, 0), (1, 1))),
        Spec("fsdp", (72, 40), ((0, 0),), row_heads(12, 6)),
        Spec("expert_replicas", (4, 8, 12), ((1, 0),)),
        Spec(None, (16, 8)),
    ],
}
STANDARD = MuonOptions(replica_split="off")
BF16_WEIGHTS = "bf16 weights, gradients and momentum"
VARIANTS = {
    BF16_WEIGHTS: replace(STANDARD, replica_split=2, bucket_bytes=1),
    "bf16, one bucket": STANDARD,
    "bf16, shared by replicas, one at a time": replace(STANDARD, replica_split=8, share_hops=1, bucket_bytes=1, max_inflight=1),
    "bf16, shared by replicas in two hops": replace(STANDARD, replica_split=8, share_hops=2, bucket_bytes=4000, max_inflight=2),
    "fp32, two replicas, four in flight": MuonOptions(newton_schulz=NewtonSchulz(dtype="float32"), replica_split=2, bucket_bytes=1),
    "gram fp32 on a bf16 wire": MuonOptions(
        newton_schulz=NewtonSchulz(variant="gram", dtype="float32", coefficients="polar_express"), wire_dtype="bfloat16", bucket_bytes=1,
        scale="keller", max_inflight=2,
    ),
}  # fmt: skip


def make_meshes(names: Sequence[str | None]) -> dict[str, DeviceMesh]:
    wanted = dict.fromkeys(name for name in names if name is not None)
    return {name: init_device_mesh("cpu", MESHES[name][0], mesh_dim_names=MESHES[name][1]) for name in wanted}


def shard(full: Tensor, spec: Spec, meshes: dict[str, DeviceMesh]) -> Tensor:
    """This rank's shard as a DTensor, cut by hand."""
    if spec.mesh is None:
        return full.clone()
    mesh = meshes[spec.mesh]
    local = full
    placements: list[Any] = [Replicate() for _ in range(mesh.ndim)]
    for place, (axis, dim) in enumerate(spec.cuts):
        parts = local.chunk(mesh.size(axis), dim)
        index = mesh.get_local_rank(axis)
        local = parts[index] if index < len(parts) else local.narrow(dim, 0, 0)
        before = [a for a, d in spec.cuts[:place] if d == dim and a > axis]
        factor = 1
        for a in before:
            factor *= mesh.size(a)
        placements[axis] = _StridedShard(dim, split_factor=factor) if before else Shard(dim)
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def specs_of(case: str) -> list[Spec]:
    return [spec for spec in CASES[case] for _ in range(spec.count)]


def values(case: str, variant: str) -> list[list[Tensor]]:
    """Per parameter: its start, then one gradient per step."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if variant == BF16_WEIGHTS else torch.float32
    return [[torch.randn(*spec.shape, generator=generator).to(dtype) for _ in range(STEPS + 1)] for spec in specs_of(case)]


def reference(case: str, variant: str) -> list[Tensor]:
    specs, full, options = specs_of(case), values(case, variant), VARIANTS[variant]
    named = [(str(i), nn.Parameter(tensors[0].clone())) for i, tensors in enumerate(full)]
    oracle = ReferenceMuon(named, {str(i): spec.units for i, spec in enumerate(specs)}, options=options, lr=0.02)
    for step in range(STEPS):
        for (_, parameter), tensors in zip(named, full, strict=True):
            parameter.grad = tensors[1 + step].clone()
        oracle.step()
    return [parameter.detach() for _, parameter in named]


def train(case: str, variant: str, expected: list[Tensor]) -> None:
    specs, full, options = specs_of(case), values(case, variant), VARIANTS[variant]
    meshes = make_meshes([spec.mesh for spec in specs])
    named = [(str(i), nn.Parameter(shard(t[0], spec, meshes))) for i, (spec, t) in enumerate(zip(specs, full, strict=True))]
    counter = CountingTransport()
    group = {"params": named, "units": {str(i): spec.units for i, spec in enumerate(specs)}}
    optimizer = ShardedMuon([group], lr=0.02, options=options, transport=counter)
    for step in range(STEPS):
        for (_, parameter), spec, tensors in zip(named, specs, full, strict=True):
            parameter.grad = shard(tensors[1 + step], spec, meshes)
        optimizer.step()
    for (name, parameter), spec, want in zip(named, specs, expected, strict=True):
        mine = parameter.detach()
        have = mine.to_local() if isinstance(mine, DTensor) else mine
        wanted = shard(want, spec, meshes)
        assert torch.equal(have, wanted.to_local() if isinstance(wanted, DTensor) else wanted), (
            f"parameter {name} on rank {dist.get_rank()}"
        )
    foretold = [collective.sent_bytes for collective in optimizer.part.collectives]
    assert counter.launches == foretold * STEPS


@pytest.mark.parametrize("case", CASES)
def test_every_sharding_and_unit_gives_the_bits_of_full_matrix_muon(case: str) -> None:
    def all_variants() -> None:
        for variant in VARIANTS:
            train(case, variant, expected[variant])

    expected = {variant: reference(case, variant) for variant in VARIANTS}
    run_threads(all_variants, WORLD)
