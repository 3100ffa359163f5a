"""Muon in sixty lines: every rank gathers every matrix and orthogonalises it itself. The oracle of ShardedMuon, and the plainest baseline.

The equations are those of muon_tasks.py; a unit is orthogonalised by itself, unbatched, in a loop. Values are rounded to the wire's
dtype where ShardedMuon sends them. Plain tensors and DTensors; Muon only. Not here: anything fast.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from etude.optim.muon_config import MuonOptions
from etude.optim.muon_tasks import Member, apply_update, momentum_update
from etude.optim.newton_schulz import DTYPES, orthogonalize
from etude.optim.units import Units


class ReferenceMuon:
    """`units` by parameter name; whole matrices where there is none."""

    def __init__(
        self, named: Iterable[tuple[str, Tensor]], units: Mapping[str, Units] | None = None, *, options: MuonOptions | None = None,
        lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True, cautious: bool = False,
    ) -> None:  # fmt: skip
        self._named = list(named)
        self._units = dict(units or {})
        self._options = options or MuonOptions()
        self._settings = (lr, momentum, nesterov, weight_decay, cautious)
        dtype = None if self._options.momentum_dtype is None else DTYPES[self._options.momentum_dtype]
        self.momentum = {name: torch.zeros_like(_full(parameter), dtype=dtype) for name, parameter in self._named}

    @torch.no_grad()
    def step(self) -> None:
        wire = DTYPES[self._options.wire]
        for name, parameter in self._named:
            weight = _full(parameter)
            gradient = None if parameter.grad is None else _full(parameter.grad)
            member = Member(weight, gradient, self.momentum[name], *self._settings)
            update = momentum_update(member).to(wire)
            for unit in self._units.get(name, Units()).rectangles(parameter.shape):
                place: tuple[Any, ...] = tuple(slice(lo, hi) for lo, hi in unit.box)
                matrix = update[place].reshape(unit.rows, unit.cols)
                result = orthogonalize(matrix, self._options.newton_schulz).to(wire)
                apply_update(weight[place], result.view(weight[place].shape), (unit.rows, unit.cols), member, self._options)
            _store(parameter, weight)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().detach().clone() if isinstance(tensor, DTensor) else tensor.detach()


def _store(parameter: Tensor, full: Tensor) -> None:
    """Keep this rank's part of the full value; a plain parameter was changed in place."""
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        replicated = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
        parameter.copy_(replicated.redistribute(placements=parameter.placements))
