from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.errors import UserError
from etude.parallel.checkpoint import latest, load, save
from etude.parallel.degrees import Degrees
from etude.parallel.hsdp import apply_dual_mesh
from etude.parallel.mesh import DualMesh


@pytest.fixture
def model(qwen3: Callable[..., Any], world_of_one: None) -> Any:
    found = qwen3(num_hidden_layers=1)
    apply_dual_mesh(found, DualMesh(Degrees()))
    return found


def test_adamw_state_comes_back(model: Any, tmp_path: Path, qwen3: Callable[..., Any]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(input_ids=torch.arange(8)[None], use_cache=False).logits.square().mean().backward()
    optimizer.step()
    save(tmp_path / "one", model, optimizer, extra={"step": 1, "name": "a"})
    other = qwen3(num_hidden_layers=1, initializer_range=0.5)
    apply_dual_mesh(other, DualMesh(Degrees()))
    restored = torch.optim.AdamW(other.parameters(), lr=0.5)
    assert load(tmp_path / "one", other, restored) == {"step": 1, "name": "a"}
    assert restored.param_groups[0]["lr"] == 0.125
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), theirs.full_tensor())
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(restored.state[ours][key].full_tensor(), optimizer.state[theirs][key].full_tensor())


def test_the_model_loads_alone_and_the_optimizer_not_without_its_state(model: Any, tmp_path: Path) -> None:
    save(tmp_path / "one", model)
    assert load(tmp_path / "one", model) == {}
    with pytest.raises(UserError, match="one has no optimizer state; load the model alone"):
        load(tmp_path / "one", model, torch.optim.SGD(model.parameters()))


def test_a_folder_that_is_not_whole_is_refused(model: Any, tmp_path: Path) -> None:
    save(tmp_path / "step-1", model)
    save(tmp_path / "step-2", model)
    (tmp_path / "step-2" / "etude.json").unlink()
    with pytest.raises(UserError, match=r"step-2 is not a whole checkpoint \(no etude.json\); the last whole one beside it is step-1"):
        load(tmp_path / "step-2", model)
    (data,) = (tmp_path / "step-1").glob("*.distcp")
    size = data.stat().st_size
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"step-1 is damaged: {data.name} has {size - 1} bytes instead of {size}"):
        load(tmp_path / "step-1", model)
    data.unlink()
    with pytest.raises(UserError, match=f"damaged: {data.name} has no bytes"):
        load(tmp_path / "step-1", model)


def test_the_latest_is_the_last_whole_one(model: Any, tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for step in ("step-000009", "step-000010"):
        save(tmp_path / step, model)
    (tmp_path / "step-000011").mkdir()
    (tmp_path / ".step-000012.partial").mkdir()
    assert latest(tmp_path) == tmp_path / "step-000010"
    assert not list(tmp_path.glob(".*.old"))
