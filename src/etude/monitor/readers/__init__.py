"""Trajectories from files of any known format, told apart by what is in them.

    etude.py  atif.py  swe_agent.py  mini_swe_agent.py  openhands.py   one format each        shape.py   what they share

In: a file, or a folder that is searched for *.json, *.jsonl and *.traj. Out: Trajectory records, in the order of the paths. A file may hold
one JSON value or one a line. What is broken is left out and named in `damaged`; the rest is read.

Not here: what is looked for in a trajectory (detectors/).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.monitor.readers import atif, etude, mini_swe_agent, openhands, swe_agent
from etude.monitor.trajectory import Trajectory

FORMATS = ("etude rollouts", "ATIF", "SWE-agent", "mini-swe-agent", "OpenHands")
SUFFIXES = (".json", ".jsonl", ".traj")
MAX_FILE_BYTES = 1 << 30
_READERS = (atif, mini_swe_agent, swe_agent, openhands)


def read_trajectories(path: Path, damaged: list[str] | None = None) -> Iterator[Trajectory]:
    """`damaged`: one line is appended for each record that could not be read, "file:line: why".

    Raises UserError where there is no such path, or nothing in it is a trajectory.
    """
    damaged = [] if damaged is None else damaged
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder")
    files = _files(path) if path.is_dir() else [path]
    known = False
    loose: dict[Path, list[tuple[str, Any]]] = {}  # events of OpenHands that lie in a file each
    for file in files:
        tasks: dict[str, dict[str, Any]] | None = None
        for where, value in _values(file, damaged):
            if isinstance(value, ValueError):
                continue
            if openhands.is_event(value):
                loose.setdefault(file.parent, []).append((file.name, value))
                continue
            if tasks is None and etude.is_record(value):
                tasks = etude.read_tasks(file.parent)
            found = _read(value, file, tasks or {}, where, damaged)
            known = known or found is not None
            if isinstance(found, Trajectory):
                yield found
    for folder, events in loose.items():
        known = True
        try:
            yield openhands.read([event for _, event in sorted(events, key=lambda one: _order(*one))], folder.name)
        except ValueError as error:
            damaged.append(f"{folder}: {error}")
    if not known:
        raise UserError(f"{path}: no trajectory that can be read; known formats are {', '.join(FORMATS)}{_reason(damaged)}")


def _reason(damaged: list[str]) -> str:
    return f" ({damaged[0]})" if damaged else ""


def _order(name: str, event: Mapping[str, Any]) -> tuple[int, str]:
    number = event.get("id")
    digits = "".join(c for c in name.partition(".")[0].removeprefix("event-").partition("-")[0] if c.isdigit())
    return (number if isinstance(number, int) else int(digits or 0), name)


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())


def _values(file: Path, damaged: list[str]) -> Iterator[tuple[str, Any]]:
    """(place, decoded JSON) of a file that is one JSON value, or one a line."""
    if file.stat().st_size > MAX_FILE_BYTES:
        damaged.append(f"{file}: larger than {MAX_FILE_BYTES >> 20} MB")
        return
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    if not isinstance(_decode(first), ValueError) or file.suffix == ".jsonl":
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                value = _decode(line)
                if isinstance(value, ValueError):
                    damaged.append(f"{file}:{number}: {value}")
                yield f"{file}:{number}", value
        return
    value = _decode(file.read_bytes())
    if isinstance(value, ValueError):
        damaged.append(f"{file}: {value}")
    yield str(file), value


def _decode(data: bytes) -> Any:
    """The value, or a ValueError that says why there is none."""
    try:
        return json.loads(data)
    except RecursionError:
        return ValueError("its brackets are nested too deeply")
    except ValueError as error:
        return ValueError(f"not JSON: {error}")


def _read(value: Any, file: Path, tasks: Mapping[str, Mapping[str, Any]], where: str, damaged: list[str]) -> Trajectory | ValueError | None:
    """None: of no known format. ValueError: of a known format, but damaged."""
    try:
        if etude.is_record(value):
            return etude.read(value, tasks)
        for reader in _READERS:
            if reader.is_record(value):
                found: Trajectory = reader.read(value, _name(file))
                return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # data of others: whatever is odd in it is damage
        damaged.append(f"{where}: {' '.join(str(error).split()) or type(error).__name__}")
        return ValueError(str(error))
    return None


def _name(file: Path) -> str:
    name = file.name
    for suffix in (".json", ".jsonl", ".traj"):
        name = name.removesuffix(suffix)
    name = name.removesuffix(".traj")
    return file.parent.name if name in ("trajectory", "events", "output") else name
