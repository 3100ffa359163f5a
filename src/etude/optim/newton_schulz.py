"""Newton-Schulz: the nearest (semi-)orthogonal matrix, from matrix products alone. Pure functions.

    X_0 = G / max(||G||_F, eps)                                   so that every singular value is at most 1
    X   <- a X + (b A + c A^2) X,   A = X X^T                     standard; singular values go s <- a s + b s^3 + c s^5

Keller Jordan, "Muon" (2024); torch.optim.Muon's order of operations, bit for bit. Work is done on the smaller side: a tall matrix is
transposed first and back at the end.

Gram variant (Zhang, Amsel, Chen and Dao, "Gram Newton-Schulz", 2026): X_k = Q_k X_0 with Q_k a polynomial in R_0 = X_0 X_0^T, so the
iteration runs on m x m matrices and touches the wide one only at the ends:

    Z = b R + c R^2,   Q <- a Q + Q Z  (first: a I + Z),   R <- (a I + Z) R (a I + Z)

Rounding in R grows with each step; at a restart X <- Q X and R is formed again. In bfloat16 even that is not enough (muon_config.py says
why it is refused). A square matrix gains nothing and takes the standard path.

In: (..., m, n) of any floating dtype. Out: the same shape in the settings' dtype. Not here: settings, costs (muon_config.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.optim.muon_config import Coefficients, NewtonSchulz

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def orthogonalize(matrix: Tensor, settings: NewtonSchulz) -> Tensor:
    """Each matrix of (..., m, n) with its singular values near 1. A zero matrix stays zero."""
    if matrix.ndim < 2:
        raise ValueError(f"Newton-Schulz takes matrices, not a tensor of shape {tuple(matrix.shape)}")
    if matrix.numel() == 0:
        return matrix.to(DTYPES[settings.dtype])
    if matrix.ndim == 2:
        return iterate(matrix, settings)
    stacked = matrix.flatten(0, -3)
    if matrix.device.type == "cpu":
        # one by one: nothing is gained from a batch here, and torch multiplies tiny fp32 batches with another kernel, so bits would differ
        return torch.stack([iterate(one, settings) for one in stacked]).view(matrix.shape)
    return iterate(stacked, settings).reshape(matrix.shape)


def iterate(x: Tensor, settings: NewtonSchulz) -> Tensor:
    """`orthogonalize` for one matrix (m, n), or (batch, m, n) with batched products."""
    x = x.to(DTYPES[settings.dtype]).contiguous()  # sums run in memory order: a slice must give the bits of its copy
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    square = x.shape[-2] == x.shape[-1]
    x = _normalized(x, settings)
    x = _gram(x, settings.steps, settings.restarts) if settings.variant == "gram" and not square else _standard(x, settings.steps)
    return x.mT if tall else x


def orthogonalize_all(matrices: Sequence[Tensor], settings: NewtonSchulz) -> list[Tensor]:
    """Like `orthogonalize` on each, batched over equal shapes up to `settings.max_batch_bytes`."""
    by_shape: dict[torch.Size, list[int]] = {}
    for index, matrix in enumerate(matrices):
        by_shape.setdefault(matrix.shape, []).append(index)
    results: list[Tensor | None] = [None] * len(matrices)
    for shape, indices in by_shape.items():
        for chunk in batches(len(indices), shape, settings):
            chosen = [indices[i] for i in chunk]
            if len(chosen) == 1:
                results[chosen[0]] = orthogonalize(matrices[chosen[0]], settings)
                continue
            stacked = orthogonalize(torch.stack([matrices[i] for i in chosen]), settings)
            for place, index in enumerate(chosen):
                results[index] = stacked[place]
    return [result for result in results if result is not None]


def batches(count: int, shape: Sequence[int], settings: NewtonSchulz) -> list[range]:
    """`count` matrices of one shape, in runs that stay below the settings' batch size (at least one matrix each)."""
    one = max(1, shape[-2] * shape[-1] * DTYPES[settings.dtype].itemsize)
    size = max(1, settings.max_batch_bytes // one)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _normalized(x: Tensor, settings: NewtonSchulz) -> Tensor:
    # one matrix: the very call of torch.optim.Muon; on a GPU a batched norm may add up in another order
    norm: Tensor = x.norm() if x.ndim == 2 else x.norm(dim=(-2, -1), keepdim=True)
    if settings.norm_factor != 1.0:
        norm = norm * settings.norm_factor
    return x / norm.clamp(min=settings.eps)


def _multiply_add(addend: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float = 1.0) -> Tensor:
    """beta addend + alpha left @ right."""
    if addend.ndim == 2:
        return torch.addmm(addend, left, right, beta=beta, alpha=alpha)
    return torch.baddbmm(addend, left, right, beta=beta, alpha=alpha)


def _standard(x: Tensor, steps: Sequence[Coefficients]) -> Tensor:
    for a, b, c in steps:
        gram = x @ x.mT
        polynomial = _multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = _multiply_add(x, polynomial, x, beta=a)
    return x


def _gram(x: Tensor, steps: Sequence[Coefficients], restarts: Sequence[int]) -> Tensor:
    gram = x @ x.mT
    product: Tensor | None = None
    for i, (a, b, c) in enumerate(steps):
        if i in restarts and product is not None:
            x = product @ x
            gram, product = x @ x.mT, None
        z = _multiply_add(gram, gram, gram, beta=b, alpha=c)
        if product is None:
            product = z.clone()
            product.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            product = _multiply_add(product, product, z, beta=a)
        if i + 1 < len(steps) and i + 1 not in restarts:
            half = _multiply_add(gram, gram, z, beta=a)
            gram = _multiply_add(half, z, half, beta=a)
    assert product is not None
    return product @ x
