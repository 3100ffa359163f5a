"""Harbor task folders (schema 1.4, read in Harbor 0.26), out and in.

    instruction.md
    task.toml                no network for agent and verifier; the verifier has a container of its own; /work is the declared artifact
    environment/             Dockerfile, requirements.txt, repo.tar: the agent's first tree, no history, no caches
    tests/                   Dockerfile of the verifier, requirements.txt, test.sh, grading.json, original.tar (hidden tests), start.tar,
                             etude/: the modules that grade (harbor_verify.py and what it imports), so our own rules hold there
    solution/                solve.sh lays down files/, gold.patch for people, task.json: the whole record

Why so: with Harbor's default, a shared container, an agent that writes reward.json itself is believed; with a separate one that is told of
no artifact the honest agent scores zero (valbaudo/dawn#14). The verifier's image holds its tests already, as Harbor adds none to an image
of its own. Trees are tar files: a folder would meet the .gitignore of whoever keeps the tasks in git. The same task gives the same bytes.

In: a folder written by this file; a folder of others needs the image that its Dockerfile builds, which etude does not run.

Not here: the verifier itself (harbor_verify.py).
"""

import ast
import json
import os
import re
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import etude
from etude import tree
from etude.errors import UserError, printable
from etude.formats.archive import read_tar, write_tar
from etude.formats.foreign import need_environment
from etude.records import decode, encode
from etude.sandbox.protocol import ENV, WORK
from etude.store import TaskStore
from etude.types import Task

LAYOUT = 1  # of our folders: metadata.etude in task.toml
SCHEMA = "1.4"
AGENT_S = 1800.0
GRACE_S = 60.0  # of the verifier beyond the tests: unpacking, killing
MIN_MEMORY_MB = 2048  # an agent's own tools want some
IGNORED_IN_WORK = ("__pycache__", ".git", ".venv", "node_modules", ".pytest_cache", ".mypy_cache")
VERIFIER = "etude.formats.harbor_verify"
SCRIPTS = ("grade/child.py", "grade/clock.py", "grade/supervise.py")  # read as text by grade/runner.py
TEST_SH = f"""#!/bin/sh
# Writes /logs/verifier/reward.json. No file means that the verifier itself failed: no verdict, not a zero.
exec python3 -I -B -c 'import sys; sys.path.insert(0, "/tests"); from {VERIFIER} import main; main()'
"""


def write_task(task: Task, store: TaskStore, folder: Path) -> None:
    """Write or rewrite a task's folder, whole or not at all. UserError where `folder` is none of ours, or no image could run the tests."""
    if task.environment.runner != "pytest":
        raise UserError(f"{task.id}: its tests run with {task.environment.runner}; Harbor folders are written for pytest only")
    if folder.exists() and not _is_ours(folder):
        raise UserError(f"{folder} exists and is no task that etude exported; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.", dir=folder.parent))
    try:
        (new / "instruction.md").write_bytes(task.instruction.encode("utf-8", "surrogatepass"))
        (new / "task.toml").write_text(task_toml(task), "utf-8")
        _write_environment(task, store, new / "environment")
        _write_tests(task, store, new / "tests")
        _write_solution(task, store, new / "solution")
        new.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_task(folder: Path, store: TaskStore) -> Task:
    """The task of a folder that `write_task` wrote, its snapshot and environment put into the store; not added to it.

    UserError for a folder of others, a damaged one, or an environment that cannot be had here.
    """
    if not _is_ours(folder):
        raise UserError(
            f"{folder} was not exported by etude: its tests need the docker image of its environment/Dockerfile, which etude does not "
            "run; read Harbor tasks of etude's own, or rows of SWE-bench"
        )
    try:
        task = decode((folder / "solution/task.json").read_bytes(), Task)
        instruction = (folder / "instruction.md").read_bytes().decode("utf-8", "surrogatepass")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: {error}; export the task again") from None
    with tempfile.TemporaryDirectory(prefix="etude-harbor-") as name:
        original = Path(name, "original")
        read_tar(folder / "tests/original.tar", original)
        if tree.digest(original) != task.repo.digest:
            raise UserError(f"{folder}/tests/original.tar is not the repository that the task was made from; export the task again")
        store.add_snapshot(original)
    need_environment(task.environment, store)
    return replace(task, instruction=instruction)


def is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file()


def task_toml(task: Task) -> str:
    """Sections as Harbor 0.26 reads them."""
    name = re.sub(r"\.{2,}", ".", task.id)
    first = next((line for line in task.instruction.splitlines() if line.strip()), "")
    artifact = f"{{ source = {_toml(WORK)}, exclude = {_toml(list(IGNORED_IN_WORK))} }}"
    sections: dict[str, dict[str, Any]] = {
        "task": {"name": f"etude/{name}", "description": printable(first)[:200], "keywords": [task.language, task.kind]},
        "metadata": {
            "etude": LAYOUT,
            "repository": task.repo.name,
            "source": task.repo.source,
            "kind": task.kind,
            "mode": task.mode,
            "level": task.level,
            "band": task.band,
            "language": task.language,
            "fail_to_pass": len(task.fail_to_pass),
            "pass_to_pass": len(task.pass_to_pass),
        },
        "verifier": {
            "environment_mode": "separate",
            "network_mode": "no-network",
            "timeout_sec": task.limits.wall_s + GRACE_S,
        },
        "verifier.environment": _machine(task, MIN_MEMORY_MB),
        "agent": {"network_mode": "no-network", "timeout_sec": AGENT_S},
        "environment": {**_machine(task, MIN_MEMORY_MB), "workdir": WORK},
    }
    lines = [f"schema_version = {_toml(SCHEMA)}", f"artifacts = [{artifact}]"]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def verifier_modules() -> dict[str, Path]:
    """Path below a folder on the import path -> file, for the verifier and all of etude that it imports."""
    root = Path(etude.__file__).parent
    todo, found = [VERIFIER], dict[str, Path]()
    while todo:
        parts = todo.pop().split(".")[1:]
        for depth in range(1, len(parts) + 1):  # a package is imported before what is in it
            file = root.joinpath(*parts[:depth]).with_suffix(".py")
            file = file if file.is_file() else root.joinpath(*parts[:depth], "__init__.py")
            path = f"etude/{file.relative_to(root).as_posix()}"
            if file.is_file() and path not in found:
                found[path] = file
                todo += _imports(file)
    return {**found, "etude/__init__.py": root / "__init__.py", **{f"etude/{name}": root / name for name in SCRIPTS}}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("etude."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "etude":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _write_environment(task: Task, store: TaskStore, folder: Path) -> None:
    folder.mkdir()
    write_tar(store.workspace(task), folder / "repo.tar")
    roots = ":".join([*(str(Path(WORK, root)) for root in task.repo.import_roots), ENV])
    (folder / "requirements.txt").write_text(_requirements(task))
    (folder / "Dockerfile").write_text(
        _dockerfile(task)
        + f"""COPY repo.tar /tmp/repo.tar
RUN mkdir {WORK} && tar -xf /tmp/repo.tar -C {WORK} && rm /tmp/repo.tar
ENV PYTHONPATH={json.dumps(roots)} PATH="{ENV}/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 TZ=UTC LC_ALL=C.UTF-8
WORKDIR {WORK}
"""
    )


def _write_tests(task: Task, store: TaskStore, folder: Path) -> None:
    """What the verifier's image is built from."""
    folder.mkdir()
    original, start = store.snapshot(task.repo), store.workspace(task)
    before, after = tree.files(original), tree.files(start)
    write_tar(original, folder / "original.tar")
    changed = [path for path, file in after.items() if path not in before or before[path].read_bytes() != file.read_bytes()]
    write_tar(start, folder / "start.tar", only=changed)
    grading = {
        "name": task.repo.name,
        "import_roots": task.repo.import_roots,
        "test_paths": task.repo.test_paths,
        "protected": task.protected,
        "removed": sorted(before.keys() - after.keys()),
        "fail_to_pass": task.fail_to_pass,
        "pass_to_pass": task.pass_to_pass,
        "wall_s": task.limits.wall_s,
    }
    (folder / "grading.json").write_text(json.dumps(grading, indent=1) + "\n", "ascii")
    (folder / "requirements.txt").write_text(_requirements(task))
    for path, file in sorted(verifier_modules().items()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)
    _script(folder / "test.sh", TEST_SH)
    copied = "COPY . /tests/\nRUN mkdir -p /logs/verifier && chmod -R go= /tests && chmod +x /tests/test.sh\nWORKDIR /\n"
    (folder / "Dockerfile").write_text(_dockerfile(task) + copied)


def _write_solution(task: Task, store: TaskStore, folder: Path) -> None:
    folder.mkdir()
    before, after = tree.files(store.workspace(task)), tree.files(store.solved_tree(task))
    lines = ["#!/bin/sh", "# Lays down what gold.patch adds, and takes away what it removes.", "set -e", f"cd {WORK}"]
    lines += [f"rm -f -- {shlex.quote(path)}" for path in before if path not in after]
    new = [path for path, file in after.items() if path not in before or before[path].read_bytes() != file.read_bytes()]
    for path in new:
        place = folder / "files" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(after[path], place)
        place.chmod(0o755 if after[path].stat().st_mode & 0o100 else 0o644)
    lines += ['cp -R "$(dirname "$0")/files/." .'] if new else []
    _script(folder / "solve.sh", "\n".join(lines) + "\n")
    (folder / "gold.patch").write_bytes(task.gold.encode("utf-8", "surrogateescape"))
    (folder / "task.json").write_bytes(encode(task) + b"\n")


def _dockerfile(task: Task) -> str:
    """The part that both images share: the interpreter and the locked packages, as wheels."""
    python = re.fullmatch(r"3\.\d+", task.environment.python)
    if python is None:
        raise UserError(f"{task.id}: its environment names Python {task.environment.python!r}; an image needs a version such as 3.11")
    options = f"--no-cache-dir --no-deps --only-binary :all: --target {ENV}"
    return f"""FROM python:{python[0]}-slim-bookworm
COPY requirements.txt /tmp/requirements.txt
RUN python3 -m pip install {options} -r /tmp/requirements.txt && rm /tmp/requirements.txt
"""


def _requirements(task: Task) -> str:
    return "".join(f"{requirement}\n" for requirement in task.environment.requirements)


def _machine(task: Task, least: int) -> dict[str, Any]:
    memory = max(least, task.limits.memory_mb)
    return {"network_mode": "no-network", "build_timeout_sec": 900.0, "cpus": 1, "memory_mb": memory, "storage_mb": 10240}


def _script(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    os.chmod(file, 0o755)


def _is_ours(folder: Path) -> bool:
    try:
        found = tomllib.loads((folder / "task.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    metadata = found.get("metadata")
    return isinstance(metadata, dict) and metadata.get("etude") == LAYOUT


def _toml(value: str | int | float | list[str]) -> str:
    """JSON's strings, numbers and lists are TOML's too, once control characters are gone."""
    if isinstance(value, str):
        return json.dumps(printable(value), ensure_ascii=False)
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)
