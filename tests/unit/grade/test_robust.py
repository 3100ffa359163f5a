"""Gradings that are disturbed: by each other, by what they start, by a kill."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etude import tree
from etude.grade import scratch
from etude.grade.grader import grade
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Task

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]
Diff = Callable[[Mapping[str, str]], str]
DEADLINE_S = 60.0
TEXT = "def shout(text):\n    return text.upper() + '!'\n"
HALF = f"{TEXT}\n\ndef slugify(text, sep='-'):\n    return '-'.join(text.replace(',', '').lower().split())\n"
EXPORTS = "from pocket.stack import Stack\nfrom pocket.stats import mean, median\nfrom pocket.text import shout, slugify\n"
GRADE = """
import sys
from pathlib import Path
from etude.grade.grader import grade
from etude.grade.guards import OFF
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
store = TaskStore.open(Path(sys.argv[1]))
grade(store.tasks()[0], sys.stdin.read(), store=store, backend=Bubblewrap(), checks=OFF)
"""


@pytest.fixture
def task(pocket_store: TaskStore) -> Task:
    return pocket_store.get("pocket-slugify")


@pytest.fixture
def diff(pocket_store: TaskStore, task: Task, tmp_path: Path, lay_down: LayDown) -> Diff:
    def make(files: Mapping[str, str]) -> str:
        after = tmp_path / f"after-{len(list(tmp_path.iterdir()))}"
        tree.copy_tree(pocket_store.workspace(task), after)
        return tree.make_patch(pocket_store.workspace(task), lay_down(after, files))

    return make


def marked(marker: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker in (entry / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(int(entry.name))
    return found


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def outer_bubblewrap(pid: int) -> int:
    """The outermost bwrap above a process."""
    found = 0
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        found, pid = (pid if name == "bwrap" else found), int(rest.split()[1])
    return found


def test_a_sandbox_that_is_killed_while_the_tests_run_is_no_verdict(pocket_store: TaskStore, task: Task, diff: Diff) -> None:
    patch = diff({"pocket/__init__.py": "import subprocess\nsubprocess.run(['sleep', '7901.5'])\n"})

    def kill() -> None:
        wait_for(lambda: bool(marked("7901.5")))
        os.kill(outer_bubblewrap(marked("7901.5")[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    verdict = grade(task, patch, store=pocket_store, backend=Bubblewrap())
    killer.join()
    assert (verdict.verdict, verdict.reward) == ("no_verdict", None)
    assert "bubblewrap was killed" in verdict.reason


def test_what_the_code_under_test_leaves_running_is_dead_before_its_report_is_read(
    pocket_store: TaskStore, task: Task, backend: Backend, diff: Diff
) -> None:
    loop = "while :; do echo forged > .etude-result; sleep 0.01; done"
    start = f"import subprocess\nsubprocess.Popen(['sh', '-c', {loop!r}, '7902.5'], start_new_session=True)\n"
    verdict = grade(task, diff({"pocket/__init__.py": start + EXPORTS, "pocket/text.py": HALF}), store=pocket_store, backend=backend)
    assert verdict.verdict == "graded"
    assert not verdict.solved
    assert marked("7902.5") == []


def test_the_same_diff_has_the_same_verdict_and_evidence_also_beside_others(
    pocket_store: TaskStore, task: Task, backend: Backend, diff: Diff
) -> None:
    half = diff({"pocket/__init__.py": EXPORTS, "pocket/text.py": HALF})
    alone = {patch: grade(task, patch, store=pocket_store, backend=backend) for patch in (task.gold, half)}
    with ThreadPoolExecutor(3) as pool:
        patches = [task.gold, half, task.gold]
        assert list(pool.map(lambda patch: grade(task, patch, store=pocket_store, backend=backend), patches)) == [alone[p] for p in patches]
    assert [alone[task.gold].solved, alone[half].solved] == [True, False]
    assert alone[task.gold].evidence != alone[half].evidence


@pytest.mark.slow
def test_twenty_gradings_two_at_a_time_give_one_verdict_with_one_evidence(
    pocket_store: TaskStore, task: Task, backend: Backend, diff: Diff
) -> None:
    half = diff({"pocket/__init__.py": EXPORTS, "pocket/text.py": HALF})
    with ThreadPoolExecutor(2) as pool:
        patches = [task.gold, half, task.gold, task.gold, task.gold] * 5
        verdicts = list(pool.map(lambda patch: grade(task, patch, store=pocket_store, backend=backend), patches))
    first, partial = verdicts[:2]
    assert [first.solved, partial.solved] == [True, False]
    assert partial.reward is not None
    assert 0 < partial.reward.parts["fail_to_pass_share"] < 1
    assert verdicts == [first, partial, first, first, first] * 5  # in which `seconds` do not count


def test_a_grading_that_is_killed_leaves_no_process_and_its_folder_goes_with_the_next(
    pocket_store: TaskStore, diff: Diff, tmp_path: Path
) -> None:
    patch = diff({"pocket/__init__.py": "import subprocess\nsubprocess.run(['sleep', '7903.5'])\n"})
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", GRADE, str(pocket_store.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})
    assert process.stdin is not None
    process.stdin.write(patch)
    process.stdin.close()
    wait_for(lambda: bool(marked("7903.5")))
    assert [each.name.startswith(scratch.PREFIX) for each in folder.iterdir()].count(True) == 1
    scratch.sweep(folder)
    assert list(folder.iterdir())  # it is alive
    process.kill()
    process.wait()
    wait_for(lambda: not marked("7903.5"))
    scratch.sweep(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_being_made_stays_and_an_old_one_goes(tmp_path: Path) -> None:
    new, old, other = (tmp_path / f"{prefix}x" for prefix in (scratch.PREFIX, f"{scratch.PREFIX}old", "something-else-"))
    for place in (new, old, other):
        place.mkdir()
    for place in (old, other):
        os.utime(place, (0, 0))
    scratch.sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])
