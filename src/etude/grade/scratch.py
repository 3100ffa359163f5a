"""A folder for one grading, that goes with it: at its end, or, where it was killed, at the next one's beginning.

Each folder holds a lock that its process keeps: a lock that can be had belongs to nobody alive.

Not here: processes, which end with the sandbox (sandbox/keeper.py).
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "etude-grade-"
PATCHING = "etude-git-"  # what tree.py makes
LOCK = ".lock"
OLD_S = 600.0  # a folder without a lock is being made, or was left before it had one


@contextmanager
def folder() -> Iterator[Path]:
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, open(Path(name, LOCK), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def sweep(where: Path) -> None:
    """Remove what gradings left that were killed. Others' folders, and those in use, stay."""
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                if _abandoned(Path(entry.path)):
                    shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name.startswith(PATCHING) and _old(Path(entry.path)):
                shutil.rmtree(entry.path, ignore_errors=True)


def _abandoned(place: Path) -> bool:
    try:
        with open(place / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return _old(place)
    except OSError:  # in use, or another user's
        return False


def _old(place: Path) -> bool:
    try:
        return time.time() - place.lstat().st_mtime > OLD_S
    except OSError:
        return False
