"""The work of one step as generators, and the scheduler that drives them.

A bucket's task: momentum and packing; to the owners (all-to-all); Newton-Schulz; back to the holders (all-to-all); where replicas share
the work, to each other (one all-to-all, or two: muon_share.py); the update. It yields the Work that it just launched and is resumed once
that is complete. Tasks that never communicate (units nobody shares, AdamW) yield None now and then: they fill the time in which the wire
is busy.

Collectives are launched in the plan's order on every rank, whatever completes first; readiness only decides which local work is done
while waiting. So no two ranks can wait for each other.

    m <- m + (1 - mu) (g - m)          momentum, as an average
    u  = g + mu (m - g)                Nesterov; u = m without
    w <- w - lr wd w                   decoupled decay; cautious: only where u and w have the same sign (arXiv:2510.12402)
    w <- w - lr scale NS(u)

Order and precision of each operation are torch.optim.Muon's for fp32 weights; bf16 weights are moved in fp32 and rounded once.
Not here: which rank does what (muon_plan.py), state (sharded_muon.py).
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.optim.adamw import adamw

from etude.optim.muon_config import MuonOptions, update_scale
from etude.optim.muon_rank import Box, Owned, Piece, RankBucket
from etude.optim.muon_transport import Transport, Work
from etude.optim.newton_schulz import DTYPES, batches, orthogonalize

Task = Generator[Work | None, None, None]


@dataclass(frozen=True, slots=True)
class Member:
    """A Muon parameter in one step: its local tensors and its group's settings."""

    weight: Tensor
    gradient: Tensor | None
    """None counts as zero: momentum decays and the exchange keeps its shape."""
    momentum: Tensor
    lr: float
    mu: float
    nesterov: bool
    weight_decay: float
    cautious: bool


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all tasks share."""

    options: MuonOptions
    transport: Transport
    groups: Mapping[tuple[int, ...], dist.ProcessGroup]
    """By the ranks of a group."""


def momentum_update(member: Member) -> Tensor:
    """Average the gradient into the momentum; returns what is to be orthogonalised, which may be the momentum itself."""
    gradient = torch.zeros_like(member.momentum) if member.gradient is None else member.gradient.to(member.momentum.dtype)
    member.momentum.lerp_(gradient, 1 - member.mu)
    return gradient.lerp(member.momentum, member.mu) if member.nesterov else member.momentum


def apply_update(weight: Tensor, update: Tensor, unit_shape: tuple[int, int], member: Member, options: MuonOptions) -> None:
    """Decay and move `weight`, any part of a unit; `update` is its part of the orthogonalised unit."""
    if member.cautious:
        weight.mul_(1 - member.lr * member.weight_decay * (update * weight > 0).to(weight.dtype))
    else:
        weight.mul_(1 - member.lr * member.weight_decay)
    # a bf16 weight and a bf16 update would be added by a kernel whose rounding depends on strides, and so on the sharding; fp32 is exact
    weight.add_(update.float() if weight.dtype != torch.float32 else update, alpha=-(member.lr * update_scale(options.scale, *unit_shape)))


def bucket_task(bucket: RankBucket, members: Mapping[int, Member], wiring: Wiring) -> Task:
    """One bucket, from gradients to weights."""
    wire = DTYPES[wiring.options.wire]
    device = members[bucket.parameters[0]].weight.device
    mine: dict[int, list[Piece]] = {}
    for piece in bucket.pieces[bucket.my_share]:
        mine.setdefault(piece.parameter, []).append(piece)
    sent = torch.empty(sum(bucket.send_splits), dtype=wire, device=device)
    for index in bucket.parameters:
        update = momentum_update(members[index])
        for piece in mine.get(index, ()):
            part = update[_slices(piece.box)]
            sent[piece.offset : piece.offset + piece.numel].view(part.shape).copy_(part)
        del update
    received = sent
    if len(bucket.cut_ranks) > 1:
        group = wiring.groups[bucket.cut_ranks]
        received = torch.empty(sum(bucket.recv_splits), dtype=wire, device=device)
        yield wiring.transport.all_to_all(received, sent, bucket.recv_splits, bucket.send_splits, group)
    yield from _orthogonalize_owned(bucket.owned, received, wiring.options)
    updates = received
    if len(bucket.cut_ranks) > 1:
        updates = sent
        yield wiring.transport.all_to_all(updates, received, bucket.send_splits, bucket.recv_splits, group)
    parts = [updates]
    if bucket.share_hops:
        parts = yield from (_share if bucket.share_hops == 1 else _spread_and_deliver)(bucket, updates, wiring)
    for share, pieces in enumerate(bucket.pieces):
        for piece in pieces:
            member = members[piece.parameter]
            weight = member.weight[_slices(piece.box)]
            update = parts[share][piece.offset : piece.offset + piece.numel].view(weight.shape)
            apply_update(weight, update, piece.unit_shape, member, wiring.options)


def _share(bucket: RankBucket, updates: Tensor, wiring: Wiring) -> Generator[Work | None, None, list[Tensor]]:
    """What each place of the share group brings, in one exchange: mine goes to each other place."""
    ((sent_splits, received_splits),) = bucket.share_splits
    copies = updates.expand(len(bucket.share_ranks) - 1, -1).reshape(-1)
    theirs = updates.new_empty(sum(received_splits))
    yield wiring.transport.all_to_all(theirs, copies, received_splits, sent_splits, wiring.groups[bucket.share_ranks])
    parts = list(theirs.split_with_sizes(received_splits))
    parts[bucket.my_share] = updates
    return parts


def _spread_and_deliver(bucket: RankBucket, updates: Tensor, wiring: Wiring) -> Generator[Work | None, None, list[Tensor]]:
    """The same in two: a chunk of mine to each place, then the chunks that I hold to each place but the one they came from."""
    (spread, held_splits), (deliver, row_splits) = bucket.share_splits
    group, me, places = wiring.groups[bucket.share_ranks], bucket.my_share, len(bucket.share_ranks)
    padded = pad(updates, (0, sum(spread) - updates.numel()))
    held = updates.new_empty(sum(held_splits))
    yield wiring.transport.all_to_all(held, padded, held_splits, spread, group)
    ends = list(accumulate(held_splits))
    copies = torch.cat([held[cut] for end, size in zip(ends, held_splits, strict=True) for cut in (slice(end - size), slice(end, None))])
    rows = updates.new_empty((places, row_splits[0]))  # row i: what place i held, without mine
    yield wiring.transport.all_to_all(rows.view(-1), copies, row_splits, deliver, group)
    others = iter(rows.split_with_sizes([size for place, size in enumerate(held_splits) if place != me], dim=1))
    return [updates if place == me else next(others).reshape(-1)[:size] for place, size in enumerate(bucket.share_sizes)]


def _orthogonalize_owned(owned: Sequence[Owned], buffer: Tensor, options: MuonOptions) -> Task:
    """Each owned unit in place: fragments of the buffer are replaced by those of the orthogonalised unit."""
    by_shape: dict[tuple[int, int], list[Owned]] = {}
    for unit in owned:
        by_shape.setdefault(unit.shape, []).append(unit)
    for shape, units in by_shape.items():
        for run in batches(len(units), shape, options.newton_schulz):
            chosen = [units[i] for i in run]
            stacked = buffer.new_empty((len(chosen), *shape))
            for matrix, unit in zip(stacked, chosen, strict=True):
                for offset, numel, box in unit.fragments:
                    part = matrix[_slices(box)]
                    part.copy_(buffer[offset : offset + numel].view(part.shape))
            # a single matrix goes the unbatched way, like the reference: on a GPU the two may differ in the last bit
            result = orthogonalize(stacked if len(chosen) > 1 else stacked[0], options.newton_schulz)
            for matrix, unit in zip(result if len(chosen) > 1 else result[None], chosen, strict=True):
                for offset, numel, box in unit.fragments:
                    part = matrix[_slices(box)]
                    buffer[offset : offset + numel].view(part.shape).copy_(part)
            yield None


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in box)


@dataclass(frozen=True, slots=True)
class AdamMember:
    """An AdamW parameter in one step."""

    weight: Tensor
    gradient: Tensor | None
    mean: Tensor
    square: Tensor
    step: Tensor


def adamw_task(members: Sequence[AdamMember], group: Mapping[str, Any], chunk_numel: int = 1 << 24) -> Task:
    """torch.optim.AdamW, fused, over local shards; a missing gradient is zero, so that every rank counts the same steps."""
    start = 0
    while start < len(members):
        end, numel = start, 0
        while end < len(members) and (end == start or numel + members[end].weight.numel() <= chunk_numel):
            numel += members[end].weight.numel()
            end += 1
        _adamw(members[start:end], group)
        start = end
        yield None


def _adamw(members: Sequence[AdamMember], group: Mapping[str, Any]) -> None:
    entries: list[AdamMember] = []
    tails: list[tuple[AdamMember, AdamMember]] = []
    for member in members:
        if member.weight.numel() == 0:
            member.step.add_(1)
            continue
        gradient = torch.zeros_like(member.weight) if member.gradient is None else member.gradient
        member = replace(member, gradient=gradient)
        body, tail = _split_tail(member)
        entries += [body] if body is not None else []
        if tail is not None:
            entries.append(_padded(tail, own_step=body is None))
            tails.append((tail, entries[-1]))
    if entries:
        adamw(
            [m.weight for m in entries], [m.gradient for m in entries if m.gradient is not None], [m.mean for m in entries],
            [m.square for m in entries], [], [m.step for m in entries],
            fused=True, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=float(group["lr"]),
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip
    for tail, padded in tails:
        for mine, moved in ((tail.weight, padded.weight), (tail.mean, padded.mean), (tail.square, padded.square)):
            mine.copy_(moved[: mine.numel()])


_VECTOR = 64  # elements: a multiple of any CPU's vector


def _split_tail(member: AdamMember) -> tuple[AdamMember | None, AdamMember | None]:
    """On a CPU the last elements that fill no vector go through scalar code with other rounding, so bits would depend on how a parameter
    is sharded: they are updated apart, padded to a vector. Whole on a GPU, where every element is treated alike."""
    numel = member.weight.numel()
    full = numel - numel % _VECTOR
    if member.weight.device.type != "cpu" or full == numel or not member.weight.is_contiguous():
        return member, None
    gradient = member.gradient
    assert gradient is not None

    def part(cut: slice) -> AdamMember:
        weight, grad, mean, square = (t.reshape(-1)[cut] for t in (member.weight, gradient, member.mean, member.square))
        return AdamMember(weight, grad, mean, square, member.step)

    return (part(slice(0, full)) if full else None), part(slice(full, numel))


def _padded(tail: AdamMember, own_step: bool) -> AdamMember:
    """A copy that fills a vector. The step is counted once per parameter: by the tail only if it is all there is."""
    gradient = tail.gradient
    assert gradient is not None
    room = (0, _VECTOR - tail.weight.numel())
    weight, grad, mean, square = (pad(t, room) for t in (tail.weight, gradient, tail.mean, tail.square))
    return AdamMember(weight, grad, mean, square, tail.step if own_step else tail.step.clone())


def run(launches: Sequence[int], travelling: Mapping[int, Task], num_launches: Mapping[int, int], local: Sequence[Task]) -> None:
    """Drive all tasks to their end. `launches` names a travelling task for each of its advances (muon_plan.launch_order)."""
    tasks = dict(travelling)
    left = dict(num_launches)
    pending: dict[int, Work] = {}
    fillers = list(reversed(local))

    def advance(index: int) -> None:
        pending.pop(index, None)
        for work in tasks[index]:
            if work is not None:
                pending[index] = work
                left[index] -= 1
                return
        del tasks[index]

    def fill() -> bool:
        """A bit of local work: finish a bucket whose last exchange is complete, else a step of a local task."""
        for index, work in pending.items():
            if left[index] == 0 and work.is_completed():
                work.wait()
                advance(index)
                return True
        while fillers:
            if next(fillers[-1], _ENDED) is _ENDED:
                fillers.pop()
            else:
                return True
        return False

    for index in launches:
        if index not in tasks:
            continue
        if index in pending:
            while index in pending and not pending[index].is_completed() and fill():
                pass
            if index not in pending:
                continue  # its last exchange completed meanwhile, and `fill` finished it
            pending[index].wait()
        advance(index)
    while fill():
        pass


_ENDED = object()
