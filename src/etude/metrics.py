"""Metrics as JSON lines: what a run measured, one flushed line each.

    {"kind": "step", "step": 3, "t": 212.4, "reward_mean": 0.31, "solved": 0.25, ...}

`t` is seconds of work since the run began; a resumed run goes on from the last line's. In and out: metrics.jsonl of the run folder.
A number that is not finite is written as null: JSON has no other word for it.

Not here: what is measured (train.py), charts (studio/charts.py).
"""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

OWN_COUNT = ("warmup",)  # kinds whose steps are counted apart and come before step 1 of the training


class Metrics:
    """Appends to one file. A line is one write, so a kill leaves at most the last line torn; the next writer removes it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(path)
        if path.exists() and sum(map(len, lines)) != path.stat().st_size:
            _replace(path, lines)
        last = msgspec.json.decode(lines[-1]) if lines else {}
        self._step: int = max((record["step"] for record in map(msgspec.json.decode, lines) if record["kind"] not in OWN_COUNT), default=0)
        self._clock = clock
        self._zero = clock() - last.get("t", 0.0)
        self._file = path.open("ab", buffering=0)

    def log(self, kind: str, **values: Any) -> None:
        """Write one line. `step` may be among the values; without it the line belongs to the last step that was logged.

        Raises: TypeError for a value that JSON does not have.
        """
        step = int(values.pop("step", self._step))
        if kind not in OWN_COUNT:
            self._step = step
        record = {"kind": kind, "step": step, "t": round(self._clock() - self._zero, 3), **values}
        self._file.write(msgspec.json.encode(record) + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_metrics(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Every whole line, oldest first; all kinds, or one. A last line that was not finished is ignored.

    Raises: ValueError for a broken line before the last one.
    """
    records = []
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: not a metrics line ({error}); remove the line to read the rest") from error
        if kind is None or record.get("kind") == kind:
            records.append(record)
    return records


def truncate(path: Path, step: int, *, warmup: bool = False) -> None:
    """Forget what came after training step `step`, or after that step of the warm-up, before a run is resumed from its checkpoint.

    Lines are in the order of time, so everything from the first later line on goes. Call it before `Metrics` opens the file.
    """
    kept = []
    for line in _whole_lines(path):
        record = msgspec.json.decode(line)
        if record["kind"] in OWN_COUNT:
            last = step if warmup else math.inf
        else:
            last = 0 if warmup else step
        if record["step"] > last:
            break
        kept.append(line)
    if path.exists():
        _replace(path, kept)


def _whole_lines(path: Path) -> list[bytes]:
    """Lines that end in a newline, with it."""
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _replace(path: Path, lines: list[bytes]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(b"".join(lines))
    os.replace(partial, path)
