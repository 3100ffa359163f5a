"""The sandbox protocol: what every backend does, and what its callers may rely on.

A sandbox is a throw-away copy of a folder (`workspace`), seen inside as /work, in which commands run without network,
under limits, beside a read-only base that holds the Python interpreter and the packages of one environment folder (/env).
Each `run` starts fresh processes on the same files; when it returns, every process that it started is dead.

Not here: any backend (bubblewrap.py), the suite that they all pass (conformance.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from etude.types import Limits

ExecStatus = Literal["exited", "timeout", "out_of_memory", "too_many_processes", "disk_full", "killed"]
WORK = "/work"  # the workspace, inside
ENV = "/env"  # the environment's packages, inside; on the import path


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    status: ExecStatus
    code: int | None  # exit code; None unless status is "exited"; 128 + signal where a signal ended it
    stdout: bytes  # at most limits.output_bytes, its beginning
    stderr: bytes
    truncated: bool  # some output was dropped
    wall_s: float
    waited_s: float = 0.0  # of these: something in it could have run, but other programs had the CPUs; as far as it is known
    seen: tuple[tuple[str, str], ...] | None = None  # (read | written, path), as the sandbox saw it; None: it keeps no log

    @property
    def ok(self) -> bool:
        return self.status == "exited" and self.code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between the workspace and what it was made from."""

    path: str  # relative to the workspace, "/" between parts
    kind: Literal["written", "removed", "refused"]  # refused: link, device, fifo, or larger than the limit
    data: bytes | None = None  # content of a written file
    executable: bool = False


class Sandbox(Protocol):
    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        wall_s: float | None = None,
    ) -> ExecResult:
        """Run one command to its end or its limit. A command that fails is a result.

        Raises: SandboxError where the sandbox itself failed.
        """
        ...

    def read(self, path: str) -> bytes:
        """A regular file of the workspace. Raises FileNotFoundError, IsADirectoryError, PermissionError (a link or a
        path that leaves the workspace), OSError (too large)."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the workspace, making its folders. Raises PermissionError, IsADirectoryError, OSError (disk full)."""
        ...

    def changes(self) -> list[Change]:
        """Every file written or removed since the start, by path, links never followed."""
        ...

    def close(self) -> None:
        """Kill everything inside and give the space back. May be called twice, and from another thread during `run`."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Backend(Protocol):
    def check(self) -> None:
        """Raises UserError, with the remedy, where this backend cannot work on this machine."""
        ...

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> Sandbox:
        """A sandbox over a copy-on-write view of `workspace`, which is never written to."""
        ...
