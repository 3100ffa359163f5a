"""What a build of many tasks on a cluster needs, from what a build of few took here.

    s = core-seconds a task                 of all builds, refused repositories and rejected candidates included, over the tasks
    core-hours(N) = N s / 3600              hours(N, C) = max(N s / (3600 C), longest repository)
    repositories(N) = N / m                 m = tasks a repository, those that gave none counted
    disk(N) = N t + (N / m) (r + e)         t = bytes of a task's file, r = of a snapshot, e = of an environment, both shared by its tasks
    cost(N) = core-hours(N) x price

Core-seconds are the wall seconds of each repository's process times --cores-each, the cores that it could have for itself: an upper bound
where other work ran beside it. The formula has no communication: repositories are built alone, and what they share is their folder.

    python -m benchmarks.tasks_extrapolate STORE [--cores-each K] [--tasks N] [--price P] [--markdown]

In: STORE/.builds/*.json (many.py) and the files of STORE. Not here: the measurement of CPU seconds by step (tasks_factory.py).
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common import report, table
from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.many import Outcome

CORES = (16, 64, 256, 1024, 4096)
TASKS, PRICE = 100_000, 0.04  # dollars a core-hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Measured."""

    repositories: int  # tried
    built: int  # that gave a task
    tasks: int
    candidates: int  # tried
    core_seconds: float
    longest_s: float  # of one repository
    sandbox_runs: int
    task_bytes: int  # of all tasks
    snapshot_bytes: int
    environment_bytes: int

    @property
    def seconds_each(self) -> float:
        return self.core_seconds / self.tasks

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"input": "repositories tried", "value": self.repositories},
            {"input": "of them with tasks", "value": self.built},
            {"input": "candidates tried", "value": self.candidates},
            {"input": "tasks", "value": self.tasks},
            {"input": "core-seconds", "value": self.core_seconds},
            {"input": "core-seconds a task", "value": self.seconds_each},
            {"input": "tasks a core-hour", "value": 3600 / self.seconds_each},
            {"input": "tasks a repository", "value": self.tasks / self.repositories},
            {"input": "longest repository, hours", "value": self.longest_s / 3600},
            {"input": "sandbox runs a task", "value": self.sandbox_runs / self.tasks},
            {"input": "KB a task", "value": self.task_bytes / self.tasks / 1e3},
            {"input": "KB of snapshots a repository", "value": self.snapshot_bytes / self.repositories / 1e3},
            {"input": "MB of environments a repository", "value": self.environment_bytes / self.repositories / 1e6},
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    cores: int
    hours: float
    core_hours: float
    dollars: float
    repositories: float
    disk_gb: float  # tasks, snapshots and environments
    of_it_tasks_gb: float


def measured(store: Path, *, cores_each: float = 1.0) -> Inputs:
    """Of all outcomes in the store. Raises: UserError where there are none, or no task came of them."""
    TaskStore.open(store)
    outcomes: list[Outcome] = []
    for file in sorted((store / ".builds").glob("*.json")):
        try:
            outcomes.append(msgspec.json.decode(file.read_bytes(), type=Outcome))
        except ValueError as error:
            raise UserError(f"{file} is no outcome of a build: {error}") from None
    names = {name for one in outcomes for name in one.report.get("tasks", ())}
    files = [file for name in sorted(names) if (file := store / f"{name}.json").is_file()]
    if not files:
        raise UserError(f"{store}/.builds tells of no task: build some with `etude tasks build LIST --out {store}`")
    tasks = [msgspec.json.decode(file.read_bytes(), type=_Folders) for file in files]
    return Inputs(
        repositories=len(outcomes),
        built=sum(one.num_tasks > 0 for one in outcomes),
        tasks=len(files),
        candidates=sum(one.num_tried for one in outcomes),
        core_seconds=cores_each * sum(one.seconds for one in outcomes),
        longest_s=max(one.seconds for one in outcomes),
        sandbox_runs=sum(one.report.get("sandbox_runs", 0) for one in outcomes),
        task_bytes=sum(file.stat().st_size for file in files),
        snapshot_bytes=sum(_size(store / "repos" / digest) for digest in {task.repo.digest for task in tasks}),
        environment_bytes=sum(_size(store / "env" / digest) for digest in {task.environment.digest for task in tasks}),
    )


def need(found: Inputs, tasks: int, cores: int, price: float) -> Need:
    core_hours = tasks * found.seconds_each / 3600
    repositories = tasks * found.repositories / found.tasks
    shared = repositories * (found.snapshot_bytes + found.environment_bytes) / found.repositories
    own = tasks * found.task_bytes / found.tasks
    return Need(
        cores=cores,
        hours=max(core_hours / cores, found.longest_s / 3600),
        core_hours=core_hours,
        dollars=core_hours * price,
        repositories=repositories,
        disk_gb=(own + shared) / 1e9,
        of_it_tasks_gb=own / 1e9,
    )


class _Digest(msgspec.Struct):
    digest: str


class _Folders(msgspec.Struct):
    """What a task's file says of the folders that it shares."""

    repo: _Digest
    environment: _Digest


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--cores-each", type=float, default=1.0, help="that each repository's build had for itself; default: 1")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"to extrapolate to; default: {TASKS}")
    parser.add_argument("--price", type=float, default=PRICE, help=f"dollars a core-hour; default: {PRICE}")
    parser.add_argument("--markdown", action="store_true", help="only the two tables, for docs/tasks_at_scale.md")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.tasks < 1 or chosen.cores_each <= 0 or chosen.price < 0:
            raise UserError("--tasks is 1 or more, --cores-each above 0, --price 0 or more")
        found = measured(chosen.store, cores_each=chosen.cores_each)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    needs = [asdict(need(found, chosen.tasks, cores, chosen.price)) for cores in CORES]
    if chosen.markdown:
        print(f"{table(found.rows())}\n\n{table(needs)}")
        return
    print(f"{table(found.rows())}\n")
    report("tasks_extrapolate", needs, {"inputs": asdict(found), "needs": needs, "tasks": chosen.tasks, "price": chosen.price})


if __name__ == "__main__":
    main()
