"""Files of a sandbox, for its caller: read, write, and what changed. No symbolic link is ever followed.

Runs in the holder, while no process of the sandbox is alive, so nothing moves between two looks.

Not here: the overlay itself (mounts.py).
"""

import errno
import os
import stat

from etude.sandbox.mounts import LOWER, MERGED, UPPER
from etude.sandbox.protocol import WORK

MAX_BYTES = 16 << 20  # of one file that is read or reported
MAX_TOTAL_BYTES = 64 << 20  # of all that `changes` reports

_MAX_DEPTH = 100  # of folders that the sandbox made; deeper ones are refused
_MAX_PATH = 3000

_Found = tuple[bytes, str, bytes | None, bool]  # path, kind, content, executable
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _error(number: int, text: str) -> OSError:
    return OSError(number, text)


def _parts(path: str) -> list[str]:
    relative = os.path.relpath(path, WORK) if path.startswith("/") else path
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _error(errno.EACCES, f"{path}: outside of the workspace")
    return parts


def _open_parent(parts: list[str], path: str, *, make: bool) -> int:
    """A descriptor of the folder that holds the last part; the caller closes it."""
    fd = os.open(MERGED, _DIRECTORY)
    for part in parts[:-1]:
        try:
            if make and not _exists(part, fd):
                os.mkdir(part, 0o755, dir_fd=fd)
            if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                raise _error(errno.EACCES, f"{path}: leads through a link")
            below = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _exists(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read(name: bytes) -> bytes:
    path = os.fsdecode(name)
    parts = _parts(path)
    if not parts:
        raise _error(errno.EISDIR, f"{path}: is a folder")
    parent = _open_parent(parts, path, make=False)
    try:
        return _read_at(parts[-1], parent, path)
    finally:
        os.close(parent)


def _read_at(name: str, parent: int, path: str) -> bytes:
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        raise _error(errno.EISDIR, f"{path}: is a folder")
    if not stat.S_ISREG(mode):
        raise _error(errno.EACCES, f"{path}: is a link or a special file")
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with open(fd, "rb") as file:
        if os.fstat(fd).st_size > MAX_BYTES:
            raise _error(errno.EFBIG, f"{path}: larger than {MAX_BYTES >> 20} MB")
        return file.read()


def write(name: bytes, data: bytes) -> None:
    path = os.fsdecode(name)
    parts = _parts(path)
    if not parts:
        raise _error(errno.EISDIR, f"{path}: is a folder")
    parent = _open_parent(parts, path, make=True)
    try:
        if _exists(parts[-1], parent):
            mode = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                raise _error(errno.EISDIR, f"{path}: is a folder")
            if not stat.S_ISREG(mode):
                raise _error(errno.EACCES, f"{path}: is a link or a special file")
        fd = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent)
        with open(fd, "wb") as file:
            file.write(data)
    finally:
        os.close(parent)


def changes() -> list[_Found]:
    """What changed, sorted by path.

    The upper layer tells which folders and files were touched; what became of them is read from the merged view and
    compared with the workspace, so no convention of the overlay's format is relied on.
    """
    found = _Changes()
    found.compare("", in_lower=True)
    return sorted(found.items)


def _mode(path: str) -> int:
    """File type and permissions; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


class _Changes:
    """Collects changes, up to a total size."""

    def __init__(self) -> None:
        self.items: list[_Found] = []
        self.left = MAX_TOTAL_BYTES

    def add(self, path: str, kind: str, data: bytes | None = None, executable: bool = False) -> None:
        self.items.append((os.fsencode(path), kind, data, executable))

    def compare(self, relative: str, *, in_lower: bool) -> None:
        """Add the changes below one folder of the merged view that the upper layer has too.

        in_lower: the workspace has a folder there; else what it has (a link, perhaps) must not be looked into.
        """
        before = set(os.listdir(f"{LOWER}/{relative}")) if in_lower else set()
        after = set(os.listdir(f"{MERGED}/{relative}"))
        for name in sorted(before - after):
            self.removed(f"{relative}{name}")
        for name in sorted(after & set(os.listdir(f"{UPPER}/{relative}"))):
            path = f"{relative}{name}"
            old = _mode(f"{LOWER}/{path}") if name in before else 0
            new = _mode(f"{MERGED}/{path}")
            if old and stat.S_ISDIR(old) != stat.S_ISDIR(new):
                self.removed(path, itself=stat.S_ISDIR(new))
            if not stat.S_ISDIR(new):
                self.written(path, old, new)
            elif path.count("/") < _MAX_DEPTH and len(os.fsencode(path)) < _MAX_PATH:
                self.compare(f"{path}/", in_lower=stat.S_ISDIR(old))
            else:
                self.add(path, "refused")

    def removed(self, path: str, *, itself: bool = True) -> None:
        """A file of the workspace, or every file below a folder of it."""
        if stat.S_ISDIR(_mode(f"{LOWER}/{path}")):
            for name in os.listdir(f"{LOWER}/{path}"):
                self.removed(f"{path}/{name}")
        elif itself:
            self.add(path, "removed")

    def written(self, path: str, old: int, new: int) -> None:
        lower, merged = f"{LOWER}/{path}", f"{MERGED}/{path}"
        if stat.S_ISLNK(new) and stat.S_ISLNK(old) and os.readlink(lower) == os.readlink(merged):
            return
        size = os.lstat(merged).st_size
        if not stat.S_ISREG(new) or size > min(MAX_BYTES, self.left):
            self.add(path, "refused")
            return
        data = _content(merged)
        executable = bool(new & 0o100)
        same_kind = stat.S_ISREG(old) and bool(old & 0o100) == executable
        if not (same_kind and os.lstat(lower).st_size == size and _content(lower) == data):
            self.left -= size
            self.add(path, "written", data, executable)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
