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
MAX_TOTAL_BYTES = 128 << 20  # of all that `changes` reports

_MAX_DEPTH = 100  # of folders that the sandbox made; deeper ones are refused
_MAX_PATH = 3000

_Found = tuple[str, str, bytes | None, bool]  # path, kind, content, executable
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


def changes() -> list[tuple[bytes, str, bytes | None, bool]]:
    """Sorted by path.

    The upper layer tells which folders and files were touched; what became of them is read from the merged view and
    compared with the workspace, so no convention of the overlay's format is relied on.
    """
    found: list[_Found] = []
    _compare("", found)
    total = 0
    result = []
    for path, kind, data, executable in sorted(found, key=lambda change: os.fsencode(change[0])):
        total += len(data or b"")
        result.append(
            (os.fsencode(path), kind, data, executable) if total <= MAX_TOTAL_BYTES else (os.fsencode(path), "refused", None, False)
        )
    return result


def _mode(path: str) -> int:
    """File type and permissions; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _compare(relative: str, found: list[_Found]) -> None:
    """Add the changes below one folder of the merged view that the upper layer has too."""
    lower, merged, upper = (f"{top}/{relative}" for top in (LOWER, MERGED, UPPER))
    before = _names(lower) if stat.S_ISDIR(_mode(lower)) else set()
    after = _names(merged)
    for name in before - after:
        _removed(f"{relative}{name}", found)
    for name in after & _names(upper):
        path = f"{relative}{name}"
        old, new = _mode(f"{lower}{name}"), _mode(f"{merged}{name}")
        if stat.S_ISDIR(new):
            if old and not stat.S_ISDIR(old):
                found.append((path, "removed", None, False))
            if path.count("/") < _MAX_DEPTH and len(os.fsencode(path)) < _MAX_PATH:
                _compare(f"{path}/", found)
            else:
                found.append((path, "refused", None, False))
            continue
        if stat.S_ISDIR(old):
            for below in _names(f"{lower}{name}"):
                _removed(f"{path}/{below}", found)
        _written(path, old, new, found)


def _removed(path: str, found: list[_Found]) -> None:
    if stat.S_ISDIR(_mode(f"{LOWER}/{path}")):
        for name in _names(f"{LOWER}/{path}"):
            _removed(f"{path}/{name}", found)
    else:
        found.append((path, "removed", None, False))


def _written(path: str, old: int, new: int, found: list[_Found]) -> None:
    lower, merged = f"{LOWER}/{path}", f"{MERGED}/{path}"
    if stat.S_ISLNK(new) and stat.S_ISLNK(old) and os.readlink(lower) == os.readlink(merged):
        return
    if not stat.S_ISREG(new) or os.lstat(merged).st_size > MAX_BYTES:
        found.append((path, "refused", None, False))
        return
    with open(merged, "rb") as file:
        data = file.read()
    executable = bool(new & 0o100)
    if stat.S_ISREG(old) and bool(old & 0o100) == executable and os.lstat(lower).st_size == len(data):
        with open(lower, "rb") as file:
            if file.read() == data:
                return
    found.append((path, "written", data, executable))
