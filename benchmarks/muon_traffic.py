"""What a Muon step sends: etude's packed exchange, torch.optim.Muon on the same DTensors, and gathering every matrix on every rank.

Four gloo processes, dense FSDP (rows sharded), six layers of width 256. Per side:
    bytes_per_param       bytes that all ranks together wrote to their sockets in one step, over the parameters (Linux, /proc/self/io)
    collectives           gloo operations of rank 0 in one step (torch.profiler)
    ms                    median of five steps, sides taking turns; two cores say little about a cluster
and for etude `theory_bytes_per_param`, from the plan: 2 ways x 2 bytes x 3/4.

    python -m benchmarks.muon_traffic [--quick]

Not here: overlap (muon_overlap.py), balance (muon_balance.py).
"""

import argparse
import multiprocessing
import os
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from benchmarks.common import report
from etude.optim import ShardedMuon
from etude.optim.muon_reference import ReferenceMuon

WORLD = 4
WIDTH, FFN, LAYERS = 256, 384, 6
SIDES = ("etude", "torch_muon", "gather")


def shapes(width: int, ffn: int, layers: int) -> list[tuple[int, int]]:
    return [(width, width)] * 4 * layers + [(ffn, width), (ffn, width), (width, ffn)] * layers


def on_ranks(worker: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """worker(*arguments) on gloo processes of one thread each; results by rank."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(world_size, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(partial(_rank, worker, world_size, folder, arguments), range(world_size)))


def _rank(worker: Callable[..., Any], world_size: int, folder: str, arguments: tuple[Any, ...], rank: int) -> Any:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="CPU process group does not support alltoall")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    try:
        return worker(*arguments)
    finally:
        dist.destroy_process_group()


def written_bytes() -> int:
    found = re.search(r"^wchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def make_parameters(sizes: Sequence[tuple[int, int]], mesh: DeviceMesh) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for size in sizes:
        parameter = nn.Parameter(distribute_tensor(torch.randn(*size, generator=generator), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.randn(*size, generator=generator), mesh, [Shard(0)])
        made.append(parameter)
    return made


def collectives_of(step: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
        dist.barrier()
    return sum(event.name.startswith("gloo:") for event in profile.events()) - 1  # the barrier


def measure(sizes: Sequence[tuple[int, int]], repeats: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (WORLD,))
    numel = sum(rows * cols for rows, cols in sizes)
    sets = {side: make_parameters(sizes, mesh) for side in SIDES}
    ours = ShardedMuon(sets["etude"])
    steps: dict[str, Callable[[], Any]] = {
        "etude": ours.step,
        "torch_muon": torch.optim.Muon(sets["torch_muon"], adjust_lr_fn="match_rms_adamw").step,
        "gather": ReferenceMuon([(str(i), p) for i, p in enumerate(sets["gather"])]).step,
    }
    found: dict[str, Any] = {"theory_bytes_per_param": 0.0}
    sent = torch.tensor([float(ours.part.sent_bytes)])
    dist.all_reduce(sent)
    found["theory_bytes_per_param"] = sent.item() / numel
    found["buckets"] = len(ours.plan.buckets)
    for side, step in steps.items():
        step()  # connections are made at first use
        dist.barrier()
        before = written_bytes()
        step()
        written = torch.tensor([float(written_bytes() - before)])
        dist.all_reduce(written)
        found[side] = {"bytes_per_param": written.item() / numel, "collectives": collectives_of(step), "times": []}
    for _ in range(repeats):
        for side, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            dist.barrier()
            found[side]["times"].append(time.perf_counter() - start)
    weights = {side: [parameter.full_tensor() for parameter in sets[side]] for side in SIDES}  # type: ignore[attr-defined]
    found["equal"] = all(torch.equal(a, b) for a, b in zip(weights["etude"], weights["gather"], strict=True))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small layer, one repeat: checks that it runs")
    quick = parser.parse_args(arguments).quick
    sizes = shapes(32, 48, 1) if quick else shapes(WIDTH, FFN, LAYERS)
    found = on_ranks(measure, WORLD, sizes, 1 if quick else 5)[0]
    rows = [
        {
            "side": side, "bytes_per_param": found[side]["bytes_per_param"], "collectives": found[side]["collectives"],
            "ms": 1e3 * statistics.median(found[side]["times"]),
        }
        for side in SIDES
    ]  # fmt: skip
    result = {
        "bytes_per_param": rows[0]["bytes_per_param"],
        "theory_bytes_per_param": found["theory_bytes_per_param"],
        "collectives_per_bucket": rows[0]["collectives"] / found["buckets"],
        "torch_bytes_per_param": rows[1]["bytes_per_param"],
        "torch_collectives": rows[1]["collectives"],
        "gather_bytes_per_param": rows[2]["bytes_per_param"],
        "gather_collectives": rows[2]["collectives"],
        "ms": {row["side"]: row["ms"] for row in rows},
        "equal_to_gather": found["equal"],
        "params": sum(r * c for r, c in sizes),
        "quick": quick,
    }
    report("muon_traffic", rows, result)


if __name__ == "__main__":
    main()
