"""How much of the exchange a Muon step hides, on an emulated link whose time is 1x and 2x the computation.

Two gloo processes orthogonalise 16 matrices of 384 x 768 in fp32, in 8 buckets, 4 in flight. The link of each rank is emulated on top of
the real exchange: first come first served, an exchange completes no earlier than its bytes over the bandwidth after the one before.

    limit     max(compute, exchange) + ramp     ramp: the way in of the first bucket and out of the last, which nothing can cover
    serial    compute + exchange                one bucket at a time
    achieved_over_limit, serial_over_limit      medians of five steps, settings taking turns with the step without a link

    python -m benchmarks.muon_overlap [--quick]

Not here: bytes and counts of collectives (muon_traffic.py).
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from benchmarks.common import report
from benchmarks.muon_traffic import on_ranks
from etude.optim import ShardedMuon
from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.muon_transport import TorchTransport, Work

WORLD = 2
BUCKETS = 8
FACTORS = (1, 2)


@dataclass
class Delayed:
    """Complete when the real exchange is and the emulated link has carried the bytes."""

    inner: Work
    ready: float

    def is_completed(self) -> bool:
        return time.perf_counter() >= self.ready and self.inner.is_completed()

    def wait(self) -> object:
        done = self.inner.wait()
        time.sleep(max(0.0, self.ready - time.perf_counter()))
        return done


@dataclass
class EmulatedLink(TorchTransport):
    """One link per rank, first come first served; `bytes_per_s` None is the real network alone."""

    bytes_per_s: float | None = None
    free: float = field(default=0.0)

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        work = super().all_to_all(received, sent, received_splits, sent_splits, group)
        if self.bytes_per_s is None:
            return work
        num_bytes = (sent.numel() - sent_splits[dist.get_rank(group)]) * sent.element_size()
        self.free = max(self.free, time.perf_counter()) + num_bytes / self.bytes_per_s
        return Delayed(work, self.free)


def measure(matrices: int, rows: int, cols: int, repeats: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (WORLD,))
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for _ in range(matrices):
        parameter = nn.Parameter(distribute_tensor(torch.randn(rows, cols, generator=generator), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.randn(rows, cols, generator=generator), mesh, [Shard(0)])
        parameters.append(parameter)
    link = EmulatedLink()
    settings = NewtonSchulz(dtype="float32")
    bucket_bytes = max(1, matrices // BUCKETS) * rows * cols * 4 // WORLD
    sides = {
        "pipelined": ShardedMuon(parameters, options=MuonOptions(newton_schulz=settings, bucket_bytes=bucket_bytes), transport=link),
        "serial": ShardedMuon(
            parameters, options=MuonOptions(newton_schulz=settings, bucket_bytes=1 << 40, max_inflight=1), transport=link
        ),
    }

    def timed(side: str, bytes_per_s: float | None) -> float:
        dist.barrier()
        link.bytes_per_s, link.free = bytes_per_s, 0.0
        start = time.perf_counter()
        sides[side].step()
        dist.barrier()
        return time.perf_counter() - start

    for side in sides:
        timed(side, None)
    volume = float(sides["pipelined"].part.sent_bytes)
    first = torch.tensor([statistics.median(timed("pipelined", None) for _ in range(repeats))])
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    times: dict[str, list[float]] = {"compute": []}
    for _ in range(repeats):
        times["compute"].append(timed("pipelined", None))
        for factor in FACTORS:
            for side in sides:
                times.setdefault(f"{side} {factor}x", []).append(timed(side, volume / (first.item() * factor)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"medians": medians, "exchange_1x": first.item(), "buckets": len(sides["pipelined"].plan.buckets)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small matrices, one repeat: checks that it runs")
    quick = parser.parse_args(arguments).quick
    sizes = (16, 64, 128, 1) if quick else (16, 384, 768, 5)
    found = on_ranks(measure, WORLD, *sizes)[0]
    medians, compute = found["medians"], found["medians"]["compute"]
    rows = []
    for factor in FACTORS:
        exchange = factor * found["exchange_1x"]
        limit = max(compute, exchange) + exchange / found["buckets"]
        rows.append(
            {
                "exchange": f"{factor}x", "compute_ms": 1e3 * compute, "exchange_ms": 1e3 * exchange, "limit_ms": 1e3 * limit,
                "achieved_ms": 1e3 * medians[f"pipelined {factor}x"], "serial_ms": 1e3 * medians[f"serial {factor}x"],
                "achieved_over_limit": medians[f"pipelined {factor}x"] / limit,
                "achieved_over_max": medians[f"pipelined {factor}x"] / max(compute, exchange),
                "serial_over_limit": medians[f"serial {factor}x"] / limit,
            }
        )  # fmt: skip
    names = ("achieved_over_limit", "achieved_over_max", "serial_over_limit")
    report("muon_overlap", rows, {**{name: {row["exchange"]: row[name] for row in rows} for name in names}, "quick": quick})


if __name__ == "__main__":
    main()
