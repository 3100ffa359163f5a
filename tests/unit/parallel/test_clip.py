import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

from etude.errors import EtudeError
from etude.parallel.clip import clip_gradients, gradient_norm
from etude.parallel.degrees import Degrees
from etude.parallel.mesh import DualMesh


def with_gradient(value: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(value))
    parameter.grad = value
    return parameter


def test_plain_and_sharded_gradients_count_together(world_of_one: None) -> None:
    mesh = DualMesh(Degrees())
    sharded = with_gradient(distribute_tensor(torch.tensor([3.0, 0.0]), mesh.ep, [Replicate()]))
    plain, none = with_gradient(torch.tensor([[4.0]])), nn.Parameter(torch.zeros(3))
    assert float(gradient_norm([sharded, plain, none])) == 5.0
    assert clip_gradients([sharded, plain, none], 10.0) == 5.0
    assert plain.grad is not None
    assert plain.grad.item() == 4.0
    assert clip_gradients([sharded, plain, none], 2.5) == 5.0
    assert plain.grad.item() == 2.0
    assert float(gradient_norm([sharded, plain, none])) == 2.5
    assert none.grad is None


def test_no_gradient_is_a_norm_of_zero(world_of_one: None) -> None:
    assert float(gradient_norm([nn.Parameter(torch.ones(2))])) == 0.0


def test_a_norm_that_is_not_finite_is_an_error_and_changes_nothing(world_of_one: None) -> None:
    broken, fine = with_gradient(torch.tensor([float("inf")])), with_gradient(torch.tensor([7.0]))
    with pytest.raises(EtudeError, match="the gradient norm is inf"):
        clip_gradients([broken, fine], 1.0)
    assert fine.grad is not None
    assert fine.grad.item() == 7.0


def test_partial_sums_have_no_norm_yet(world_of_one: None) -> None:
    partial = DTensor.from_local(torch.ones(2), DualMesh(Degrees()).ep, [Partial()])
    with pytest.raises(ValueError, match="partial sum"):
        gradient_norm([with_gradient(partial)])
