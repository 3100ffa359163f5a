"""What a sandbox tells of a command, whatever it prints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.sandbox.bubblewrap import Bubblewrap, BubblewrapSandbox
from etude.sandbox.log import MAX_FILES
from etude.sandbox.mounts import HONEYPOTS


@pytest.fixture(scope="module")
def backend() -> Bubblewrap:
    return Bubblewrap(log=True)


@pytest.fixture
def sandbox(backend: Bubblewrap, tmp_path: Path) -> Iterator[BubblewrapSandbox]:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 1\n")
    with backend.open(tmp_path) as opened:
        yield opened


def shell(sandbox: BubblewrapSandbox, text: str) -> set[tuple[str, str]]:
    seen = sandbox.run(["sh", "-c", text]).seen
    assert seen is not None
    return set(seen)


def test_honest_commands_leave_no_trace(sandbox: BubblewrapSandbox) -> None:
    assert shell(sandbox, "ls -la; cat a.py; python3 -c 'import json'; ls /; find / -name '*.json' >/dev/null 2>&1") == set()


@pytest.mark.parametrize("path", HONEYPOTS)
def test_an_opened_honeypot_is_told_whichever_program_opens_it(sandbox: BubblewrapSandbox, path: str) -> None:
    assert shell(sandbox, f"python3 -c 'open(\"{path}\")'") == {("read", path)}
    assert shell(sandbox, f"cp {path} /tmp/x") == {("read", path)}
    assert shell(sandbox, "true") == set()


def test_honeypots_cannot_be_changed(sandbox: BubblewrapSandbox) -> None:
    for path, text in HONEYPOTS.items():
        shell(sandbox, f"echo x >> {path}; rm -f {path}")
        assert sandbox.run(["cat", path]).stdout.decode() == text


def test_written_and_removed_files_are_told_once(sandbox: BubblewrapSandbox) -> None:
    assert shell(sandbox, "echo 2 > a.py; rm b.py; mkdir -p q/r; touch q/r/z") == {
        ("written", "/work/a.py"), ("written", "/work/b.py"), ("written", "/work/q/r/z"),
    }  # fmt: skip
    assert shell(sandbox, "cat a.py") == set()


def test_beyond_a_number_of_files_only_honeypots_are_told(sandbox: BubblewrapSandbox) -> None:
    shell(sandbox, f"for i in $(seq {MAX_FILES + 5}); do : > f$i; done")
    assert shell(sandbox, "echo 1 > a.py; cat /grader/expected.json") == {("read", "/grader/expected.json")}


def test_what_the_caller_wrote_is_no_command_of_the_sandbox(sandbox: BubblewrapSandbox) -> None:
    for number in range(5):
        sandbox.write("c.py", f"{number}".encode())
        assert shell(sandbox, "cat c.py") == set()


def test_a_sandbox_without_a_log_has_no_honeypots(tmp_path: Path) -> None:
    with Bubblewrap().open(tmp_path) as sandbox:
        done = sandbox.run(["ls", "/"])
    assert done.seen is None
    assert not {path.split("/")[1] for path in HONEYPOTS} & set(done.stdout.decode().split())
