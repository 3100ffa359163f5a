"""A task that let somebody get at its answer is scrubbed again, and what comes out is proven again.

    quarantined task --rescrub--> clean      nothing is left that tells the removed code: a person decides
                                  scrubbed   left-overs are gone, the task has another id and passes `etude tasks check`
                                  stuck      what tells it may not be removed, or the tree without it fails

In: a Task, its store, and the quotes of the findings that a monitor has of its rollouts. A file of the agent's tree that a quote names goes
too, where a scrub may take it. The environment is scanned with it, but is shared by other tasks, so what it tells makes a task stuck.

Not here: what is a left-over (grade/residue), who is quarantined (monitor/consequence.py), the pool.
"""

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from etude import tree
from etude.grade.residue import Finding, Scanner, visible_libraries
from etude.grade.residue.leftovers import is_removable, is_test
from etude.grade.residue.scan import WORKSPACE
from etude.grade.scrub import scrub
from etude.languages.choose import runtime_of
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.assemble import id_digest, what_of, with_digest
from etude.synth.check import check_task
from etude.types import Task

_WORD = re.compile(r"[^\s'\"`;|&<>()=,]+")
SHOWN = 3  # findings in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescrubbed:
    task: str
    outcome: Literal["clean", "scrubbed", "stuck"]
    why: str = ""
    removed: tuple[str, ...] = ()  # files, relative
    made: Task | None = None  # takes its place; not yet in a store


def rescrub(task: Task, store: TaskStore, backend: Backend, *, quotes: Iterable[str] = (), scanner: Scanner | None = None) -> Rescrubbed:
    """`scanner`: one for many tasks reads what they share once. Raises: UserError where the store lacks something, SandboxError."""
    scanner = scanner or Scanner()
    original, environment = store.snapshot(task.repo), store.environment(task.environment)
    runtime, libraries = runtime_of(task.environment.runner), visible_libraries() if task.language == "python" else {}
    tests = frozenset(path for path in tree.files(original) if path in task.repo.test_paths or is_test(path))
    with tempfile.TemporaryDirectory(prefix="etude-rescrub-") as name:
        folder = Path(name, "tree")
        tree.copy_tree(store.workspace(task), folder)
        needles = scanner.needles(original, folder, but=tests)
        found = scanner.scan(folder, needles, {"environment": environment}, runtime=runtime, libraries=libraries)
        named = _named(folder, quotes)
        if not found and not named:
            return Rescrubbed(task=task.id, outcome="clean", why="nothing is left that tells what was removed")
        report = scrub(folder, (*found, *named))
        left = scanner.scan(folder, needles, {"environment": environment}, runtime=runtime, libraries=libraries)
        if left:
            return Rescrubbed(task=task.id, outcome="stuck", why="; ".join(map(str, left[:SHOWN])), removed=report.removed)
        made = _without(task, tree.make_patch(original, folder), report.removed)
    return _proven(task, made, store, backend)


def _named(folder: Path, quotes: Iterable[str]) -> list[Finding]:
    """Files of the tree that a quote names and that a scrub may take away."""
    words = {word for quote in quotes for word in _WORD.findall(quote)}
    return [
        Finding(folder=WORKSPACE, path=path, inside="", kind="name", matched=(), why="a flagged rollout used it", removable=True)
        for path in sorted(tree.files(folder))
        if is_removable(path) and any(word == path or word.endswith(f"/{path}") for word in words)
    ]


def _without(task: Task, cut: str, removed: tuple[str, ...]) -> Task:
    digest = id_digest(task.repo, what_of(task.kind, task.mode), cut, task.level, task.visible_share)
    return replace(
        task,
        id=with_digest(task.id, digest),
        cut=cut,
        origin=(*task.origin, task.id),
        pass_rate=None,
        evidence={**task.evidence, "rescrubbed": {"removed": list(removed)}},
    )


def _proven(task: Task, made: Task, store: TaskStore, backend: Backend) -> Rescrubbed:
    removed = tuple(made.evidence["rescrubbed"]["removed"])
    if made.cut == task.cut:
        return Rescrubbed(task=task.id, outcome="clean", why="what was found is no part of the task's tree", removed=removed)
    report = check_task(made, store, backend)
    if not report.ok:
        return Rescrubbed(task=task.id, outcome="stuck", why=f"without them {report.problems[0]}", removed=removed)
    return Rescrubbed(task=task.id, outcome="scrubbed", why=f"without {', '.join(removed[:SHOWN])}", removed=removed, made=made)
