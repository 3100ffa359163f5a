"""The command line as a stranger meets it: help, and one line with exit code 2 for every mistake."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from etude.store import TaskStore


def etude(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "etude", *arguments], capture_output=True, text=True, cwd=cwd, timeout=180)


@pytest.mark.parametrize(
    "verb", [(), ("demo",), ("tasks",), ("tasks", "build"), ("tasks", "grade"), ("train",), ("eval",), ("report",), ("plan",)]
)
def test_every_verb_explains_itself(verb):
    shown = etude(*verb, "--help")
    assert shown.returncode == 0
    assert "Usage: etude" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("tasks", "show", "nowhere"), "nowhere"),
        (("tasks", "build", "no-such-folder", "--out", "out"), "no-such-folder"),
        (("demo", "--rl.group-size", "1"), "rl.group_size is 1"),
        (("demo", "--rl.groupsize", "1"), "groupsize"),
        (("demo", "--config", "missing.toml"), "missing.toml"),
        (("demo", "--model.path", "no-model", "--run", "run"), "no-model"),
        (("demo", "--run", "run", "--resume"), "no run to resume"),
        (("report", "nowhere"), "nowhere"),
        (("plan", "nowhere"), "nowhere"),
        (("pretrain", "nowhere.toml"), "nowhere.toml"),
        (("sing",), "sing"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, named):
    shown = etude(*arguments, cwd=tmp_path)
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    *progress, message = shown.stderr.strip().splitlines()
    assert message.startswith("etude: ")
    assert named in message
    assert all(line.startswith("[") for line in progress)


def test_an_unknown_key_in_a_configuration_file_is_named(tmp_path):
    (tmp_path / "c.toml").write_text("[rl]\nstepps = 3\n")
    shown = etude("demo", "--config", "c.toml", cwd=tmp_path)
    assert shown.returncode == 2
    assert "stepps" in shown.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"a = [", "c.toml is no TOML file: Invalid value"),
        (b"\xff\xfe", "c.toml is no TOML file: 'utf-8' codec"),
        (b"rl = 3\n", "rl is 3, but it is a section"),
        (b"[rl]\nsteps = 'x'\n", "steps"),
        (b"[song]\nx = 1\n", "song"),
    ],
)
def test_a_configuration_file_that_is_wrong_is_one_line(tmp_path, text, named):
    (tmp_path / "c.toml").write_bytes(text)
    shown = etude("demo", "--config", "c.toml", "--model.path", "none", cwd=tmp_path)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert named in shown.stderr


def test_a_damaged_configuration_of_a_resumed_run_is_one_line(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("rl = 3")
    shown = etude("demo", "--run", str(tmp_path / "run"), "--resume")
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    assert "rl is 3" in shown.stderr.splitlines()[-1]


def test_a_folder_as_configuration_is_one_line(tmp_path):
    shown = etude("demo", "--config", ".", cwd=tmp_path)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert "Is a directory" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--jobs", "-1"), "jobs is -1"),
        (("--limit", "0"), "limit of candidates is 0"),
        (("--limit", "-2"), "limit of candidates is -2"),
    ],
)
def test_numbers_of_a_build_that_mean_nothing_are_one_line(tmp_path, arguments, named):
    shown = etude("tasks", "build", ".", "--out", "tasks", *arguments, cwd=tmp_path)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert named in shown.stderr


def test_an_agent_takes_no_list_of_repositories(tmp_path):
    (tmp_path / "list.txt").write_text("toolz==1.0.0\n")
    shown = etude("tasks", "build", "list.txt", "--out", "tasks", "--agent", "http://127.0.0.1:1/v1", "--model", "m", cwd=tmp_path)
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith("etude: --agent takes one repository, and list.txt is a list; ")
    assert not (tmp_path / "tasks").exists()


def test_what_the_machine_refuses_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "test_a.py").write_text("def test_a(): pass\n")
    (tmp_path / "repo" / "a.py").write_text("def a(): pass\n")
    shown = etude("tasks", "build", "repo", "--out", "file/tasks", cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1] == "etude: file/tasks: Not a directory; a part of this path is a file; choose another folder"


def test_escapes_in_a_message_do_not_reach_the_terminal(tmp_path):
    shown = etude("tasks", "show", "no\x1b[31mfolder", cwd=tmp_path)
    assert shown.returncode == 2
    assert "\x1b" not in shown.stderr
    assert "no�[31mfolder" in shown.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path, pocket_store):
    process = subprocess.Popen(
        [sys.executable, "-m", "etude", "tasks", "show", str(pocket_store.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() != 0


def test_a_folder_without_tasks_yet_leaves_no_run_behind(tmp_path):
    TaskStore.create(tmp_path / "tasks")
    for verb in (("tasks", "show"), ("tasks", "check"), ("train",), ("eval",)):
        shown = etude(*verb, "tasks", *(("--run", "run") if len(verb) == 1 else ()), cwd=tmp_path)
        assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
        assert "holds no task yet" in shown.stderr
    assert not (tmp_path / "run").exists()


def test_a_patch_comes_from_standard_input_byte_for_byte(tmp_path, pocket_store):
    arguments = ["tasks", "grade", str(pocket_store.path), "pocket-slugify", "--patch", "-", "--json"]
    for patch, reason in ((b"\xff\x00 no diff", "this is no patch"), (b"x" * (5 << 20), "larger than 4 million")):
        shown = subprocess.run([sys.executable, "-m", "etude", *arguments], input=patch, capture_output=True, timeout=180)
        assert (shown.returncode, shown.stderr) == (1, b"")
        assert reason in json.loads(shown.stdout)["reason"]


def test_a_missing_patch_says_what_to_give(tmp_path, pocket_store):
    shown = etude("tasks", "grade", str(pocket_store.path), "pocket-slugify", "--patch", str(tmp_path))
    assert (shown.returncode, shown.stderr.count("\n")) == (2, 1)
    assert "Is a directory; --patch takes a diff file" in shown.stderr


def test_ids_are_whole_on_a_narrow_terminal(pocket_store):
    environment = {**os.environ, "COLUMNS": "20"}
    command = [sys.executable, "-m", "etude", "tasks", "show", str(pocket_store.path)]
    assert "pocket-slugify" in subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180).stdout


def test_text_of_a_repository_is_shown_as_data(tmp_path, pocket_store):
    store = TaskStore.create(tmp_path / "tasks")
    task = pocket_store.get("pocket-slugify")
    store.add_snapshot(pocket_store.snapshot(task.repo))
    symbol = replace(task.symbols[0], qualname="[red]f[/]")
    odd = "t.py::t[\x1b[31m[bold]\n]"
    store.add(replace(task, instruction="a \x1b[2J b", cut=task.cut + "\x1b]0;x\x07", symbols=(symbol,), fail_to_pass=(odd,)))
    shown = etude("tasks", "show", str(store.path), task.id, "--gold")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "[red]f[/]" in shown.stdout
    assert "t.py::t[�[31m[bold]�]" in shown.stdout


def test_ctrl_c_is_one_line_that_says_how_to_go_on():
    text = (
        "import sys\nfrom etude import cli\n\n\ndef verb(*, resume: bool = False):\n    raise KeyboardInterrupt\n\n\n"
        "def other():\n    raise KeyboardInterrupt\n\n\n"
        "cli.app.command(verb)\ncli.app.command(other)\nsys.argv = ['etude', sys.argv[1]]\ncli.main()\n"
    )
    for name, message in (("verb", "etude: stopped; what was finished is on disk (--resume goes on)\n"), ("other", "etude: stopped\n")):
        shown = subprocess.run([sys.executable, "-c", text, name], capture_output=True, text=True, timeout=180)
        assert (shown.returncode, shown.stderr) == (130, message)
