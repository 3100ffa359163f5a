"""Which files of a diff may enter a grading: source files of the repository and nothing that decides how it is judged.

Refused, one by one and with a reason: tests, every conftest.py, the configuration of test runners, of packaging and of builds (for
JavaScript and Java too), start-up hooks (*.pth, sitecustomize, usercustomize, what a class path or a loader picks up by itself), bytecode,
extensions and other binaries, links, hidden and version control files, metadata of distributions, paths outside the import roots, new
modules that would hide the standard library's, the runner's or a dependency's, new names that look like another's, sources in an encoding
that hides what they say. Names are compared without case. The rest of the diff still counts.

In: FilePatches and Rules; out: those that may enter, and (path, reason) for the others.

Not here: applying them, laying down the tests (grader.py).
"""

import fnmatch
import io
import re
import sys
import tokenize
import unicodedata
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
CONFIGURATION = frozenset({
    "pytest.ini", "pytest.toml", "tox.ini", "tox.toml", "setup.cfg", "setup.py", "pyproject.toml", "noxfile.py", "manifest.in",
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "pnpm-workspace.yaml", "yarn.lock", "deno.json",
    "deno.jsonc", "bunfig.toml", "node.config.json", "karma.conf.js", "ava.config.js",
    "pom.xml", "build.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties",
    "junit-platform.properties", "testng.xml", "logback-test.xml",
})  # fmt: skip
CONFIGURATIONS = (  # globs of names, in lower case
    *("tsconfig*.json", "jsconfig*.json", "vitest.*.*", "vite.config.*", "jest.config.*", "jest.setup.*", "jest-*.json", "mocharc.*"),
    *("babel.config.*", "rollup.config.*", "webpack.config.*", "esbuild.config.*", "playwright.config.*", "*surefire*", "*failsafe*"),
)
SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
TEST_SCRIPTS = ("*.test", "*.spec", "*-test", "*-spec", "*_test", "*_spec")  # names before these suffixes
TEST_FOLDERS = frozenset({"__tests__", "__mocks__", "__snapshots__"})  # jest and vitest load them by their names
PICKED_UP = frozenset({"meta-inf"})  # folders that a class path is searched for: META-INF/services
START_UP = ("sitecustomize", "usercustomize")
ENCODINGS = re.compile(
    r"utf-8.*|utf-?(16|32).*|ascii|latin-1|iso-?8859-\d+|cp\d+|windows-?\d+|koi8-.|mac-\w+|euc.*|shift.*|gb\w+|big5.*|iso-?2022.*|.*jis.*"
)
MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the decisions depend on."""

    import_roots: tuple[str, ...]
    test_paths: tuple[str, ...]
    protected: tuple[str, ...]  # globs
    existing: frozenset[str]  # every path of the original repository
    search_roots: tuple[str, ...]  # folders that come onto the import path: import roots, and what pytest adds for test files
    taken: frozenset[str]  # import names that a new top-level module may not have, in lower case
    folded: frozenset[str]  # `existing` and the folders above, in lower case


def make_rules(repo: Repo, existing: Iterable[str], *, protected: Sequence[str] = (), environment: Path | None = None) -> Rules:
    """`environment`: the folder whose packages may not be hidden either."""
    taken = set(sys.stdlib_module_names) | runner_names()
    if environment is not None:
        taken |= {entry.name.removesuffix(".py") for entry in environment.iterdir() if "-info" not in entry.name}
    rules = Rules(
        import_roots=tuple(map(_tidy, repo.import_roots)),
        test_paths=tuple(path for path in map(_tidy, repo.test_paths) if path),
        protected=tuple(protected),
        existing=(there := frozenset(existing)),
        search_roots=(),
        taken=frozenset(name.casefold() for name in taken),
        folded=frozenset(place.casefold() for path in there for place in (path, *_parents(path))),
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
    lower = [part.casefold() for part in parts]
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts):
        return "path leaves the repository"
    if any(part.startswith((".", "git~")) for part in lower):  # the second is what some file systems call the first
        return "hidden or version control file"
    if "conftest" in (part.partition(".")[0] for part in lower):
        return "conftest.py steers the tests"
    if name in CONFIGURATION or any(fnmatch.fnmatchcase(name, glob) for glob in CONFIGURATIONS):
        return "configuration"
    if suffix == ".pth" or any(part.partition(".")[0] in START_UP for part in lower):
        return "runs when Python starts"
    if PICKED_UP & set(lower):
        return "is found by a class path without being named"
    if is_test(path, rules):
        return "test"
    if any(fnmatch.fnmatchcase(path.casefold(), glob.casefold()) for glob in rules.protected):
        return "protected by the task"
    if any(part in ("__pycache__", "node_modules") or part.endswith((".egg-info", ".dist-info")) for part in lower):
        return "written by tools, not source"
    if reason := _look_alike(path, rules):
        return reason
    if suffix not in SOURCE_SUFFIXES:
        return "not a source file"
    if not any(_below(path, root) for root in rules.import_roots):
        return "outside the import roots"
    if any(inner and hides(path, inner, rules) for inner in (_below(path, root) for root in rules.search_roots)):
        return "hides a module of the standard library, the runner or a dependency"
    return None


def is_test(path: str, rules: Rules) -> bool:
    lower = path.casefold()
    *folders, name = lower.split("/")
    named = fnmatch.fnmatchcase(name, "test_*.py") or fnmatch.fnmatchcase(name, "*_test.py")
    stem, _, suffix = name.rpartition(".")
    named = named or (f".{suffix}" in SCRIPTS and any(fnmatch.fnmatchcase(stem, glob) for glob in TEST_SCRIPTS))
    named = named or bool(TEST_FOLDERS & set(folders))
    return named or any(lower == place or lower.startswith(f"{place}/") for place in map(str.casefold, rules.test_paths))


def _look_alike(path: str, rules: Rules) -> str | None:
    """Why a new file's name could be taken for another one's."""
    if path in rules.existing:
        return None
    if not path.isascii():  # Python itself takes one letter for another: it imports the NFKC form
        plain = unicodedata.normalize("NFKC", path)
        return f"its name looks like {plain!r}" if plain.isascii() else "the names of new files are plain ASCII here"
    for place in (path, *_parents(path)):
        if place.casefold() in rules.folded and place not in rules.existing and not _is_folder(place, rules):
            return "its name differs from an existing one by case alone"
    return None


def _is_folder(place: str, rules: Rules) -> bool:
    return any(path.startswith(f"{place}/") for path in rules.existing)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:stop]) for stop in range(1, len(parts))]


def hides(path: str, inner: str, rules: Rules) -> bool:
    """A new top-level module or package whose name is taken; `inner` is the path below a search root."""
    first, _, rest = inner.partition("/")
    if not rest and not first.endswith((".py", ".pyi")):
        return False
    if first.casefold().removesuffix("i").removesuffix(".py") not in rules.taken:
        return False
    top = path[: len(path) - len(inner)] + first
    return not any(place == top or place.startswith(f"{top}/") for place in rules.existing)


def bad_content(path: str, data: bytes) -> str | None:
    """Why the content of a changed file may not enter, or None."""
    if len(data) > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES >> 10} KiB"
    if b"\0" in data:
        return "binary"
    if not path.casefold().endswith((".py", ".pyi")):  # Python sources may be in the encoding that they declare
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            return "binary"
        return None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        return None  # it does not compile, which is said elsewhere
    return None if ENCODINGS.fullmatch(encoding.lower().replace("_", "-")) else f"written as {encoding}, which hides what it says"


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
