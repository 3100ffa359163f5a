"""The holder: process 1 of a sandbox's pid namespace. It starts bubblewrap for every command and watches the limits.

In: requests over a socket (wire.py): run, read, write, changes. Out: one answer each, {"ok": value} or
{"error": class name, "errno": number, "text": line}. It ends when the socket does, and with it, by the kernel, everything
in its namespaces: processes, mounts, the disk. Between two requests no other process is alive.

Limits of a command: wall time by the clock; memory and processes by counting, twenty times a second (watch.py), under
the hard ceilings of the control group where there is one (cgroup.py); disk by the tmpfs; output by dropping what is too
much. Whatever limit is reached, everything dies.

Not here: namespaces and mounts (mounts.py), file access (files.py), the caller's side (bubblewrap.py).
"""

import fcntl
import json
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from etude.sandbox import files, linux, watch, wire
from etude.sandbox.mounts import ROOM

_TICK_S = 0.05
_FIRST_TICK_S = 0.01
_CHUNK = 1 << 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Config:
    """What does not change between the commands of a sandbox."""

    bwrap: str
    seccomp: bytes
    memory_bytes: int
    processes: int
    output_bytes: int


@dataclass(slots=True)
class _Stream:
    """The kept beginning of an output stream."""

    fd: int
    room: int
    parts: list[bytes] = field(default_factory=list)
    dropped: bool = False

    def take(self) -> bool:
        """Read what is there. False at the end of the stream."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        if len(data) > self.room:
            self.dropped = True
        if self.room and data:
            self.parts.append(data[: self.room])
            self.room -= len(self.parts[-1])
        return bool(data)


def serve(channel: socket.socket, config: Config) -> None:
    """Answer requests until the socket ends."""
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    channel.sendall(wire.pack({"ok": None}))
    while True:
        try:
            request = wire.unpack(channel.recv)
        except (EOFError, OSError):
            return
        try:
            answer = {"ok": _answer(channel, config, request)}
        except OSError as error:
            answer = {"error": type(error).__name__, "errno": error.errno or 0, "text": error.strerror or str(error)}
        channel.sendall(wire.pack(answer))


def _answer(channel: socket.socket, config: Config, request: dict[str, Any]) -> Any:
    match request["do"]:
        case "run":
            return _run(channel, config, request)
        case "read":
            return files.read(request["path"])
        case "write":
            return files.write(request["path"], request["data"])
        case "changes":
            return files.changes()
    raise OSError(f"unknown request {request['do']!r}")


def _run(channel: socket.socket, config: Config, request: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    out, err, status = os.pipe(), os.pipe(), os.pipe()
    stdin = _sealed(request["stdin"]) if request["stdin"] else os.open("/dev/null", os.O_RDONLY)
    pid = _start(config, request, stdin, out[1], err[1], status[1])
    for fd in (stdin, out[1], err[1], status[1]):
        os.close(fd)
    streams = [_Stream(out[0], config.output_bytes), _Stream(err[0], config.output_bytes)]
    for stream in streams:
        os.set_blocking(stream.fd, False)
    ended = os.pidfd_open(pid)
    try:
        why = _watch(channel, config, streams, ended, begin + request["wall_s"])
        watch.kill_all()
        for stream in streams:
            while stream.take() and not _at_end(stream.fd):
                pass
        code = _exit_code(status[0])
    finally:
        for fd in (ended, status[0], out[0], err[0]):
            os.close(fd)
    return {
        "why": why,
        "code": code,
        "stdout": b"".join(streams[0].parts),
        "stderr": b"".join(streams[1].parts),
        "truncated": any(stream.dropped for stream in streams),
        "wall_s": time.monotonic() - begin,
    }


def _at_end(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = poll.poll(0)
    return bool(events) and not events[0][1] & select.POLLIN


def _watch(channel: socket.socket, config: Config, streams: list[_Stream], ended: int, deadline: float) -> str | None:
    """Wait for the end of the command; the name of the limit that it reached first, if any."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(ended, select.POLLIN)
    by_fd = {stream.fd: stream for stream in streams}
    for fd in by_fd:
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


def _start(config: Config, request: dict[str, Any], stdin: int, out: int, err: int, status: int) -> int:
    args, seccomp = _sealed(request["args"]), _sealed(config.seccomp)
    pid = os.fork()
    if pid == 0:
        try:
            for source, target in ((stdin, 0), (out, 1), (err, 2)):
                os.dup2(source, target)
            for fd in (args, seccomp, status):
                os.set_inheritable(fd, True)
            _limit_resources()
            command = ["bwrap", "--args", str(args), "--seccomp", str(seccomp), "--json-status-fd", str(status), "--"]
            os.execve(config.bwrap, command + [os.fsdecode(arg) for arg in request["argv"]], {})
        finally:
            os._exit(125)
    os.close(args)
    os.close(seccomp)
    return pid


def _limit_resources() -> None:
    os.umask(0o022)
    os.nice(5)  # the watch comes first
    for kind, number in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 1024), (resource.RLIMIT_MEMLOCK, 1 << 16)):
        resource.setrlimit(kind, (number, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
