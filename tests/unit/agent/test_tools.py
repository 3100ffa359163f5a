from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etude.agent.calls import parse_calls, write_call
from etude.agent.tools import TOOLS, Bench, open_bench, relative, run_call
from etude.sandbox.protocol import Sandbox
from etude.types import Observation, Task

LIMIT = 400


@pytest.fixture
def bench(open_sandbox: Callable[..., Sandbox], task: Task) -> Bench:
    return open_bench(open_sandbox(), task.repo, limits=task.limits, observation_chars=LIMIT)


def use(bench: Bench, name: str, **arguments: Any) -> Observation:
    (parsed,) = parse_calls(write_call(name, arguments))
    return run_call(parsed, bench)


def text(bench: Bench, name: str, **arguments: Any) -> str:
    observation = use(bench, name, **arguments)
    assert observation.error is None, observation.text
    return observation.text


def failure(bench: Bench, name: str, **arguments: Any) -> tuple[str | None, str]:
    observation = use(bench, name, **arguments)
    return observation.error, observation.text


def test_there_are_the_seven_tools() -> None:
    assert [tool.signature for tool in TOOLS.values()] == [
        "list(path)",
        "read(path, start?, lines?)",
        "search(pattern, path?)",
        "edit(path, old, new)",
        "write(path, content)",
        "run(command)",
        "finish(message)",
    ]


def test_list_shows_a_folder_in_order_with_folders_marked(bench: Bench) -> None:
    text(bench, "run", command="mkdir -p __pycache__ .git empty && touch b.pyc .hidden 'a b' B")
    assert text(bench, "list", path=".").split("\n") == [".hidden", "B", "a b", "calc/", "empty/", "notes.txt", "tests/"]
    assert text(bench, "list", path="/work/calc/") == "__init__.py\nops.py"
    assert text(bench, "list", path="empty") == "(empty folder)"
    assert failure(bench, "list", path="calc/ops.py") == ("tool_failed", "error: no such folder: calc/ops.py")
    assert failure(bench, "list", path="none") == ("tool_failed", "error: no such folder: none")


def test_read_shows_lines_as_they_are_and_says_which(bench: Bench) -> None:
    assert text(bench, "read", path="notes.txt") == "first\nsecond"
    assert text(bench, "read", path="notes.txt", start=2) == "second\n(lines 2 to 2 of 2)"
    assert text(bench, "read", path="./notes.txt", lines=1) == "first\n(lines 1 to 1 of 2)"
    assert text(bench, "read", path="notes.txt", start=1, lines=50) == "first\nsecond"
    assert failure(bench, "read", path="notes.txt", start=3) == ("tool_failed", "error: notes.txt has 2 lines")


def test_read_cuts_at_a_line_and_inside_a_line_that_is_too_long(bench: Bench) -> None:
    text(bench, "write", path="long.txt", content="".join(f"line number {i}\n" for i in range(1000)))
    shown = text(bench, "read", path="long.txt", start=11)
    assert len(shown) <= LIMIT
    assert shown.startswith("line number 10\nline number 11\n")
    last = int(shown.split("\n")[-2].split()[-1]) + 1
    assert shown.endswith(f"\n(lines 11 to {last} of 1000)")
    text(bench, "write", path="wide.txt", content="x" * 5000 + "\nend\n")
    shown = text(bench, "read", path="wide.txt")
    assert len(shown) <= LIMIT
    assert shown.startswith("xxx")
    assert "characters cut" in shown
    assert shown.endswith("\n(lines 1 to 1 of 2)")


def test_read_takes_odd_files(bench: Bench) -> None:
    text(
        bench,
        "run",
        command=r"printf 'a\r\nb\r\n' > crlf; printf 'caf\351\n' > latin; printf 'a\000b' > bin; : > none; printf '\f1\n2' > ff",
    )
    assert text(bench, "read", path="crlf") == "a\nb"
    assert text(bench, "read", path="latin") == "caf\ufffd"
    assert text(bench, "read", path="none") == "(empty file)"
    assert text(bench, "read", path="ff", start=2) == "2\n(lines 2 to 2 of 2)"
    assert failure(bench, "read", path="bin") == ("tool_failed", "error: bin is not text")


@pytest.mark.parametrize("name", ["read", "list"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "calc/../../x", "/work/../etc", "/workshop/a"])
def test_paths_outside_the_repository_are_refused(bench: Bench, name: str, path: str) -> None:
    assert failure(bench, name, path=path) == ("tool_failed", f"error: {path} is outside the repository")


def test_relative_paths_have_one_form() -> None:
    assert [relative(p) for p in (".", "/work", "/work/", "./a//b/", "/work/a/./b")] == [".", ".", ".", "a/b", "a/b"]


def test_files_that_cannot_be_read_or_written_are_errors(bench: Bench) -> None:
    text(bench, "run", command="ln -s /etc/passwd link; ln -s /tmp out")
    assert failure(bench, "read", path="none.py") == ("tool_failed", "error: no such file: none.py")
    assert failure(bench, "read", path="calc") == ("tool_failed", "error: not a file: calc")
    assert failure(bench, "read", path="link") == ("tool_failed", "error: not allowed: link")
    assert failure(bench, "edit", path="none.py", old="a", new="b") == ("tool_failed", "error: no such file: none.py")
    assert failure(bench, "write", path="out/x", content="") == ("tool_failed", "error: not allowed: out/x")
    assert failure(bench, "write", path="calc", content="")[0] == "tool_failed"
    assert failure(bench, "write", path="notes.txt/a", content="")[0] == "tool_failed"
    assert failure(bench, "read", path="a" * 5000)[0] == "tool_failed"


def test_search_finds_by_basic_expression_or_as_it_stands_in_one_order(bench: Bench) -> None:
    assert text(bench, "search", pattern="def add(") == "calc/ops.py:1:def add(a, b):"
    assert text(bench, "search", pattern="^import\\|^from").split("\n") == [
        "calc/__init__.py:1:from calc.ops import add, double",
        "tests/test_ops.py:1:from calc import double",
    ]
    assert text(bench, "search", pattern="double", path="tests").count("\n") == 2
    assert text(bench, "search", pattern="def", path="calc/ops.py").startswith("calc/ops.py:1:")
    assert text(bench, "search", pattern="no such thing") == "no matches"
    assert failure(bench, "search", pattern="x" * 200_000) == ("tool_failed", "error: search failed: the pattern is too long")
    assert failure(bench, "search", pattern="x", path="none") == ("tool_failed", "error: no such file or folder: none")
    text(bench, "write", path="odd name.txt", content="a[b\n-e\n$(reboot) `x` 'y'\n")
    assert text(bench, "search", pattern="a[b") == "odd name.txt:1:a[b"
    assert text(bench, "search", pattern="-e", path="odd name.txt") == "odd name.txt:2:-e"
    assert text(bench, "search", pattern="$(reboot) `x` 'y'") == "odd name.txt:3:$(reboot) `x` 'y'"


def test_search_is_cut_at_a_line_and_counts_what_is_left(bench: Bench) -> None:
    text(bench, "write", path="many.txt", content="".join(f"match {i}\n" for i in range(100)) + "match " + "y" * 1000)
    lines = text(bench, "search", pattern="match").split("\n")
    assert len("\n".join(lines)) <= LIMIT
    assert lines[0] == "many.txt:1:match 0"
    assert lines[-1] == f"... ({101 - (len(lines) - 1)} more matches)"


def test_edit_replaces_a_text_that_is_there_once(bench: Bench) -> None:
    assert text(bench, "edit", path="calc/ops.py", old="raise NotImplementedError", new="return a + b") == "edited calc/ops.py"
    assert text(bench, "run", command="python -c 'import calc; print(calc.add(2, 3))'") == "5"
    assert text(bench, "edit", path="notes.txt", old="first\nsecond", new="") == "edited notes.txt"
    assert bench.sandbox.read("notes.txt") == b"\n"


def test_edit_says_whether_the_text_is_nowhere_or_in_several_places(bench: Bench) -> None:
    before = bench.sandbox.read("calc/ops.py")
    assert failure(bench, "edit", path="calc/ops.py", old="pass", new="x") == ("edit_not_found", "error: old text not found in calc/ops.py")
    assert failure(bench, "edit", path="calc/ops.py", old="def", new="x") == (
        "edit_not_found",
        "error: old text found 2 times in calc/ops.py",
    )
    assert failure(bench, "edit", path="calc/ops.py", old="def add", new="def add") == ("tool_failed", "error: old and new are the same")
    assert bench.sandbox.read("calc/ops.py") == before


def test_edit_keeps_bytes_that_are_no_utf8_and_the_line_ends_of_the_file(bench: Bench) -> None:
    bench.sandbox.write("latin.py", b"# caf\xe9\nx = 1\n")
    text(bench, "edit", path="latin.py", old="x = 1", new="x = 'ü'")
    assert bench.sandbox.read("latin.py") == b"# caf\xe9\nx = '\xc3\xbc'\n"
    bench.sandbox.write("crlf.py", b"a = 1\r\nb = 2\r\n")
    text(bench, "edit", path="crlf.py", old="a = 1\nb = 2", new="a = 3\nb = 4\nc = 5")
    assert bench.sandbox.read("crlf.py") == b"a = 3\r\nb = 4\r\nc = 5\r\n"


def test_write_makes_folders_and_replaces_files(bench: Bench) -> None:
    assert text(bench, "write", path="new/deep/a.py", content="x = 'ü'\n") == "wrote new/deep/a.py"
    text(bench, "write", path="notes.txt", content="")
    assert (bench.sandbox.read("new/deep/a.py"), bench.sandbox.read("notes.txt")) == ("x = 'ü'\n".encode(), b"")


def test_run_has_the_repository_and_pytest_on_its_path(bench: Bench) -> None:
    assert text(bench, "run", command="pytest -q tests") == "1 passed in 0.00s"
    assert text(bench, "run", command="cd /tmp && python -m pytest -q /work/tests/test_ops.py && echo $?") == "1 passed in 0.00s\n0"
    assert text(bench, "run", command="pwd; echo to stderr >&2; echo end") == "/work\nend\nto stderr"
    assert text(bench, "run", command="true") == "(no output)"
    assert text(bench, "run", command="false") == "exit code 1"
    assert text(bench, "run", command="echo bad; exit 3") == "exit code 3\nbad"
    assert text(bench, "run", command="echo 'unclosed").startswith("exit code 2\n")
    assert text(bench, "run", command="\n# a comment\nf() {\n  echo $1\n}\nf x") == "x"


def test_run_leaves_nothing_behind_in_the_workspace(bench: Bench) -> None:
    text(bench, "run", command="pytest -q tests; python -c 'import calc.ops'")
    assert bench.sandbox.changes() == []


def test_options_in_the_repositorys_own_configuration_do_not_stop_pytest(bench: Bench) -> None:
    bench.sandbox.write("setup.cfg", b"[tool:pytest]\naddopts = --cov=calc --no-such-option\n")
    assert text(bench, "run", command="pytest -q tests") == "1 passed in 0.00s"


def test_long_output_keeps_its_end_and_says_what_is_cut(bench: Bench) -> None:
    shown = text(bench, "run", command="seq 1000; exit 1")
    assert len(shown) <= LIMIT
    assert shown.startswith("exit code 1\n1\n2\n")
    assert shown.endswith("\n999\n1000")
    assert "characters cut" in shown
    shown = text(bench, "run", command="seq 100000")
    assert len(shown) <= LIMIT
    assert shown.endswith("(too much output: only its beginning was kept)")


def test_a_test_run_reads_the_same_every_time(bench: Bench) -> None:
    failing = "import os, tempfile\n\ndef test_it(tmp_path):\n    assert (object(), str(tmp_path), tempfile.mkdtemp(), os.getpid()) == 0\n"
    text(bench, "write", path="tests/test_new.py", content=failing)
    bench = replace(bench, observation_chars=20_000)
    first, second = (text(bench, "run", command='pytest tests; ls -l; python -c \'print({"a", "b", "c"})\'') for _ in range(2))
    assert first == second
    assert "1 failed, 1 passed in 0.00s" in first


def test_finish_without_a_run_since_the_last_edit_is_marked(bench: Bench) -> None:
    assert failure(bench, "finish", message="")[0] == "finished_untested"
    text(bench, "run", command="true")
    assert failure(bench, "finish", message="")[0] is None
    for name, arguments in (("edit", {"path": "notes.txt", "old": "first", "new": "1st"}), ("write", {"path": "x", "content": ""})):
        text(bench, name, **arguments)
        assert failure(bench, "finish", message="")[0] == "finished_untested"
        text(bench, "run", command="true")
    assert failure(bench, "edit", path="notes.txt", old="none", new="")[0] == "edit_not_found"
    assert failure(bench, "finish", message="")[0] is None
    assert bench.finished


def test_bad_calls_come_back_with_their_kind(bench: Bench) -> None:
    assert failure(bench, "open_file", path="a") == ("unknown_tool", "error: tool not found: open_file")
    assert failure(bench, "read", file="a") == ("bad_arguments", "error: read: path is missing")
    assert failure(bench, "run", command="a\0b") == ("bad_arguments", "error: run: command must be text without NUL")
    assert failure(bench, "x" * 9000)[0] == "unknown_tool"
    (parsed,) = parse_calls("<tool_call>{</tool_call>")
    assert run_call(parsed, bench) == Observation(text="error: malformed call: it is not valid JSON", error="malformed_call")
