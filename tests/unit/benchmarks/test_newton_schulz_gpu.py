"""The GPU benchmark without a GPU: its parts on tiny shapes, a part that fails or comes too late, and the refusal."""

import os
import subprocess
import sys
import time

import pytest
import torch

from benchmarks.common import table
from benchmarks.newton_schulz_gpu import SETTINGS, TINY, attempt, matmul_row, measure, newton_schulz_row
from etude.optim.muon_config import NewtonSchulz
from etude.optim.newton_schulz import iterate


@pytest.mark.parametrize("variant", SETTINGS)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_newton_schulz_row_counts_the_algorithms_flops_and_its_error(variant, backend):
    batch = torch.randn(2, 24, 56, generator=torch.Generator().manual_seed(0))
    wanted = iterate(batch[0], NewtonSchulz(dtype="float32"))
    row = newton_schulz_row(variant, batch, 2, 1e12, backend=backend, wanted=wanted)
    assert row["tflops"] * row["ms"] / 1e3 * 1e12 == pytest.approx(2 * SETTINGS[variant].flops(24, 56))
    assert row["of_matmul"] == pytest.approx(row["tflops"])
    assert row["ms_per_matrix"] == row["ms"] / 2
    assert 0 < row["error"] < 0.05


def test_a_product_counts_two_flops_a_multiply_add():
    row = matmul_row(32, "cpu", 2)
    assert row["tflops"] * row["ms"] / 1e3 * 1e12 == pytest.approx(2 * 32**3)


def test_what_fails_or_has_no_time_is_told_in_its_row():
    def fails():
        raise RuntimeError("no compiler\nlong story")

    later = time.monotonic() + 100
    assert attempt("x", later, fails)["note"] == "RuntimeError: no compiler"
    assert attempt("x", time.monotonic() - 1, fails)["note"] == "left out: no time"
    assert attempt("x", later, lambda: {"what": "y"}) == {"what": "y"}


def test_all_parts_run_on_tiny_shapes():
    try:
        rows = measure("cpu", (16, 40), 2, 32, 2, time.monotonic() + 100, backend="eager", init=TINY, tokens=(16, 2, 1))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert [row["what"].split()[0] for row in rows] == ["matmul", "standard", "gram", "pretrain", "standard", "gram"]
    assert all(row["tflops"] > 0 for row in rows), table(rows)
    training = rows[3]
    assert training["tokens_per_s"] > 0
    assert 0 < training["mfu"] < 1
    assert 5 < training["loss"] < 7  # random tokens of 384
    assert training["note"] == f"optimizer {training['optimizer_ms']:.3g} ms"


def test_without_a_gpu_one_line_says_so():
    command = [sys.executable, "-m", "benchmarks.newton_schulz_gpu"]
    done = subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "newton_schulz_gpu: torch finds no CUDA GPU on this machine; nothing was measured\n"
