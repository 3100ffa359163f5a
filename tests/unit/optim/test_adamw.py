"""AdamW: against torch's, with masters, clipping, decay by rule, and a state that continues bit for bit."""

import io

import pytest
import torch
from torch import Tensor, nn

from etude.errors import EtudeError
from etude.optim import Optimizer
from etude.optim.adamw import AdamW, decays


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype)


def backward(model: nn.Module, seed: int) -> None:
    inputs = torch.randint(7, (5,), generator=torch.Generator().manual_seed(seed))
    model(inputs).float().square().mean().backward()


def train(model: nn.Module, optimizer: Optimizer, steps: range, lr: float = 1e-2) -> None:
    for step in steps:
        backward(model, step)
        optimizer.clip(0.05)
        optimizer.step(lr)
        optimizer.zero_grad()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_fp32_updates_are_those_of_torch() -> None:
    ours, theirs = network(), network()
    optimizer = AdamW(ours.named_parameters(), betas=(0.9, 0.95), weight_decay=0.1, decays=lambda name, p: True)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for step in range(6):
        backward(ours, step), backward(theirs, step)
        optimizer.step(1e-2), reference.step()
        optimizer.zero_grad(), reference.zero_grad()
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        assert torch.equal(a, b)


def test_bf16_parameters_are_the_rounding_of_masters_that_small_steps_reach() -> None:
    model = network(torch.bfloat16)
    before = weights(model)
    optimizer = AdamW(model.named_parameters())
    train(model, optimizer, range(40), lr=1e-5)
    masters = [state["master"] for state in optimizer.state_dict().values()]
    for p, was, master in zip(model.parameters(), before, masters, strict=True):
        assert torch.equal(p.detach(), master.to(torch.bfloat16))
        assert not torch.equal(master, was.float())  # 40 steps of 1e-5, each lost in bf16, are in the master


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_survives_a_file_and_continues_bit_for_bit(dtype: torch.dtype) -> None:
    straight = network(dtype)
    optimizer = AdamW(straight.named_parameters(), weight_decay=0.01)
    train(straight, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(straight, optimizer, range(5, 10))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network(dtype, seed=1)
    resumed.load_state_dict(saved["model"])
    again = AdamW(resumed.named_parameters(), weight_decay=0.01)
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, range(5, 10))
    for a, b in zip(weights(straight), weights(resumed), strict=True):
        assert torch.equal(a, b)


def test_clip_returns_the_norm_and_bounds_the_step() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = AdamW(model.named_parameters(), betas=(0.0, 0.0), eps=1.0)  # step = g / (|g| + 1): its size tells the gradient's
    with torch.no_grad():
        model.weight.zero_()
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert optimizer.clip(1.0) == pytest.approx(5.0)
    optimizer.step(1.0)
    assert model.weight.flatten().tolist() == pytest.approx([-0.6 / 1.6, -0.8 / 1.8])
    optimizer.zero_grad()
    model.weight.grad = torch.tensor([[0.3, 0.4]])
    assert optimizer.clip(1.0) == pytest.approx(0.5)
    with torch.no_grad():
        model.weight.zero_()
    optimizer.step(1.0)
    assert model.weight.flatten().tolist() == pytest.approx([-0.3 / 1.3, -0.4 / 1.4])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_gradients_are_refused_before_they_reach_the_weights(value: float) -> None:
    model = network()
    before = weights(model)
    optimizer = AdamW(model.named_parameters())
    backward(model, 0)
    model[3].bias.grad[0] = value
    with pytest.raises(EtudeError, match="gradient norm is"):
        optimizer.clip(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_no_gradients_is_a_norm_of_zero_and_moves_nothing() -> None:
    model = network()
    before = weights(model)
    optimizer = AdamW(model.named_parameters(), weight_decay=0.5)
    assert optimizer.clip(1.0) == 0.0
    optimizer.step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_norms_biases_and_embeddings_do_not_decay() -> None:
    matrix, vector = torch.zeros(2, 2), torch.zeros(2)
    assert decays("model.layers.0.mlp.up_proj.weight", matrix)
    assert not decays("model.layers.0.input_layernorm.weight", vector)
    assert not decays("model.layers.0.self_attn.q_proj.bias", vector)
    assert not decays("model.embed_tokens.weight", matrix)
    assert not decays("lm_head.weight", matrix)


def test_decay_shrinks_matrices_only() -> None:
    model = network()
    before = weights(model)
    optimizer = AdamW(model.named_parameters(), weight_decay=0.5, decays=lambda name, p: p.ndim >= 2 and name != "0.weight")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(0.1)
    for (name, p), was in zip(model.named_parameters(), before, strict=True):
        expected = was * 0.95 if name in ("1.weight", "3.weight") else was
        assert torch.allclose(p, expected, rtol=1e-6, atol=0), name


def test_frozen_parameters_are_left_alone() -> None:
    model = network()
    model[1].requires_grad_(False)
    optimizer = AdamW(model.named_parameters())
    assert not any(name.startswith("1.") for name in optimizer.state_dict())


def test_state_of_another_model_is_refused() -> None:
    optimizer = AdamW(network().named_parameters())
    with pytest.raises(ValueError, match="other parameters"):
        optimizer.load_state_dict(AdamW(nn.Linear(2, 2).named_parameters()).state_dict())
    with pytest.raises(ValueError, match="other parameters"):
        optimizer.load_state_dict(AdamW(network(torch.bfloat16).named_parameters()).state_dict())
