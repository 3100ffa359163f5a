"""A scripted expert that knows the gold patch, with bad habits: the source of the supervised warm start.

In: a task with its tree before and after the gold patch. Out: the messages that solve it: look at the place, edit, run the tests, finish.
With given probabilities a message is preceded by a bad call (a tool that is not there, broken JSON, wrong arguments, an edit whose old
text is not in the file) or the tests are left out; the expert then goes on as if it had read the error. Where a hint stands in the
context before a message, the habit is absent: that contrast is what lets a model with a hint teach the model without.
Few phrasings, no thoughts: small models learn it in some tens of steps.

Not here: training on it (warmup.py), the words of hints (hints.py).
"""

import random
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from etude import tree
from etude.agent.calls import CLOSE, write_call
from etude.agent.hints import hint_text
from etude.agent.loop import run_agent
from etude.agent.policy import ScriptedPolicy, play
from etude.agent.tools import replace_once
from etude.config import AgentConfig
from etude.languages.shell import shell_of
from etude.render import Renderer
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import CallError, Rollout, Task, Turn

MAX_CONTEXT_LINES = 12  # around an edit, to make its old text unique; beyond, the whole file is written
GOLDEN = 0.6180339887498949
LOOK_LINES = 12  # read where there is no definition to search for
NOT_THERE = ("pass  # TODO", "raise NotImplemented()", "return NotImplemented  # TODO")  # old texts that an edit does not find
WRONG_TOOL = {
    "read": "open_file",
    "search": "open_file",
    "edit": "replace",
    "write": "create_file",
    "run": "run_tests",
    "finish": "submit",
}
WRONG_ARGUMENT = {"path": "file", "pattern": "query", "command": "cmd", "message": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Probabilities. The first three are per message, and of a bad call before it; hints are drawn by the same weights."""

    unknown_tool: float = 0.18
    malformed_call: float = 0.05
    bad_arguments: float = 0.07
    edit_not_found: float = 0.1  # per edit
    finished_untested: float = 0.15  # per rollout
    hinted: float = 0.6  # of the messages of a hinted demonstration, at least one

    @classmethod
    def of_rate(cls, rate: float) -> "Habits":
        """Invalid calls before so many of the messages."""
        return cls(unknown_tool=0.72 * rate, malformed_call=0.08 * rate, bad_arguments=0.2 * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    text: str  # what the expert says
    hint: str | None = None  # stands in the context before it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    name: str
    arguments: dict[str, Any]
    path: str = ""  # the file that it is about

    @property
    def text(self) -> str:
        return write_call(self.name, self.arguments)


def demonstrate(
    task: Task,
    store: TaskStore,
    backend: Backend,
    renderer: Renderer,
    *,
    seed: int,
    hinted: bool,
    habits: Habits = Habits(),
    limits: AgentConfig = AgentConfig(),
) -> Rollout:
    """One demonstration as a rollout, with what the real sandbox answered. Of `limits` only what shortens texts counts.

    Raises: ValueError where the gold patch cannot be written as text (binary, not UTF-8), SandboxError.
    """
    workspace = store.workspace(task)
    steps = plan(task, workspace, store.solved_tree(task), random.Random(seed), hinted=hinted, habits=habits)
    policy = ScriptedPolicy([step.text for step in steps], renderer)

    def hinter(turns: Sequence[Turn]) -> str | None:
        return steps[len(turns)].hint if len(turns) < len(steps) else None

    roomy = replace(limits, turns=len(steps) + 1, turn_tokens=1 << 20, context_tokens=1 << 22)
    with backend.open(workspace, environment=store.environment(task.environment), limits=task.limits) as sandbox:
        agent = run_agent(
            task,
            sandbox,
            renderer,
            workspace=workspace,
            limits=roomy,
            rollout_id=f"{task.id}.expert-{seed}{'-hinted' if hinted else ''}",
            group=f"{task.id}.expert",
            seed=seed,
            temperature=1.0,
            hinter=hinter,
        )
        return play(agent, policy)


def plan(task: Task, before: Path, after: Path, rng: random.Random, *, hinted: bool, habits: Habits = Habits()) -> list[Step]:
    """What the expert says, bad habits or hints included. Raises: ValueError."""
    calls = solution(task, before, after)
    return _with_hints(calls, rng, habits) if hinted else _with_bad_calls(calls, rng, habits)


def solution(task: Task, before: Path, after: Path) -> list[_Call]:
    """The calls that turn the tree `before` into `after`, each file looked at first, then a test run. Raises: ValueError."""
    old, new = tree.files(before), tree.files(after)
    calls: list[_Call] = []
    for path in sorted(old.keys() | new.keys()):
        was = old[path].read_bytes() if path in old else None
        becomes = new[path].read_bytes() if path in new else None
        if was == becomes:
            continue
        if becomes is None:
            calls.append(_Call(name="run", arguments={"command": f"rm {shlex.quote(path)}"}))
        elif was is None:
            calls.append(_Call(name="write", arguments={"path": path, "content": _text(becomes, path)}))
        else:
            edits = _edits(path, _text(was, path), _text(becomes, path))
            calls += [_look(task, path, was, becomes), *edits]
    calls.append(_Call(name="run", arguments={"command": _test_command(task)}))
    return [*calls, _Call(name="finish", arguments={"message": "done"})]


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the expert cannot edit {path}: it is not UTF-8") from None


def _look(task: Task, path: str, was: bytes, becomes: bytes) -> _Call:
    """Search for the definition where it is still there, else read where it will be."""
    for symbol in task.symbols:
        name = symbol.qualname.rsplit(".", 1)[-1]
        for definition in (f"def {name}(", f"class {name}"):
            if symbol.path == path and definition.encode() in was:
                return _Call(name="search", arguments={"pattern": definition}, path=path)
    a, b = was.splitlines(keepends=True), becomes.splitlines(keepends=True)
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return _Call(name="read", arguments={"path": path, "start": max(1, first - LOOK_LINES // 2), "lines": LOOK_LINES}, path=path)


def _edits(path: str, was: str, becomes: str) -> list[_Call]:
    """One edit per changed place, each with the shortest old text that is unique at that moment; else one write of the whole file."""
    a, b = was.splitlines(keepends=True), becomes.splitlines(keepends=True)
    now, calls = was.encode(), []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        found = _unique(now, [*b[:j1], *a[i1:]], b[j1:j2], j1, j1 + i2 - i1)
        if found is None:
            return [_Call(name="write", arguments={"path": path, "content": becomes})]
        old, new, now = found
        calls.append(_Call(name="edit", arguments={"path": path, "old": old, "new": new}))
    return calls if now == becomes.encode() else [_Call(name="write", arguments={"path": path, "content": becomes})]


def _unique(now: bytes, lines: list[str], new: list[str], start: int, stop: int) -> tuple[str, str, bytes] | None:
    """Old and new text for lines[start:stop] -> new, with as few lines around as make the old text unique, and the file after it."""
    after = "".join([*lines[:start], *new, *lines[stop:]]).encode()
    for around in range(MAX_CONTEXT_LINES + 1):
        for above, below in ((around, 0), (0, around), (around, around)):
            first, last = max(0, start - above), min(len(lines), stop + below)
            pair = "".join(lines[first:last]), "".join([*lines[first:start], *new, *lines[stop:last]])
            exact = _trimmed(*pair)
            for old, replacement in ((exact[0].replace("\r\n", "\n"), exact[1].replace("\r\n", "\n")), exact):
                if old.strip() and replace_once(now, old, replacement) == (1, after):
                    return old, replacement, after
    return None


def _trimmed(old: str, new: str) -> tuple[str, str]:
    """Without the indentation and the line end that both have."""
    indent = 0
    while indent < min(len(old), len(new)) and old[indent] == new[indent] and old[indent] in " \t":
        indent += 1
    old, new = old[indent:], new[indent:]
    for end in ("\r\n", "\n"):
        if old.endswith(end) and new.endswith(end):
            return old.removesuffix(end), new.removesuffix(end)
    return old, new


def _test_command(task: Task) -> str:
    """The visible test file that goes with the changed source, else the first; all tests where none is known."""
    files = sorted({test.split("::", 1)[0] for test in task.pass_to_pass})
    stems = [Path(symbol.path).stem for symbol in task.symbols]
    fitting = [
        file for file in files for stem in stems if Path(file).name.split(".")[0] in (f"test_{stem}", f"{stem}_test", f"{stem}Test", stem)
    ]
    chosen = (fitting or files)[:1]
    return " ".join([shell_of(task.environment.runner).tests, *map(shlex.quote, chosen)])


def _with_bad_calls(calls: Sequence[_Call], rng: random.Random, habits: Habits) -> list[Step]:
    steps = []
    last_run = max(i for i, call in enumerate(calls) if call.name == "run")
    untested = rng.random() < habits.finished_untested
    points = _spread(len(calls), rng)
    for i, call in enumerate(calls):
        if untested and i == last_run:
            continue
        kind = _draw(_weights(call, habits), points[i])
        if kind is not None:
            steps.append(Step(text=bad_call(call.name, call.arguments, kind, path=call.path)))
        steps.append(Step(text=call.text))
    return steps


def _with_hints(calls: Sequence[_Call], rng: random.Random, habits: Habits) -> list[Step]:
    chosen = [rng.random() < habits.hinted for _ in calls]
    chosen[rng.randrange(len(calls))] = True
    last_run = max(i for i, call in enumerate(calls) if call.name == "run")
    steps = []
    for i, (call, with_hint) in enumerate(zip(calls, chosen, strict=True)):
        weights = _weights(call, habits)
        if i == last_run:
            weights["finished_untested"] = habits.finished_untested
        kind = _draw({k: w / (sum(weights.values()) or 1) for k, w in weights.items()}, rng.random()) if with_hint else None
        steps.append(Step(text=call.text, hint=hint_text(kind, call.name) if kind else None))
    return steps


def _weights(call: _Call, habits: Habits) -> dict[CallError, float]:
    """The bad habits that can come before a call."""
    weights: dict[CallError, float] = {
        "unknown_tool": habits.unknown_tool,
        "malformed_call": habits.malformed_call,
        "bad_arguments": habits.bad_arguments,
    }
    if call.name == "edit":
        weights["edit_not_found"] = habits.edit_not_found
    return weights


def _spread(count: int, rng: random.Random) -> list[float]:
    """Points of [0, 1), each uniform and together even (steps of the golden ratio from a random start, the order shuffled).

    A few demonstrations then have as many bad calls as their rate says; independent draws left a model with 27% or 42% of them by chance.
    """
    start = rng.random()
    points = [(start + i * GOLDEN) % 1 for i in range(count)]
    rng.shuffle(points)
    return points


def _draw(weights: dict[CallError, float], point: float) -> CallError | None:
    """The one in whose share of [0, 1) the point lies, none in what is left."""
    for kind, weight in weights.items():
        point -= weight
        if point < 0:
            return kind
    return None


def bad_call(name: str, arguments: dict[str, Any], kind: CallError, *, path: str = "") -> str:
    """The message with one thing wrong; `path`: what a tool that only looks would look at."""
    match kind:
        case "unknown_tool":
            return write_call(WRONG_TOOL[name], {"path": path} if path else arguments)
        case "malformed_call":
            return write_call(name, arguments).removesuffix("}" + CLOSE) + CLOSE
        case "bad_arguments":
            return write_call(name, {WRONG_ARGUMENT.get(key, key): value for key, value in arguments.items()})
        case "edit_not_found":
            return write_call(name, {**arguments, "old": next(text for text in NOT_THERE if text not in str(arguments))})
        case _:
            raise ValueError(f"{kind!r} is no bad call; allowed are unknown_tool, malformed_call, bad_arguments and edit_not_found")
