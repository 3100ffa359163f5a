"""A pretraining run that is killed goes on, and ends with the weights it would have had: bit for bit, in fp32."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from etude.metrics import read_metrics
from etude.pretrain.config import pretrain_config, to_toml
from tests.unit.pretrain.world import lay_down, values

PROGRAM = """
import sys
from pathlib import Path
from etude.pretrain.loop import run_pretrain
from etude.pretrain.config import load_pretrain_config
print(run_pretrain(load_pretrain_config(Path(sys.argv[1])), Path(sys.argv[2]), resume="--resume" in sys.argv))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = lay_down(tmp_path_factory.mktemp("world"))
    source = [{"path": str(folder / "code")}]
    phases = [
        {"steps": 6, "seq_len": 64, "batch": 4, "lr": 1e-2, "warmup_steps": 2, "sources": source},
        {
            "name": "long", "steps": 5, "seq_len": 128, "batch": 2, "lr": 5e-3, "schedule": "cosine", "sources": source,
            "rope": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        },
    ]  # fmt: skip
    config = pretrain_config(values(folder, phases, seed=5, checkpoints={"every": 2}, optimizer={}))
    (folder / "config.toml").write_text(to_toml(config))
    return folder


def begin(world: Path, run: str, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(world / "config.toml"), str(world / run), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> str:
    shown, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return shown


def kill_when(process: "subprocess.Popen[str]", reached) -> None:
    """kill -9 as soon as `reached()`; the run must not have ended before."""
    deadline = time.monotonic() + 240
    while not reached():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def steps(run: Path) -> int:
    return len(read_metrics(run / "metrics.jsonl", "pretrain"))


@pytest.mark.slow
def test_killed_within_each_phase_a_run_ends_with_the_same_bits(world):
    shown = end(begin(world, "whole"))
    assert shown.startswith("11 steps, ")
    killed = world / "killed"
    kill_when(begin(world, "killed"), lambda: steps(killed) >= 3)
    assert not (killed / "model").exists()
    kill_when(begin(world, "killed", "--resume"), lambda: steps(killed) >= 9)
    assert not (killed / "model").exists()
    end(begin(world, "killed", "--resume"))

    whole, resumed = (load_file(world / run / "model" / "model.safetensors") for run in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []
    rows = [read_metrics(world / run / "metrics.jsonl", "pretrain") for run in ("whole", "killed")]
    assert [row["step"] for row in rows[1]] == list(range(1, 12))
    for name in ("loss", "grad_norm", "lr", "tokens"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]]
    assert sorted(path.name for path in (killed / "checkpoints").iterdir()) == ["step-000010", "step-000011"]
