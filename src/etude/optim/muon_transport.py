"""The one collective of a Muon step, behind a seam: torch.distributed, or a counter around another transport.

It is launched asynchronously on one-dimensional buffers and returns a Work to wait for. Not here: process groups (sharded_muon.py),
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


class TorchTransport:
    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        return cast(Work, dist.all_to_all_single(received, sent, list(received_splits), list(sent_splits), group=group, async_op=True))


@dataclass
class CountingTransport:
    """Notes the bytes that each launch sends to others, then passes it on."""

    inner: Transport = field(default_factory=TorchTransport)
    launches: list[int] = field(default_factory=list)

    def all_to_all(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int], group: dist.ProcessGroup
    ) -> Work:
        mine = sent_splits[dist.get_rank(group)]
        self.launches.append((sent.numel() - mine) * sent.element_size())
        return self.inner.all_to_all(received, sent, received_splits, sent_splits, group)

    @property
    def sent_bytes(self) -> int:
        return sum(self.launches)
