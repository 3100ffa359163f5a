"""Sandboxes by bubblewrap: `Bubblewrap().open(folder)` gives a throw-away view of the folder in which commands run.

    caller -- Bubblewrap --> keeper --fork--> holder (pid 1 of its namespace, owns mounts and limits) --> bwrap --> command

Works for root (who is left behind before anything else happens) and for ordinary users. Where it cannot work, `check`
says why and what to do; a command never runs unconfined.

Not here: those processes (keeper.py, holder.py), what the inside looks like (arguments.py).
"""

import contextlib
import functools
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

from etude.errors import SandboxError, UserError
from etude.sandbox import arguments, remedy, seccomp, wire
from etude.sandbox.protocol import WORK, Change, ExecResult
from etude.types import Limits

_MARGIN_S = 30.0  # beyond its wall limit, after which a holder counts as lost
_FILES_S = 300.0  # for reading, writing and comparing files
_CLOSE_S = 10.0
_KEEPER = "import sys; sys.path.insert(0, sys.argv[3]); import socket; from etude.sandbox import keeper; "
_KEEPER += "keeper.main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))"


class Bubblewrap:
    """Backend of sandbox/protocol.py. One object serves any number of threads.

    program: name or path of bubblewrap. log: lay out honeypots, and tell of every command which of them it opened and what it
    wrote (log.py).
    """

    def __init__(self, program: str = "bwrap", *, log: bool = False) -> None:
        self.program = program
        self.log = log
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = 0  # whose child the keeper is

    def check(self) -> None:
        self._path()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with self.open(Path(folder)) as sandbox:
                    result = sandbox.run(["python3", "-c", "import ctypes, zlib"])
            except SandboxError as error:
                raise UserError(remedy.for_failure(str(error), remedy.settings())) from error
        if not result.ok:
            last = (result.stderr.decode(errors="replace").strip().splitlines() or [result.status])[-1]
            raise UserError(
                f"the Python interpreter {sys.executable} does not run in a sandbox ({last}); "
                "use one that is in /usr, or whose libraries lie in its own folder"
            )

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> "BubblewrapSandbox":
        """Raises UserError for a missing folder or a missing bubblewrap, ValueError for a limit that is not positive,
        SandboxError where the machine does not let us."""
        for name in ("wall_s", "memory_mb", "processes", "disk_mb", "output_bytes"):
            if getattr(limits, name) <= 0:  # to the kernel, no size is no limit
                raise ValueError(f"limits.{name} is {getattr(limits, name)}; it must be positive")
        for folder in (workspace, environment):
            if folder is not None and not folder.is_dir():
                raise UserError(f"{folder} is not a folder; a sandbox needs an existing one")
        room = (str(workspace.absolute()), environment and str(environment.absolute()), self._python.prefix, limits.disk_mb << 20, self.log)
        config = (self._path(), self._filter, limits.memory_mb << 20, limits.processes, limits.output_bytes, self.log)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pidfd = self._fork(marshal.dumps(cast(Any, (room, config))), theirs)
            except BaseException:
                ours.close()
                raise
        return BubblewrapSandbox(self, ours, pidfd, self._fixed, limits)

    @functools.cached_property
    def _filter(self) -> bytes:
        try:
            return seccomp.program()
        except ValueError as error:
            raise UserError(f"the sandbox does not work on this machine: {error}") from error

    @functools.cached_property
    def _python(self) -> arguments.Interpreter:
        return arguments.interpreter()

    @functools.cached_property
    def _fixed(self) -> list[str]:
        return arguments.fixed(self._python, honeypots=self.log)

    def _path(self) -> str:
        if sys.platform != "linux":
            raise UserError(f"the bubblewrap sandbox needs Linux, this is {sys.platform}; run etude in a Linux machine or virtual machine")
        path = shutil.which(self.program)
        if path is None:
            raise UserError(remedy.not_installed(self.program))
        return os.path.realpath(path)

    def _fork(self, packet: bytes, channel: socket.socket) -> int:
        """A pid descriptor of a new sandbox's outer process."""
        with self._lock:
            control = self._ready_control()
            try:
                socket.send_fds(control, [packet], [channel.fileno()])
                answer, pidfd = wire.receive_fd(control)
            except OSError as error:
                raise SandboxError(f"the keeper of the sandboxes is gone: {error}") from error
        if pidfd is None:
            raise SandboxError(f"no process for a sandbox: {answer.decode() or 'the keeper ended'}")
        return pidfd

    def _ready_control(self) -> socket.socket:
        alive = self._keeper is not None and self._pid == os.getpid() and self._keeper.poll() is None
        if self._control is None or not alive:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller = os.pidfd_open(os.getpid())
            package = str(Path(__file__).resolve().parents[2])
            try:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _KEEPER, str(theirs.fileno()), str(caller), package],
                    pass_fds=(theirs.fileno(), caller),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},  # its libpython may need it
                    start_new_session=True,
                    cwd="/",
                )
            finally:
                theirs.close()
                os.close(caller)
            self._control, self._pid = ours, os.getpid()
            weakref.finalize(self, _stop, self._keeper, ours, self._pid)
        return self._control


def _stop(keeper: subprocess.Popen[bytes], control: socket.socket, pid: int) -> None:
    control.close()  # the keeper ends, and with it its sandboxes
    if pid == os.getpid():
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(_CLOSE_S)


class BubblewrapSandbox:
    """One open sandbox; `Bubblewrap.open` makes it."""

    def __init__(self, backend: Bubblewrap, channel: socket.socket, pidfd: int, fixed: list[str], limits: Limits) -> None:
        self._backend = backend  # its keeper must outlive this
        self._channel = channel
        self._pidfd = pidfd
        self._fixed = fixed
        self._limits = limits
        self._lock = threading.Lock()  # one request at a time
        self._closing = threading.Lock()
        self._closed = False
        try:
            self._receive(_MARGIN_S)
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox could not be set up: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = WORK,
        wall_s: float | None = None,
    ) -> ExecResult:
        if not argv:
            raise ValueError("argv is empty; the first entry is the command")
        wall_s = self._limits.wall_s if wall_s is None else wall_s
        try:
            command = [wire.text(arg) for arg in argv]
            args = arguments.for_command(self._fixed, env or {}, cwd)
        except OSError as error:
            return _ended("exited", code=126, stderr=f"{error.strerror}\n".encode())
        if self._closed:
            raise SandboxError("the sandbox is closed")
        request = {"do": "run", "argv": command, "args": args, "stdin": bytes(stdin), "wall_s": wall_s}
        try:
            answer = self._ask(request, wall_s + _MARGIN_S)
        except SandboxError:
            if self._closed:
                return _ended("killed")
            raise
        except OSError as error:
            raise SandboxError(f"the sandbox could not start a command: {error}") from error
        return ExecResult(**answer)

    def read(self, path: str) -> bytes:
        return cast(bytes, self._ask({"do": "read", "path": wire.text(path)}))

    def write(self, path: str, data: bytes) -> None:
        self._ask({"do": "write", "path": wire.text(path), "data": bytes(data)})

    def changes(self) -> list[Change]:
        found = self._ask({"do": "changes"})
        return [Change(path=os.fsdecode(path), kind=kind, data=data, executable=executable) for path, kind, data, executable in found]

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # the holder ends, and `run` in another thread returns
        if not _ended_within(self._pidfd, _CLOSE_S):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with self._lock:
            self._channel.close()
            os.close(self._pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], timeout_s: float = _FILES_S) -> Any:
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            return self._receive(timeout_s, wire.pack(request))

    def _receive(self, timeout_s: float, request: bytes = b"") -> Any:
        """The holder's next answer. Raises OSError where it reports one, SandboxError where it is gone or failed."""
        try:
            self._channel.settimeout(timeout_s)
            if request:
                self._channel.sendall(request)
            answer = wire.unpack(self._channel.recv)
        except BaseException as error:  # interrupted half-way, the next answer would be to this request: end it
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
            if isinstance(error, OSError | EOFError):
                raise SandboxError(f"the sandbox is lost: {error}") from error
            raise
        if "error" not in answer:
            return answer["ok"]
        if answer["errno"]:
            raise OSError(answer["errno"], answer["error"])  # Python makes it a FileNotFoundError or the like
        raise SandboxError(f"the sandbox failed: {answer['error']}")


def _ended(status: str, *, code: int | None = None, stderr: bytes = b"") -> ExecResult:
    return ExecResult(status=cast(Any, status), code=code, stdout=b"", stderr=stderr, truncated=False, wall_s=0.0)


def _ended_within(pidfd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
