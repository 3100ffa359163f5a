"""The scrub: takes away what may hold a second copy of the code, and nothing that is a source.

In: a repository's folder, which is changed, and findings of the residue scan; out: a ScrubReport. Caches, bytecode, version control and
build products go in any case; archives, logs, databases and generated files only where a finding names them. What a finding names and
may not go stays, and is reported: no task can be made there.

    scrub(copy of what was fetched) -> snapshot -> ... -> cut -> scan -> scrub(tree, findings=...) -> scan finds nothing

Not here: what is found (residue/).
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.grade.residue.leftovers import is_cache, is_removable, product_folder
from etude.grade.residue.scan import WORKSPACE, Finding

GIT_DATE = "2000-01-01T00:00:00+00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    removed: tuple[str, ...]  # files and folders, relative, sorted
    left: tuple[Finding, ...]  # what may not be removed: no task can be made of this tree


def scrub(folder: Path, findings: Iterable[Finding] = (), *, git: Literal["none", "fresh"] = "none") -> ScrubReport:
    """Clean a folder in place. `git`: leave none, or a new repository with one commit of what is left."""
    root = folder.resolve()
    removed: list[str] = []
    for where, folders, names in os.walk(root):  # does not enter linked folders
        for name in sorted([*folders, *names]):
            path = Path(where, name)
            if _goes(path, path.relative_to(root).as_posix()):
                _remove(path, root, removed)
        folders[:] = [name for name in folders if os.path.lexists(Path(where, name))]
    left: list[Finding] = []
    for finding in findings:
        path = root / finding.path
        if finding.folder == WORKSPACE and is_removable(finding.path):
            if os.path.lexists(path) and path.parent.resolve().is_relative_to(root):
                _remove(path, root, removed)
        else:
            left.append(finding)
    if git == "fresh":
        _commit(root)
    return ScrubReport(removed=tuple(sorted(removed)), left=tuple(left))


def _goes(path: Path, name: str) -> bool:
    if is_cache(name):
        return True
    product = product_folder(name) == name
    return product and not (path / "__init__.py").exists()  # a package may be called build


def _remove(path: Path, root: Path, removed: list[str]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    removed.append(path.relative_to(root).as_posix())


def _commit(root: Path) -> None:
    """A repository with one commit, whose bytes depend on the files alone. No template, hook, filter or configuration takes part."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": GIT_DATE,
        "GIT_COMMITTER_DATE": GIT_DATE,
    }
    options = [
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "user.name=etude",
        "-c",
        "user.email=etude",
        "-c",
        "gc.auto=0",
        "-c",
        "core.autocrlf=false",
    ]
    (root / ".git").mkdir()
    for command in (
        ["init", "--quiet", "--template=", "--initial-branch=main"],
        ["add", "--all", "--force"],
        ["commit", "--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign", "--message", "The repository"],
    ):
        if command[0] == "add":  # attributes of the tree would run filters and change bytes
            (root / ".git/info").mkdir(exist_ok=True)
            (root / ".git/info/attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
        subprocess.run(["git", *options, *command], cwd=root, env=env, check=True, capture_output=True)
