"""Environments that were deleted come back from their locks, offline; what cannot come back is one line."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from etude.grade.environment import make_environment
from etude.grade.grader import grade
from etude.records import encode
from etude.store import TaskStore
from etude.synth.restore import restore_environments
from etude.types import Repo, Task


def wheel(folder):
    files = {
        "tiny_dep.py": "VALUE = 41\n",
        "tiny_dep-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny_dep\nVersion: 1.5\n",
        "tiny_dep-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    sums = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for path, text in files.items()}
    record = "".join(f"{path},sha256={sums[path]},{len(text)}\n" for path, text in files.items()) + "tiny_dep-1.5.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / "tiny_dep-1.5-py3-none-any.whl", "w") as archive:
        for path, text in {**files, "tiny_dep-1.5.dist-info/RECORD": record}.items():
            archive.writestr(path, text)
    return folder / "tiny_dep-1.5-py3-none-any.whl"


@pytest.fixture
def store(tmp_path, lay_down, runner_environment):
    """Two tasks that need a package, one that needs only the runner; every environment's folder is gone."""
    found = TaskStore.create(tmp_path / "tasks")
    digest = found.add_snapshot(lay_down(tmp_path / "repository", {"pkg.py": "x = 1\n", "test_pkg.py": "def test_x(): ...\n"}))
    repo = Repo(name="pkg", digest=digest, import_roots=(".",), test_paths=("test_pkg.py",))
    needs = make_environment([f"tiny_dep @ {wheel(tmp_path).as_uri()}"], found.environments)
    for name, environment in (("one", needs), ("two", needs), ("three", runner_environment)):
        found.add(
            Task(
                id=name,
                repo=repo,
                environment=environment,
                instruction="",
                cut="",
                gold="",
                fail_to_pass=("test_pkg.py::test_x",),
                pass_to_pass=(),
                symbols=(),
            )
        )
    (tmp_path / "tiny_dep-1.5-py3-none-any.whl").unlink()
    shutil.rmtree(found.environments / needs.digest)
    return found


def restore(store, *arguments, **variables):
    command = [sys.executable, "-m", "etude", "tasks", "restore", str(store.path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env={**os.environ, **variables})


def test_missing_environments_are_made_again_and_then_are_there(store):
    needs, alone = store.get("one").environment, store.get("three").environment
    first = {each.digest: each for each in restore_environments(store, fetch=False)}
    assert {digest: (each.outcome, each.num_tasks) for digest, each in first.items()} == {
        needs.digest: ("made again", 2),
        alone.digest: ("made again", 1),
    }
    assert (store.environment(needs) / "tiny_dep.py").read_text() == "VALUE = 41\n"
    assert (store.environment(alone) / "pytest").is_dir()
    assert {each.outcome for each in restore_environments(store, fetch=False)} == {"there"}


def test_a_task_grades_the_same_on_another_machine(pocket_store, tmp_path, backend):
    """A copy of the folder without environments, restored and graded by another process: no home, other zone, language, mask, folder."""
    task = pocket_store.get("pocket-slugify")
    patches = {"gold": task.gold, "empty": ""}
    verdicts = {name: json.loads(encode(grade(task, patch, store=pocket_store, backend=backend))) for name, patch in patches.items()}
    other = tmp_path / "elsewhere" / "tasks"
    shutil.copytree(pocket_store.path, other, ignore=lambda folder, names: {task.environment.digest, ".cache"} & set(names))
    assert not (other / "env" / task.environment.digest).exists()
    (tmp_path / "gold.diff").write_text(task.gold)
    (tmp_path / "empty.diff").write_text("")
    (tmp_path / "home").mkdir()
    strange = {"HOME": str(tmp_path / "home"), "TZ": "Pacific/Kiritimati", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"}
    strange |= {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}

    def etude(*arguments):
        command = [sys.executable, "-m", "etude", "tasks", *arguments]
        done = subprocess.run(command, cwd=tmp_path / "home", env=strange, umask=0o077, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout

    assert etude("restore", str(other), "--offline")[0] == 0
    for name, code in (("gold", 0), ("empty", 1)):
        returned, printed = etude("grade", str(other), task.id, "--patch", str(tmp_path / f"{name}.diff"), "--json")
        here, there = verdicts[name], json.loads(printed)
        assert (returned, there["verdict"], there["solved"]) == (code, "graded", code == 0)
        for key in here.keys() - {"seconds", "record", "version"}:
            assert there[key] == here[key], key


def test_the_verb_shows_a_table_and_the_reason_where_a_lock_is_missing(store):
    needs = store.get("one").environment
    (store.environments / f"{needs.digest}.lock").unlink()
    shown = restore(store, "--offline")
    assert shown.returncode == 1
    lines = [line for line in shown.stdout.splitlines() if needs.digest[:12] in line]
    assert "not made" in lines[0]
    assert len(lines) == 2
    assert "which names the wheels of tiny-dep==1.5; put it back, or build the tasks again" in " ".join(shown.stdout.split())
    assert "1 of 2 environments are there" in shown.stdout
    (again,) = [each for each in json.loads(restore(store, "--offline", "--json").stdout) if each["outcome"] == "there"]
    assert again["num_tasks"] == 1


def test_a_wheel_that_is_gone_is_named_and_nothing_half_made_is_left(store):
    needs = store.get("one").environment
    (store.environments / ".wheels/tiny_dep-1.5-py3-none-any.whl").unlink()
    (outcome,) = [each.outcome for each in restore_environments(store, fetch=False) if each.digest == needs.digest]
    assert "tiny_dep-1.5-py3-none-any.whl is missing or was changed" in outcome
    assert not [each for each in store.environments.iterdir() if each.name.startswith(".new")]


def test_a_wheel_that_is_gone_is_fetched_where_the_index_has_the_very_same(store, tmp_path):
    (kept,) = (store.environments / ".wheels").glob("*.whl")
    index = tmp_path / "index"
    index.mkdir()
    kept.rename(index / kept.name)
    shown = restore(store, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert (shown.returncode, "2 of 2 environments are there" in shown.stdout) == (0, True), shown
    assert kept.is_file()
    shutil.rmtree(store.environment(store.get("one").environment))
    kept.unlink()
    with zipfile.ZipFile(index / kept.name, "a") as archive:
        archive.writestr("more.py", "")
    assert restore(store, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index)).returncode == 1
