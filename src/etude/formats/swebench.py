"""Rows of SWE-bench, out and in.

    base_commit --patch--> feature there --test_patch--> hidden tests there

Out: a row per task, and a bare git repository per project that holds each task's first tree as a commit without history. `patch` is gold,
`test_patch` everything else that the original has and the agent does not: hidden tests and, where they were cut too, docs. One more
column, "etude", keeps what SWE-bench has no column for, so that reading gives back an equal task.

In: a row and a folder of repositories (owner__name, a clone or plain files). The original is base_commit with both patches, so the cut is
their reverse. A row of others gets what it does not say from foreign.py.

Columns as in SWE-bench's dataset; the two lists are JSON strings there.

Not here: files of rows (rows.py), whether gold solves it (transfer.py).
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from etude import tree
from etude.errors import UserError
from etude.formats import foreign, gitrepo
from etude.formats.rows import Row, ids_of, refuse_bad_ids, text
from etude.grade import patches
from etude.store import TaskStore
from etude.types import Task

OWNER = "etude"  # of a repository whose source names none
IN_COLUMNS = ("id", "instruction", "cut", "gold", "fail_to_pass", "pass_to_pass")


def to_row(task: Task, store: TaskStore, repos: Path) -> dict[str, Any]:
    """The row of a task; its first tree becomes a commit in `repos`/owner__name."""
    repo = repository_name(task)
    commit = gitrepo.commit_tree(repos / repo.replace("/", "__"), store.workspace(task), task.id)
    return {
        "repo": repo,
        "instance_id": task.id,
        "base_commit": commit,
        "patch": task.gold,
        "test_patch": tree.make_patch(store.solved_tree(task), store.snapshot(task.repo)),
        "problem_statement": task.instruction,
        "hints_text": "",
        "created_at": "",
        "version": version(task),
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "environment_setup_commit": commit,
        foreign.COLUMN: foreign.own_column(task, leave=IN_COLUMNS),
    }


def from_row(row: Row, *, repos: Path, store: TaskStore) -> Task:
    """The task of a row, its snapshot and environment put into the store.

    Raises: ValueError or UserError, one line, where the row is broken or its repository is not there.
    """
    ids = {column: ids_of(row, column) for column in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    check_ids(ids)
    gold, test_patch, commit = text(row, "patch"), text(row, "test_patch"), text(row, "base_commit")
    repo, id = text(row, "repo"), text(row, "instance_id")
    repository = find(repos, repo)
    with tempfile.TemporaryDirectory(prefix="etude-row-") as name:
        start, original = Path(name, "start"), Path(name, "original")
        gitrepo.take_tree(repository, commit, start)
        tree.copy_tree(start, original)
        for column, patch in (("patch", gold), ("test_patch", test_patch)):
            apply(original, patch, column)
        refuse_bad_ids(ids, tree.files(original))
        if row.get(foreign.COLUMN):
            fields = {
                "id": id,
                "instruction": text(row, "problem_statement"),
                "cut": tree.make_patch(original, start),
                "gold": gold,
                "fail_to_pass": ids["FAIL_TO_PASS"],
                "pass_to_pass": ids["PASS_TO_PASS"],
            }
            return foreign.own_task(text(row, foreign.COLUMN), fields, original=original, store=store)
        found = foreign.Found(
            id=id,
            name=repo.rpartition("/")[2],
            source=f"{repo} at {commit}",
            instruction=text(row, "problem_statement"),
            gold=gold,
            fail_to_pass=ids["FAIL_TO_PASS"],
            pass_to_pass=ids["PASS_TO_PASS"],
            kind="commit_replay",
            hidden=tuple(sorted({path for patch in patches.parse(test_patch) for path in patch.paths})),
            evidence={"format": "swebench", "instance_id": id, "base_commit": commit, "version": text(row, "version", "")},
        )
        return foreign.make_task(found, original=original, start=start, store=store)


def check_ids(ids: dict[str, tuple[str, ...]]) -> None:
    """ValueError: no test tells, a test in both lists, or ids that no test can have."""
    if not ids["FAIL_TO_PASS"]:
        raise ValueError("FAIL_TO_PASS is empty: no test could tell a solution")
    both = sorted(set(ids["FAIL_TO_PASS"]) & set(ids["PASS_TO_PASS"]))
    if both:
        raise ValueError(f"{len(both)} ids are in FAIL_TO_PASS and in PASS_TO_PASS, first {both[0]!r}")
    refuse_bad_ids(ids)


def find(repos: Path, repo: str) -> Path:
    """Where the repository of a row lies. UserError that says where it was looked for."""
    name = repo.rpartition("/")[2]
    names = [repo.replace("/", "__"), name]
    if (match := re.fullmatch(r"(.+)\.[0-9a-f]{8}", name)) is not None:  # SWE-smith: a mirror of owner/name at a commit
        names.append(match[1])
    found = gitrepo.find_repository(repos, names)
    if found is None:
        raise UserError(f"no repository {repo} in {repos}: clone it to {repos / names[0]}, or put its files there")
    return found


def apply(folder: Path, patch: str, column: str) -> None:
    """ValueError that names the column."""
    try:
        tree.apply_patch(folder, patches.to_text(patches.parse(patch)))
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None


def repository_name(task: Task) -> str:
    """owner/name: of the address that it came from, or ours."""
    match = re.search(r"[/:]([A-Za-z0-9_.-]+)/([A-Za-z0-9_.-]+?)(?:\.git)?(?:[@ #].*)?$", task.repo.source)
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", task.repo.name).strip("-.") or "repository"
    is_address = match is not None and "://" in task.repo.source and not task.repo.source.startswith("file:")
    return f"{match[1]}/{match[2]}" if match is not None and is_address else f"{OWNER}/{plain}"


def version(task: Task) -> str:
    """Of the project where its source names one, else of its content."""
    match = re.search(r"==([A-Za-z0-9_.+!-]+)", task.repo.source)
    return match[1] if match else task.repo.digest[:8]
