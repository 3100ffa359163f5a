"""What a folder with a package.json holds: sources, tests, what runs them, what they need.

In: a folder; out: a Project. Built products are no sources: folders such as dist, minified files, and files that have a twin below src.
Of the development dependencies only those that tests, sources or the runner's configuration import are needed.

Not here: installing them (environment.py).
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from etude import tree
from etude.errors import UserError
from etude.languages.protocol import Project

SUFFIXES = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs", "__mocks__", "__snapshots__", "fixtures", "testing"})
TEST_NAME = re.compile(r"(^|[._-])(test|tests|spec)([._-]|$)|^test-|-test$")
OTHER_FOLDERS = frozenset({
    "dist", "build", "out", "coverage", "benchmark", "benchmarks", "bench", "example", "examples", "docs", "doc", "types", "scripts",
    "tools", "website", "demo", "playground", "vendor", "bin",
})  # fmt: skip
RUNNER_CONFIGS = ("vitest.config", "vite.config")
SPECIFIER = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*|\brequire(?:\.resolve)?\s*\(\s*)(["'])([^"'\n]+)\1""")
NODE_TEST = re.compile(r"""["']node:test["']""")
VITEST = re.compile(r"""["']vitest["']""")
RELATIVE = re.compile(r"""["'](\.{1,2}/[^"'\n]+)["']""")
VITEST_DEFAULT = "vitest@^3.2.4"
MAX_BYTES = 2**20
OTHER_RUNNERS = ("jest", "mocha", "ava", "tape", "tap", "jasmine", "uvu", "borp", "bun test")
MANIFESTS = ("package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml")
PROTECTED = (
    "package.json", "package-lock.json", "*/package.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "node_modules/*",
    "*/node_modules/*", "*.config.js", "*.config.mjs", "*.config.cjs", "*.config.ts", "*.config.mts", "*.config.cts", "tsconfig*.json",
    "*/tsconfig*.json", "*.snap",
)  # fmt: skip


def discover(folder: Path, name: str) -> Project | None:
    manifest_path = folder / "package.json"
    if not manifest_path.is_file():
        return None
    manifest = _manifest(manifest_path)
    own = str(manifest.get("name") or name or folder.name)
    texts = {path: file.read_text("utf-8", "replace") for path, file in _code_files(folder).items()}
    is_test = {path: _is_test_path(path) for path in texts}
    runner = _runner(manifest, [texts[path] for path in texts if is_test[path]], own)
    marker = VITEST if runner == "vitest" else NODE_TEST
    for path in _only_named_so(texts, is_test, marker):
        is_test[path] = False
    tests = [path for path in texts if is_test[path] and marker.search(texts[path])]
    if runner == "vitest" and not tests:  # its globals
        tests = [path for path in texts if is_test[path] and re.search(r"\.(test|spec)\.\w+$", path)]
    sources = [path for path in texts if not is_test[path] and not _is_other(path) and not _is_product(path, texts)]
    if not tests or not sources:
        raise UserError(f"{own} has no {'tests' if not tests else 'sources'} that can be worked on; look at its folders")
    support = sorted({path for path in texts if is_test[path]} - set(tests))
    configs = [path for path in texts if "/" not in path and path.rpartition(".")[0] in RUNNER_CONFIGS]
    requirements = _requirements(manifest, (texts[path] for path in (*tests, *support, *sources, *configs)), runner)
    return Project(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-._") or "package",
        language="typescript"
        if sum(".ts" in path[-4:] or path.endswith((".mts", ".cts")) for path in sources) * 2 > len(sources)
        else "javascript",
        runner=runner,
        sources=tuple(sorted(sources)),
        tests=tuple(sorted(tests)),
        support=tuple(support),
        requirements=requirements,
        own_names=(own,),
        protected=(*PROTECTED, *_test_globs(tests, support)),
        manifests=tuple(name for name in MANIFESTS if (folder / name).is_file()),
        settings={"conditions": " ".join(_source_conditions(manifest.get("exports")))},
    )


def products(folder: Path, project: Project) -> list[str]:
    """Files made from the sources that lie beside them: an agent may not see them."""
    sources = set(project.sources)
    found: list[str] = []
    for path in tree.files(folder):
        stem = _bare(path)
        twin = any(f"src/{stem}{suffix}" in sources for suffix in SUFFIXES)
        built = any(part in ("dist", "build", "out", "coverage") for part in path.split("/")[:-1])
        if path not in sources and (built or (twin and not path.startswith("src/")) or path.endswith((".min.js", ".js.map", ".cjs.map"))):
            found.append(path)
    return found


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"package.json cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UserError("package.json cannot be read: it is no object")
    return found


def _code_files(folder: Path) -> dict[str, Path]:
    found = tree.files(folder)
    return {
        path: file
        for path, file in found.items()
        if path.endswith(SUFFIXES) and not re.search(r"\.d\.[mc]?ts$|\.min\.\w+$", path) and file.stat().st_size <= MAX_BYTES
    }


def _runner(manifest: Mapping[str, Any], tests: Iterable[str], own: str) -> str:
    texts = list(tests)
    scripts = " ".join(str(text) for text in (manifest.get("scripts") or {}).values())
    by_vitest = sum(bool(VITEST.search(text)) for text in texts)
    by_node = sum(bool(NODE_TEST.search(text)) for text in texts)
    if by_vitest > by_node or (not by_node and "vitest" in scripts and "vitest" in _wanted(manifest)):
        return "vitest"
    if by_node:
        return "node"
    other = next((name for name in OTHER_RUNNERS if re.search(rf"\b{name}\b", scripts) or name in _wanted(manifest)), None)
    raise UserError(f"the tests of {own} are run by {other or 'something unknown'}; known are node's test runner (node:test) and vitest")


def _is_test_path(path: str) -> bool:
    *folders, name = path.split("/")
    stem = name.rpartition(".")[0]
    return any(part in TEST_FOLDERS for part in folders) or bool(TEST_NAME.search(stem)) or stem == "test"


def _only_named_so(texts: Mapping[str, str], is_test: Mapping[str, bool], marker: re.Pattern[str]) -> list[str]:
    """lib/test.js, which the sources import and which tests nothing."""
    wanted = {
        _bare(posixpath.normpath(posixpath.join(posixpath.dirname(path), specifier)))
        for path, text in texts.items()
        if not is_test[path]
        for specifier in RELATIVE.findall(text)
    }
    return [
        path
        for path, text in texts.items()
        if is_test[path] and not _test_folder(path) and not marker.search(text) and _bare(path) in wanted
    ]


def _test_folder(path: str) -> str:
    parts = path.split("/")
    found = [number for number, part in enumerate(parts[:-1]) if part in TEST_FOLDERS]
    return "/".join(parts[: found[0] + 1]) if found else ""


def _test_globs(tests: Iterable[str], support: Iterable[str]) -> list[str]:
    folders = {path: _test_folder(path) for path in (*tests, *support)}
    return sorted({f"{folder}/*" if folder else path for path, folder in folders.items()})


def _is_other(path: str) -> bool:
    *folders, name = path.split("/")
    dotted = any(part.startswith(".") for part in (*folders, name))
    return (
        dotted or any(part in OTHER_FOLDERS for part in folders) or bool(re.search(r"\.config\.\w+$|^\.|^gulpfile|^Gruntfile|^karma", name))
    )


def _bare(path: str) -> str:
    return re.sub(r"(\.d)?\.[mc]?[jt]sx?(\.map)?$", "", path)


def _is_product(path: str, texts: Mapping[str, str]) -> bool:
    return not path.startswith("src/") and any(f"src/{_bare(path)}{suffix}" in texts for suffix in SUFFIXES)


def _wanted(manifest: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in ("peerDependencies", "devDependencies", "optionalDependencies", "dependencies"):
        found |= {str(name): str(version) for name, version in (manifest.get(key) or {}).items()}
    return found


def _requirements(manifest: Mapping[str, Any], texts: Iterable[str], runner: str) -> tuple[str, ...]:
    """The package's own dependencies, and of the others what is imported."""
    imported = {package_of(match[2]) for text in texts for match in SPECIFIER.finditer(text)}
    wanted, own = _wanted(manifest), str(manifest.get("name"))
    names = {*(manifest.get("dependencies") or {}), *(name for name in wanted if name in imported)} - {own}
    found = {name: wanted[name] for name in names if re.fullmatch(r"[\w.^~<>=|* -]+", wanted[name]) and "workspace" not in wanted[name]}
    texts_of = [f"{name}@{version}" for name, version in found.items()]
    if runner == "vitest" and "vitest" not in found:
        texts_of.append(VITEST_DEFAULT)
    return tuple(sorted(texts_of))


def package_of(specifier: str) -> str:
    """The package of a bare specifier: "@scope/name/file" -> "@scope/name"; "" for a path or a builtin module."""
    if specifier.startswith((".", "/", "node:", "#")):
        return ""
    parts = PurePosixPath(specifier).parts
    return "/".join(parts[: 2 if specifier.startswith("@") else 1])


def _source_conditions(exports: object) -> list[str]:
    """Conditions of package.json's exports that name sources: with them a package that imports itself gets those, and no product."""
    found: dict[str, None] = {}
    stack = [exports]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                names_source = isinstance(value, str) and value.startswith("./src/")
                if names_source and not key.startswith(".") and key not in ("import", "require", "default", "types", "node"):
                    found[key] = None
                stack.append(value)
    return sorted(found)
