"""Two meshes over one world: process groups for the degrees of degrees.py.

    start("cpu")                                     # torchrun's environment, or a world of one
    mesh = DualMesh(Degrees.fit(dist.get_world_size(), cp=2, ep=8))
    mesh.dense_hsdp     2-D (replicate, dense_shard = shard x cp)     FSDP of everything but experts
    mesh.expert_hsdp    2-D (expert_replicate, efsdp)                 FSDP of the experts
    mesh.ep, mesh.cp, mesh.batch                                      1-D

The world's 1-D mesh is unflattened three times (dense, expert, batch x cp). DTensors compare meshes by identity, so each submesh is made
once and kept. A world of one has the same meshes with axes of size 1.

Not here: what is placed on them (hsdp.py), choosing the degrees.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from etude.parallel.degrees import Degrees


def start(device_type: str = "cpu", *, timeout_s: float = 600.0) -> None:
    """Join the process group that torchrun describes, or make one of a single process. Does nothing where one is already there.

    A collective that waits longer than `timeout_s` (a rank died) raises on the ranks that are left.
    """
    if dist.is_initialized():
        return
    backend = "nccl" if device_type == "cuda" else "gloo"
    if device_type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    timeout = timedelta(seconds=timeout_s)
    if "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1, timeout=timeout)


class DualMesh:
    """`degrees`, and the meshes `world`, `dense_hsdp`, `expert_hsdp`, `ep`, `cp`, `batch`. UserError if the degrees do not fit."""

    def __init__(self, degrees: Degrees, device_type: str = "cpu") -> None:
        degrees.check(dist.get_world_size())
        self.degrees = degrees
        self.world: DeviceMesh = init_device_mesh(device_type, (degrees.world,), mesh_dim_names=("world",))
        self.dense_hsdp = self.world._unflatten(0, (degrees.replicate, degrees.shard * degrees.cp), ("replicate", "dense_shard"))
        expert = self.world._unflatten(0, (degrees.expert_replicate, degrees.efsdp, degrees.ep), ("expert_replicate", "efsdp", "ep"))
        data = self.world._unflatten(0, (degrees.batch, degrees.cp), ("batch", "cp"))
        self.expert_hsdp = expert["expert_replicate", "efsdp"]
        self.ep = expert["ep"]
        self.batch = data["batch"]
        self.cp = data["cp"]

    @property
    def batch_rank(self) -> int:
        """Which share of the sequences this rank reads, of `degrees.batch`; the same on all ranks of a cp group."""
        return self.batch.get_local_rank()

    def __repr__(self) -> str:
        return f"DualMesh({self.degrees})"
