"""What an unfinished build has found out already: one line per candidate and mode, written the moment it is known.

    {"stable": ["tests/test_functoolz.py::test_curry", ...]}
    {"name": "stub function curry", "task": "toolz-stub-curry-1d542166"}       or   {..., "gate": "share", "reason": "..."}

A build that was killed reads it and tries only the rest. The file is named by everything that decides an outcome, so that another input,
another environment or another version of etude starts anew. It is removed when the build comes to its end: a second build proves every
task again.

A test counts if it was stable in the first baseline and in that of every resumed build. Where one more turns out to be flaky, what hangs
on it is tried again: a task that it must make pass, a reason that names it. From a task that only had to keep it passing it is taken out.

Not here: the tasks themselves (store.py).
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.refusal import Refusal, gate_named
from etude.types import Task

UNSTABLE = "not stable in an earlier baseline of this build"


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    task: str = ""
    reason: str = ""
    gate: str = ""  # older versions wrote none
    stable: tuple[str, ...] | None = None  # of the first baseline; a resumed build that has fewer says so in another such line


class Ledger:
    """`stable`: the tests that count; `dropped`: those of this baseline that do not, with the reason."""

    def __init__(self, store: TaskStore, parts: Sequence[object], stable: frozenset[str]) -> None:
        """`parts`: whatever, printed, decides the outcome of a try, but for the tests that are `stable` now."""
        digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
        self._store = store
        self._path = store.path / f".unfinished-{digest}.jsonl"
        lines = _read(self._path)
        earlier = [frozenset(line.stable) for line in lines if line.stable is not None]
        self.stable = stable & earlier[-1] if earlier else stable
        self.dropped = dict.fromkeys(sorted(stable - self.stable), UNSTABLE)
        self._lost = earlier[0] - self.stable if earlier else frozenset[str]()
        self._known = {line.name: line for line in lines if line.name}
        if not earlier or self.stable != earlier[-1]:
            self._write(_Line(stable=tuple(sorted(self.stable))))

    def known(self, name: str) -> Task | Refusal | None:
        """The task or the reason of an earlier try; None: not tried yet, or to be tried again."""
        line = self._known.get(name)
        if line is None:
            return None
        if not line.task:
            return None if any(id in line.reason for id in self._lost) else Refusal(line.reason, gate_named(line.gate))
        try:
            task = self._store.get(line.task)
        except UserError:  # its file was removed or damaged since
            return None
        if not self._lost.isdisjoint(task.fail_to_pass):
            return None
        flaky = sorted(self._lost.intersection(task.pass_to_pass))
        if not flaky:
            return task
        left = tuple(id for id in task.pass_to_pass if id not in self._lost)
        return replace(task, pass_to_pass=left, evidence={**task.evidence, "flaky_since": flaky}) if left else None

    def add(self, name: str, outcome: Task | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self._write(_Line(name=name, reason=outcome.reason, gate=outcome.gate))
        else:
            self._write(_Line(name=name, task=outcome.id))

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Removed where the build came to its end, with tasks or without; kept for the next one where it was stopped."""
        if kind is None or issubclass(kind, UserError):
            self._path.unlink(missing_ok=True)

    def _write(self, line: _Line) -> None:
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(msgspec.to_builtins(line)).encode("ascii") + b"\n")  # paths that are not UTF-8 hold lone surrogates


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
