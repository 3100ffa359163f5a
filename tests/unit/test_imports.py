"""The shape of the package: imports point down, and what needs no torch loads none.

The tiers are those of docs/design.md. A tier is a line here; a name on it may import from lines above and, if it is a folder, from itself.
All imports count: at the top, inside functions, under TYPE_CHECKING, relative ones, and importlib.import_module("etude...").
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "etude"
TIERS = (
    ("types", "errors"),
    ("toml",),
    ("config", "records"),
    ("sandbox", "render", "metrics", "view", "fanout", "optim", "parallel", "corpus", "tree", "runfolder"),
    ("store", "split", "plan", "languages", "pool"),
    ("model",),
    ("engine",),
    ("agent", "grade", "learn"),
    ("synth", "feedback", "monitor"),
    ("collect", "growth", "formats"),
    ("evaluate",),
    ("warmup", "curriculum"),
    ("train", "pretrain"),
    ("studio",),
    ("demo",),
    ("verbs",),
    ("task_verbs",),
    ("cli",),
    ("__main__",),
)
TORCH_FREE = (
    "types", "errors", "toml", "config", "records", "metrics", "render", "tree", "fanout", "store", "split",
    "runfolder", "sandbox", "plan", "corpus", "parallel.degrees", "pretrain.config", "agent", "grade", "synth",
    "feedback", "monitor", "formats", "languages", "pool", "growth", "engine.protocol", "collect", "evaluate", "studio", "cli",
)  # fmt: skip

Edge = tuple[str, str, int]  # importing module, imported module, line


def read_package(folder: Path) -> dict[str, str]:
    """Module name -> source of every file, "etude.sandbox" for its __init__.py."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = ("etude", *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def edges(modules: Mapping[str, str]) -> Iterator[Edge]:
    """Every import of one module of the package by another, on the most precise module that exists."""
    for module, source in modules.items():
        is_package = any(other.startswith(f"{module}.") for other in modules)
        for node in ast.walk(ast.parse(source)):
            for target in _targets(node, module, is_package):
                while target and target not in modules:
                    target = target.rpartition(".")[0]
                if target and target != module:
                    yield module, target, getattr(node, "lineno", 0)


def _targets(node: ast.AST, module: str, is_package: bool) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = module.split(".")[: None if is_package and node.level == 1 else -(node.level - is_package)] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            return [f"{origin}.{alias.name}" for alias in node.names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]
        ):
            return [name]
    return []


def unit(module: str) -> str:
    """The file or folder directly under the package; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def problems(modules: Mapping[str, str]) -> list[str]:
    height = {name: i for i, tier in enumerate(TIERS) for name in tier}
    found = [
        f"{module}: not in a tier; add {unit(module)} to TIERS and to docs/design.md"
        for module in modules
        if unit(module) not in {*height, ""}
    ]
    graph: dict[str, set[str]] = {}
    for module, target, line in edges(modules):
        graph.setdefault(module, set()).add(target)
        here, there = unit(module), unit(target)
        if here == there or there == "" or here not in height or there not in height:
            continue
        if height[there] > height[here]:
            found.append(f"{module}:{line}: imports {target} of a higher tier")
        elif height[there] == height[here]:
            found.append(f"{module}:{line}: imports {target} of its own tier")
    return found + [f"circular: {' -> '.join(cycle)}" for cycle in cycles(graph)]


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One cycle per back edge of a depth-first walk."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
            return
        if node in done:
            return
        for target in sorted(graph.get(node, ())):
            walk(target, [*path, node])
        done.add(node)

    for start in sorted(graph):
        walk(start, [])
    return found


def test_every_import_points_down() -> None:
    modules = read_package(SOURCE)
    assert "etude.types" in modules
    assert len(list(edges(modules))) > 50
    assert problems(modules) == []


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        ({"etude.types": "from etude.config import Config", "etude.config": ""}, "etude.types:1: imports etude.config of a higher tier"),
        ({"etude.types": "def f():\n    import etude.train", "etude.train": ""}, "etude.types:2: imports etude.train of a higher tier"),
        (
            {"etude.grade": "", "etude.grade.a": "from etude import learn", "etude.learn": ""},
            "etude.grade.a:1: imports etude.learn of its own tier",
        ),
        (
            {"etude.agent": "", "etude.agent.a": "from ..learn import b", "etude.learn": ""},
            "etude.agent.a:1: imports etude.learn of its own tier",
        ),
        (
            {"etude.agent": "from ..train import x", "etude.agent.a": "", "etude.train": ""},
            "etude.agent:1: imports etude.train of a higher tier",
        ),
        (
            {"etude.grade": "import importlib\nimportlib.import_module('etude.train')", "etude.train": ""},
            "etude.grade:2: imports etude.train of a higher tier",
        ),
        (
            {"etude.agent": "", "etude.agent.a": "from . import b", "etude.agent.b": "def f():\n    from etude.agent.a import x"},
            "circular: etude.agent.a -> etude.agent.b -> etude.agent.a",
        ),
        ({"etude.novelty": ""}, "etude.novelty: not in a tier; add novelty to TIERS and to docs/design.md"),
    ],
)
def test_an_import_that_does_not_point_down_is_found(modules: dict[str, str], problem: str) -> None:
    assert problems({"etude": "", **modules}) == [problem]


def test_imports_of_lower_tiers_of_the_own_folder_and_of_other_packages_are_fine() -> None:
    modules = {
        "etude": "__version__ = '1'",
        "etude.types": "import json",
        "etude.agent": "from etude.agent import a",
        "etude.agent.a": "from etude import __version__\nfrom etude.types import Task\nfrom .b import c\nimport torch",
        "etude.agent.b": "",
    }
    assert problems(modules) == []
    assert ("etude.agent.a", "etude.agent.b", 3) in list(edges(modules))


HEAVY = ("torch", "transformers", "safetensors")
NO_MODULES = ("etude.grade.child",)  # a script: a sandbox runs it as a file, beside the repository's own packages
LOAD_ALL = """
import importlib, pkgutil, sys
name, skipped, watched = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
module = importlib.import_module("etude." + name)
for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    if found.name not in skipped:
        importlib.import_module(found.name)
print(sorted(name for name in watched if name in sys.modules))
"""
HELP = """
import sys
watched = sys.argv[1].split(",")
sys.argv = ["etude", "--help"]
from etude.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(sorted(name for name in watched if name in sys.modules))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_needs_no_torch_loads_none(name: str) -> None:
    assert run(LOAD_ALL, name, ",".join(NO_MODULES), ",".join(HEAVY)).splitlines()[-1] == "[]"


def test_a_library_that_is_loaded_is_seen() -> None:
    assert run(LOAD_ALL, "render", "", "tokenizers,torch").splitlines()[-1] == "['tokenizers']"


def test_scripts_for_the_sandbox_use_nothing_of_the_package() -> None:
    modules = read_package(SOURCE)
    assert [edge for edge in edges(modules) if edge[0] in NO_MODULES] == []
    assert set(NO_MODULES) <= modules.keys()


def test_importing_the_package_loads_none_of_its_parts() -> None:
    shown = run("import sys, etude; print(sorted(m for m in sys.modules if m.startswith('etude.') or m == 'torch'))")
    assert shown.strip() == "[]"


def test_help_is_shown_without_torch() -> None:
    lines = run(HELP, ",".join(HEAVY)).splitlines()
    assert lines[-1] == "[]"
    assert any("demo" in line for line in lines)
