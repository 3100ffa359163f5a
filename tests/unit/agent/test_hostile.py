"""Whatever a model runs, its rollout ends with a status, within the limits, and the sandbox serves the next call."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etude.agent.calls import write_call
from etude.agent.loop import Agent
from etude.agent.policy import ScriptedPolicy, play
from etude.render import Renderer
from etude.sandbox.protocol import Sandbox
from etude.types import Limits, Observation, Task

LIMITS = Limits(wall_s=2.0, memory_mb=256, processes=32, disk_mb=16, output_bytes=8192)
TIME = "error: stopped: more than 2 s"
IGNORES_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('here', 'w').close(); time.sleep(600)"

Play = Callable[[str], tuple[Observation, str]]


@pytest.fixture
def run_hostile(new_agent: Callable[..., Agent], open_sandbox: Callable[..., Sandbox], renderer: Renderer) -> Play:
    """Plays one command, then a harmless one, then finish; returns what the first gave and the patch."""

    def run(command: str) -> tuple[Observation, str]:
        sandbox = open_sandbox(LIMITS)
        texts = [
            write_call("run", {"command": command}),
            write_call("run", {"command": "echo alive"}),
            write_call("finish", {"message": ""}),
        ]
        rollout = play(new_agent(sandbox=sandbox), ScriptedPolicy(texts, renderer))
        hostile, harmless, _ = (turn.observations[0] for turn in rollout.segments[0].turns)
        assert rollout.status == "finished"
        assert harmless == Observation(text="alive")
        return hostile, rollout.patch

    return run


@pytest.fixture
def task(task: Task) -> Task:
    return replace(task, limits=LIMITS)


def test_a_fork_bomb(run_hostile: Play) -> None:
    seen, patch = run_hostile("f() { f | f & }; f; sleep 600")
    assert seen.error == "tool_failed"
    assert seen.text in (TIME, "error: stopped: more than 32 processes", "error: stopped: more than 256 MB of memory")
    assert patch == ""


def test_an_endless_loop(run_hostile: Play) -> None:
    assert run_hostile("while :; do :; done")[0] == Observation(text=TIME, error="tool_failed")


def test_ten_gigabytes_of_output(run_hostile: Play) -> None:
    seen, _ = run_hostile("head -c 10000000000 /dev/zero")
    assert seen.text == TIME or seen.text.endswith("(too much output: only its beginning was kept)")
    assert len(seen.text) <= 400


def test_a_filled_disk(run_hostile: Play) -> None:
    seen, patch = run_hostile("head -c 100000000 /dev/zero > big; head -c 100000000 /dev/zero > /tmp/big; rm -f big /tmp/big; exit 1")
    assert seen.text == "error: stopped: more than 16 MB written" or "No space left on device" in seen.text
    assert len(patch) < 100_000


def test_all_memory(run_hostile: Play) -> None:
    seen, _ = run_hostile('python -c "x = [bytearray(1 << 20) for _ in range(4096)]"')
    assert seen.text == "error: stopped: more than 256 MB of memory" or "MemoryError" in seen.text


def test_a_child_that_ignores_sigterm_dies_with_its_command(run_hostile: Play) -> None:
    seen, _ = run_hostile(f'setsid python -c "{IGNORES_TERM}" & while [ ! -e here ]; do sleep .05; done; kill $!; rm here; echo left')
    assert seen == Observation(text="left")
    seen, _ = run_hostile("trap '' TERM; sleep 600")
    assert seen == Observation(text=TIME, error="tool_failed")


@pytest.mark.parametrize("tool", ["run", "read", "search", "list"])
def test_the_hosts_files_cannot_be_read(tool: str, run_hostile: Play, new_agent: Any, renderer: Renderer, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    if tool == "run":
        reading = f"cat {secret} /etc/shadow /proc/1/environ; ls {Path.home()} /root /home; echo ~root/* ~/*; find / -name secret.txt"
        seen, _ = run_hostile(f"({reading}) 2>/dev/null | grep -c -e hunter2 -e root: -e PATH= -e secret.txt; echo end")
        assert seen.text == "0\nend"
        seen, _ = run_hostile(f"cat {secret}; ls -A {tmp_path}")
        assert seen.text.startswith("exit code 2\n")
        assert seen.text.count("No such file or directory") == 2
        return
    arguments = {"read": {"path": str(secret)}, "search": {"pattern": "hunter2", "path": str(tmp_path)}, "list": {"path": str(tmp_path)}}
    rollout = play(new_agent(), ScriptedPolicy([write_call(tool, arguments[tool])], renderer))
    (seen,) = rollout.segments[0].turns[0].observations
    assert seen.error == "tool_failed"
    assert "outside the repository" in seen.text
