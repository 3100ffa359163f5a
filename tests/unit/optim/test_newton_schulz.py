"""Newton-Schulz against the same polynomial on exact singular values, and against torch.optim.Muon's own iteration."""

import pytest
import torch
from torch import Tensor

from etude.optim.muon_config import COEFFICIENTS, NewtonSchulz, update_scale
from etude.optim.newton_schulz import batches, iterate, orthogonalize, orthogonalize_all

SHAPES = [(8, 8), (8, 20), (20, 8), (1, 5), (5, 1)]


def by_singular_values(matrix: Tensor, settings: NewtonSchulz) -> Tensor:
    """The oracle, in float64: the odd polynomial of every step applied to the singular values."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (values.norm() * settings.norm_factor).clamp(min=settings.eps)
    for a, b, c in settings.steps:
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("coefficients", COEFFICIENTS)
@pytest.mark.parametrize("variant", ["standard", "gram"])
@pytest.mark.parametrize("shape", SHAPES)
def test_in_float64_it_is_the_polynomial_of_the_singular_values(shape: tuple[int, int], variant: str, coefficients: str) -> None:
    settings = NewtonSchulz(variant=variant, coefficients=coefficients, dtype="float64")  # type: ignore[arg-type]
    matrix = random(*shape)
    torch.testing.assert_close(orthogonalize(matrix, settings), by_singular_values(matrix, settings), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("restarts", [(), (1,), (2, 4), (3,)])
def test_gram_gives_the_same_matrix_wherever_it_restarts(restarts: tuple[int, ...]) -> None:
    settings = NewtonSchulz(variant="gram", dtype="float64", restarts=restarts)
    matrix = random(6, 30)
    torch.testing.assert_close(orthogonalize(matrix, settings), by_singular_values(matrix, settings), rtol=1e-9, atol=1e-9)


def test_gram_in_half_precision_stays_close_on_a_power_law_spectrum() -> None:
    left, _ = torch.linalg.qr(random(64, 64, seed=1))
    right, _ = torch.linalg.qr(random(160, 64, seed=2))
    matrix = left @ torch.diag(torch.arange(1, 65).float() ** -1.0) @ right.T
    exact = by_singular_values(matrix, NewtonSchulz(coefficients="you")).float()
    half = orthogonalize(matrix, NewtonSchulz(variant="gram", dtype="float16", coefficients="you")).float()
    assert (half - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_matches_torch_muon_bit_for_bit(shape: tuple[int, int]) -> None:
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = random(*shape)
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn=None).step()
    ours = orthogonalize(random(*shape), NewtonSchulz()).float() * -update_scale("keller", *shape)
    assert torch.equal(weight.detach(), ours)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (16, 16), (32, 96)])
def test_a_batch_gives_the_bits_of_single_matrices(shape: tuple[int, int], dtype: str) -> None:
    settings = NewtonSchulz(dtype=dtype)  # type: ignore[arg-type]
    matrices = [random(*shape, seed=seed) for seed in range(5)]
    singles = [orthogonalize(matrix, settings) for matrix in matrices]
    assert all(torch.equal(a, b) for a, b in zip(orthogonalize_all(matrices, settings), singles, strict=True))
    assert torch.equal(orthogonalize(torch.stack(matrices)[:, None], settings)[:, 0], torch.stack(singles))


def test_a_slice_gives_the_bits_of_its_copy() -> None:
    wide = random(40, 64)
    settings = NewtonSchulz(dtype="float32")
    assert torch.equal(orthogonalize(wide[:, 16:32], settings), orthogonalize(wide[:, 16:32].clone(), settings))


@pytest.mark.parametrize("variant", ["standard", "gram"])
@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_batched_products_give_the_same_matrices(shape: tuple[int, int], variant: str) -> None:
    settings = NewtonSchulz(variant=variant, dtype="float64")  # type: ignore[arg-type]
    matrices = torch.stack([random(*shape, seed=seed) for seed in range(3)])
    torch.testing.assert_close(iterate(matrices, settings), orthogonalize(matrices, settings), rtol=1e-9, atol=1e-9)


def test_mixed_shapes_come_back_in_their_order_and_in_batches_of_bounded_size() -> None:
    settings = NewtonSchulz(dtype="float32", max_batch_bytes=2 * 4 * 6 * 4)
    matrices = [random(4, 6, seed=i) if i % 2 else random(6, 3, seed=i) for i in range(7)]
    results = orthogonalize_all(matrices, settings)
    for matrix, result in zip(matrices, results, strict=True):
        assert torch.equal(result, orthogonalize(matrix, settings))
    assert batches(5, (4, 6), settings) == [range(0, 2), range(2, 4), range(4, 5)]
    assert batches(2, (400, 600), settings) == [range(0, 1), range(1, 2)]


@pytest.mark.parametrize("settings", [NewtonSchulz(), NewtonSchulz(variant="gram", dtype="float32")])
def test_a_zero_matrix_stays_zero_and_an_empty_one_empty(settings: NewtonSchulz) -> None:
    assert orthogonalize(torch.zeros(4, 6), settings).abs().sum() == 0
    assert orthogonalize(torch.zeros(0, 6), settings).shape == (0, 6)


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"takes matrices, not a tensor of shape \(5,\)"):
        orthogonalize(torch.zeros(5), NewtonSchulz())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "gram"}, "Gram Newton-Schulz in bfloat16"),
        ({"variant": "cubic"}, "allowed are standard and gram"),
        ({"coefficients": "best"}, "allowed are kj, you, polar_express"),
        ({"coefficients": "you", "num_steps": 4}, "5 coefficients for 4 steps"),
        ({"num_steps": 0}, "at least one step"),
        ({"dtype": "int8"}, "allowed are bfloat16"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NewtonSchulz(**settings)  # type: ignore[arg-type]


def test_flops_count_every_matrix_product() -> None:
    m, n = 2048, 7168
    assert NewtonSchulz().flops(m, n) == NewtonSchulz().flops(n, m) == 20 * m * m * n + 10 * m**3
    assert NewtonSchulz(variant="gram", dtype="float16").flops(m, n) == 8 * m * m * n + 28 * m**3
    assert NewtonSchulz(variant="gram", dtype="float16", restarts=()).flops(m, n) == 4 * m * m * n + 2 * (5 + 4 + 8) * m**3
    assert NewtonSchulz(variant="gram", dtype="float16").flops(m, m) == NewtonSchulz().flops(m, m)


def test_scales_of_a_unit() -> None:
    assert update_scale("moonlight", 4, 25) == pytest.approx(1.0)
    assert update_scale("keller", 4, 25) == 1.0
    assert update_scale("keller", 100, 25) == 2.0
    assert update_scale("spectral", 4, 25) == pytest.approx(0.4)
    assert update_scale("none", 4, 25) == 1.0
    with pytest.raises(ValueError, match="allowed are moonlight"):
        update_scale("rms", 4, 25)  # type: ignore[arg-type]
