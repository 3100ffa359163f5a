"""The run folder: nothing finished is lost, nothing half-written is taken for whole."""

import pytest

from etude.errors import UserError
from etude.runfolder import RunFolder
from etude.types import Rollout


def rollout(name: str, status: str = "finished") -> Rollout:
    return Rollout(id=name, task_id="t", group="g", seed=0, status=status, segments=())


def test_a_run_is_never_overwritten_and_never_resumed_from_nothing(tmp_path):
    with pytest.raises(UserError, match="no run to resume"):
        RunFolder.create(tmp_path / "run", resume=True)
    RunFolder.create(tmp_path / "run", resume=False)
    (tmp_path / "run" / "config.toml").write_text("seed = 0\n")
    with pytest.raises(UserError, match="--resume"):
        RunFolder.create(tmp_path / "run", resume=False)
    RunFolder.create(tmp_path / "run", resume=True)


def test_finished_rollouts_come_back_and_interrupted_and_torn_ones_do_not(tmp_path):
    run = RunFolder.create(tmp_path / "run", resume=False)
    for one in (rollout("a"), rollout("b", "interrupted"), rollout("c", "sandbox_lost")):
        run.add_rollout("before", one)
    with run.rollouts("before").open("ab") as file:
        file.write(b'{"record": "rollout", "id": "torn')
    assert [r.id for r in run.finished("before")] == ["a", "c"]


def test_a_checkpoint_has_its_name_only_when_whole_and_old_ones_go(tmp_path):
    run = RunFolder.create(tmp_path / "run", resume=False)

    def broken(folder):
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.checkpoint("step-0001", broken)
    assert run.checkpoints() == []
    for name in ("warmup-0020", "step-0000", "step-0001", "step-0002"):
        run.checkpoint(name, lambda folder, name=name: (folder / "state").write_text(name), keep=2)
    assert [p.name for p in run.checkpoints()] == ["step-0001", "step-0002"]
    assert (run.checkpoints()[-1] / "state").read_text() == "step-0002"
