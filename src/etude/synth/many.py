"""Tasks of many repositories: one process each, a few at a time, here or on a cluster; what came of each is kept.

    tasks/.builds/<name>-<hash>.json   the outcome of one source: built, refused, sandbox_failed, out_of_time or crashed, and its report
    tasks/.builds/tmp/                 scratch of the processes; emptied when a build of many begins

A build that was killed goes on: sources with an outcome are done, one that was under way goes on inside its own ledger (ledger.py).
Snapshots and environments are shared, as their folders are named by their content.

Not here: one repository (build.py), processes (fanout.py).
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from etude import __version__
from etude.errors import UserError
from etude.fanout import Ended, Job, fan_out, fan_out_ray
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.refusal import Refusal

Status = Literal["built", "refused", "sandbox_failed", "out_of_time", "crashed"]
AGAIN: tuple[Status, ...] = ("sandbox_failed", "out_of_time", "crashed")  # not the repository's fault: tried again by the next build
REPOSITORY_WALL_S = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    source: str
    status: Status
    message: str = ""  # why there is no task
    report: dict[str, Any] = field(default_factory=dict)  # BuildReport, where built
    seconds: float = 0.0
    key: str = ""  # version of etude and options: another one is another build

    @property
    def num_tasks(self) -> int:
        return len(self.report.get("tasks", ()))

    @property
    def num_tried(self) -> int:
        return sum(self.report.get("tried", {}).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One repository got a little further, or ended (`outcome`)."""

    source: str
    note: str
    outcome: Outcome | None = None


def read_list(file: Path) -> list[str]:
    """One source a line, `#` begins a comment; a relative folder or archive counts from the list's own folder. UserError."""
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no list of repositories: not UTF-8 at byte {error.start}") from None
    found: dict[str, None] = {}
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        beside = file.parent / line
        found |= {str(beside) if line and beside.exists() else line: None} if line else {}
    if not found:
        raise UserError(f"{file} names no repository; write one a line: a folder, a git URL, an archive or name==version")
    return list(found)


def build_many(
    sources: Sequence[str],
    out: Path,
    *,
    options: BuildOptions,
    workers: int,
    cluster: str = "",
    wall_s: float = REPOSITORY_WALL_S,
    progress: Callable[[Event], None] = lambda _: None,
) -> list[Outcome]:
    """Build the tasks of every source into `out`; outcomes in the order of `sources`. `cluster`: a Ray address, or "" for this machine.

    UserError: no such cluster, or another build of many is at work in `out`.
    """
    TaskStore.create(out)
    folder = out / ".builds"
    scratch = folder / "tmp"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another build is at work in {out}; wait for it, or choose another folder") from None
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        told = {name: value for name, value in msgspec.to_builtins(options).items() if (name, value) != ("writer", None)}
        key = hashlib.sha256(json.dumps([__version__, told], sort_keys=True).encode()).hexdigest()[:16]
        known = {source: found for source in sources if (found := _read(_place(folder, source), key)) is not None}
        for source, found in known.items():
            progress(Event(source=source, note=f"{found.num_tasks} tasks, from an earlier build", outcome=found))
        todo = [source for source in sources if source not in known]
        jobs = [_job(source, out, options, scratch / str(number), wall_s) for number, source in enumerate(todo)]
        ends: dict[int, Mapping[str, Any]] = {}
        for number, event in fan_out_ray(jobs, workers, cluster) if cluster else fan_out(jobs, workers):
            source = todo[number]
            if isinstance(event, Ended):
                outcome = _outcome(source, key, ends.get(number), event)
                _place(folder, source).write_bytes(msgspec.json.encode(outcome))
                shutil.rmtree(scratch / str(number), ignore_errors=True)
                known[source] = outcome
                progress(Event(source=source, note=outcome.message or f"{outcome.num_tasks} tasks", outcome=outcome))
                continue
            line = json.loads(event)
            if "status" in line:
                ends[number] = line
            else:
                progress(Event(source=source, note=_note(line)))
        shutil.rmtree(scratch, ignore_errors=True)
    return [known[source] for source in sources]


def reasons(outcomes: Iterable[Outcome]) -> list[tuple[str, int]]:
    """Why candidates and repositories gave no task, "gate: reason", the most frequent first; numbers, names and places left out."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(dict(reasons_of(outcome.report)))
        if outcome.status != "built":
            counts[f"whole repository: {general(outcome.message) or outcome.status}"] += 1
    return counts.most_common()


def reasons_of(report: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The same of one repository's BuildReport. One that an older version wrote knows no gates."""
    gates = report.get("rejected_at", {})
    found = Counter(str(Refusal(general(why), gates.get(name, ""))) for name, why in report.get("rejected", {}).items())
    return found.most_common()


def general(reason: str) -> str:
    """The kind of a reason: "3 other tests fail, first a::b: ..." -> "N other tests fail"."""
    return re.sub(r"\d+(\.\d+)?", "N", re.split(r", first |: |; ", reason)[0])


def _job(source: str, out: Path, options: BuildOptions, scratch: Path, wall_s: float) -> Job:
    scratch.mkdir()
    line = json.dumps({"source": source, "out": str(out), "options": msgspec.to_builtins(options)})
    argv = ("env", f"TMPDIR={scratch.resolve()}", sys.executable, "-m", "etude.synth.worker")
    return Job(argv=argv, line=line.encode(), wall_s=wall_s)


def _outcome(source: str, key: str, said: Mapping[str, Any] | None, end: Ended) -> Outcome:
    if end.code is None:
        return Outcome(source=source, status="out_of_time", message=f"not done after {end.seconds:.0f} s", seconds=end.seconds, key=key)
    if said is None or end.code:
        last = (end.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Outcome(source=source, status="crashed", message=f"exit code {end.code}: {last}", seconds=end.seconds, key=key)
    return Outcome(
        source=source,
        status=said["status"],
        message=said.get("message", ""),
        report=said.get("report", {}),
        seconds=end.seconds,
        key=key,
    )


def _note(line: Mapping[str, Any]) -> str:
    where = f"{line['stage']} {line['done']}/{line['total']}"
    return f"{where}: {line['note']}" if line.get("note") else where


def _place(folder: Path, source: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", os.path.basename(source.rstrip("/"))).strip("-.")[:60]
    return folder / f"{name}-{hashlib.sha256(source.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}.json"


def _read(place: Path, key: str) -> Outcome | None:
    """The outcome of an earlier build that need not be tried again."""
    try:
        found = msgspec.json.decode(place.read_bytes(), type=Outcome)
    except (OSError, ValueError):
        return None
    return found if found.key == key and found.status not in AGAIN else None
