"""Rows of SWE-smith, out and in.

    original --patch--> base_commit: the feature is gone, and gold is the way back

Out: `patch` is our whole cut and `base_commit`, on a branch named by the task, the tree after it. In: a row and a folder of repositories;
the commit may hold the broken tree (as SWE-smith's branches do) or the clean one. SWE-smith's own rows break source files only and leave
the tests that notice where they are: those test files are taken from the agent's tree, as SWE-smith does itself before an agent starts.

Columns as SWE-smith's gather step writes them; lists of ids are lists.

Not here: files of rows (rows.py), whether gold solves it (transfer.py).
"""

import tempfile
from pathlib import Path
from typing import Any

from etude import tree
from etude.formats import foreign, gitrepo
from etude.formats.rows import Row, ids_of, refuse_bad_ids, text
from etude.formats.swebench import OWNER, apply, check_ids, find, repository_name
from etude.grade import patches
from etude.store import TaskStore
from etude.types import Task

IN_COLUMNS = ("id", "instruction", "cut", "fail_to_pass", "pass_to_pass")


def to_row(task: Task, store: TaskStore, repos: Path) -> dict[str, Any]:
    """The row of a task; its first tree becomes a commit of a mirror in `repos`."""
    mirror = f"{repository_name(task).replace('/', '__')}.{task.repo.digest[:8]}"
    commit = gitrepo.commit_tree(repos / f"{OWNER}__{mirror}", store.workspace(task), task.id)
    return {
        "instance_id": task.id,
        "repo": f"{OWNER}/{mirror}",
        "base_commit": commit,
        "patch": task.cut,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "problem_statement": task.instruction,
        "created_at": "",
        "image_name": f"{OWNER}.{mirror}".lower(),
        foreign.COLUMN: foreign.own_column(task, leave=IN_COLUMNS),
    }


def from_row(row: Row, *, repos: Path, store: TaskStore) -> Task:
    """The task of a row, its snapshot and environment put into the store.

    Raises: ValueError or UserError, one line, where the row is broken or its repository is not there.
    """
    ids = {column: ids_of(row, column) for column in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    check_ids(ids)
    cut, commit = text(row, "patch"), text(row, "base_commit")
    repo, id = text(row, "repo"), text(row, "instance_id")
    repository = find(repos, repo)
    with tempfile.TemporaryDirectory(prefix="etude-row-") as name:
        start, original, solved = (Path(name, part) for part in ("start", "original", "solved"))
        _both_trees(repository, commit, cut, start, original)
        refuse_bad_ids(ids, tree.files(original))
        if row.get(foreign.COLUMN):
            fields = {
                "id": id,
                "instruction": text(row, "problem_statement"),
                "cut": cut,
                "fail_to_pass": ids["FAIL_TO_PASS"],
                "pass_to_pass": ids["PASS_TO_PASS"],
            }
            return foreign.own_task(text(row, foreign.COLUMN), fields, original=original, store=store)
        hidden = foreign.test_files(ids["FAIL_TO_PASS"], tree.files(original))
        tree.copy_tree(original, solved)
        for path in hidden:
            (solved / path).unlink()
            (start / path).unlink(missing_ok=True)
        found = foreign.Found(
            id=id,
            name=repo.rpartition("/")[2].rpartition("__")[2].partition(".")[0],
            source=f"{repo} at {commit}",
            instruction=text(row, "problem_statement", ""),
            gold=tree.make_patch(start, solved),
            fail_to_pass=ids["FAIL_TO_PASS"],
            pass_to_pass=ids["PASS_TO_PASS"],
            kind="bug_injection",
            hidden=hidden,
            evidence={"format": "swesmith", "instance_id": id, "base_commit": commit},
        )
        return foreign.make_task(found, original=original, start=start, store=store)


def _both_trees(repository: Path, commit: str, cut: str, start: Path, original: Path) -> None:
    """Broken and clean tree, whichever of them the commit holds."""
    gitrepo.take_tree(repository, commit, start)
    tree.copy_tree(start, original)
    try:
        gitrepo.reverse_patch(original, patches.to_text(patches.parse(cut)))
    except ValueError as error:
        try:
            apply(start, cut, "patch")
        except ValueError as other:
            raise ValueError(f"neither is the patch applied at base_commit ({error}), nor can it be ({other})") from None
