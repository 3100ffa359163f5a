"""Whole folders of tasks out to a format of others, and files or folders of others' tasks in.

Out: harbor, a folder per task; swebench, swesmith and parquet (rows of SWE-bench), a file of rows beside repos/, the repositories that the
rows point into. In: any of these, each task tried before it is kept: the gold patch must score 1 and the empty one 0, by our grader in our
sandbox. What cannot be read or does not hold is named with its reason, and the rest goes on.

Not here: any single format, the command line.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from etude.errors import SandboxError, UserError
from etude.formats import harbor, swebench, swesmith
from etude.formats.rows import SUFFIXES, read_rows, write_rows
from etude.grade.grader import grade
from etude.sandbox.protocol import Backend
from etude.store import Pool, TaskStore
from etude.types import Task

Format = Literal["harbor", "swebench", "swesmith", "parquet"]
REPOS = "repos"  # beside a file of rows that we wrote
Say = Callable[[int, int, str], None]  # done, total (0: unknown), note


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    out: str
    format: str
    tasks: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)  # task id -> why it has no place in the format


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    out: str
    tasks: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)  # what was given -> why it makes no task


def quiet(done: int, total: int, note: str) -> None:
    pass


def export_tasks(store: TaskStore, out: Path, *, format: Format, task: str | None = None, say: Say = quiet) -> ExportReport:
    """Write all tasks, or one. Exporting again gives the same bytes. UserError where `out` holds something else."""
    tasks = store.tasks() if task is None else [store.get(task)]
    if not tasks:
        raise UserError(f"{store.path} holds no task yet; finish its build: `etude tasks build SOURCE --out {store.path}`")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out takes a folder")
    out.mkdir(parents=True, exist_ok=True)
    refused: dict[str, str] = {}
    rows = []
    for number, one in enumerate(tasks, 1):
        try:
            if format == "harbor":
                harbor.write_task(one, store, out / one.id)
            else:
                to_row = swesmith.to_row if format == "swesmith" else swebench.to_row
                rows.append(to_row(one, store, out / REPOS))
        except UserError as error:
            refused[one.id] = str(error)
        say(number, len(tasks), one.id)
    if rows:
        write_rows(rows, out / ("tasks.parquet" if format == "parquet" else "tasks.jsonl"))
    done = tuple(one.id for one in tasks if one.id not in refused)
    return ExportReport(out=str(out), format=format, tasks=done, refused=refused)


def import_tasks(source: Path, out: Path, *, repos: Path | None = None, backend: Backend | None = None, say: Say = quiet) -> ImportReport:
    """Read Harbor folders (one, or a folder of them) or a file of rows into the tasks folder `out`. Without a backend nothing is tried.

    `repos`: where the repositories of rows lie, as owner__name. UserError where `source` is nothing of the kind.
    """
    if not source.exists():
        raise UserError(f"no file or folder {source}; give Harbor tasks, or a file with rows of SWE-bench or SWE-smith")
    folders, file = _find(source)
    store = TaskStore.create(out, sources=(str(source),))
    tasks: list[str] = []
    refused: dict[str, str] = {}
    for number, (name, read) in enumerate(_readers(folders, file, repos, store), 1):
        task = None
        try:
            task = read()
            why = f"{task.id} is there twice" if task.id in tasks else "" if backend is None else problem(task, store, backend)
        except (UserError, ValueError, SandboxError) as error:
            why = str(error)
        if why or task is None:
            refused[name] = why
            _forget(store, task)
        else:
            store.add(task)
            tasks.append(task.id)
        say(number, 0, name if not why else f"{name}: {why}")
    pool = TaskStore.open(out).pool
    evidence = {**pool.evidence, str(source): {"candidates": len(tasks) + len(refused), "valid": len(tasks), "rejected": refused}}
    store.describe(Pool(sources=tuple(dict.fromkeys((*pool.sources, str(source)))), evidence=evidence))
    return ImportReport(out=str(out), tasks=tuple(sorted(tasks)), refused=refused)


def problem(task: Task, store: TaskStore, backend: Backend) -> str:
    """Why a task does not hold, one line; "" if gold scores 1 and nothing scores 0. SandboxError where a sandbox failed."""
    gold = grade(task, task.gold, store=store, backend=backend)
    if gold.verdict == "no_verdict":
        raise SandboxError(gold.reason)
    if not gold.solved:
        failing = [id for id, outcome in (*gold.fail_to_pass.items(), *gold.pass_to_pass.items()) if outcome != "passed"]
        first = f", first {failing[0]!r}: {gold.messages.get(failing[0], 'not run')}" if failing else ""
        return f"the gold patch does not solve it here: {gold.reason}{first}"
    empty = grade(task, "", store=store, backend=backend)
    if empty.verdict == "no_verdict":
        raise SandboxError(empty.reason)
    passing = sorted(id for id, outcome in empty.fail_to_pass.items() if outcome == "passed")
    if passing:
        return f"{len(passing)} of {len(task.fail_to_pass)} tests in fail_to_pass pass without a solution, first {passing[0]!r}"
    return "the empty patch counts as solved" if empty.solved else ""


def _forget(store: TaskStore, task: Task | None) -> None:
    """Take away what a refused task alone had needed."""
    if task is None:
        return
    for folder in (store.path / ".cache").glob(f"{task.id}.*"):
        if not any(folder.name.startswith(f"{other.id}.") for other in store.tasks()):
            shutil.rmtree(folder, ignore_errors=True)
    if all(other.repo.digest != task.repo.digest for other in store.tasks()):
        shutil.rmtree(store.snapshot(task.repo), ignore_errors=True)


def _find(source: Path) -> tuple[list[Path], Path]:
    """The Harbor folders in `source`; without any, the file of rows."""
    if not source.is_dir():
        return [], source
    folders = [source] if harbor.is_task(source) else sorted(child for child in source.iterdir() if harbor.is_task(child))
    files = [source / f"tasks{suffix}" for suffix in SUFFIXES if (source / f"tasks{suffix}").is_file()]
    if not folders and not files:
        raise UserError(f"{source} holds neither Harbor tasks (folders with task.toml) nor tasks.jsonl or tasks.parquet")
    return folders, source if folders else files[0]


def _readers(folders: list[Path], file: Path, repos: Path | None, store: TaskStore) -> Iterator[tuple[str, Callable[[], Task]]]:
    """(what it is called, how to read it) for every task."""
    for folder in folders:
        yield folder.name, partial(harbor.read_task, folder, store)
    for number, row in enumerate([] if folders else read_rows(file), 1):
        from_row = swebench.from_row if "test_patch" in row else swesmith.from_row
        name = str(row.get("instance_id") or f"row {number}")
        yield name, partial(from_row, row, repos=repos or file.parent / REPOS, store=store)
