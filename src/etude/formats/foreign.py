"""What a row of others leaves open, found out: environment, import roots, test files, what the agent may not touch.

In: the solved original with its hidden tests, the agent's tree, the gold patch, two lists of ids; out: a Task. A row that names no
environment gets what the repository itself declares for its tests, as wheels, for the Python that etude runs on; a repository that needs an
old Python is therefore refused when its gold patch is tried (transfer.py).

Not here: where the trees come from (swebench.py, swesmith.py).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from etude import tree
from etude.errors import UserError
from etude.grade.environment import make_environment
from etude.grade.filter import make_rules, refusal
from etude.records import decode, encode
from etude.store import TaskStore
from etude.synth.discover import TEST_FOLDERS, discover
from etude.types import Environment, Limits, Repo, Task

COLUMN = "etude"  # what of our own tasks has no column of its own, as JSON
LIMITS = Limits(wall_s=300.0, memory_mb=2048, processes=128, disk_mb=512)  # nobody measured the suite
MAX_ID = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a row says, once its repository is there."""

    id: str
    name: str  # of the repository
    source: str
    instruction: str
    gold: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    kind: str
    hidden: tuple[str, ...]  # paths that the row's tests own
    evidence: Mapping[str, Any]


def own_column(task: Task, *, leave: Sequence[str]) -> str:
    """The fields of a task but those in `leave`, which have columns."""
    fields = json.loads(encode(task))
    return json.dumps({name: value for name, value in fields.items() if name not in leave})


def own_task(column: str, fields: Mapping[str, Any], *, original: Path, store: TaskStore) -> Task:
    """The very task that `own_column` was made of; `fields` are those that have columns. ValueError if the trees do not fit it."""
    try:
        task = decode(json.dumps({**json.loads(column), **fields}), Task)
    except ValueError as error:
        raise ValueError(f"its column {COLUMN!r} is damaged: {error}") from None
    digest = tree.digest(original)
    if digest != task.repo.digest:
        raise ValueError(f"repository and patches give the tree {digest[:12]}, but it was exported from {task.repo.digest[:12]}")
    store.add_snapshot(original)
    need_environment(task.environment, store)
    return task


def need_environment(environment: Environment, store: TaskStore) -> None:
    """Fill the environment's folder unless it is there. UserError where this machine gives another one."""
    if (store.environments / environment.digest).is_dir():
        return
    if environment.runner != "pytest":
        raise UserError(f"its tests run with {environment.runner}, whose environment cannot be made from the row; build the task here")
    made = make_environment(environment.requirements, store.environments)
    if made.digest != environment.digest:
        differ = sorted(set(made.requirements) ^ set(environment.requirements))
        what = f"packages {', '.join(differ[:6])}" if differ else f"Python {environment.python}, this is {made.python}"
        raise UserError(f"its environment cannot be made here: it needs {what}; use that Python and the pytest that etude was locked with")


def make_task(found: Found, *, original: Path, start: Path, store: TaskStore) -> Task:
    """Raises: UserError, ValueError."""
    layout = discover(original, found.name)
    environment = make_environment(layout.requirements, store.environments, under_test=layout.packages)
    files = tree.files(original)
    repo = Repo(
        name=layout.name,
        digest=store.add_snapshot(original),
        import_roots=layout.import_roots,
        test_paths=test_files((*found.fail_to_pass, *found.pass_to_pass), files),
        source=found.source,
    )
    rules = make_rules(repo, files, environment=store.environment(environment))
    folders = {str(parent) for path in layout.tests for parent in PurePosixPath(path).parents if parent.name.lower() in TEST_FOLDERS}
    return Task(
        id=task_id(found.id),
        repo=repo,
        environment=environment,
        instruction=found.instruction,
        cut=tree.make_patch(original, start),
        gold=found.gold,
        fail_to_pass=found.fail_to_pass,
        pass_to_pass=found.pass_to_pass,
        symbols=(),
        kind=found.kind,
        level="C",
        protected=(*sorted(f"{folder}/*" for folder in folders), *sorted(p for p in found.hidden if refusal(p, rules) is None)),
        limits=LIMITS,
        band=band(found.gold),
        evidence=dict(found.evidence),
    )


def test_files(ids: Sequence[str], files: Mapping[str, Path]) -> tuple[str, ...]:
    """The files that the ids name."""
    found: set[str] = set()
    for id in ids:
        found |= {id[: match.start()] for match in re.finditer("::", id)} & files.keys()
    return tuple(sorted(found))


def task_id(id: str) -> str:
    """An id that can name a file: the row's own wherever it can."""
    if re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ID}}}", id) and id != "pool":
        return id
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", id).strip("-._")[:MAX_ID] or "task"
    return f"{plain}-{hashlib.sha256(id.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def band(gold: str) -> str:
    lines = sum(line.startswith("+") and not line.startswith("+++ ") for line in gold.splitlines())
    return next((name for most, name in ((40, "S"), (200, "M"), (1000, "L")) if lines <= most), "XL")
