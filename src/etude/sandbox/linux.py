"""The few Linux calls that Python 3.11 lacks: unshare, mounts and their id maps, parent-death signals.

Each function raises OSError like those of `os`. Loaded by the holder process, so it imports next to nothing.

Not here: what is mounted where (mounts.py).
"""

import ctypes
import os
import re

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_SLAVE = 0x4000, 0x80000

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 0x100000
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def version() -> tuple[int, int]:
    """Of the running kernel."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def inotify() -> int:
    """A descriptor that never blocks."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")


def watch(fd: int, path: str, events: int) -> int:
    """The number under which an inotify descriptor reports these events of a file."""
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(path), events), "inotify_add_watch")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def die_with_parent() -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def set_dumpable() -> None:
    """Let this process own its files in /proc again, after it changed its user id."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(os.fsencode(source), os.fsencode(target), os.fsencode(kind), ctypes.c_ulong(flags), os.fsencode(data))
    _checked(result, f"mount {kind} on {target}")


def unmount(target: str) -> None:
    _checked(_libc.umount2(os.fsencode(target), 2), f"unmount {target}")  # 2: detach now, free when unused


def follow_mounts() -> None:
    """Mounts made here stay here; what the host unmounts is unmounted here too."""
    result = _libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
    _checked(result, "make mounts private")


def clone_mount(path: str, *, userns: int = -1) -> int:
    """A detached read-only view of a folder, as a descriptor; its owners as the map of `userns` shows them."""
    fd = _checked(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC), f"open_tree {path}")
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)
    if userns >= 0:
        attributes.attr_set |= _MOUNT_ATTR_IDMAP
        attributes.userns_fd = userns
    size = ctypes.sizeof(attributes)
    try:
        _checked(_libc.syscall(_SYS_MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size), f"mount_setattr {path}")
    except OSError:
        os.close(fd)
        raise
    return fd


def attach_mount(fd: int, target: str) -> None:
    result = _libc.syscall(_SYS_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(result, f"move_mount {target}")
    os.close(fd)
