"""What a folder is: its packages, its tests, what they need. Nothing in it is executed.

In: a folder; out: a `Layout`. Import roots come from setuptools' and pytest's settings, or from where packages lie: flat, `src`,
or single modules. Tests lie beside the package, or inside it. Requirements come from pyproject.toml, setup.cfg, literal arguments in
setup.py, and requirements files that are about tests.

Not here: parsing files (source.py), installing (grade/environment.py), running (build.py).
"""

import ast
import configparser
import fnmatch
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from etude import tree
from etude.errors import UserError

TEST_FOLDERS = {"test", "tests", "testing", "unittests", "unit_tests"}
NOT_PACKAGES = TEST_FOLDERS | {
    "doc",
    "docs",
    "example",
    "examples",
    "bench",
    "benchmark",
    "benchmarks",
    "scripts",
    "tools",
    "build",
    "dist",
}
SETUP_FILES = {"setup.py", "conftest.py", "versioneer.py", "noxfile.py", "tasks.py", "fabfile.py"}
TEST_GROUPS = {"test", "tests", "testing"}
TOOLS = {
    "black",
    "build",
    "coverage",
    "flake8",
    "isort",
    "mypy",
    "nox",
    "pip",
    "pre-commit",
    "pylint",
    "pyright",
    "ruff",
    "setuptools",
    "tox",
}
TOOLS |= {"twine", "wheel", "pytest-cov", "pytest-xdist"}  # named beside tests, but no test needs them
# What test files import without their repository saying so, as its own lists are not in a source distribution: import name -> project.
# Only well-known ones, as a guess by name alone would install whatever somebody has put under it.
KNOWN = {
    **{name: name for name in ("anyio", "attrs", "brotli", "cffi", "chardet", "click", "cryptography", "flask", "freezegun", "greenlet")},
    **{name: name for name in ("h2", "httpcore", "httpx", "hypothesis", "idna", "jinja2", "jsonschema", "lxml", "markupsafe", "msgpack")},
    **{
        name: name
        for name in ("numpy", "orjson", "pandas", "parameterized", "psutil", "pydantic", "pytz", "redis", "requests", "responses")
    },
    **{name: name for name in ("rich", "simplejson", "six", "sniffio", "socksio", "sortedcontainers", "testfixtures", "toml", "tomli")},
    **{name: name for name in ("trio", "trustme", "tzdata", "ujson", "uvicorn", "uvloop", "wcwidth", "werkzeug", "zstandard")},
    **{"attr": "attrs", "dateutil": "python-dateutil", "yaml": "pyyaml", "bs4": "beautifulsoup4", "PIL": "pillow", "git": "gitpython"},
    **{"pytest_asyncio": "pytest-asyncio", "pytest_mock": "pytest-mock", "typing_extensions": "typing-extensions", "ruamel": "ruamel.yaml"},
}
VERSION_FILE = """\
version = __version__ = "0.0.0"
version_tuple = __version_tuple__ = (0, 0, 0)
commit_id = __commit_id__ = None
"""
MAX_FILE_BYTES = 2 * 2**20  # a larger Python file is data


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    name: str
    import_roots: tuple[str, ...]
    test_paths: tuple[str, ...]  # the files with tests, sorted
    sources: tuple[str, ...]  # Python files of the packages, .pyi included: what may be cut
    tests: tuple[str, ...]  # test files, conftest files, and everything else in test folders that ends with .py
    packages: tuple[str, ...]  # top-level import names
    requirements: tuple[str, ...]


def discover(folder: Path, name: str = "") -> Layout:
    """UserError: no such folder, nothing in it, no Python package, no tests."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; give a folder, a git URL, an archive or name==version")
    files = tree.files(folder)
    python = [path for path, file in files.items() if path.endswith((".py", ".pyi")) and file.stat().st_size <= MAX_FILE_BYTES]
    if not python:
        raise UserError(f"{folder} is an empty repository: there is no Python file in it")
    project = _toml(files, "pyproject.toml")
    setup = _ini(files, "setup.cfg")
    roots = _import_roots(python, project, setup)
    patterns = _patterns(project, setup, _ini(files, "pytest.ini"), _ini(files, "tox.ini"))
    test_files = tuple(path for path in python if path.endswith(".py") and _is_test_file(path, patterns))
    tests = tuple(path for path in python if path.endswith(".py") and (path in test_files or _in_test_folder(path, roots)))
    sources = tuple(path for path in python if path not in tests and _is_source(path, roots))
    if not sources:
        raise UserError(f"{folder} has no Python package: no folder with __init__.py and no module under {', '.join(roots)}")
    if not test_files:
        raise UserError(f"{folder} has no tests: no file matches {', '.join(patterns)}")
    return Layout(
        name=re.sub(r"[^A-Za-z0-9]+", "-", name or _name(files, project, setup) or folder.resolve().name).strip("-").lower()
        or "repository",
        import_roots=roots,
        test_paths=test_files,
        sources=sources,
        tests=tests,
        packages=tuple(sorted({top for path in sources if (top := _top(path, roots))})),
        requirements=_requirements(files, project, setup, _imported(files, tests, ""), _imported(files, (*tests, *sources), r"[ \t]*")),
    )


def add_generated(folder: Path) -> list[str]:
    """Write the version files that set-up code would have made and a clone lacks, as that code is not run; their paths."""
    files = tree.files(folder)
    project = _toml(files, "pyproject.toml")
    scm, tools = _table(project, "tool", "setuptools_scm"), _table(project, "tool")
    asked = [*_strings(scm.get("version_file")), *_strings(scm.get("write_to"))]
    asked += _strings(_table(tools, "hatch", "build", "hooks", "vcs").get("version-file"))
    asked += _strings(_table(tools, "pdm", "version").get("write_to"))
    if "setup.py" in files:
        text = files["setup.py"].read_text("utf-8", "replace")
        asked += re.findall(r"""(?:write_to|version_file)["']?\s*[:=]\s*["']([^"'\n]+)["']""", text) if "use_scm_version" in text else []
    made: list[str] = []
    for path in dict.fromkeys(map(_clean, asked)):
        place = folder / path
        inside = not path.startswith("/") and ".." not in path.split("/") and place.parent.resolve().is_relative_to(folder.resolve())
        if inside and path.endswith(".py") and path not in files and place.parent.is_dir() and not place.is_symlink():
            place.write_text(VERSION_FILE)
            made.append(path)
    return made


def _name(files: Mapping[str, Path], project: Mapping[str, Any], setup: configparser.ConfigParser) -> str:
    name = _table(project, "project").get("name") or setup.get("metadata", "name", fallback="")
    if not name and "PKG-INFO" in files:  # of a source distribution
        found = re.search(r"^Name: *(\S+)", files["PKG-INFO"].read_text("utf-8", "replace"), re.MULTILINE)
        name = found[1] if found else ""
    return str(name)


# -- where packages lie


def _import_roots(python: Iterable[str], project: Mapping[str, Any], setup: configparser.ConfigParser) -> tuple[str, ...]:
    folders = {str(parent) for path in python for parent in PurePosixPath(path).parents}
    setuptools = _table(project, "tool", "setuptools")
    asked = _strings(_table(setuptools, "packages", "find").get("where"))
    asked += _strings(_table(setuptools, "package-dir").get(""))
    packages = _table(project, "tool", "poetry").get("packages")
    for package in packages if isinstance(packages, list) else []:
        asked += _strings(package.get("from", ".")) if isinstance(package, dict) else []
    asked += _words(setup.get("options.packages.find", "where", fallback=""))
    asked += [value for key, value in _pairs(setup.get("options", "package_dir", fallback="")) if key == ""]
    pythonpath = _table(project, "tool", "pytest", "ini_options").get("pythonpath")
    asked += _words(pythonpath) if isinstance(pythonpath, str) else _strings(pythonpath)
    roots = [root for root in dict.fromkeys(_clean(root) for root in asked) if root in folders]
    if not any(root != "." for root in roots) and any(path.startswith("src/") for path in python) and "src/__init__.py" not in python:
        roots.insert(0, "src")
    if not any(_is_source(path, roots) for path in python):
        roots.append(".")
    return tuple(roots)


def _is_source(path: str, roots: Iterable[str]) -> bool:
    """In a package, or a module at an import root; no set-up file, nothing in a folder for documents or examples."""
    inside = _inside(path, roots)
    if inside is None:
        return False
    parts = PurePosixPath(inside).parts
    if any(part.startswith(".") or not part.isidentifier() for part in parts[:-1]) or parts[-1].startswith("."):
        return False
    if len(parts) == 1:
        return parts[0] not in SETUP_FILES
    return parts[0] not in NOT_PACKAGES


def _top(path: str, roots: Iterable[str]) -> str:
    inside = _inside(path, roots)
    return PurePosixPath(inside).parts[0].split(".")[0] if inside else ""


def _inside(path: str, roots: Iterable[str]) -> str | None:
    """The path seen from the longest root that holds it."""
    best: str | None = None
    for root in roots:
        rest = path if root == "." else path.removeprefix(root + "/") if path.startswith(root + "/") else None
        if rest is not None and (best is None or len(rest) < len(best)):
            best = rest
    return best


# -- which files are tests


def _patterns(project: Mapping[str, Any], setup: configparser.ConfigParser, *others: configparser.ConfigParser) -> list[str]:
    asked = _table(project, "tool", "pytest", "ini_options").get("python_files", "")
    for settings, section in [(setup, "tool:pytest"), *((other, "pytest") for other in others)]:
        asked = asked or settings.get(section, "python_files", fallback="")
    return (_words(asked) if isinstance(asked, str) else _strings(asked)) or ["test_*.py", "*_test.py"]


def _is_test_file(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(PurePosixPath(path).name, pattern.split("/")[-1]) for pattern in patterns)


def _in_test_folder(path: str, roots: Iterable[str]) -> bool:
    place = PurePosixPath(path)
    return place.name == "conftest.py" or any(
        part.lower() in TEST_FOLDERS for part in PurePosixPath(_inside(path, roots) or path).parts[:-1]
    )


# -- what they need


def _imported(files: Mapping[str, Path], paths: Iterable[str], indent: str) -> set[str]:
    """The first names of all modules that files import, where the statement stands as deep as the pattern says."""
    texts = (files[path].read_text("utf-8", "replace") for path in paths)
    return {name for text in texts for name in re.findall(rf"^{indent}(?:import|from) +([A-Za-z_]\w*)", text, re.MULTILINE)}


def _requirements(
    files: Mapping[str, Path], project: Mapping[str, Any], setup: configparser.ConfigParser, needed: set[str], used: set[str]
) -> tuple[str, ...]:
    """`needed`: imported by tests; `used`: imported anywhere, perhaps only if it is there."""
    found: list[str] = []
    table = _table(project, "project")
    found += _strings(table.get("dependencies"))
    extras = _table(table, "optional-dependencies").items()
    found += [line for group, lines in extras if group.lower() in TEST_GROUPS for line in _strings(lines)]
    groups = _table(project, "dependency-groups")
    for group in groups:
        if group.lower() in TEST_GROUPS:
            found += _group(groups, group, set())
    found += _lines(setup.get("options", "install_requires", fallback=""))
    if setup.has_section("options.extras_require"):
        for group, text in setup.items("options.extras_require"):
            found += _lines(text) if group.lower() in TEST_GROUPS else []
    if "setup.py" in files:
        found += _setup_py(files["setup.py"])
    for path, file in files.items():
        if re.fullmatch(r"(requirements/)?(requirements[-_])?tests?(ing)?([-_]requirements)?\.txt", path) or path == "requirements.txt":
            found += _lines(file.read_text("utf-8", "replace"))
    kept = [line.strip() for line in found if not re.match(r"\s*(-|\.|/|[a-z+]+://)|.*@\s*(file|git\+)", line)]
    named = {_named(line) for line in kept}
    wanted = {KNOWN[name] for name in needed & KNOWN.keys()} - named - {_normal(_name(files, project, setup))}
    optional = {_named(line): line for _, lines in extras for line in _strings(lines)}  # what the code can do with one more package
    wanted |= {name for name in optional if name.replace("-", "_") in used} - named
    kept += [optional.get(name, name) for name in sorted(wanted)]
    return tuple(sorted({line for line in kept if _named(line) not in TOOLS}))


def _named(requirement: str) -> str:
    return _normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _group(groups: Mapping[str, Any], name: str, seen: set[str]) -> list[str]:
    """A dependency group (PEP 735) with those that it includes."""
    if name in seen:
        return []
    seen.add(name)
    found: list[str] = []
    entries = groups.get(name)
    for entry in entries if isinstance(entries, list) else _strings(entries):
        found += [entry] if isinstance(entry, str) else []
        found += _group(groups, str(entry.get("include-group", "")), seen) if isinstance(entry, dict) else []
    return found


def _setup_py(file: Path) -> list[str]:
    """Literal `install_requires` and `tests_require` of setup.py, which is read and not run."""
    try:
        parsed = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in ast.walk(parsed):
        if (
            isinstance(node, ast.keyword)
            and node.arg in ("install_requires", "tests_require")
            and isinstance(node.value, (ast.List, ast.Tuple))
        ):
            found += [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return found


def _toml(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        return tomllib.loads(files[name].read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name} cannot be read: {error}") from None


def _table(settings: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A table inside tables; empty where there is none or something else stands in its place: other tools complain of that."""
    for name in names:
        found = settings.get(name)
        settings = found if isinstance(found, dict) else {}
    return settings


def _strings(value: object) -> list[str]:
    """A list of strings, or one string that was meant as one; whatever else is in it is left out."""
    return [value] if isinstance(value, str) else [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _ini(files: Mapping[str, Path], name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    if name in files:
        try:
            parser.read_string(files[name].read_text("utf-8", "replace"))
        except configparser.Error:
            return configparser.ConfigParser(interpolation=None)
    return parser


def _lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if (line := re.sub(r"(^|\s)#.*", "", raw).strip())]


def _words(text: str) -> list[str]:
    return re.split(r"[\s,]+", text.strip()) if text.strip() else []


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(key.strip(), value.strip()) for key, found, value in (line.partition("=") for line in _lines(text)) if found]


def _clean(root: str) -> str:
    return str(PurePosixPath(root.strip() or "."))
