"""A run that is killed goes on, and ends with the weights it would have had: bit for bit, in fp32.

The model is random, so that nearly every turn is a bad call with a hint, no group is informative, and the run must fail loudly at its end:
both are checked here. What moves the weights is the warm start and the hints.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from etude.model.tiny import tiny_folder
from etude.synth.build import BuildOptions, build_tasks

SETTINGS = [
    "--model.dtype=float32",
    "--model.threads=1",
    "--seed=3",
    "--warmup.steps=4",
    "--warmup.batch=2",
    "--warmup.per-task=1",
    "--warmup.lr=1e-2",
    "--warmup.checkpoint-every=1",
    "--agent.context-tokens=4000",
    "--agent.turns=2",
    "--agent.turn-tokens=12",
    "--rl.steps=2",
    "--rl.tasks-per-step=1",
    "--rl.group-size=3",
    "--rl.slots=3",
    "--rl.lr=1e-2",
    "--rl.keep-checkpoints=1",
    "--feedback.no-gate",
    "--evaluate.tasks=1",
    "--evaluate.rollouts-per-task=2",
    "--tasks.held-out-share=0.3",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory, lay_down, pocket, backend):
    folder = tmp_path_factory.mktemp("world")
    build_tasks(str(lay_down(folder / "pocket", pocket)), folder / "tasks", options=BuildOptions(modes=("stub",)), backend=backend)
    tiny_folder(folder / "model")
    return folder


def start(world: Path, run: str, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "etude", "train", str(world / "tasks"), "--run", str(world / run), f"--model.path={world / 'model'}"]
    return subprocess.Popen([*command, *SETTINGS, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: "subprocess.Popen[str]") -> str:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1, errors
    return errors


def kill_when(process: "subprocess.Popen[str]", reached) -> None:
    """kill -9 as soon as `reached()`; the run must not have ended before."""
    deadline = time.monotonic() + 240
    while not reached():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def flat(value, name=""):
    if isinstance(value, dict):
        for key in value:
            yield from flat(value[key], f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for key, inner in enumerate(value):
            yield from flat(inner, f"{name}/{key}")
    else:
        yield name, value


def state(run: Path) -> dict:
    return dict(flat(torch.load(run / "checkpoints" / "step-0002" / "state.pt", weights_only=True)))


def rollouts(run: Path, name: str) -> list[dict]:
    rows = [json.loads(line) for line in (run / "rollouts" / f"{name}.jsonl").read_text().splitlines()]
    for row in rows:
        row["usage"].pop("wall_s")
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.slow
def test_killed_in_the_warm_start_and_in_a_step_a_run_ends_with_the_same_bits_and_fails_loudly_without_signal(world):
    whole = start(world, "whole")
    assert "not one group of the first 2 steps was informative" in end(whole)

    killed = world / "killed"
    kill_when(start(world, "killed"), lambda: (killed / "checkpoints" / "warmup-0002").exists())
    kill_when(start(world, "killed", "--resume"), lambda: (killed / "rollouts" / "step-0001.jsonl").exists())
    kill_when(start(world, "killed", "--resume"), lambda: (killed / "rollouts" / "step-0002.jsonl").exists())
    end(start(world, "killed", "--resume"))

    expected, found = state(world / "whole"), state(killed)
    assert expected.keys() == found.keys()
    different = [n for n, v in expected.items() if not (torch.equal(v, found[n]) if isinstance(v, torch.Tensor) else v == found[n])]
    assert different == []
    for name in ("before", "step-0001", "step-0002"):
        assert rollouts(world / "whole", name) == rollouts(killed, name)
    hints = (world / "whole" / "hints" / "step-0001.jsonl").read_text()
    assert hints.count("malformed_call") >= 3
