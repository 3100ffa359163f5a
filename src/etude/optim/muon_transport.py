"""The two collectives of a Muon step, behind a seam: torch.distributed, or a counter around another transport.

Both are launched asynchronously on one-dimensional buffers and return a Work to wait for. Not here: process groups (sharded_muon.py),
an emulated link (benchmarks/muon_overlap.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch.distributed as dist
from torch import Tensor


class Work(Protocol):
    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


class Transport(Protocol):
    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        """Elements by rank of the group, in both buffers; sizes may differ and be zero."""
        ...

    def all_gather(self, received: Tensor, sent: Tensor, group: dist.ProcessGroup) -> Work:
        """`received` is the group's size times `sent`."""
        ...


class TorchTransport:
    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        return cast(Work, dist.all_to_all_single(received, sent, list(received_splits), list(sent_splits), group=group, async_op=True))

    def all_gather(self, received: Tensor, sent: Tensor, group: dist.ProcessGroup) -> Work:
        return cast(Work, dist.all_gather_into_tensor(received, sent, group=group, async_op=True))


@dataclass
class CountingTransport:
    """Notes (kind, bytes sent to others) of each launch, then passes it on."""

    inner: Transport = field(default_factory=TorchTransport)
    launches: list[tuple[str, int]] = field(default_factory=list)

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        mine = sent_splits[dist.get_rank(group)]
        self.launches.append(("all_to_all", (sent.numel() - mine) * sent.element_size()))
        return self.inner.all_to_all(received, sent, received_splits, sent_splits, group)

    def all_gather(self, received: Tensor, sent: Tensor, group: dist.ProcessGroup) -> Work:
        self.launches.append(("all_gather", (received.numel() - sent.numel()) * sent.element_size()))
        return self.inner.all_gather(received, sent, group)

    @property
    def sent_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.launches)
