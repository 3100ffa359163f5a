"""The folder of tasks on disk.

    tasks/pool.json            what this folder is, and what its tasks came from
    tasks/<task id>.json       one Task each
    tasks/repos/<digest>/      snapshot of an original repository, named by tree.digest
    tasks/env/<digest>/        the packages that its tests need, put on the import path
    tasks/.cache/<name>/       cut and solved trees, what grading found out about a task, made when first asked for; safe to delete
    tasks/.key                 a secret of this folder, from which tests that nobody can foresee are drawn (grade/canary.py)

Every file and folder appears whole: it is written beside its place and renamed into it, so two processes may do the same work
at once and a kill leaves nothing half done.

Not here: how tasks are made (synth/), how environments are filled (grade/environment.py).
"""

import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from etude import tree
from etude.errors import UserError
from etude.records import decode, encode
from etude.types import Environment, Repo, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """pool.json: marks a folder as one of tasks."""

    sources: tuple[str, ...] = ()  # what `etude tasks build` was given, for people
    evidence: dict[str, Any] = field(default_factory=dict)  # what the build measured


class TaskStore:
    def __init__(self, path: Path, pool: Pool) -> None:
        self.path = path
        self.pool = pool
        self._tasks: dict[str, Task] | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """UserError where `path` is no folder of tasks."""
        file = path / "pool.json"
        if not file.is_file():
            raise UserError(f"no tasks at {path}: there is no {file.name} in it; build some with `etude tasks build PATH --out {path}`")
        try:
            return cls(path, decode(file.read_bytes(), Pool))
        except ValueError as error:
            raise UserError(f"{file}: {error}") from None

    @classmethod
    def create(cls, path: Path, *, sources: tuple[str, ...] = ()) -> Self:
        """Open the folder of tasks at `path`, made if it is missing or empty. UserError where other things are in it."""
        if (path / "pool.json").is_file():
            return cls.open(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} exists and holds no tasks; choose a new or empty folder")
        path.mkdir(parents=True, exist_ok=True)
        store = cls(path, Pool())
        store.describe(Pool(sources=sources))
        return store

    def describe(self, pool: Pool) -> None:
        """Replace pool.json."""
        self.pool = pool
        _write(self.path / "pool.json", encode(pool) + b"\n")

    def amend(self, source: str, evidence: dict[str, Any]) -> None:
        """Put what a build of `source` measured into pool.json; builds of other sources may do so at the same moment."""
        with (self.path / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            pool = TaskStore.open(self.path).pool
            both = dict(sorted({**pool.evidence, source: evidence}.items()))
            self.describe(Pool(sources=tuple(sorted({*pool.sources, source})), evidence=both))

    def tasks(self) -> list[Task]:
        """Every task, sorted by id. UserError for a file that cannot be read."""
        return list(self._load().values())

    def get(self, id: str) -> Task:
        """UserError that names ids like it where there is no such task."""
        tasks = self._load()
        if id in tasks:
            return tasks[id]
        close = difflib.get_close_matches(id, tasks, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(close)}?" if close else f"; there are {len(tasks)}: see `etude tasks show {self.path}`"
        raise UserError(f"no task {id!r} in {self.path}{hint}")

    def add(self, task: Task) -> None:
        """Write a task, over an older one of the same id. Its snapshot must be in the store."""
        _check_names(task)
        self.snapshot(task.repo)
        _write(self.path / f"{task.id}.json", encode(task) + b"\n")
        self._tasks = None

    def add_snapshot(self, folder: Path) -> str:
        """Copy a repository into the store, without caches; returns its digest."""
        digest = tree.digest(folder)
        _materialise(self.path / "repos" / digest, lambda new: tree.copy_tree(folder, new))
        return digest

    def snapshot(self, repo: Repo) -> Path:
        """The original repository."""
        return self._existing(self.path / "repos" / repo.digest, f"the snapshot of {repo.name}")

    def environment(self, env: Environment) -> Path:
        """The folder of packages that is /env inside a sandbox."""
        return self._existing(self.environments / env.digest, "the environment")

    @property
    def environments(self) -> Path:
        """Where grade/environment.py puts new ones."""
        return self.path / "env"

    def workspace(self, task: Task) -> Path:
        """The tree that the agent starts from: the snapshot with the cut applied. Read-only for callers."""
        return self._patched(task, "cut", (task.cut,))

    def solved_tree(self, task: Task) -> Path:
        """The agent's tree with the gold patch applied; the tests of the feature stay away. Read-only for callers."""
        return self._patched(task, "solved", (task.cut, task.gold))

    def cached(self, name: str) -> Path | None:
        """A folder of the cache, if it was made."""
        place = self.path / ".cache" / name
        return place if place.is_dir() else None

    def cache(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder of the cache, filled by `make` unless it is there."""
        return _materialise(self.path / ".cache" / name, make)

    def secret(self) -> bytes:
        """32 bytes that belong to this folder, drawn when first asked for."""
        place = self.path / ".key"
        if not place.is_file():
            new = self.path / f".key.{os.getpid()}.{os.urandom(4).hex()}.new"
            try:
                new.touch(mode=0o600)
                new.write_bytes(os.urandom(32))
                with contextlib.suppress(FileExistsError):
                    os.link(new, place)  # whole or not at all, and never over another's
            finally:
                new.unlink(missing_ok=True)
        return place.read_bytes()

    def _patched(self, task: Task, kind: str, patches: tuple[str, ...]) -> Path:
        key = hashlib.sha256("\0".join((task.repo.digest, *patches)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        original = self.snapshot(task.repo)

        def make(new: Path) -> None:
            tree.copy_tree(original, new)
            for patch in patches:
                try:
                    tree.apply_patch(new, patch)
                except ValueError as error:
                    raise UserError(f"task {task.id}: {error}; its file was changed, build it again") from None

        return _materialise(self.path / ".cache" / f"{task.id}.{kind}-{key}", make)

    def _load(self) -> dict[str, Task]:
        if self._tasks is None:
            found: dict[str, Task] = {}
            for file in sorted(self.path.glob("*.json")):
                if file.name == "pool.json":
                    continue
                try:
                    task = decode(file.read_bytes(), Task)
                    _check_names(task)
                    if file.name != f"{task.id}.json":
                        raise ValueError(f"holds the task {task.id!r}, whose file is {task.id}.json")
                except ValueError as error:
                    raise UserError(f"{file}: {error}; build the tasks again, or take this file away") from None
                found[task.id] = task
            self._tasks = dict(sorted(found.items()))
        return self._tasks

    def _existing(self, folder: Path, what: str) -> Path:
        if not folder.is_dir():
            raise UserError(f"{what} is missing: no folder {folder}; build the tasks again")
        return folder


def _check_names(task: Task) -> None:
    """Whatever of a task names a file or a folder of the store. ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}", task.id) or task.id == "pool":
        raise ValueError(f"task id {task.id!r}: letters, digits, '.', '_' and '-' only, as it names a file")
    for what, digest in (("repository", task.repo.digest), ("environment", task.environment.digest)):
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(f"the digest of its {what} is {digest!r}: 64 hexadecimal digits, as it names a folder")


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)  # of a full disk


def _materialise(place: Path, make: Callable[[Path], object]) -> Path:
    """`place`, filled by `make` unless it is there. The loser of a race between two processes takes what the winner made."""
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{place.name[:40]}.", dir=place.parent))
    try:
        make(new)
        new.chmod(0o755)  # the sandbox reads it as another user; mkdtemp makes 0700
        try:
            new.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return place
