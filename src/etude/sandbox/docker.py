"""Sandboxes by Docker (or podman, which takes the same words): for machines that have an engine and no bubblewrap.

    caller --docker run--> container (pid 1 sleeps; nothing can be written but sized tmpfs) --docker exec--> command

One container for one sandbox: no network, read-only root, bubblewrap's system-call filter, an unprivileged user without capabilities who
can get none, limits of memory, of processes, of every file system. The workspace goes in as a tar stream and is read back as one; the host
never extracts it, and follows no link of it. Every process that a command started is killed before its result is read, which comes over the
command's own streams: no socket, no folder of the host is inside, but the environment, read-only.

The image needs `python3` of the version that the environment is for, `sh`, `tar`, `cat` and `sleep`.

Not here: images. What Docker itself lets through is its kernel's and its daemon's; who is in the group `docker` is root on the host.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from etude.errors import SandboxError, UserError
from etude.sandbox import seccomp, wire
from etude.sandbox.protocol import ENV, WORK, Change, ExecResult, ExecStatus
from etude.types import Limits

UID = 1000
IMAGE = "python:3.11-slim"
MAX_BYTES = 16 << 20  # of one file that is read or reported
MAX_TOTAL_BYTES = 64 << 20  # of all that `changes` reports
CALL_S = 60.0  # for the engine to answer
MARK = "etude-after"
# as the user of the commands: kill(-1) spares pid 1, which is not to be killed from inside, and who calls it
AFTER = (
    f"kill -9 -1 2>/dev/null; echo {MARK}; grep -s ^oom_kill /sys/fs/cgroup/memory.events; "
    "grep -s ^max /sys/fs/cgroup/pids.events; df -P -k /work /tmp /dev/shm; df -P -i /work /tmp"
)
INODES_PER_MB = 256  # as a disk of 4 KB files
FILE = r"""
import errno, os, stat, sys
what, path, most = sys.argv[1], sys.argv[2], int(sys.argv[3])

def refuse(number):
    os.write(2, str(number).encode())
    os._exit(1)

def mode(name, folder):
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0

try:
    *folders, name = path.split("/")
    at = os.open(".", os.O_PATH | os.O_DIRECTORY)
    for each in folders:
        if what == "write" and not mode(each, at):
            os.mkdir(each, 0o755, dir_fd=at)
        if stat.S_ISLNK(mode(each, at)):
            refuse(errno.EACCES)
        at = os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    kind = mode(name, at)
    if name == "." or stat.S_ISDIR(kind):
        refuse(errno.EISDIR)
    if kind and not stat.S_ISREG(kind):
        refuse(errno.EACCES)
    if what == "read":
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at), "rb") as file:
            if os.fstat(file.fileno()).st_size > most:
                refuse(errno.EFBIG)
            sys.stdout.buffer.write(file.read())
    else:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=at), "wb") as file:
            file.write(sys.stdin.buffer.read())
except OSError as error:
    refuse(error.errno or errno.EIO)
"""
DEFAULT_ENV = {"HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}


class Docker:
    """Backend of sandbox/protocol.py. `program`: docker, podman, or a path to one; `image`: what commands run in."""

    def __init__(self, image: str = IMAGE, program: str = "docker") -> None:
        self.image, self.program = image, program

    def check(self) -> None:
        done = _call([self._path(), "image", "inspect", "--format", "{{.Id}}", self.image])
        if done.returncode:
            raise UserError(
                f"{self.program} has no image {self.image}, or no engine runs ({_line(done.stderr)}); pull it, or start the engine"
            )

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> "DockerSandbox":
        """Raises UserError for a missing folder or a missing program, SandboxError where the engine does not let us."""
        for folder in (workspace, environment):
            if folder is not None and not folder.is_dir():
                raise UserError(f"{folder} is not a folder; a sandbox needs an existing one")
        with tempfile.TemporaryDirectory(prefix="etude-docker-") as place:
            profile = Path(place, "seccomp.json")
            profile.write_text(json.dumps(seccomp.profile()))
            done = _call([self._path(), *run_arguments(self.image, environment, limits, profile)])
        name = done.stdout.decode(errors="replace").strip()
        if done.returncode or not name:
            raise SandboxError(f"no container: {_line(done.stderr)}")
        sandbox = DockerSandbox(self._path(), name, workspace, limits)
        try:
            sandbox.fill()
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _path(self) -> str:
        path = shutil.which(self.program)
        if path is None:
            raise UserError(f"{self.program} is not installed; install it, or use the bubblewrap backend")
        return path


def run_arguments(image: str, environment: Path | None, limits: Limits, profile: Path) -> list[str]:
    """Everything that confines a container. `profile`: a file with the system-call filter, read by the engine's client."""
    inodes = max(1024, INODES_PER_MB * limits.disk_mb)
    tmpfs = f"rw,nosuid,nodev,exec,size={limits.disk_mb}m,nr_inodes={inodes},uid={UID},gid={UID},mode=0755"
    args = [
        "run",
        "--detach",
        "--rm",
        "--pull",
        "never",
        "--network",
        "none",
        "--ipc",
        "private",
        "--hostname",
        "sandbox",
        "--log-driver",
        "none",
    ]
    args += ["--user", f"{UID}:{UID}", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"]
    args += ["--security-opt", f"seccomp={profile}"]
    args += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m", "--pids-limit", str(limits.processes + 2)]
    args += ["--ulimit", "core=0", "--ulimit", "nofile=1024", "--ulimit", "memlock=65536", "--oom-score-adj", "1000"]
    args += ["--tmpfs", f"{WORK}:{tmpfs}", "--tmpfs", f"/tmp:{tmpfs}", "--shm-size", f"{limits.disk_mb}m", "--workdir", WORK]
    if environment is not None:
        args += ["--mount", f"type=bind,source={environment.absolute()},target={ENV},readonly"]
    return [*args, "--entrypoint", "sleep", image, "infinity"]


class DockerSandbox:
    """One open sandbox; `Docker.open` makes it."""

    def __init__(self, program: str, name: str, workspace: Path, limits: Limits) -> None:
        self._program, self._name, self._workspace, self._limits = program, name, workspace, limits
        self._lock = threading.Lock()
        self._closed = False
        self._running: subprocess.Popen[bytes] | None = None
        self._seen = (0, 0)  # kills for memory, refused processes, so far

    def fill(self) -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(self._workspace, arcname=".", filter=_ours)
        done = self._exec(["tar", "-xf", "-", "-C", WORK], stdin=stream.getvalue())
        if done.returncode:
            raise SandboxError(f"the workspace did not go into the container: {_line(done.stderr)}")

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
        limit = self._limits.wall_s if wall_s is None else wall_s
        if self._closed:
            raise SandboxError("the sandbox is closed")
        with self._lock:
            started = time.monotonic()
            command = self._command(argv, {**DEFAULT_ENV, **(env or {})}, cwd)
            try:
                texts = [wire.text(each) for each in command]
                self._running = subprocess.Popen(texts, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            except OSError as error:  # an argument that no system takes
                told = f"{error.strerror}\n".encode()
                return ExecResult(status="exited", code=126, stdout=b"", stderr=told, truncated=False, wall_s=0.0)
            out, err, code, dropped = _bounded(self._running, stdin, limit, self._limits.output_bytes)
            took = time.monotonic() - started
            status = "killed" if self._closed else self._after()  # before anything of the result is believed
        status = "timeout" if code is None and status == "exited" else status
        code = None if status != "exited" else code
        return ExecResult(status=status, code=code, stdout=out, stderr=err, truncated=dropped, wall_s=took)

    def read(self, path: str) -> bytes:
        return self._file("read", path)

    def write(self, path: str, data: bytes) -> None:
        self._file("write", path, data)

    def _file(self, what: str, path: str, data: bytes = b"") -> bytes:
        """One file, no link followed. In the container: what a link means there is nothing here."""
        done = self._exec(["python3", "-I", "-S", "-B", "-c", FILE, what, _inside(path), str(MAX_BYTES)], stdin=data)
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip()
            if not told.isdigit():
                raise SandboxError(f"the container did not {what} {path}: {_line(done.stderr)}")
            raise OSError(int(told), f"{path}: {os.strerror(int(told))}")  # Python makes it a FileNotFoundError or the like
        return done.stdout

    def changes(self) -> list[Change]:
        found: list[Change] = []
        seen: set[str] = set()
        left = MAX_TOTAL_BYTES
        for name, member, data in self._tree():
            if member.isdir():
                continue
            seen.add(name)
            old = self._workspace / name
            executable = bool(member.mode & 0o100)
            try:
                before = old.read_bytes() if old.is_file() and not old.is_symlink() else None
                same_link = member.issym() and old.is_symlink() and os.readlink(old) == member.linkname
                same = before is not None and before == data and bool(old.stat().st_mode & 0o100) == executable
            except OSError:  # a path that is too long for this side
                data, same_link, same = None, False, False
            if member.isreg() and data is not None and (same or len(data) <= left):
                if not same:
                    left -= len(data)
                    found.append(Change(path=name, kind="written", data=data, executable=executable))
            elif not same_link:
                found.append(Change(path=name, kind="refused"))
        for file in self._workspace.rglob("*"):
            if (file.is_symlink() or not file.is_dir()) and (name := file.relative_to(self._workspace).as_posix()) not in seen:
                found.append(Change(path=name, kind="removed"))
        return sorted(found, key=lambda change: change.path)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(SandboxError):
                _call([self._program, "rm", "--force", "--volumes", self._name])
            if self._running is not None:
                self._running.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _after(self) -> ExecStatus:
        """Kill what is left, and say which limit was met. Raises SandboxError where the container is gone."""
        done = self._exec(["sh", "-c", AFTER])
        lines = done.stdout.decode(errors="replace").splitlines()
        if MARK not in lines:
            raise SandboxError(f"the container is lost: {_line(done.stderr)}")
        counts = {words[0]: int(words[1]) for line in lines if len(words := line.split()) == 2 and words[1].isdigit()}
        now = (counts.get("oom_kill", 0), counts.get("max", 0))
        before, self._seen = self._seen, now
        if now[0] > before[0]:
            return "out_of_memory"
        if now[1] > before[1]:
            return "too_many_processes"
        disks = [words for line in lines if len(words := line.split()) >= 6 and words[1].isdigit() and words[1] != "0"]
        return "disk_full" if any(words[3] == "0" for words in disks) else "exited"

    def _tree(self) -> list[tuple[str, tarfile.TarInfo, bytes | None]]:
        """(path, what it is, content unless too large) of the whole workspace."""
        done = self._exec(["tar", "--sparse", "-cf", "-", "-C", WORK, "."])
        if done.returncode:  # a file that its own user may not read, say
            raise SandboxError(f"the workspace could not be read back: {_line(done.stderr)}")
        found = []
        try:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                for member in archive:
                    name = os.path.normpath(member.name)
                    file = archive.extractfile(member) if member.isreg() and member.size <= MAX_BYTES else None
                    found.append((name, member, file.read() if file else None))
        except tarfile.TarError as error:
            raise SandboxError(f"the workspace could not be read back: {error}") from error
        return found

    def _exec(self, argv: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        return _call(self._command(argv, {}, WORK), stdin)

    def _command(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> list[str]:
        settings = [part for name, value in sorted(env.items()) for part in ("--env", f"{name}={value}")]
        return [self._program, "exec", "--interactive", "--user", f"{UID}:{UID}", "--workdir", cwd, *settings, self._name, *argv]


def _bounded(process: subprocess.Popen[bytes], stdin: bytes, wall_s: float, kept: int) -> tuple[bytes, bytes, int | None, bool]:
    """Standard output and error up to `kept` bytes each, exit code (None: out of time), whether some was dropped."""
    parts: dict[int, bytearray] = {0: bytearray(), 1: bytearray()}
    dropped = [False]

    def take(number: int, stream: io.BufferedReader) -> None:
        while data := stream.read1(65536):
            room = kept - len(parts[number])
            parts[number] += data[:room] if room > 0 else b""
            dropped[0] = dropped[0] or len(data) > room

    def feed() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:
            process.stdin.write(stdin)

    threads = [threading.Thread(target=take, args=pair, daemon=True) for pair in enumerate((process.stdout, process.stderr))]
    threads.append(threading.Thread(target=feed, daemon=True))
    for thread in threads:
        thread.start()
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(wall_s)
    process.kill()
    process.wait()
    for thread in threads:
        thread.join(CALL_S)
    return bytes(parts[0]), bytes(parts[1]), code, dropped[0]


def _call(command: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, timeout=CALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{command[0]} {command[1]}: {error}") from error


def _ours(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = UID
    member.uname = member.gname = ""
    return member


def _inside(path: str) -> str:
    wire.text(path)
    inner = os.path.normpath(os.path.relpath(path, WORK) if path.startswith("/") else path)
    if inner.split("/")[0] == "..":
        raise PermissionError(f"{path}: outside of the workspace")
    return inner


def _line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"
