"""What the processes of a sandbox use, read from the /proc of its pid namespace, and their end.

Memory is the resident size of all processes; pages that several share are counted once (the proportional size), which is
looked up only when the plain sum is above the limit.

Not here: hard ceilings by control group (cgroup.py).
"""

import contextlib
import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FULL_BYTES = 1 << 16  # a disk with less than this left is full


def _processes() -> list[str]:
    """Process ids but 1, the holder itself."""
    return [name for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def reached(memory_bytes: int, processes: int) -> str | None:
    """The limit that the sandbox is over, if any."""
    pids = _processes()
    if len(pids) > processes + 2:  # bubblewrap itself is two
        return "too_many_processes"
    if sum(map(_resident, pids)) > memory_bytes and sum(map(_proportional, pids)) > memory_bytes:
        return "out_of_memory"
    return None


def _resident(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):  # it ended meanwhile
        return 0


def _proportional(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Disk:
    """Tells whether a file system became full since this object was made."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.was_full = self._full()

    def _full(self) -> bool:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize < _FULL_BYTES or status.f_favail == 0

    def reached(self) -> str | None:
        return "disk_full" if not self.was_full and self._full() else None


def kill_all() -> None:
    """End every other process of this pid namespace, and wait until they are gone."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, 9)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
