"""The seven tools: what the model may call, how the arguments look, what it reads back.

In: a parsed call and the sandbox of the rollout. Out: an Observation, whose text is the same whenever the same rollout is played again,
at most `observation_chars` long. Whatever the model did wrong comes back as an observation with an error kind, in words it can act on;
only a sandbox that is lost is an exception.

Not here: the form of calls (calls.py), when an agent stops (loop.py), the words of hints (hints.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, cast

from etude.agent.calls import ParsedCall
from etude.agent.output import canonical, cut, whole_lines
from etude.agent.schema import Schema, object_schema, problem, signature
from etude.languages.shell import shell_of
from etude.sandbox.protocol import ENV, WORK, ExecResult, Sandbox
from etude.types import CallError, Limits, Observation, Repo, Seen

MAX_LOG = 500  # entries of one rollout's log
LINE_CHARS = 200  # of one line that search shows
MAX_NUMBER = 10_000_000  # of a line number
TESTS = "pytest -q"  # in what is told of a tool: the command that runs tests


@dataclass(slots=True, kw_only=True)
class Bench:
    """Where the calls of one rollout work, and what they left behind."""

    sandbox: Sandbox
    env: Mapping[str, str]
    functions: str = ""  # of the shell
    limits: Limits  # of the sandbox, for what the model is told
    observation_chars: int
    tools: Mapping[str, "Tool"] = field(default_factory=lambda: TOOLS)
    tested: bool = False  # something ran since the last edit
    finished: bool = False
    turn: int = 0
    log: list[Seen] | None = None  # None: the sandbox keeps none


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    about: str  # a few words for the system prompt
    schema: Schema
    run: Callable[[Bench, Mapping[str, Any]], Observation]

    @property
    def signature(self) -> str:
        return signature(self.name, self.schema)


class ToolFailure(Exception):
    """The call cannot be done; the text is what the model reads."""

    def __init__(self, text: str, kind: CallError = "tool_failed") -> None:
        super().__init__(text)
        self.kind: CallError = kind


def open_bench(
    sandbox: Sandbox,
    repo: Repo,
    *,
    limits: Limits,
    observation_chars: int,
    tools: Mapping[str, Tool] | None = None,
    runner: str = "pytest",
) -> Bench:
    """`tools`: other ones than an agent's that solves tasks. Raises: SandboxError."""
    shell = shell_of(runner)
    for place, target in shell.links.items():  # what is there already stays
        sandbox.run(["ln", "-s", "-T", "--", target, place])
    return Bench(
        sandbox=sandbox,
        env={**command_env(repo), **shell.env},
        functions=shell.functions,
        limits=limits,
        observation_chars=observation_chars,
        tools=TOOLS if tools is None else tools,
    )


def command_env(repo: Repo) -> dict[str, str]:
    """The environment of the agent's commands: the repository and its packages can be imported, and nothing depends on chance or place."""
    roots = [str(PurePosixPath(WORK, root)) for root in repo.import_roots]
    return {
        "PYTHONPATH": ":".join([*roots, ENV]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTEST_ADDOPTS": "-o addopts= -p no:cacheprovider --tb=short --color=no",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HOME": "/tmp",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "80",
    }


def run_call(parsed: ParsedCall, bench: Bench) -> Observation:
    """Raises: SandboxError."""
    call = parsed.call
    if parsed.problem is not None:
        return _error("malformed_call", f"malformed call: {parsed.problem}", bench)
    tool = bench.tools.get(call.name)
    if tool is None:
        return _error("unknown_tool", f"tool not found: {call.name[:60]}", bench)
    wrong = problem(tool.schema, call.arguments)
    if wrong is not None:
        return _error("bad_arguments", f"{tool.name}: {wrong}", bench)
    try:
        return tool.run(bench, call.arguments)
    except ToolFailure as failure:
        return _error(failure.kind, str(failure), bench)
    except FileNotFoundError:
        return _error("tool_failed", f"no such file: {_named(call.arguments)}", bench)
    except (IsADirectoryError, NotADirectoryError):
        return _error("tool_failed", f"not a file: {_named(call.arguments)}", bench)
    except PermissionError:
        return _error("tool_failed", f"not allowed: {_named(call.arguments)}", bench)
    except OSError as error:
        return _error("tool_failed", f"{tool.name}: {error.strerror or error}", bench)


def no_call(bench: Bench, *, cut_off: bool) -> Observation:
    """For a turn in which nothing was called."""
    return _error("malformed_call", "the message was too long and is cut off" if cut_off else "no tool call in the message", bench)


def _error(kind: CallError, text: str, bench: Bench) -> Observation:
    return Observation(text=cut(f"error: {text}", bench.observation_chars), error=kind)


def _named(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("path", ""))[:100]


def relative(path: str) -> str:
    """A path of the model as one inside the workspace: "/work/a/b", "./a/b" and "a/b" are the same."""
    inside = path.removeprefix(WORK + "/") if path.startswith(WORK + "/") else "." if path == WORK else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or ".." in parts:
        raise ToolFailure(f"{path[:100]} is outside the repository")
    return "/".join(parts) or "."


def _list(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    path = relative(arguments["path"])
    done = _run(bench, ["ls", "-1Ap", "--", f"./{path}/."])
    if done.code != 0:
        raise ToolFailure(f"no such folder: {path}")
    names = done.stdout.decode("utf-8", errors="replace").splitlines()
    shown = [name for name in names if name not in (".git/", "__pycache__/") and not name.endswith(".pyc")]
    return Observation(text=_fitting(shown, bench, "names") or "(empty folder)")


def _read(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    path = relative(arguments["path"])
    data = bench.sandbox.read(path)
    if b"\0" in data:
        raise ToolFailure(f"{path} is not text")
    lines = [line.removesuffix("\r") for line in data.decode("utf-8", errors="replace").removesuffix("\n").split("\n")]
    if not data:
        return Observation(text="(empty file)")
    start = arguments.get("start", 1)
    if start > len(lines):
        raise ToolFailure(f"{path} has {len(lines)} lines")
    wanted = lines[start - 1 : start - 1 + arguments.get("lines", len(lines))]
    room = bench.observation_chars - len(_range(len(lines), len(lines), len(lines))) - 1
    count = len(wanted) if len("\n".join(wanted)) <= bench.observation_chars else whole_lines(wanted, room)
    if count == 0:  # a line that is too long as it is
        return Observation(text=f"{cut(wanted[0], room, head=1.0)}\n{_range(start, start, len(lines))}")
    text = "\n".join(wanted[:count])
    return Observation(text=text if count == len(lines) else f"{text}\n{_range(start, start + count - 1, len(lines))}")


def _range(first: int, last: int, total: int) -> str:
    return f"(lines {first} to {last} of {total})"


# arguments: pattern, path. A pattern that is no regular expression is searched as it stands.
_SEARCH = r"""[ -e "$2" ] || exit 3
fixed=; grep -e "$1" /dev/null >/dev/null 2>&1; [ $? -le 1 ] || fixed=-F
find "$2" \( -name .git -o -name __pycache__ \) -prune -o -type f -print0 |
LC_ALL=C sort -z | xargs -0 -r grep $fixed -nIH -e "$1" -- 2>/dev/null | head -c 60000"""


def _search(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    path = relative(arguments.get("path", "."))
    done = _run(bench, ["sh", "-c", _SEARCH, "sh", arguments["pattern"], f"./{path}" if path != "." else "."])
    if done.code == 3:
        raise ToolFailure(f"no such file or folder: {path}")
    if not done.ok:
        raise ToolFailure(f"search stopped: {_why(done, bench)}" if done.status != "exited" else "search failed: the pattern is too long")
    lines = done.stdout.decode("utf-8", errors="replace").splitlines()
    return Observation(text=_fitting([line.removeprefix("./")[:LINE_CHARS] for line in lines], bench, "matches") or "no matches")


def _edit(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    path, old, new = relative(arguments["path"]), arguments["old"], arguments["new"]
    if old == new:
        raise ToolFailure("old and new are the same")
    count, data = replace_once(bench.sandbox.read(path), old, new)
    if count != 1:
        found = "not found" if count == 0 else f"found {count} times"
        raise ToolFailure(f"old text {found} in {path}", "edit_not_found")
    bench.sandbox.write(path, data)
    bench.tested = False
    return Observation(text=f"edited {path}")


def replace_once(data: bytes, old: str, new: str) -> tuple[int, bytes]:
    """How often `old` occurs, and the data with it replaced if that is once. The model reads lines without their ends, so in a file with
    CRLF its line breaks mean those."""
    if b"\r\n" in data and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = data.count(old.encode())
    return count, data.replace(old.encode(), new.encode()) if count == 1 else data


def _write(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    path = relative(arguments["path"])
    bench.sandbox.write(path, arguments["content"].encode())
    bench.tested = False
    return Observation(text=f"wrote {path}")


_SHELL = 'exec "$(command -v bash || command -v sh)" -c "$1"'  # bash where there is one, as models write for it


def _run_command(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    done = _run(bench, ["sh", "-c", _SHELL, "sh", bench.functions + arguments["command"]])
    bench.tested = True
    if done.status != "exited":  # where it was stopped is chance, so its output is left out
        raise ToolFailure(f"stopped: {_why(done, bench)}")
    text = "\n".join(part for part in (canonical(done.stdout), canonical(done.stderr)) if part)
    code = f"exit code {done.code}" if done.code else ""
    more = "(too much output: only its beginning was kept)" if done.truncated else ""
    room = bench.observation_chars - len(code) - len(more) - 2
    shown = cut(text, room, head=0.4)  # what a test run says last matters most
    return Observation(text="\n".join(part for part in (code, shown, more) if part) or "(no output)")


def _finish(bench: Bench, arguments: Mapping[str, Any]) -> Observation:
    bench.finished = True
    return Observation(text="finished", error=None if bench.tested else "finished_untested")


def _run(bench: Bench, argv: list[str]) -> ExecResult:
    done = bench.sandbox.run(argv, env=bench.env)
    if done.seen is not None:
        bench.log = bench.log if bench.log is not None else []
        bench.log += [Seen(turn=bench.turn, kind=cast(Any, kind), what=what) for kind, what in done.seen[: MAX_LOG - len(bench.log)]]
    return done


def _why(done: ExecResult, bench: Bench) -> str:
    limits = bench.limits
    reasons = {
        "timeout": f"more than {limits.wall_s:g} s",
        "out_of_memory": f"more than {limits.memory_mb} MB of memory",
        "too_many_processes": f"more than {limits.processes} processes",
        "disk_full": f"more than {limits.disk_mb} MB written",
    }
    return reasons.get(done.status, "killed")


def _fitting(lines: list[str], bench: Bench, what: str) -> str:
    """The first lines that fit, and how many more there are."""
    if sum(map(len, lines)) + len(lines) - 1 <= bench.observation_chars:
        return "\n".join(lines)
    more = f"... ({len(lines)} more {what})"
    count = whole_lines(lines, bench.observation_chars - len(more) - 1)
    return "\n".join([*lines[:count], f"... ({len(lines) - count} more {what})"])


_TEXT: Schema = {"type": "string"}
_GIVEN: Schema = {"type": "string", "minLength": 1}
_NUMBER: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_NUMBER, "optional": True}

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(name="list", about="a folder", schema=object_schema(path=_GIVEN), run=_list),
        Tool(name="read", about="a file", schema=object_schema(path=_GIVEN, start=_NUMBER, lines=_NUMBER), run=_read),
        Tool(name="search", about="grep -rn", schema=object_schema(pattern=_GIVEN, path={**_GIVEN, "optional": True}), run=_search),
        Tool(name="edit", about="replace old, found exactly once", schema=object_schema(path=_GIVEN, old=_GIVEN, new=_TEXT), run=_edit),
        Tool(name="write", about="a whole file", schema=object_schema(path=_GIVEN, content=_TEXT), run=_write),
        Tool(name="run", about=f"shell, such as {TESTS}", schema=object_schema(command=_GIVEN), run=_run_command),
        Tool(name="finish", about="when the tests pass", schema=object_schema(message=_TEXT), run=_finish),
    )
}
