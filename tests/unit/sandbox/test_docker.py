"""The Docker backend, as far as it can be seen without an engine: what it tells one, and what it makes of the answers."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from etude.errors import SandboxError, UserError
from etude.sandbox import checks_commands, checks_containment, checks_files, checks_limits, seccomp
from etude.sandbox.conformance import CHECKS, Check, run_check, run_conformance
from etude.sandbox.docker import MARK, Docker, run_arguments
from etude.store import TaskStore
from etude.types import Limits

LIMITS = Limits(memory_mb=300, processes=20, disk_mb=40, wall_s=20.0)
TOLD = {
    "--network": "none", "--cap-drop": "ALL", "--security-opt": "no-new-privileges", "--user": "1000:1000", "--memory": "300m",
    "--memory-swap": "300m", "--pids-limit": "22", "--pull": "never", "--log-driver": "none", "--shm-size": "40m",
}  # fmt: skip
RUN_HERE = (  # against the stand-in
    *checks_commands.CHECKS, *checks_files.CHECKS,
    checks_limits.an_endless_loop_ends_with_its_output_so_far, checks_limits.the_limits_of_the_sandbox_hold_without_wall_s,
    checks_limits.a_child_that_ignores_signals_is_ended, checks_limits.output_beyond_the_limit_is_dropped,
    checks_containment.there_is_no_terminal_of_the_caller, checks_containment.sandboxes_do_not_see_each_other,
)  # fmt: skip
SECCOMP, MEMORY, PROCESSES = "--security-opt seccomp=PROFILE", "--memory 300m --memory-swap 300m", "--pids-limit 22"
DISK = "--tmpfs /work:rw,nosuid,nodev,exec,size=40m,nr_inodes=10240 --tmpfs /tmp:rw,nosuid,nodev,exec,size=40m,nr_inodes=10240"
BY_WORDS = {  # what a real engine is told of a check, and is trusted to do
    "the_usual_tools_work": "IMAGE",
    "python_sees_the_environment_and_no_package_of_the_host": "--mount type=bind,source=FOLDER,target=/env,readonly",
    "many_sandboxes_work_at_once": "--detach",
    "writing_more_than_the_disk_is_an_error": DISK,
    "a_fork_bomb_ends": PROCESSES,
    "as_many_processes_as_allowed_may_live": PROCESSES,
    "threads_are_bounded": PROCESSES,
    "memory_of_one_process_ends_it": MEMORY,
    "memory_is_counted_over_all_processes": MEMORY,
    "shared_memory_is_counted_once": MEMORY,
    "memory_outside_of_processes_is_bounded": SECCOMP,
    "a_filled_disk_ends_the_command_and_can_be_emptied": f"{DISK} --shm-size 40m",
    "endless_small_files_end_the_command": DISK,
    "ten_gigabytes_of_output_end_in_time": "--log-driver none",
    "there_are_no_core_dumps": "--ulimit core=0",
    "dangerous_system_calls_are_denied": f"{SECCOMP} --cap-drop ALL",
    "calls_of_other_instruction_sets_are_denied": SECCOMP,
    "nobody_types_into_a_terminal": SECCOMP,
    "kernel_settings_cannot_be_opened_for_writing": "--user 1000:1000 --cap-drop ALL",
    "nothing_of_the_caller_is_in_proc": "--ipc private",
    "the_base_cannot_be_written": "--read-only --user 1000:1000",
    "there_is_no_network_but_the_loopback": "--network none",
}
NOT_PROMISED = {  # what is otherwise in a container
    "folders_locked_by_a_command_stay_open_to_the_caller": "a file that its own user has locked is not read back",
    "permissions_do_not_keep_the_sandbox_from_its_files": "a file that its own user has locked is not read back",
    "everything_written_counts_as_disk": "/work, /tmp and /dev/shm have a size each",
    "files_of_the_host_are_out_of_reach": "an image has files and accounts of its own; of the host there is the environment alone",
    "every_writable_file_system_has_a_size": "they have; the image's root, read-only, has set-uid files, which no-new-privileges answers",
    "the_user_inside_has_no_privilege": "no privilege, but no user namespace of its own",
    "only_harmless_devices_exist": "/dev/mqueue is there",
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


def run_here() -> list[Check]:
    return [each for each in RUN_HERE if each.__name__ not in BY_WORDS.keys() | NOT_PROMISED.keys()]


@pytest.mark.parametrize("check", run_here(), ids=lambda c: c.__name__)
def test_commands_and_files_are_as_everywhere(check: Check, engine: Path) -> None:
    result = run_check(check, Docker(program=str(engine)))
    assert result.ok, result.detail


def test_each_check_of_the_suite_is_run_here_or_held_by_words_or_named_as_not_promised() -> None:
    lists = ([each.__name__ for each in run_here()], [*BY_WORDS], [*NOT_PROMISED])
    assert Counter(name for names in lists for name in names) == Counter(each.__name__ for each in CHECKS)


@pytest.mark.parametrize("name", BY_WORDS)
def test_what_is_not_run_here_is_held_by_words(name: str, engine: Path, tmp_path: Path) -> None:
    """The command line as the engine got it."""
    (tmp_path / "source").mkdir()
    Docker(program=str(engine), image="IMAGE").open(tmp_path / "source", environment=tmp_path / "source", limits=LIMITS).close()
    (told,) = (" ".join(words) for words in calls(engine) if words[0] == "run")
    told = re.sub(r"seccomp=\S+", "seccomp=PROFILE", told).replace(str(tmp_path / "source"), "FOLDER") + " "
    for words in re.split(r" (?=--)", BY_WORDS[name]):
        assert re.search(rf" {re.escape(words)}[ ,]", told), f"{words} is not in {told}"


def test_the_filter_is_what_the_engine_reads_when_it_is_started(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    Docker(program=str(engine)).open(tmp_path / "source").close()
    assert json.loads((tmp_path / "container0" / "seccomp.json").read_text()) == seccomp.profile()


def test_a_container_is_confined_by_words_that_it_is_started_with(tmp_path: Path) -> None:
    words = run_arguments("image:1", tmp_path, LIMITS, tmp_path / "seccomp.json")
    assert f"seccomp={tmp_path}/seccomp.json" in words
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
