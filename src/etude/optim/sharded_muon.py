"""Muon for sharded parameters, with AdamW for the rest: one torch.optim.Optimizer for DTensors of any meshes, and for plain tensors.

    groups, audit = muon_param_groups(model)             # which parameter goes where, by rule (routing.py)
    print(audit)
    optimizer = ShardedMuon(groups, lr=3e-4)             # after fully_shard; collective: the plan is compared between all ranks
    ...
    loss.backward(); optimizer.step(); optimizer.zero_grad()

Equal, bit for bit on a CPU, to orthogonalising full matrices on one process (muon_reference.py) and, for whole 2-D parameters, to
torch.optim.Muon. Per bucket two packed all-to-alls move each matrix to one owner and back; see muon_plan.py and muon_tasks.py.

State: `momentum_buffer` (Muon) or `step`, `exp_avg`, `exp_avg_sq` (AdamW), DTensors placed like their parameter, there from the start;
get_state_dict, set_state_dict and torch.distributed.checkpoint reload it on other meshes and worlds. Units, owners and buckets are never
state: they follow from the layout at hand.

All ranks need the same parameters (no pipeline stages yet). Not here: gradient clipping and schedules; QK-clip (qk_clip.py).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as TorchPlacement
from torch.distributed.tensor.placement_types import _StridedShard

from etude.errors import EtudeError
from etude.optim.muon_config import MuonOptions
from etude.optim.muon_lane import lane_of
from etude.optim.muon_layout import Cut, MeshLayout, ParameterLayout, Placement
from etude.optim.muon_plan import Plan, make_plan
from etude.optim.muon_rank import RankPlan, rank_plan
from etude.optim.muon_tasks import AdamMember, Member, Task, Wiring, adamw_task, bucket_task, run
from etude.optim.muon_transport import TorchTransport, Transport
from etude.optim.newton_schulz import DTYPES
from etude.optim.units import Units

logger = logging.getLogger(__name__)

_DEFAULTS = {"algorithm": "muon", "momentum": 0.95, "nesterov": True, "cautious_weight_decay": False, "betas": (0.9, 0.95), "eps": 1e-8}


class ShardedMuon(torch.optim.Optimizer):
    """Groups are dicts: `params` (tensors or (name, tensor) pairs), `algorithm` muon (default) or adamw, `units` (name -> Units; default:
    the whole matrix, of a stack each), and any of lr, weight_decay, momentum, nesterov, cautious_weight_decay, betas, eps.

    ValueError for a parameter that cannot be orthogonalised so; EtudeError, naming the first parameter that differs, if two ranks would
    not do the same.
    """

    plan: Plan
    part: RankPlan

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        *,
        options: MuonOptions | None = None,
        transport: Transport | None = None,
        **defaults: Any,
    ) -> None:
        unknown = sorted(set(defaults) - set(_DEFAULTS))
        if unknown:
            raise ValueError(f"unknown settings {unknown}: allowed per group are lr, weight_decay, {', '.join(_DEFAULTS)}")
        self.options = options or MuonOptions()
        self._units: dict[int, Units] = {}
        self._frozen = False
        self._broken: str | None = None
        groups, units = _without_units(params)
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, **_DEFAULTS, **defaults})
        self._frozen = True
        self._named = list(_named_parameters(self.param_groups))
        odd = sorted(set(units) - {name for name, _, _ in self._named})
        if odd:
            raise ValueError(f"units for {odd[0]!r}, which is no parameter of its group ({len(odd)} such names)")
        self._device_meshes, self.plan = self._make_plan(units)
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._compare_plans()
        self.part = rank_plan(self.plan, rank)
        self._wiring = Wiring(self.options, transport or TorchTransport(), self._make_groups(rank))
        self._make_state()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_frozen", False):
            raise ValueError("the parameters of ShardedMuon are fixed when it is made: its plan covers all of them; make a new one")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; collective. A missing gradient counts as zero. EtudeError after a step that failed: some weights have moved."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._broken is not None:
            raise EtudeError(f"the optimizer stopped inside an earlier step ({self._broken}): weights are inconsistent; load a checkpoint")
        try:
            self._run()
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            if isinstance(error, RuntimeError) and self.plan.launches:
                raise EtudeError(f"a Muon step failed; if another rank ended, restart all from the last checkpoint: {error}") from error
            raise
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See torch.optim.Optimizer. A complete state makes a broken optimizer usable again."""
        saved = [group.get("algorithm") for group in state_dict["param_groups"]]
        ours = [group["algorithm"] for group in self.param_groups]
        if saved != ours:
            raise ValueError(
                f"the state's groups use {saved}, this optimizer's {ours}: route the parameters as they were when it was saved"
            )
        super().load_state_dict(state_dict)
        for _, parameter, group in self._named:
            if group["algorithm"] == "muon" and self.options.momentum_dtype is not None:
                state = self.state[parameter]  # the base class has cast it to the parameter's dtype
                state["momentum_buffer"] = state["momentum_buffer"].to(DTYPES[self.options.momentum_dtype])
        self._named = list(_named_parameters(self.param_groups))
        self._broken = None

    def _make_state(self) -> None:
        dtype = None if self.options.momentum_dtype is None else DTYPES[self.options.momentum_dtype]
        for _, parameter, group in self._named:
            if group["algorithm"] == "muon":
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter, dtype=dtype).detach()}
            else:
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                mean, square = torch.zeros_like(parameter).detach(), torch.zeros_like(parameter).detach()
                self.state[parameter] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}

    def _make_plan(self, units: Mapping[str, Units]) -> tuple[list[DeviceMesh], Plan]:
        layouts: list[MeshLayout] = []
        device_meshes: list[DeviceMesh] = []
        parameters = []
        for name, parameter, group in self._named:
            if group["algorithm"] not in ("muon", "adamw"):
                raise ValueError(f"{name}: algorithm {group['algorithm']!r}: allowed are muon and adamw")
            mesh: int | None = None
            placements: tuple[Placement, ...] = ()
            if isinstance(parameter, DTensor):
                layout = mesh_layout(parameter.device_mesh)
                if layout not in layouts:
                    layouts.append(layout)
                    device_meshes.append(parameter.device_mesh)
                mesh, placements = layouts.index(layout), tensor_placements(name, parameter)
            algorithm, shape = group["algorithm"], tuple(parameter.shape)
            itemsize = parameter.element_size()
            parameters.append(ParameterLayout(name, shape, algorithm, units.get(name, Units()), mesh, placements, itemsize))
        if not any(parameter.algorithm == "muon" for parameter in parameters):
            raise ValueError("no parameter is routed to Muon: check the rules of muon_param_groups, or use AdamW")
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        return device_meshes, make_plan(parameters, layouts, world_size, self.options)

    def _compare_plans(self) -> None:
        if not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
            return  # a fake group lays out a world that is not there: nobody answers
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, self.plan.digest)
        if len(set(digests)) == 1:
            return
        lines: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lines, [str(self.options), *(p.describe(self.plan.meshes) for p in self.plan.parameters)])
        other = next(rank for rank, theirs in enumerate(lines) if theirs != lines[0])
        place = next((i for i, (a, b) in enumerate(zip(lines[0], lines[other], strict=False)) if a != b), None)
        if place is None:
            place = min(len(lines[0]), len(lines[other]))
        ours, theirs = (found[place] if place < len(found) else "nothing" for found in (lines[0], lines[other]))
        raise EtudeError(f"ranks 0 and {other} would not do the same Muon step; first difference: rank 0 has {ours}, rank {other} {theirs}")

    def _make_groups(self, rank: int) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """A process group for every set of ranks that exchanges; a mesh axis' own group where it is one. Collective where it is not, so
        every rank walks the same lanes, also those of meshes that it is not part of."""
        groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        made: set[tuple[tuple[int, ...], ...]] = set()
        for bucket in self.plan.buckets:
            if bucket.num_launches == 0:
                continue
            assert bucket.lane.mesh is not None
            mesh, device_mesh = self.plan.meshes[bucket.lane.mesh], self._device_meshes[bucket.lane.mesh]
            kind = self.plan.kinds[bucket.parameters[0]]
            assert kind is not None
            lane = lane_of(bucket.lane, bucket.split, mesh, kind.select_axes)
            for axes, partition in (
                (bucket.lane.cut_axes, tuple(lane.cut_groups())),
                (bucket.lane.replica_axes, tuple(lane.share_groups())),
            ):
                if len(partition[0]) == 1 or partition in made:
                    continue
                made.add(partition)
                if any(list(ranks) != sorted(ranks) for ranks in partition):
                    raise ValueError(f"mesh {mesh}: ranks {partition[0]} do not ascend along axes {axes}; process groups are always sorted")
                own_axis = len(axes) == 1 and len(partition[0]) == mesh.shape[axes[0]]
                for ranks in partition:
                    if not own_axis:
                        group = dist.new_group(list(ranks))
                        if rank in ranks:
                            groups[ranks] = group
                    elif rank in ranks:
                        groups[ranks] = device_mesh.get_group(axes[0])
        return groups

    def _run(self) -> None:
        members: dict[int, Member] = {}
        adam: dict[int, list[AdamMember]] = {}
        for index, (name, parameter, group) in enumerate(self._named):
            state = self.state[parameter]
            gradient = _local_gradient(name, parameter)
            if group["algorithm"] == "muon":
                members[index] = Member(
                    _local(parameter), gradient, _local(state["momentum_buffer"]), float(group["lr"]), group["momentum"],
                    group["nesterov"], group["weight_decay"], group["cautious_weight_decay"],
                )  # fmt: skip
            else:
                member = AdamMember(_local(parameter), gradient, _local(state["exp_avg"]), _local(state["exp_avg_sq"]), state["step"])
                adam.setdefault(id(group), []).append(member)
        travelling: dict[int, Task] = {}
        local: list[Task] = []
        for bucket, mine in zip(self.plan.buckets, self.part.buckets, strict=True):
            if mine.parameters and bucket.num_launches:
                travelling[mine.index] = bucket_task(mine, members, self._wiring)
            elif mine.parameters:
                local.append(bucket_task(mine, members, self._wiring))
        for group in self.param_groups:
            if id(group) in adam:
                local.append(adamw_task(adam[id(group)], group))
        run(self.plan.launches, travelling, {bucket.index: bucket.num_launches for bucket in self.plan.buckets}, local)


def mesh_layout(mesh: DeviceMesh) -> MeshLayout:
    """A DeviceMesh as the plan sees it."""
    return MeshLayout(tuple(mesh.mesh.shape), tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh_dim_names or ()))


def tensor_placements(name: str, tensor: DTensor) -> tuple[Placement, ...]:
    """A DTensor's placements as the plan sees them. ValueError for one that is not a parameter's."""
    return tuple(_placement(name, placement, tensor.ndim) for placement in tensor.placements)


def _placement(name: str, placement: TorchPlacement, ndim: int) -> Placement:
    if isinstance(placement, _StridedShard):
        return Cut(int(placement.dim) % ndim, int(placement.split_factor))
    if isinstance(placement, Shard):
        return Cut(int(placement.dim) % ndim)
    if isinstance(placement, Replicate):
        return None
    raise ValueError(f"{name}: placement {placement}: a parameter is sharded or replicated on each mesh axis")


def _without_units(params: Iterable[Any]) -> tuple[list[Any], dict[str, Units]]:
    """The groups without their `units`, which are not state; the caller's dicts stay as they are."""
    groups, units = [], {}
    for group in params:
        if isinstance(group, dict):
            units.update(group.get("units", {}))
            group = {key: value for key, value in group.items() if key != "units"}
        groups.append(group)
    return groups, units


def _named_parameters(groups: Sequence[dict[str, Any]]) -> Iterable[tuple[str, Tensor, dict[str, Any]]]:
    count = 0
    for group in groups:
        names = group.get("param_names") or [f"parameter {count + i}" for i in range(len(group["params"]))]
        for name, parameter in zip(names, group["params"], strict=True):
            yield name, parameter, group
        count += len(group["params"])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _local_gradient(name: str, parameter: Tensor) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    if isinstance(parameter, DTensor) and (not isinstance(gradient, DTensor) or gradient.placements != parameter.placements):
        placed = gradient.placements if isinstance(gradient, DTensor) else "a plain tensor"
        raise ValueError(f"{name}: its gradient is {placed}, the parameter {parameter.placements}: reduce gradients before the step")
    return _local(gradient)
