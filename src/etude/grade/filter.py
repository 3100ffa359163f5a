"""Which files of a diff may enter a grading: source files of the repository and nothing that decides how it is judged.

Refused, one by one and with a reason: tests, every conftest.py, the configuration of pytest and of packaging, start-up hooks
(*.pth, sitecustomize, usercustomize), bytecode, extensions and other binaries, links, hidden and version control files, metadata
of distributions, paths outside the import roots, new modules that would hide the standard library's, the runner's or a
dependency's. The rest of the diff still counts.

In: FilePatches and Rules; out: those that may enter, and (path, reason) for the others.

Not here: applying them, laying down the tests (grader.py).
"""

import fnmatch
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etude.grade.environment import runner_names
from etude.grade.patches import FilePatch
from etude.types import Repo

SOURCE_SUFFIXES = frozenset({
    ".py", ".pyi", ".typed", ".txt", ".md", ".rst", ".json", ".csv", ".tsv", ".toml", ".yaml", ".yml", ".xml", ".svg", ".sql",
    ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx", ".java",
    ".html", ".htm", ".css", ".jinja", ".jinja2", ".j2", ".tmpl", ".tpl", ".mako", ".lark", ".g4", ".graphql", ".proto",
})  # fmt: skip
CONFIGURATION = frozenset({"pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py", "manifest.in"})
START_UP = ("sitecustomize", "usercustomize")
MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the decisions depend on."""

    import_roots: tuple[str, ...]
    test_paths: tuple[str, ...]
    protected: tuple[str, ...]  # globs
    existing: frozenset[str]  # every path of the original repository
    search_roots: tuple[str, ...]  # folders that come onto the import path: import roots, and what pytest adds for test files
    taken: frozenset[str]  # import names that a new top-level module may not have


def make_rules(repo: Repo, existing: Iterable[str], *, protected: Sequence[str] = (), environment: Path | None = None) -> Rules:
    """`environment`: the folder whose packages may not be hidden either."""
    taken = set(sys.stdlib_module_names) | runner_names()
    if environment is not None:
        taken |= {entry.name.removesuffix(".py") for entry in environment.iterdir() if "-info" not in entry.name}
    rules = Rules(
        import_roots=tuple(map(_tidy, repo.import_roots)),
        test_paths=tuple(path for path in map(_tidy, repo.test_paths) if path),
        protected=tuple(protected),
        existing=frozenset(existing),
        search_roots=(),
        taken=frozenset(taken),
    )
    added = {_first_without_init(path, rules.existing) for path in rules.existing if path.endswith(".py") and is_test(path, rules)}
    return replace(rules, search_roots=tuple(sorted({*rules.import_roots, *added})))


def split_allowed(patches: Sequence[FilePatch], rules: Rules) -> tuple[list[FilePatch], list[tuple[str, str]]]:
    """The patches that may enter, and (path, reason) for each that may not."""
    allowed: list[FilePatch] = []
    refused: list[tuple[str, str]] = []
    for patch in patches:
        reason = _refused_kind(patch)
        reasons = [(path, reason or refusal(path, rules)) for path in patch.paths]
        bad = [(path, why) for path, why in reasons if why]
        refused += bad
        if not bad:
            allowed.append(patch)
    return allowed, refused


def refusal(path: str, rules: Rules) -> str | None:
    """Why the file at a path may not be changed, or None."""
    parts = path.split("/")
    name = parts[-1].lower()
    suffix = Path(name).suffix
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts):
        return "path leaves the repository"
    if any(part.startswith(".") for part in parts):
        return "hidden or version control file"
    if name == "conftest.py":
        return "conftest.py steers the tests"
    if name in CONFIGURATION:
        return "configuration"
    if suffix == ".pth" or any(part.lower().removesuffix(".py") in START_UP for part in parts):
        return "runs when Python starts"
    if is_test(path, rules):
        return "test"
    if any(fnmatch.fnmatchcase(path, glob) for glob in rules.protected):
        return "protected by the task"
    if any(part in ("__pycache__", "node_modules") or part.endswith((".egg-info", ".dist-info")) for part in parts):
        return "written by tools, not source"
    if suffix not in SOURCE_SUFFIXES:
        return "not a source file"
    if not any(_below(path, root) for root in rules.import_roots):
        return "outside the import roots"
    if any(inner and hides(path, inner, rules) for inner in (_below(path, root) for root in rules.search_roots)):
        return "hides a module of the standard library, the runner or a dependency"
    return None


def is_test(path: str, rules: Rules) -> bool:
    name = path.rpartition("/")[2].lower()
    named = fnmatch.fnmatchcase(name, "test_*.py") or fnmatch.fnmatchcase(name, "*_test.py")
    return named or any(path == place or path.startswith(f"{place}/") for place in rules.test_paths)


def hides(path: str, inner: str, rules: Rules) -> bool:
    """A new top-level module or package whose name is taken; `inner` is the path below a search root."""
    first, _, rest = inner.partition("/")
    if not rest and not first.endswith((".py", ".pyi")):
        return False
    if first.removesuffix("i").removesuffix(".py") not in rules.taken:
        return False
    top = path[: len(path) - len(inner)] + first
    return not any(place == top or place.startswith(f"{top}/") for place in rules.existing)


def bad_content(path: str, data: bytes) -> str | None:
    """Why the content of a changed file may not enter, or None."""
    if len(data) > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES >> 10} KiB"
    if b"\0" in data:
        return "binary"
    if not path.endswith((".py", ".pyi")):  # Python sources may be in any encoding that they declare
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            return "binary"
    return None


def _refused_kind(patch: FilePatch) -> str | None:
    modes = [line.split()[-1] for line in patch.headers if " mode " in line]
    modes += [line.split()[-1] for line in patch.headers if line.startswith("index ") and line.count(" ") == 2]
    if "120000" in modes:
        return "link"
    if any(mode not in ("100644", "100755") for mode in modes):
        return "not a regular file"
    if patch.binary and patch.body[0].startswith("Binary files"):
        return "binary without its content"
    return None


def _below(path: str, root: str) -> str:
    """The path inside an import root; "" if it is outside."""
    if not root:
        return path
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else ""


def _first_without_init(path: str, existing: frozenset[str]) -> str:
    """The folder that pytest puts onto the import path to import a test file."""
    folder = path.rpartition("/")[0]
    while folder and f"{folder}/__init__.py" in existing:
        folder = folder.rpartition("/")[0]
    return folder


def _tidy(path: str) -> str:
    """ "." becomes "", "./src/" becomes "src"."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))
