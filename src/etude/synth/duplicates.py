"""Which code a pool has tasks about already.

    of others    the same code in a task of another repository, whatever its mode; asked before anything runs, and once more at the moment
                 when a task gets into the store, as other builds write into it meanwhile
    of this one  the same code cut in the same way, at two places of a repository: one task is enough

Code is the same if its hash is (gates.code_hash, foreign/gates.code_hash), which a task's evidence holds. Of one's own only features that
are taken out are compared: two bugs of a function are two tasks.

Not here: the hashes; equal cuts (build.py).
"""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from etude.records import decode
from etude.store import TaskStore
from etude.types import Task

DELETIONS = ("feature_deletion", "joined_features")


class Duplicates:
    """Of one repository's build; used by many threads."""

    def __init__(self, store: TaskStore, repo: str) -> None:
        """`repo`: its name. UserError for a task of the store that cannot be read."""
        self._store, self._repo = store, repo
        self._others: dict[str, str] = {}  # code_hash -> id of the first task with it
        self._own: dict[tuple[str, str, str], str] = {}  # kind, mode, code_hash -> id of the task that this build made
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        for task in store.tasks():
            self._seen.add(f"{task.id}.json")
            self._note(task)

    def of_others(self, code: str) -> str | None:
        """The id of another repository's task about this code, as far as is known."""
        return self._others.get(code)

    @contextmanager
    def admitting(self, task: Task) -> Iterator[str | None]:
        """The id of a task that makes this one needless, with what other builds wrote up to now; none of them adds one inside."""
        with self._lock, (self._store.path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._look()
            code = str(task.evidence.get("code_hash", ""))
            mine = (task.kind, str(task.mode), code)
            same = self._others.get(code) or self._own.get(mine)
            yield same
            self._seen.add(f"{task.id}.json")
            if code and same is None and task.kind in DELETIONS:
                self._own[mine] = task.id

    def _look(self) -> None:
        for file in sorted(self._store.path.glob("*.json")):
            if file.name in self._seen or file.name == "pool.json":
                continue
            self._seen.add(file.name)
            try:
                self._note(decode(file.read_bytes(), Task))
            except (OSError, ValueError):
                continue  # whoever reads the store says so

    def _note(self, task: Task) -> None:
        code = str(task.evidence.get("code_hash", ""))
        if code and task.repo.name != self._repo:
            self._others.setdefault(code, task.id)
