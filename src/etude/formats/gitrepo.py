"""Trees in git repositories: a folder as a commit whose id depends on its bytes only, and a commit as a folder.

A commit made here has no parent, so a clone of it alone has no history in which the feature could be found; author, date and message are
fixed. Files are read blob by blob, not by `git checkout` or `git archive`: no filter, attribute, hook or line end setting has a say, and
nothing is asked of the network. git runs without the user's and the system's configuration.

Not here: patches (tree.py).
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etude import tree
from etude.errors import UserError

WHO = "etude <etude@localhost>"
WHEN = "946684800 +0000"  # 2000-01-01
MESSAGE = "Repository as the agent finds it\n"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def commit_tree(git: Path, folder: Path, branch: str) -> str:
    """Put a tree into the bare repository `git` (made if missing) under `branch`; returns the commit's id."""
    if not (git / "HEAD").is_file():
        git.mkdir(parents=True, exist_ok=True)
        _git(git, ["init", "--quiet", "--bare", "--initial-branch=main", "--template=", "."], cwd=git)
        for name in ("description", "branches"):
            (git / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="etude-tree-") as name:
        work, index = Path(name, "work"), Path(name, "index")
        tree.copy_tree(folder, work)
        paths = sorted(tree.files(work))
        blobs = _git(git, ["hash-object", "-w", "--no-filters", "--stdin-paths"], cwd=work, stdin=_lines(paths)).split()
        entries = [
            f"{'100755' if (work / path).stat().st_mode & 0o100 else '100644'} {blob.decode()}\t{path}\0"
            for path, blob in zip(paths, blobs, strict=True)
        ]
        env = {"GIT_INDEX_FILE": str(index)}
        _git(git, ["update-index", "-z", "--index-info"], stdin=os.fsencode("".join(entries)), env=env)
        top = _git(git, ["write-tree"], env=env).decode().strip()
    commit = f"tree {top}\nauthor {WHO} {WHEN}\ncommitter {WHO} {WHEN}\n\n{MESSAGE}"
    found = _git(git, ["hash-object", "-w", "-t", "commit", "--stdin"], stdin=commit.encode()).decode().strip()
    _git(git, ["update-ref", f"refs/heads/{branch}", found])
    return found


def read_commit(git: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit into the new folder `folder`. Links are made as links, submodules are left out.

    UserError where there is no such commit.
    """
    if not COMMIT.fullmatch(commit):
        raise UserError(f"base_commit {commit[:60]!r} is no full commit id: 40 hexadecimal digits")
    try:
        listed = _git(git, ["ls-tree", "-r", "-z", "--full-tree", commit])
    except ValueError:
        raise UserError(f"{git} has no commit {commit}; fetch it there: git fetch origin {commit}") from None
    entries = [entry.partition(b"\t")[::2] for entry in listed.split(b"\0") if entry]
    files = [(head.split(), os.fsdecode(path)) for head, path in entries]
    wanted = [(head[0].decode(), head[2].decode(), path) for head, path in files if head[1] == b"blob"]
    answer = _git(git, ["cat-file", "--batch"], stdin=_lines([blob for _, blob, _ in wanted]))
    folder.mkdir(parents=True, exist_ok=True)
    at = 0
    for mode, _, path in wanted:
        line, at = answer[at : answer.index(b"\n", at)], answer.index(b"\n", at) + 1
        size = int(line.split()[2])
        data, at = answer[at : at + size], at + size + 1
        _lay(folder, path, mode, data)


def reverse_patch(folder: Path, patch: str) -> None:
    """Undo a patch in a folder, all of it or nothing. ValueError, one line, where it does not fit."""
    if not patch.strip():
        return
    tree.patch_paths(patch)
    with tempfile.TemporaryDirectory(prefix="etude-git-") as name:
        git = Path(name, "git")
        for part in ("objects", "refs", "info"):
            (git / part).mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "info/attributes").write_text(tree.ATTRIBUTES)
        env = {"GIT_WORK_TREE": str(folder.resolve())}
        try:
            arguments = ["apply", "--reverse", "--whitespace=nowarn", "-p1", "-"]
            _git(git, arguments, cwd=folder, stdin=patch.encode("utf-8", "surrogateescape"), env=env)
        except ValueError as error:
            raise ValueError(f"the patch cannot be undone: {error}") from None


def find_repository(repos: Path, names: Sequence[str]) -> Path | None:
    """The first of these folders, bare or not, that is there: NAME, NAME.git, and owner/name for owner__name."""
    for name in names:
        for candidate in (name, f"{name}.git", name.replace("__", "/", 1)):
            if candidate and ".." not in candidate.split("/") and not candidate.startswith("/") and (repos / candidate).is_dir():
                return repos / candidate
    return None


def git_folder(repository: Path) -> Path | None:
    """Where a repository keeps its objects; None for a folder without git."""
    dot = repository / ".git"
    if dot.is_dir():
        return dot
    if dot.is_file() and (match := re.fullmatch(r"gitdir: (.+)\n?", dot.read_text("utf-8", "replace"))):
        return (repository / match[1]).resolve()
    return repository if (repository / "HEAD").is_file() and (repository / "objects").is_dir() else None


def take_tree(repository: Path, commit: str, folder: Path) -> None:
    """The files of a repository at a commit, in the new folder `folder`. A folder without git is taken as it is."""
    git = git_folder(repository)
    if git is None:
        tree.copy_tree(repository, folder)
        return
    with tempfile.TemporaryDirectory(prefix="etude-commit-") as name:
        read_commit(git, commit, Path(name, "tree"))
        tree.copy_tree(Path(name, "tree"), folder)


def _lay(folder: Path, path: str, mode: str, data: bytes) -> None:
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise UserError(f"the repository holds the path {path!r}, which leaves its folder")
    place = folder / path
    if any(parent.is_symlink() for parent in place.parents if parent.is_relative_to(folder)):
        raise UserError(f"the repository holds the path {path!r}, which goes through a link")
    place.parent.mkdir(parents=True, exist_ok=True)
    if mode == "120000":
        place.symlink_to(os.fsdecode(data))
        return
    place.write_bytes(data)
    place.chmod(0o755 if mode == "100755" else 0o644)


def _lines(names: Sequence[str]) -> bytes:
    for name in names:
        if "\n" in name:
            raise UserError(f"the path {name!r} holds a line end; git's batch commands cannot take it")
    return b"".join(os.fsencode(name) + b"\n" for name in names)


def _git(git: Path, arguments: Sequence[str], *, cwd: Path | None = None, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    """git's output. ValueError, one line, where it fails."""
    if shutil.which("git") is None:
        raise UserError("git is not installed; install it: apt-get install git")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_DIR": str(git.resolve()),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "HOME": os.devnull,
        **(env or {}),
    }
    settings = ("core.autocrlf=false", "core.safecrlf=false", "core.fileMode=true", "core.quotePath=true", "core.fsmonitor=false")
    command = ["git", *(part for setting in settings for part in ("-c", setting)), *arguments]
    done = subprocess.run(command, cwd=cwd or git, env=environment, input=stdin, capture_output=True, check=False)
    if done.returncode:
        lines = [line.removeprefix("error: ") for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise ValueError(lines[0] if lines else f"git {arguments[0]} failed")
    return done.stdout
