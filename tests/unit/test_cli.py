"""The command line as a stranger meets it: help, and one line with exit code 2 for every mistake."""

import subprocess
import sys

import pytest


def etude(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "etude", *arguments], capture_output=True, text=True, cwd=cwd, timeout=60)


@pytest.mark.parametrize("verb", [(), ("demo",), ("tasks",), ("tasks", "build"), ("tasks", "grade"), ("train",), ("eval",), ("report",)])
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
