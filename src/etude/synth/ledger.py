"""What an unfinished build has found out already: one line per candidate and mode, written the moment it is known.

    {"name": "stub function curry", "task": "toolz-stub-curry-1d542166"}       or   {..., "reason": "the rest of the suite fails: ..."}

A build that was killed reads it and tries only the rest. The file is named by everything that decides an outcome, so that another input,
another environment or another version of etude starts anew. It is removed when the build is complete: a second build proves every task
again.

Not here: the tasks themselves (store.py).
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from etude.errors import UserError
from etude.store import TaskStore
from etude.types import Task


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    task: str = ""
    reason: str = ""


class Ledger:
    def __init__(self, store: TaskStore, parts: Sequence[object]) -> None:
        """`parts`: whatever, printed, decides the outcome of a try."""
        digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
        self._store = store
        self._path = store.path / f".unfinished-{digest}.jsonl"
        self._known = {line.name: line for line in _read(self._path)}

    def known(self, name: str) -> Task | str | None:
        """The task or the reason of an earlier try; None: not tried yet."""
        line = self._known.get(name)
        if line is None or not line.task:
            return None if line is None else line.reason
        try:
            return self._store.get(line.task)
        except UserError:  # its file was removed or damaged since
            return None

    def add(self, name: str, outcome: Task | str) -> None:
        line = _Line(name=name, reason=outcome) if isinstance(outcome, str) else _Line(name=name, task=outcome.id)
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(msgspec.to_builtins(line)).encode("ascii") + b"\n")  # paths that are not UTF-8 hold lone surrogates

    def close(self) -> None:
        """The build is complete."""
        self._path.unlink(missing_ok=True)


def _read(path: Path) -> list[_Line]:
    """The whole lines; one that a kill tore is cut off, so that the next does not continue it."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    found: list[_Line] = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):  # a line that was damaged tells nothing, so it is tried again
            found.append(msgspec.convert(json.loads(line), _Line))
    return found
