"""Newton-Schulz on a CUDA GPU against the chip's own matmul rate, and the step of a small model under `etude pretrain` against its MFU.

    tflops        FLOPs of the algorithm (muon_config.NewtonSchulz.flops) over median seconds
    of_matmul     those over the rate of a bf16 product of 8192 x 8192 in the same run: what `etude plan` calls efficiency
    ms            median of one call; ms_per_matrix is what compares the variants, since gram needs fewer FLOPs
    error         relative Frobenius distance to the standard variant in fp32, of the first matrix

Batches of 2048 x 7168, the shape of Kimi K2.5's experts: standard in bf16 and gram in fp16, each eager and compiled. Then a dense model of
0.3 billion parameters: one step as etude.pretrain.loop takes it (bf16 compute, ShardedMuon), and the optimizer's step alone; mfu against
the vendor's figure where the GPU is known, mfu_of_matmul against the measured rate.

    python -m benchmarks.newton_schulz_gpu [--quick] [--batch 8] [--budget 300]

Takes one to five minutes on an H200, most of them compiling; parts that would begin after `--budget` seconds are left out, and a part that
fails is told in its row, so that the others are not lost. Without a GPU one line says so. Not here: many GPUs.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import report
from etude.optim.muon_config import NewtonSchulz, Variant
from etude.optim.newton_schulz import DTYPES, iterate

SHAPE = (2048, 7168)
MATMUL = 8192
SETTINGS: dict[Variant, NewtonSchulz] = {
    "standard": NewtonSchulz(dtype="bfloat16"),
    "gram": NewtonSchulz(variant="gram", dtype="float16"),
}
INIT: dict[str, Any] = {
    "kind": "llama", "hidden_size": 1024, "num_hidden_layers": 20, "intermediate_size": 2816, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 64, "more": {"vocab_size": 32768},
}  # fmt: skip
TINY: dict[str, Any] = {
    **INIT, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "more": {"vocab_size": 384},
}  # fmt: skip
Row = dict[str, Any]


def seconds_of(run: Callable[[], object], device: str, repeats: int, warmup: int = 2) -> float:
    """Median seconds of a call, until the device has finished it."""
    times = []
    for turn in range(warmup + repeats):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        if turn >= warmup:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def matmul_row(size: int, device: str, repeats: int) -> Row:
    """The rate of a square bf16 product of random matrices (a GPU is faster on constants)."""
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    seconds = seconds_of(lambda: left @ right, device, repeats)
    return row("matmul bf16", f"{size} x {size} x {size}", 2 * size**3, seconds)


def newton_schulz_row(
    variant: Variant, batch: Tensor, repeats: int, matmul: float | None, *, backend: str | None, wanted: Tensor | None = None
) -> Row:
    """`batch` (count, m, n) is on its device, in any dtype; `backend` None: eager; `wanted`: the first result in fp32."""
    settings = SETTINGS[variant]
    stacked = batch.to(DTYPES[settings.dtype])
    run: Callable[[Tensor], Tensor] = lambda x: iterate(x, settings)  # noqa: E731
    if backend is not None:
        run = torch.compile(run, fullgraph=True, dynamic=False, backend=backend)
    first = run(stacked)[0].float()
    seconds = seconds_of(lambda: run(stacked), batch.device.type, repeats)
    count, rows, cols = batch.shape
    how = "eager" if backend is None else "compiled"
    made = row(f"{variant} {settings.dtype} {how}", f"{count} x {rows} x {cols}", count * settings.flops(rows, cols), seconds, matmul)
    made["ms_per_matrix"] = 1e3 * seconds / count
    made["error"] = None if wanted is None else float((first - wanted).norm() / wanted.norm())
    return made


def row(what: str, shape: str, flops: float, seconds: float, matmul: float | None = None) -> Row:
    """One line of the table; `matmul` is the measured rate in FLOP/s."""
    rate = flops / seconds
    return {
        "what": what, "shape": shape, "ms": 1e3 * seconds, "ms_per_matrix": None, "tflops": rate / 1e12,
        "of_matmul": rate / matmul if matmul else None, "error": None, "note": "",
    }  # fmt: skip


def training_row(init: dict[str, Any], seq_len: int, rows: int, micro_batch: int, device: str, repeats: int, matmul: float | None) -> Row:
    """The step of a model from scratch on random tokens, with extra keys for the result."""
    import numpy as np

    from etude.corpus import Batch
    from etude.model.tiny import tiny_folder
    from etude.parallel import Degrees, DualMesh, start
    from etude.pretrain.config import pretrain_config
    from etude.pretrain.loop import train_step
    from etude.pretrain.model import build, make_optimizer, peak_flops

    start(device)
    mesh = DualMesh(Degrees.fit(1), device)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tiny_folder(Path(folder) / "tokenizer", weights=False)  # its tokens are not used
        phase = {"seq_len": seq_len, "batch": rows, "micro_batch": micro_batch, "sources": [{"path": folder}]}
        model_table = {"tokenizer": str(tokenizer), "compute_dtype": "bfloat16"}
        config = pretrain_config({"model": model_table, "init": init, "device": device, "phases": [phase]})
        model = build(config, 0, mesh, device)
    optimizer, _ = make_optimizer(model, config.optimizer)
    ids = np.random.default_rng(0).integers(init["more"]["vocab_size"], size=(rows, seq_len + 1))
    positions = np.broadcast_to(np.arange(seq_len), (rows, seq_len)).copy()
    batch = Batch(ids[:, :-1].copy(), positions, ids[:, 1:].copy(), rows * seq_len)
    told: dict[str, float] = {}

    def step() -> None:
        told.update(train_step(model, optimizer, batch, mesh, device, lr=1e-3, micro_batch=micro_batch, max_norm=1.0))

    whole = seconds_of(step, device, repeats)
    alone = seconds_of(optimizer.step, device, repeats)  # without gradients, which count as zero: the same work
    made = row("pretrain step", f"{rows} x {seq_len} tokens", told["flops"], whole, matmul)
    made["note"] = f"optimizer {1e3 * alone:.3g} ms"
    return {
        **made, "optimizer_ms": 1e3 * alone, "tokens_per_s": told["tokens"] / whole, "loss": told["loss"],
        "mfu": told["flops"] / whole / peak_flops(config, device), "mfu_of_matmul": made["of_matmul"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }  # fmt: skip


def attempt(what: str, deadline: float, part: Callable[[], Row]) -> Row:
    """A part's row; one that says why, where there is no time left or it failed."""
    empty = {"what": what, "shape": "", **dict.fromkeys(("ms", "ms_per_matrix", "tflops", "of_matmul", "error"))}
    if time.monotonic() > deadline:
        return {**empty, "note": "left out: no time"}
    try:
        return part()
    except Exception as error:  # the other parts must not be lost
        return {**empty, "note": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:80]}"}


def measure(
    device: str, shape: tuple[int, int], batch: int, matmul_size: int, repeats: int, deadline: float, *, backend: str, init: dict[str, Any],
    tokens: tuple[int, int, int],
) -> list[Row]:  # fmt: skip
    """All rows: the product, four Newton-Schulz, the training step. `tokens`: seq_len, rows, rows of a micro-batch."""
    torch.manual_seed(0)
    made = [attempt("matmul bf16", deadline, lambda: matmul_row(matmul_size, device, repeats))]
    matmul = None if made[0]["tflops"] is None else 1e12 * made[0]["tflops"]
    stacked = torch.randn(batch, *shape, device=device)
    wanted = iterate(stacked[0], NewtonSchulz(dtype="float32"))

    def newton_schulz(variant: Variant, with_backend: str | None) -> Row:
        return newton_schulz_row(variant, stacked, repeats, matmul, backend=with_backend, wanted=wanted)

    # what needs no compiler first
    for with_backend in (None, backend):
        if with_backend is not None:
            made.append(attempt("pretrain step", deadline, lambda: training_row(init, *tokens, device, max(2, repeats // 2), matmul)))
        for variant in SETTINGS:
            what = f"{variant} {'eager' if with_backend is None else 'compiled'}"
            made.append(attempt(what, deadline, lambda v=variant, b=with_backend: newton_schulz(v, b)))  # type: ignore[misc]
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, few repeats: checks that it runs")
    parser.add_argument("--batch", type=int, default=8, help="matrices of a batch")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which no further part begins")
    parsed = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("newton_schulz_gpu: torch finds no CUDA GPU on this machine; nothing was measured")
        return
    deadline = time.monotonic() + parsed.budget
    if parsed.quick:
        rows = measure("cuda", (256, 640), 2, 1024, 3, deadline, backend="inductor", init=TINY, tokens=(64, 2, 1))
    else:
        rows = measure("cuda", SHAPE, parsed.batch, MATMUL, 20, deadline, backend="inductor", init=INIT, tokens=(2048, 16, 8))
    shown = [{key: line[key] for key in ("what", "shape", "ms", "ms_per_matrix", "tflops", "of_matmul", "error", "note")} for line in rows]
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows, "quick": parsed.quick}
    report("newton_schulz_gpu", shown, {**result, "peak_gb": torch.cuda.max_memory_allocated() / 1e9})


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
