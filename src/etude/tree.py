"""Folders of source files, and git patches between them.

In: folders of regular files; out: a digest, a clean copy, a git patch as text, a patched folder. Caches, version control
folders and bytecode are no part of a tree. A link to a file of the same tree counts as that file; every other link is left out.

A patch is what `git diff --binary --no-renames` prints, with a/ and b/ prefixes. Files that are not UTF-8 travel as git's binary
patches, so a patch is always valid text, whatever the encodings and line ends of the files. git runs without the user's and
the system's configuration, and the attributes of the tree (`text=auto`, `eol`, filters) have no effect: bytes stay bytes.

Not here: which files of a patch may be used (grade/filter.py).
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

IGNORED_FOLDERS = frozenset({
    "__pycache__", ".git", ".hg", ".svn", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".venv",
    ".eggs", ".ipynb_checkpoints", "node_modules", "htmlcov",
})  # fmt: skip
IGNORED_SUFFIXES = (".pyc", ".pyo", ".pyd", ".so", ".swp", "~", ".orig", ".rej")
IGNORED_FILES = frozenset({".git", ".coverage", "coverage.xml", ".DS_Store"})
# info/attributes wins over every .gitattributes of the tree
ATTRIBUTES = "* -text !eol -ident -filter -working-tree-encoding !diff !merge !whitespace\n"


def files(folder: Path) -> dict[str, Path]:
    """Every file of a tree by its relative path, "/" between parts, sorted; the value is the regular file to read."""
    root = folder.resolve()
    found: dict[str, Path] = {}
    for where, folders, names in os.walk(root):  # does not enter linked folders
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        for name in names:
            path = Path(where, name)
            if name in IGNORED_FILES or name.endswith(IGNORED_SUFFIXES):
                continue
            if path.is_symlink():
                target = _resolve(path)
                if target is None or not target.is_relative_to(root):
                    continue
            else:
                target = path
            if target.is_file():
                found[path.relative_to(root).as_posix()] = target
    return dict(sorted(found.items()))


def digest(folder: Path) -> str:
    """sha256 hex over the sorted (path, executable, content) of a tree."""
    total = hashlib.sha256()
    for path, file in files(folder).items():
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(os.fsencode(path) + b"\0" + (b"x" if _executable(file) else b"-") + content.encode() + b"\n")
    return total.hexdigest()


def copy_tree(src: Path, dst: Path) -> None:
    """Copy a tree into the folder `dst` (made if missing), readable by everyone, without caches and links."""
    dst.mkdir(parents=True, exist_ok=True)
    dst.chmod(0o755)
    made = {dst}
    for path, file in files(src).items():
        target = dst / path
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.add(target.parent)
        shutil.copyfile(file, target)
        target.chmod(0o755 if _executable(file) else 0o644)


def make_patch(before: Path, after: Path) -> str:
    """The git patch that turns the tree `before` into `after`; "" where they are equal."""
    old, new = files(before), files(after)
    binary: list[str] = []
    with _git_folder() as git:
        for name in sorted(old.keys() | new.keys()):
            pair = old.get(name), new.get(name)
            if pair[0] and pair[1] and _same(pair[0], pair[1]):
                continue
            for side, file in zip("ab", pair, strict=True):
                if file is None:
                    continue
                target = git.parent / side / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
                target.chmod(0o755 if _executable(file) else 0o644)
                if not _is_text(file.read_bytes()):
                    binary.append(name)
        rules = [ATTRIBUTES, *(f"{_attribute_pattern(f'{side}/{name}')} -diff\n" for name in binary for side in "ab")]
        (git / "info/attributes").write_bytes(b"".join(os.fsencode(rule) for rule in rules))
        for side in "ab":
            (git.parent / side).mkdir(exist_ok=True)
        options = ("--no-index", "--no-prefix", "--binary", "--no-renames", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
        done = _run_git(git, ["diff", *options, "--diff-algorithm=myers", "--", "a", "b"], git.parent)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"git diff: {done.stderr.decode(errors='replace').strip()}")
    return _with_both_prefixes(done.stdout.decode("utf-8"))


def apply_patch(folder: Path, patch: str) -> None:
    """Patch a folder in place, all of it or nothing. ValueError, one line, where the patch is malformed or does not apply."""
    if not patch.strip():
        return
    try:
        data = patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"the patch holds {patch[error.start]!r}, which is no character") from None
    for line in patch.split("\n"):
        if re.match(r"(new|old|deleted)( file)? mode (?!100(644|755)\s*$)", line):
            raise ValueError(f"only regular files can be patched, not {line.strip()!r}")
    root = folder.resolve()
    paths = patch_paths(patch)
    if not paths:
        raise ValueError("the patch is malformed: it has no 'diff --git' line")
    for path in paths:
        _refuse_escape(root, path)
    with _git_folder() as git:
        (git / "info/attributes").write_text(ATTRIBUTES)
        done = _run_git(git, ["apply", "--whitespace=nowarn", "-p1", "-"], root, stdin=data)
    if done.returncode:
        lines = [line.removeprefix("error: ") for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise ValueError(f"the patch does not apply: {lines[0] if lines else 'git gave no reason'}")


def patch_paths(patch: str) -> list[str]:
    """The relative paths that a patch touches (both names of a rename), sorted."""
    return sorted({path for section in split_patch(patch) for path in section_paths(section)})


def split_patch(patch: str) -> list[str]:
    """One text per file. What comes before the first "diff --git" is left out; no hunk can hold such a line."""
    starts = [match.start() for match in re.finditer(r"^diff --git ", patch, re.MULTILINE)]
    return [patch[start:stop] for start, stop in pairwise([*starts, len(patch)])]


def section_paths(section: str) -> list[str]:
    """The paths of one file's part of a patch, without a/ and b/; ValueError where its header cannot be read."""
    header, *rest = section.split("\n")
    names: set[str] = set()
    for line in rest:
        if line.startswith(("@@", "GIT binary patch", "Binary files ")):
            break
        for key in ("--- ", "+++ "):
            if line.startswith(key):
                name = unquote(line[4:].split("\t")[0].rstrip("\r"))
                if name != "/dev/null":
                    names.add(_without_prefix(name, line))
        for key in ("rename from ", "rename to ", "copy from ", "copy to "):
            if line.startswith(key):
                names.add(unquote(line[len(key) :].rstrip("\r")))
    if not names:  # an empty file, a mode, or a binary: both names in the header are the same
        names.add(_header_name(header.removeprefix("diff --git ").rstrip("\r")))
    return sorted(names)


def unquote(name: str) -> str:
    """A path as git writes it: plain, or in double quotes with C escapes."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name
    plain = {"n": b"\n", "t": b"\t", "r": b"\r", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v", '"': b'"', "\\": b"\\"}
    out = b""
    for octal, escape, text in re.findall(r"\\([0-3][0-7]{2})|\\(.)|([^\\]+)", name[1:-1]):
        if octal:
            out += bytes([int(octal, 8)])
        else:
            out += plain.get(escape, escape.encode()) if escape else os.fsencode(text)
    return out.decode("utf-8", "surrogateescape")


def _header_name(names: str) -> str:
    quoted = re.fullmatch(r'("(?:[^"\\]|\\.)*") ("(?:[^"\\]|\\.)*")', names)
    if quoted:
        first, second = unquote(quoted[1]), unquote(quoted[2])
    else:
        middle = len(names) // 2
        first, second = names[:middle], names[middle + 1 :]
    if first[:2] == "a/" and second[:2] == "b/" and first[2:] == second[2:] and first[2:]:
        return first[2:]
    raise ValueError(f"the patch is malformed: cannot read the names in 'diff --git {names}'")


def _without_prefix(name: str, line: str) -> str:
    if name[:2] in ("a/", "b/") and name[2:]:
        return name[2:]
    raise ValueError(f"the patch is malformed: no a/ or b/ prefix in {line.strip()!r}")


def _refuse_escape(root: Path, path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or not path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise ValueError(f"the patch leaves the folder: {path!r}")
    for stop in range(1, len(parts) + 1):
        if (root / "/".join(parts[:stop])).is_symlink():
            raise ValueError(f"the patch goes through a link: {path!r}")


def _with_both_prefixes(patch: str) -> str:
    """`git diff --no-index` names a new file b/x twice and a removed one a/x twice; git itself writes a/x b/x."""

    def both(match: re.Match[str]) -> str:
        names = match[1]
        name = names[: len(names) // 2]
        quote, bare = ('"', name[3:]) if name.startswith('"') else ("", name[2:])
        return f"diff --git {quote}a/{bare} {quote}b/{bare}\n{match[2]}"

    return re.sub(r"^diff --git (.*)\n((?:new|deleted) file mode )", both, patch, flags=re.MULTILINE)


def _attribute_pattern(path: str) -> str:
    escaped = re.sub(r"([\\*?\[\]])", r"\\\1", "/" + path)
    quoted = escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{quoted}"'


@contextmanager
def _git_folder() -> Iterator[Path]:
    """An empty git directory in a folder of its own, so that no repository around a tree matters."""
    with tempfile.TemporaryDirectory(prefix="etude-git-") as folder:
        git = Path(folder, "git")
        for name in ("objects", "refs", "info"):
            (git / name).mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        yield git


def _run_git(git: Path, arguments: list[str], cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env: Mapping[str, str] = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_DIR": str(git),
        "GIT_WORK_TREE": str(cwd),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "LC_ALL": "C",
        "HOME": str(git),
    }
    command = ["git", "-c", "core.autocrlf=false", "-c", "core.safecrlf=false", "-c", "core.fileMode=true", "-c", "core.quotePath=true"]
    return subprocess.run([*command, *arguments], cwd=cwd, env=env, input=stdin, capture_output=True, check=False)


def _same(old: Path, new: Path) -> bool:
    return _executable(old) == _executable(new) and old.read_bytes() == new.read_bytes()


def _executable(file: Path) -> bool:
    return bool(file.stat().st_mode & 0o100)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _resolve(path: Path) -> Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):  # a dangling link, or a circle
        return None
