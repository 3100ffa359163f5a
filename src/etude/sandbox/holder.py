"""The holder: process 1 of a sandbox's pid namespace. It starts bubblewrap for every command and watches the limits.

In: requests over a socket (wire.py): run, read, write, changes. Out: one answer each, {"ok": value} or {"errno": number,
"error": line}. It ends when the socket does, and with it, by the kernel, everything in its namespaces: processes, mounts,
the disk. Between two requests no other process is alive.

Limits of a command: wall time by the clock; memory, processes and disk by looking, twenty times a second (watch.py), with
hard ceilings above them: the control group where there is one (cgroup.py), RLIMIT_NPROC, the size of the tmpfs. Output
beyond its limit is read and dropped. Whatever limit is reached, everything dies.

Not here: namespaces and mounts (mounts.py), file access (files.py), the caller's side (bubblewrap.py).
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from etude.sandbox import cgroup, files, linux, watch, wire
from etude.sandbox.log import Log
from etude.sandbox.mounts import ROOM

_TICK_S = 0.05
_FIRST_TICK_S = 0.01
_CHUNK = 1 << 18
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as a shell has it
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Config:
    """What does not change between the commands of a sandbox."""

    bwrap: str
    seccomp: bytes
    memory_bytes: int
    processes: int
    output_bytes: int
    log: bool = False  # of honeypots and written files


@dataclass(slots=True)
class _Stream:
    """The kept beginning of an output stream."""

    fd: int
    room: int
    scratch: bytearray
    parts: list[bytes] = field(default_factory=list)
    dropped: bool = False

    def take(self) -> bool:
        """Read what is there. False at the end of the stream."""
        try:
            num_bytes = os.readv(self.fd, [self.scratch])
        except BlockingIOError:
            return True
        if num_bytes > self.room:
            self.dropped = True
        if self.room and num_bytes:
            self.parts.append(bytes(self.scratch[: min(num_bytes, self.room)]))
            self.room -= len(self.parts[-1])
        return num_bytes > 0


def max_tasks(processes: int) -> int:
    """The hard ceiling on threads and processes: above the limit, so that a fork bomb is seen and named before it hits this."""
    return 4 * processes + 32


def serve(channel: socket.socket, config: Config, group: list[str], doors: list[int]) -> None:
    """Answer requests until the socket ends. Commands go into the control group `group` by its `doors`; this process does not."""
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    log = Log() if config.log else None
    channel.sendall(wire.pack({"ok": None}))
    while True:
        try:
            request = wire.unpack(channel.recv)
        except (EOFError, OSError):
            return
        try:
            answer = {"ok": _answer(channel, config, group, doors, request, log)}
        except Exception as error:  # boundary: what fails in here is the caller's to judge
            answer = wire.failure(error)
        channel.sendall(wire.pack(answer))


def _answer(channel: socket.socket, config: Config, group: list[str], doors: list[int], request: dict[str, Any], log: Log | None) -> Any:
    match request["do"]:
        case "run":
            before = log.begin() if log is not None else None
            answer = _run(channel, config, group, doors, request)
            return answer if log is None else {**answer, "seen": log.end(before)}
        case "read":
            return files.read(request["path"])
        case "write":
            return files.write(request["path"], request["data"])
        case "changes":
            return files.changes()
    raise ValueError(f"unknown request {request['do']!r}")


def _run(channel: socket.socket, config: Config, group: list[str], doors: list[int], request: dict[str, Any]) -> dict[str, Any]:
    """One command, from its start to the end of all its processes."""
    begin = time.monotonic()
    kills = cgroup.num_kills(group)
    with contextlib.ExitStack() as stack:
        pid, out, err, status = _start(config, doors, request, stack)
        ended = os.pidfd_open(pid)
        stack.callback(os.close, ended)
        scratch = bytearray(_CHUNK)
        streams = [_Stream(fd, config.output_bytes, scratch) for fd in (out, err)]
        why = _watch(channel, config, streams, ended, begin + request["wall_s"])
        watch.kill_all()
        for stream in streams:
            while stream.take():
                pass
        code = _exit_code(status)
    stdout, stderr = (b"".join(stream.parts) for stream in streams)
    if why is None and cgroup.num_kills(group) > kills:
        why = "out_of_memory"
    if why is None and code is None:
        code, stderr = _not_started(stderr)
    truncated = any(stream.dropped for stream in streams)
    wall_s = time.monotonic() - begin
    return {
        "status": why or "exited",
        "code": None if why else code,
        "stdout": stdout,
        "stderr": stderr,
        "truncated": truncated,
        "wall_s": wall_s,
    }


def _not_started(stderr: bytes) -> tuple[int, bytes]:
    """Exit code and message, as a shell's, for a command that does not exist. Raises ValueError where bubblewrap failed."""
    if match := re.search(rb"^bwrap: (execvp|Can't chdir to) (.*): ([^:]*)\n\Z", stderr, re.DOTALL | re.MULTILINE):
        missing = match[1] == b"execvp" and match[3] == os.strerror(errno.ENOENT).encode()
        return (_NOT_FOUND if missing else _NOT_EXECUTABLE), match[2] + b": " + match[3] + b"\n"
    raise ValueError(stderr.decode(errors="replace").strip() or "bubblewrap was killed")


def _watch(channel: socket.socket, config: Config, streams: list[_Stream], ended: int, deadline: float) -> str | None:
    """Wait for the end of the command; the name of the limit that it reached first, if any."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(ended, select.POLLIN)
    by_fd = {stream.fd: stream for stream in streams}
    for fd in by_fd:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    disk = watch.Disk(f"{ROOM}/disk")
    tick = time.monotonic() + _FIRST_TICK_S
    while True:
        now = time.monotonic()
        if now >= deadline:
            return "timeout"
        if now >= tick:
            tick = now + _TICK_S
            if why := watch.reached(config.memory_bytes, config.processes) or disk.reached():
                return why
        for fd, _ in poll.poll(max(0.0, min(tick, deadline) - now) * 1000):
            if fd == channel.fileno():
                os._exit(0)  # the caller closed the sandbox; the kernel ends the rest
            elif fd == ended:
                return disk.reached()
            elif not by_fd[fd].take():
                poll.unregister(fd)


def _start(config: Config, doors: list[int], request: dict[str, Any], stack: contextlib.ExitStack) -> tuple[int, int, int, int]:
    """bubblewrap's process id, and our ends of its stdout, stderr and status pipes, which `stack` closes."""
    (out, out_in), (err, err_in), (status, status_in), (go_out, go) = (os.pipe() for _ in range(4))
    for fd in (out, err, status):
        stack.callback(os.close, fd)
    stdin = _sealed(request["stdin"]) if request["stdin"] else os.open("/dev/null", os.O_RDONLY)
    passed = {"--args": _sealed(request["args"]), "--seccomp": _sealed(config.seccomp), "--json-status-fd": status_in, "--block-fd": go_out}
    pid = os.fork()
    if pid == 0:
        cgroup.enter(doors)
        _become_bubblewrap(config.bwrap, request["argv"], (stdin, out_in, err_in), passed)
    for fd in (stdin, out_in, err_in, *passed.values()):
        os.close(fd)
    try:
        _limit_tasks(status, max_tasks(config.processes))
    finally:
        os.close(go)
    return pid, out, err, status


def _become_bubblewrap(bwrap: str, argv: list[bytes], streams: tuple[int, int, int], passed: dict[str, int]) -> None:
    """Replace this process, under an empty environment; never returns."""
    try:
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        os.umask(0o022)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory is short, we go before everybody else
        for kind, number in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 1024), (resource.RLIMIT_MEMLOCK, 1 << 16)):
            hard = resource.getrlimit(kind)[1]
            number = number if hard == resource.RLIM_INFINITY else min(number, hard)
            resource.setrlimit(kind, (number, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for fd in passed.values():
            os.set_inheritable(fd, True)
        command = [b"bwrap"]
        for option, fd in passed.items():
            command += [option.encode(), str(fd).encode()]
        os.execve(bwrap, [*command, b"--", *argv], {})
    except OSError as error:
        with contextlib.suppress(OSError):
            what = b"execvp " + argv[0][:80] if error.errno == errno.E2BIG else os.fsencode(bwrap)
            os.write(2, b"bwrap: " + what + b": " + os.strerror(error.errno or 0).encode() + b"\n")
    finally:
        os._exit(125)


def _limit_tasks(status: int, tasks: int) -> None:
    """Set RLIMIT_NPROC once bubblewrap's process is in its own user namespace, where Linux (from 5.14) counts it apart.

    Set earlier it would count every process of the same user on this machine.
    """
    line = b""
    while not line.endswith(b"\n") and (char := os.read(status, 1)):
        line += char
    if line and linux.version() >= (5, 14):
        with contextlib.suppress(ProcessLookupError):  # it failed already, and will say why
            resource.prlimit(json.loads(line)["child-pid"], resource.RLIMIT_NPROC, (tasks, tasks))


def _exit_code(status: int) -> int | None:
    """What bubblewrap reported; None if it was killed, or failed before the command started."""
    with open(status, closefd=False) as file:
        for line in file:
            if "exit-code" in (report := json.loads(line)):
                return int(report["exit-code"])
    return None


def _sealed(data: bytes) -> int:
    """A read-only descriptor with these bytes, which nobody can change or let grow."""
    fd = os.memfd_create("data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
