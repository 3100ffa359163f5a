"""Sandboxes by bubblewrap: `Bubblewrap().open(folder)` gives a throw-away view of the folder in which commands run.

    caller -- Bubblewrap --> keeper --fork--> holder (pid 1 of its namespace, owns mounts and limits) --> bwrap --> command

Not here: those processes (keeper.py, holder.py), what the inside looks like (arguments.py).
"""

import errno
import marshal
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from etude.errors import SandboxError, UserError
from etude.sandbox import arguments, seccomp, wire
from etude.sandbox.protocol import WORK, Change, ExecResult
from etude.types import Limits

_MARGIN_S = 30.0  # beyond its wall limit, after which a holder counts as lost
_CLOSE_S = 10.0
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as a shell has it
_START = "import sys; sys.path.insert(0, sys.argv[3]); from etude.sandbox import keeper; import socket; "
_START += "keeper.main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))"


class Bubblewrap:
    """Backend of sandbox/protocol.py. One object serves any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = 0

    def check(self) -> None:
        if shutil.which("bwrap") is None:
            raise UserError(
                "bubblewrap is not installed; install it: apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
            )

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> "BubblewrapSandbox":
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            self.check()
        prefix, executable = arguments.interpreter()
        room = (os.path.abspath(workspace), environment and os.path.abspath(environment), prefix, limits.disk_mb << 20)
        config = (bwrap, seccomp.program(), limits.memory_mb << 20, limits.processes, limits.output_bytes)
        ours, theirs = socket.socketpair()
        with theirs:
            pidfd = self._fork(marshal.dumps((room, config)), theirs)
        return BubblewrapSandbox(ours, pidfd, arguments.fixed(prefix, executable), limits)

    def _fork(self, packet: bytes, channel: socket.socket) -> int:
        with self._lock:
            control = self._ready_control()
            try:
                socket.send_fds(control, [packet], [channel.fileno()])
                answer, pidfd = wire.receive_fd(control)
            except OSError as error:
                raise SandboxError(f"the keeper of the sandboxes is gone: {error}") from error
        if pidfd is None:
            raise SandboxError(f"no process for a sandbox: {answer.decode()}")
        return pidfd

    def _ready_control(self) -> socket.socket:
        if self._control is None or self._keeper is None or self._pid != os.getpid() or self._keeper.poll() is not None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller = os.pidfd_open(os.getpid())
            package = str(Path(__file__).resolve().parents[2])
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), str(caller), package],
                pass_fds=(theirs.fileno(), caller),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                start_new_session=True,
                cwd="/",
            )
            theirs.close()
            os.close(caller)
            self._control, self._pid = ours, os.getpid()
        return self._control


class BubblewrapSandbox:
    """One open sandbox; `Bubblewrap.open` makes it."""

    def __init__(self, channel: socket.socket, pidfd: int, fixed: list[str], limits: Limits) -> None:
        self._channel = channel
        self._pidfd = pidfd
        self._fixed = fixed
        self._limits = limits
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._receive(_MARGIN_S)
        except OSError as error:
            raise SandboxError(f"the sandbox could not be set up: {error.strerror}") from error

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        wall_s: float | None = None,
    ) -> ExecResult:
        wall_s = self._limits.wall_s if wall_s is None else wall_s
        args = arguments.for_command(self._fixed, env or {}, cwd)
        request = {"do": "run", "argv": [os.fsencode(arg) for arg in argv], "args": args, "stdin": stdin, "wall_s": wall_s}
        answer = self._ask(request, wall_s + _MARGIN_S)
        code = answer["code"]
        if answer["why"] is None and code is None:
            text = answer["stderr"].decode(errors="replace").strip()
            if not text.startswith("bwrap: execvp"):
                raise SandboxError(f"bubblewrap failed: {text}")
            code = _NOT_FOUND if text.endswith(os.strerror(errno.ENOENT)) else _NOT_EXECUTABLE
        return ExecResult(
            status=answer["why"] or "exited",
            code=None if answer["why"] else code,
            stdout=answer["stdout"],
            stderr=answer["stderr"],
            truncated=answer["truncated"],
            wall_s=answer["wall_s"],
        )

    def read(self, path: str) -> bytes:
        return self._ask({"do": "read", "path": path})

    def write(self, path: str, data: bytes) -> None:
        self._ask({"do": "write", "path": path, "data": data})

    def changes(self) -> list[Change]:
        found = self._ask({"do": "changes"})
        return [Change(path=path, kind=kind, data=data, executable=executable) for path, kind, data, executable in found]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._channel.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._channel.close()
            os.close(self._pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], timeout_s: float = _MARGIN_S) -> Any:
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            self._channel.settimeout(timeout_s)
            self._channel.sendall(wire.pack(request))
            return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> Any:
        self._channel.settimeout(timeout_s)
        try:
            answer = wire.unpack(self._channel.recv)
        except (OSError, EOFError) as error:
            raise SandboxError(f"the sandbox is lost: {error}") from error
        if "error" in answer:
            raise OSError(answer["errno"], answer["text"])  # Python picks FileNotFoundError and the like by the number
        return answer["ok"]
