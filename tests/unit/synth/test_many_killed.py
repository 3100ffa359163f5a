"""`etude tasks build LIST` killed with -9 in the middle and begun again: the same files as without, and no process left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

BUILD = ("--workers", "2", "--limit", "2", "--modes", "stub", "--gates", "quick")


def repository(folder, name):
    files = {
        f"{name}.py": "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n\n\ndef other(x):\n    return x\n",
        f"tests/test_{name}.py": f"import {name}\n\n\n"
        + "".join(f"def test_other_{n}():\n    assert {name}.other({n}) == {n}\n\n\n" for n in range(6))
        + f"def test_double():\n    assert {name}.double(2) == 4\n\n\ndef test_half():\n    assert {name}.half(2) == 1\n",
    }
    for path, text in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)


def start(folder, out):
    command = [sys.executable, "-m", "etude", "tasks", "build", str(folder / "list.txt"), "--out", str(out), *BUILD]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def tasks_in(out):
    return [path for path in out.glob("*.json") if path.name != "pool.json"]


def files_in(out):
    """All but the seconds that a build took (.builds)."""
    paths = (path for path in out.rglob("*") if path.relative_to(out).parts[0] != ".builds")
    return {str(path.relative_to(out)): path.read_bytes() for path in paths if path.is_file()}


def processes_of(out):
    """Ids of processes that have the folder in their command or environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(out) in (place / "cmdline").read_bytes() + (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def wait_until(true, seconds):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_build_of_a_list_that_was_killed_leaves_nobody_and_ends_as_if_it_had_not_been(tmp_path):
    for name in ("one", "two"):
        repository(tmp_path, name)
    (tmp_path / "list.txt").write_text("one\ntwo\n")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(tmp_path, whole).wait(300) == 0
    process = start(tmp_path, killed)
    wait_until(lambda: tasks_in(killed), 300)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not processes_of(killed), 60)
    assert len(tasks_in(killed)) < len(tasks_in(whole)) == 4  # it was in the middle
    assert start(tmp_path, killed).wait(300) == 0
    assert not processes_of(killed)
    assert files_in(killed) == files_in(whole)
    assert not list(killed.glob(".unfinished-*"))
