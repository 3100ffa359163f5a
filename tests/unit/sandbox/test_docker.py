"""The Docker backend, as far as it can be seen without an engine: what it tells one, and what it makes of the answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etude.errors import SandboxError, UserError
from etude.sandbox import checks_commands, checks_files
from etude.sandbox.conformance import CHECKS, Check, run_check, run_conformance
from etude.sandbox.docker import MARK, Docker, run_arguments
from etude.store import TaskStore
from etude.types import Limits

LIMITS = Limits(memory_mb=300, processes=20, disk_mb=40, wall_s=20.0)
TOLD = {
    "--network": "none", "--cap-drop": "ALL", "--security-opt": "no-new-privileges", "--user": "1000:1000", "--memory": "300m",
    "--memory-swap": "300m", "--pids-limit": "22", "--pull": "never", "--log-driver": "none", "--shm-size": "40m",
}  # fmt: skip
NEEDS_AN_ENGINE = {  # a size of a file system, an image without packages
    "the_usual_tools_work",
    "python_sees_the_environment_and_no_package_of_the_host",
    "writing_more_than_the_disk_is_an_error",
    "many_sandboxes_work_at_once",
}
NOT_PROMISED = {  # a file that its own user has locked is not read back: nobody in a container without capabilities can
    "folders_locked_by_a_command_stay_open_to_the_caller",
    "permissions_do_not_keep_the_sandbox_from_its_files",
}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A program that plays `docker`, in a folder that holds what it was told."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).with_name("engine.py")} {tmp_path} "$@"\n')
    program.chmod(0o755)
    return program


def calls(engine: Path) -> list[list[str]]:
    return [json.loads(line) for line in (engine.parent / "calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "check",
    [each for each in (*checks_commands.CHECKS, *checks_files.CHECKS) if each.__name__ not in NEEDS_AN_ENGINE | NOT_PROMISED],
    ids=lambda c: c.__name__,
)
def test_commands_and_files_are_as_everywhere(check: Check, engine: Path) -> None:
    result = run_check(check, Docker(program=str(engine)))
    assert result.ok, result.detail


def test_a_container_is_confined_by_words_that_it_is_started_with(tmp_path: Path) -> None:
    words = run_arguments("image:1", tmp_path, LIMITS)
    assert words[0] == "run"
    assert {word: words[words.index(word) + 1] for word in TOLD} == TOLD
    assert {"--read-only", "--rm", "--detach"} <= set(words)
    mounts = [words[at + 1] for at, word in enumerate(words) if word in ("--tmpfs", "--mount")]
    assert [each.partition(":")[0] for each in mounts[:2]] == ["/work", "/tmp"]
    assert all("size=40m" in each and "nosuid" in each and "nodev" in each for each in mounts[:2])
    assert mounts[2:] == [f"type=bind,source={tmp_path},target=/env,readonly"]
    assert not {"--privileged", "--volume", "-v", "--publish", "--device", "--cap-add"} & set(words)
    assert words[-2:] == ["image:1", "infinity"]


def test_everything_that_a_command_left_is_killed_before_its_result_is_told(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with Docker(program=str(engine)).open(tmp_path / "source", limits=LIMITS) as sandbox:
        assert sandbox.run(["echo", "word"], env={"NAME": "value"}).stdout == b"word\n"
    told = calls(engine)
    at = next(number for number, words in enumerate(told) if words[-2:] == ["echo", "word"])
    assert "NAME=value" in told[at]
    assert told[at][:6] == ["exec", "--interactive", "--user", "1000:1000", "--workdir", "/work"]
    assert told[at + 1][-1].startswith("kill -9 -1")
    assert MARK in told[at + 1][-1]
    assert told[-1][:3] == ["rm", "--force", "--volumes"]


def test_a_container_that_is_gone_is_a_lost_sandbox_and_no_result(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with Docker(program=str(engine)).open(tmp_path / "source", limits=LIMITS) as sandbox:
        (tmp_path / "fail").write_text("exec")
        with pytest.raises(SandboxError, match="the container is lost: Error response from daemon"):
            sandbox.run(["true"])


def test_an_engine_that_does_not_start_a_container_or_is_not_there_says_so(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "fail").write_text("run image")
    with pytest.raises(SandboxError, match="no container: Error response from daemon: the engine is not well"):
        Docker(program=str(engine)).open(tmp_path / "source")
    with pytest.raises(UserError, match=r"has no image python:3.11-slim, or no engine runs"):
        Docker(program=str(engine)).check()
    with pytest.raises(UserError, match="not installed"):
        Docker(program="no-such-docker").check()


def test_the_command_line_grades_in_docker_where_it_is_told_to(engine: Path, pocket_store: TaskStore) -> None:
    words = ["tasks", "grade", str(pocket_store.path), "pocket-slugify", "--patch", "-", "--json", "--sandbox", "docker", "--image", "py:1"]
    environment = {**os.environ, "PATH": f"{engine.parent}:{os.environ['PATH']}"}

    def verdict(patch: str) -> tuple[int, bool]:
        done = subprocess.run(
            [sys.executable, "-m", "etude", *words], input=patch, capture_output=True, text=True, env=environment, timeout=180
        )
        return done.returncode, json.loads(done.stdout)["solved"]

    assert verdict(pocket_store.get("pocket-slugify").gold) == (0, True)
    assert verdict("") == (1, False)
    assert calls(engine)[0] == ["image", "inspect", "--format", "{{.Id}}", "py:1"]
    assert {words[-2] for words in calls(engine) if words[0] == "run"} == {"py:1"}


def test_an_image_without_docker_is_a_mistake(pocket_store: TaskStore) -> None:
    words = ["tasks", "check", str(pocket_store.path), "--image", "py:1"]
    done = subprocess.run([sys.executable, "-m", "etude", *words], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--image py:1 is for --sandbox docker" in done.stderr


@pytest.mark.engine
def test_a_real_engine_conforms() -> None:
    failed = {
        result.name: result.detail for result in run_conformance(Docker(), CHECKS) if not result.ok and result.name not in NOT_PROMISED
    }
    assert failed == {}
