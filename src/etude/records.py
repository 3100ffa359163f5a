"""Records to JSON and back: one line a record, with its kind and a version.

    {"record": "task", "version": 1, "id": "toolz-curried-1a2b3c4d", ...the fields of types.Task}

In: any frozen dataclass of types.py (or one of a caller's own); out: bytes without a line end, and JSON Lines files of them.
A record written by an older version is brought up to date, one version at a time, by the functions in `UPGRADES`; one written
by a newer version is an error that says so. Data from a model may hold any text: lone surrogates are kept, as JSON escapes.

Not here: the records themselves (types.py), where files lie (store.py, collect.py).
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Fields = dict[str, Any]

VERSIONS: dict[str, int] = {"task": 1, "rollout": 1}  # current version; a kind that is not listed has version 1


def encode(record: object) -> bytes:
    """One JSON object on one line, without the line end. ValueError for a number that JSON cannot hold (nan, inf)."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{record!r} is no record: a record is an instance of a dataclass")
    kind = _kind(type(record))
    fields = {"record": kind, "version": VERSIONS.get(kind, 1), **msgspec.to_builtins(record)}
    bad = _not_finite(fields, kind)
    if bad:
        raise ValueError(f"{bad} is not a finite number; JSON has no nan or infinity")
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a lone surrogate, e.g. from a model's "\ud800"
        return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode(data: bytes | str, type_: type[T]) -> T:
    """The record of `type_` in one line of JSON, upgraded if it is older. ValueError with the remedy otherwise."""
    kind = _kind(type_)
    fields = _parse(data)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object with a {kind} record, got {type(fields).__name__}")
    found = fields.pop("record", None)
    if found != kind:
        raise ValueError(f"expected a {kind} record, got {found!r}; is this the right file?")
    current = VERSIONS.get(kind, 1)
    version = fields.pop("version", 0)  # version 0 did not write its number
    if type(version) is not int or version < 0:
        raise ValueError(f"{kind} record with version {version!r}; a version is a number from 0 to {current}")
    if version > current:
        raise ValueError(f"{kind} record of version {version}, but this etude reads up to {current}; upgrade etude")
    for old in range(version, current):
        upgrade = UPGRADES.get((kind, old))
        if upgrade is None:
            raise ValueError(f"{kind} records of version {version} cannot be read any more; write the file again")
        try:
            fields = upgrade(fields)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{kind} record of version {old} that cannot be read: {error!r}; write the file again") from None
    try:
        return msgspec.convert(fields, type_)
    except msgspec.ValidationError as error:
        raise ValueError(f"{kind} record: {error}") from None


def read_jsonl(path: Path, type_: type[T]) -> list[T]:
    """Every record of a file; none where there is no file. A last line torn by a crash is left out."""
    return list(iter_jsonl(path, type_))


def iter_jsonl(path: Path, type_: type[T]) -> Iterator[T]:
    """As `read_jsonl`, one record at a time."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if not line.endswith(b"\n") and not _complete(line):
                return
            try:
                yield decode(line, type_)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


def append_jsonl(path: Path, record: object) -> None:
    """Add one line, with one write, so that a kill leaves at most a torn last line; such a line is cut off first."""
    line = encode(record) + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        _mend(file.fileno())
        file.write(line)


def _mend(fd: int) -> None:
    """End the file with a line end: complete the last line if it is a whole record, else cut it off."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(65536, start)
        start -= step
        tail = os.pread(fd, step, start) + tail
    tail = tail.rpartition(b"\n")[2]
    if _complete(tail):
        os.write(fd, b"\n")
    else:
        os.ftruncate(fd, size - len(tail))


def _complete(line: bytes) -> bool:
    try:
        _parse(line)
    except ValueError:
        return False
    return True


def _parse(data: bytes | str) -> Any:
    try:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError):  # the standard library also reads lone surrogates
            return json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: its brackets are nested too deeply") from None


def _kind(type_: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type_.__name__).lower()


def _not_finite(value: Any, where: str) -> str | None:
    """The place of the first nan or infinity. What a model put into a call's arguments is its own affair (nan becomes null)."""
    if isinstance(value, float):
        return None if math.isfinite(value) else where
    if isinstance(value, dict):
        items = ((f"{where}.{key}", child) for key, child in value.items() if key != "arguments")
    elif isinstance(value, list | tuple):
        if value and (isinstance(value[0], str) or all(type(child) is int for child in value)):
            return None
        items = ((f"{where}[{index}]", child) for index, child in enumerate(value))
    else:
        return None
    return next(filter(None, (_not_finite(child, place) for place, child in items)), None)


def _upgrade_task_0(fields: Fields) -> Fields:
    """Version 0 kept both lists of tests under `tests`, and the cut symbols as "path:line:qualname:lines"."""
    tests = fields.pop("tests", {})
    symbols = []
    for text in fields.pop("removed", []):
        path, line, qualname, num_lines = text.rsplit(":", 3)
        symbols.append({"path": path, "line": int(line), "qualname": qualname, "num_lines": int(num_lines)})
    return {**fields, **tests, "symbols": symbols}


def _upgrade_rollout_0(fields: Fields) -> Fields:
    """Version 0 knew no compaction: the turns of the only segment lay in the rollout itself."""
    turns = fields.pop("turns", [])
    return {**fields, "segments": [{"turns": turns}] if turns else []}


UPGRADES: dict[tuple[str, int], Callable[[Fields], Fields]] = {
    ("task", 0): _upgrade_task_0,
    ("rollout", 0): _upgrade_rollout_0,
}  # (kind, version) -> the fields of the next version
