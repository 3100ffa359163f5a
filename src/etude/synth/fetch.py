"""Bring a repository onto this machine without running any of its code.

In: a folder, a git URL, an archive (.tar.gz, .tgz, .tar.bz2, .tar.xz, .zip) or "name==version" of a source distribution; out: a folder
of plain files, its name, and a line for people. git clones without hooks, submodules and local configuration; archives are unpacked without
links that leave them. pip, asked for a source distribution, would run the package's build backend for its metadata; a start-up module
answers in the backend's place from PKG-INFO, and ends every other Python process that pip starts.

Not here: what is in the folder (discover.py).
"""

import errno
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from etude.errors import UserError

RELEASE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
GIT_URL = re.compile(r"(https?|ssh|git|file)://.+|[\w.-]+@[\w.-]+:.+")
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
TIMEOUT_S = 600.0
# sitecustomize for pip and for what pip starts: only pip itself may run
ANSWER = """
import json, os, sys
argv = sys.orig_argv
if argv[1:3] != ["-m", "pip"]:
    try:
        hook, folder = argv[-2:]
        answer = []
        if hook == "prepare_metadata_for_build_wheel":
            with open(os.path.join(folder, "input.json"), encoding="utf-8") as file:
                target = json.load(file)["kwargs"]["metadata_directory"]
            with open("PKG-INFO", encoding="utf-8", errors="replace") as file:
                head = [line.strip() for line in file.read().split("\\n\\n")[0].splitlines()]
            name, version = (next(l for l in head if l.lower().startswith(k))[len(k):].strip() for k in ("name:", "version:"))
            answer = name.replace("-", "_") + "-" + version + ".dist-info"
            os.makedirs(os.path.join(target, answer), exist_ok=True)
            with open(os.path.join(target, answer, "METADATA"), "w", encoding="utf-8") as file:
                file.write("Metadata-Version: 2.1\\nName: " + name + "\\nVersion: " + version + "\\n")
        elif hook not in ("get_requires_for_build_wheel", "_supported_features"):
            raise ValueError(hook)
        with open(os.path.join(folder, "output.json"), "w", encoding="utf-8") as file:
            json.dump({"return_val": answer}, file)
    except BaseException as error:
        print("no code of the package may run here:", repr(error), file=sys.stderr)
        os._exit(3)
    os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    folder: Path
    name: str  # "" where the folder itself must say
    source: str  # for people
    history: Path | None = None  # a bare clone with all commits, where it was asked for and there are any


@contextmanager
def fetch(source: str, *, history: bool = False, pip_options: Sequence[str] = ()) -> Iterator[Fetched]:
    """The repository, in a folder that is there until the block ends. UserError where it cannot be had.

    `history`: bring the commits of a git repository too.
    `pip_options`: for a release, on top of the user's own settings, such as ("--no-index", "--find-links", folder).
    """
    path = Path(os.path.expanduser(source))  # as it is where there is no such user
    with TemporaryDirectory(prefix="etude-fetch-") as scratch:
        bare = Path(scratch, "history")
        if path.is_dir():
            commits = _clone(path.resolve().as_uri(), bare, "--bare") if history and (path / ".git").exists() else None
            yield Fetched(folder=path, name="", source=path.resolve().name, history=commits)
        elif path.is_file() and source.endswith(ARCHIVES):
            yield Fetched(folder=unpack(path, Path(scratch, "tree")), name="", source=path.name)
        elif GIT_URL.fullmatch(source):
            commits = _clone(source, bare, "--bare") if history else None
            folder = _clone(bare.as_uri() if history else source, Path(scratch, "tree"), "--depth", "1")
            yield Fetched(folder=folder, name=_repository_name(source), source=source, history=commits)
        elif match := RELEASE.fullmatch(source):
            archive = _download(source, Path(scratch), pip_options)
            yield Fetched(folder=unpack(archive, Path(scratch, "tree")), name=match[1], source=f"{source} sdist")
        elif path.is_file():
            raise UserError(f"{source} is no archive that can be unpacked; known are {', '.join(ARCHIVES)}")
        else:
            raise UserError(f"no folder or file {source!r}; give a folder, a git URL, an archive or name==version")


def unpack(archive: Path, target: Path) -> Path:
    """The archive's only top folder, or `target` if there are several. UserError for a broken archive."""
    target.mkdir()
    try:
        if archive.name.endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                file.extractall(target)  # drops ".." and absolute parts; makes no links
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")  # RuntimeError: a password, an unknown method
        raise UserError(f"{archive.name} cannot be unpacked: {reason}") from None
    inside = list(target.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else target


def _clone(url: str, target: Path, *how: str) -> Path:
    if shutil.which("git") is None:
        raise UserError("git is not installed; install it, or give a folder or an archive")
    options = ["-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.symlinks=true"]
    command = ["git", *options, "clone", "--quiet", *how, "--no-recurse-submodules", "--", url, str(target)]
    _run(command, {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}, f"git cannot clone {url}")
    return target


def _download(release: str, scratch: Path, pip_options: Sequence[str]) -> Path:
    """The source distribution of a release, by pip with the user's own index settings."""
    guard, target = scratch / "guard", scratch / "sdist"
    guard.mkdir()
    target.mkdir()
    (guard / "sitecustomize.py").write_text(ANSWER)
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--use-pep517", "--no-input", "--quiet", *pip_options]
    command = [sys.executable, "-m", "pip", "download", *options, "--disable-pip-version-check", "--dest", str(target), "--", release]
    _run(command, {"PYTHONPATH": str(guard), "PYTHONNOUSERSITE": "1"}, f"pip cannot download {release}")
    archives = [path for path in target.iterdir() if path.name.endswith(ARCHIVES)]
    if len(archives) != 1:
        raise UserError(f"pip found no source distribution of {release}")
    return archives[0]


def _run(command: list[str], extra: dict[str, str], failure: str) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, **extra}, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{failure}: nothing came for {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "fatal"))]
        raise UserError(f"{failure}: {(errors or lines or ['no reason given'])[-1]}")


def _repository_name(url: str) -> str:
    return re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
