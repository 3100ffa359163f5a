"""The same run on eight ranks (CP and EP), on one, and continued on other meshes: one spawn per layout, gloo processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from etude.errors import UserError
from etude.metrics import read_metrics
from etude.pretrain.config import PretrainConfig, pretrain_config
from etude.pretrain.loop import run_pretrain
from tests.distributed.ranks import RankError, run_ranks
from tests.unit.pretrain.world import INIT, lay_down, values


def config(world: Path, **more: Any) -> PretrainConfig:
    source = [{"path": str(world / "code")}]
    phase = {"steps": 4, "seq_len": 64, "batch": 4, "lr": 1e-2, "sources": source}
    phases = more.pop("phases", [phase])
    return pretrain_config(values(world, phases, **{"checkpoints": {"every": 2}, "init": {**INIT, "num_experts": 4}, **more}))


def worker(settings: PretrainConfig, run: str, resume: bool) -> tuple[float, ...]:
    return run_pretrain(settings, Path(run), resume=resume).losses


def refused(settings: PretrainConfig, run: str) -> str:
    with pytest.raises(UserError) as caught:
        run_pretrain(settings, Path(run))
    return str(caught.value)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return lay_down(tmp_path_factory.mktemp("world"))


@pytest.mark.slow
def test_four_ranks_with_cp_and_ep_train_as_one_and_continue_on_another_mesh(world):
    (alone,) = run_ranks(worker, 1, config(world), str(world / "alone"), False)
    four = run_ranks(worker, 4, config(world, mesh={"cp": 2, "ep": 4}), str(world / "four"), False)
    assert set(four) == {four[0]}
    assert four[0] == pytest.approx(alone, rel=1e-4)
    one, many = (load_file(world / run / "model" / "model.safetensors") for run in ("alone", "four"))
    assert one.keys() == many.keys()
    assert max((one[name] - many[name]).abs().max() for name in one) < 0.02  # Muon's steps are 1e-2 x 0.2 sqrt(size) at most

    halfway = world / "four" / "checkpoints"
    last = halfway / "step-000004"
    for path in last.iterdir():
        path.unlink()  # the run "ended" after step 2
    last.rmdir()
    two = run_ranks(worker, 2, config(world, mesh={"replicate": 2, "ep": 1}), str(world / "four"), True)
    assert two[0][:2] == four[0][:2]
    assert two[0][2:] == pytest.approx(four[0][2:], rel=1e-4)
    assert [row["step"] for row in read_metrics(world / "four" / "metrics.jsonl", "pretrain")] == [1, 2, 3, 4]
    again = load_file(world / "four" / "model" / "model.safetensors")
    assert max((again[name] - many[name]).abs().max() for name in many) < 0.02
    assert all(torch.isfinite(tensor).all() for tensor in again.values())


@pytest.mark.slow
def test_a_mistake_on_the_first_rank_ends_all_of_them_with_its_line(world):
    wrong = config(world, phases=[{"steps": 1, "seq_len": 64, "batch": 4, "sources": [{"path": "nowhere"}]}])
    assert set(run_ranks(refused, 2, wrong, str(world / "wrong"))) == {
        "source nowhere does not exist; name a folder, a .jsonl file or a .parquet file"
    }
    odd = config(world, phases=[{"steps": 1, "seq_len": 64, "batch": 3, "sources": [{"path": str(world / "code")}]}])
    with pytest.raises(RankError, match="a batch of 3 rows does not divide over 2 ranks that read different rows"):
        run_ranks(worker, 2, odd, str(world / "odd"), False)
