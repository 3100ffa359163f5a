"""Run tests inside a sandbox and know, from outside, what happened.

    host (this file) --request-----> supervise.py --nonce--> child.py (pytest and the code under test)
                     <--signed file-             <--pipe---

Only the events of the private pipe count, never what is printed, and the host puts them together itself: a test passes if it was
reported as started, passed in its call, was torn down, and no report of its id failed, was skipped or expected to fail. No event,
no pass: `os._exit(0)`, zero tests, a closed pipe or a printed "PASSED" give nothing. Lines without the nonce void the whole run.
What code inside pytest's own interpreter could forge is for checks on top of this one (tests that must fail, stubbed bodies).

Python's tests are run by child.py with pytest. For the other runners an adapter (languages/) says which processes to start; they are
children of languages/child.py and write the same events into the same pipe, so the same supervisor and the same rules serve them.

In: a Sandbox over a repository; out: a TestRun, without durations or temporary paths in anything that is shown.

Not here: which outcome makes a task solved (grader.py).
"""

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from etude.errors import SandboxError
from etude.grade.environment import carried_sources
from etude.languages.choose import by_runner
from etude.languages.protocol import Launch, Request
from etude.sandbox.protocol import ENV, ExecResult, Sandbox
from etude.types import Repo

Order = Literal["plain", "reversed", "shuffled"]
COLLECT = "<collect>"  # owner in TestRun.reach of what imports and collection ran
BETWEEN = "<between>"  # and of what ran outside every test
MAX_EVENTS_BYTES = 64 * 2**20  # held in the supervisor's memory; 1,400 traced tests make about 4 MiB
MAX_OUTPUT_BYTES = 32768
PATIENCE = 8.0  # times its limit, which counts no second without a CPU (clock.py), may a run take by the clock on the wall
GRACE_S = 10.0  # the sandbox's own limit comes this much later, so that a run out of time can still report
PYTEST = "pytest"
PYTHON = "python3"  # inside the sandbox
RESULT = ".etude-result"  # in the workspace, see supervise.py
CHILD_ENV = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What one run of pytest showed."""

    __test__ = False  # for pytest: no class of tests

    outcomes: dict[str, str]  # node id -> passed | failed | skipped | xfailed | xpassed; only tests that were started
    collected: tuple[str, ...]  # node ids in the order of the run, after selection
    collect_errors: tuple[str, ...]  # "path: message"
    result: ExecResult  # of pytest itself; stdout holds the end of its output, stderr nothing
    complete: bool  # pytest came to its own end and said so
    messages: dict[str, str]  # failed node id -> one line
    durations: dict[str, float]  # node id -> seconds, set-up and tear-down included
    reach: dict[str, tuple[tuple[str, int], ...]]  # only traced: node id, COLLECT or BETWEEN -> (path, first line of a code object)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # id -> (path, line), from runners that tell
    modules: dict[str, tuple[str, str]] = field(default_factory=dict)  # asked for: name -> (file it was imported from, loader), "" if not

    def passed(self, ids: Sequence[str]) -> bool:
        """Exactly these tests were there, all of them passed, and pytest ended by itself."""
        return self.complete and sorted(set(self.collected)) == sorted(set(ids)) and all(self.outcomes.get(id) == "passed" for id in ids)


def run_tests(
    sandbox: Sandbox,
    repo: Repo,
    *,
    ids: Sequence[str] | None = None,
    paths: Sequence[str] | None = None,
    order: Order = "plain",
    seed: int = 0,
    trace: bool = False,
    wall_s: float = 60.0,
    runner: str = PYTEST,
    codes: Sequence[tuple[int, str, int]] | None = None,
    modules: Sequence[str] = (),
    elsewhere: bool = False,
) -> TestRun:
    """Run the tests `ids` (default: all) of the files and folders `paths` (default: those of the repository).

    `runner`: as in Environment.runner. `codes`: traced by a runner other than pytest, see languages/protocol.py. `modules`: whose origin
    shall be told at the end, by pytest only. `elsewhere`: at another time and on another machine, as elsewhere.py has it; pytest then only
    collects.
    A run that ends badly is a TestRun with less in it. SandboxError where pytest could not even be started.
    """
    places = list(repo.test_paths if paths is None else paths)
    for path in places:
        if not is_test_path(path):
            raise ValueError(f"test path {path!r}: a relative path without '::', '[' and '..' is needed; choose tests with ids")
    if runner != PYTEST:
        wanted = None if ids is None else tuple(ids)
        of_ids = {id.partition("::")[0] for id in wanted or ()}
        files = tuple(path for path in places if wanted is None or path in of_ids)
        numbered = None if codes is None else tuple(codes)
        asked = Request(files=files, ids=wanted, order=order, seed=seed, codes=numbered, wall_s=wall_s)
        return run_launch(sandbox, by_runner(runner).launch(runner, asked), wall_s=wall_s)
    config = {
        "env": ENV,
        "roots": list(repo.import_roots),
        "paths": places,
        "ids": None if ids is None else list(ids),
        "order": order,
        "seed": seed,
        "trace": [_text("tracer.py"), _text("subtrace.py")] if trace else [],
        "carried": carried_sources(),
        "modules": list(modules),
        "elsewhere": _text("elsewhere.py") if elsewhere else "",
    }
    return _whole(*_supervised(sandbox, _text("child.py"), config, CHILD_ENV, wall_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A run of some tests, while some files of the tree may hold something else."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # path of an existing file -> its content in this run
    ids: tuple[str, ...] | None  # None: all
    paths: tuple[str, ...]  # of their files
    order: Order = "plain"
    seed: int = 0
    until: tuple[frozenset[str], ...] = ()  # enough is known as soon as a test of each of these does not pass; (): all are run
    wall_s: float = 60.0


def run_variants(sandbox: Sandbox, repo: Repo, variants: Sequence[Variant]) -> list[TestRun]:
    """Runs by pytest, each in a process of its own that has imported nothing of the repository, from the one that has imported pytest.

    After each the files are as they were and no other process is left; where that cannot be had the rest is not run. So there may be
    fewer runs than variants, and none where several ended with the sandbox itself: a single one has a run, in which nothing passed.
    """
    shared = {"env": ENV, "roots": list(repo.import_roots), "trace": [], "carried": carried_sources(), "clock": _text("clock.py")}
    each = [
        {
            "files": {path: base64.b64encode(data).decode() for path, data in variant.files.items()},
            "ids": None if variant.ids is None else list(variant.ids),
            "paths": [path for path in variant.paths if is_test_path(path)],
            "order": variant.order,
            "seed": variant.seed,
            "until": [sorted(ids) for ids in variant.until],
            "wall_s": variant.wall_s,
        }
        for variant in variants
    ]
    wall_s = sum(variant.wall_s for variant in variants) + GRACE_S
    result, events = _supervised(sandbox, _text("child.py"), {**shared, "variants": each}, CHILD_ENV, wall_s)
    apart: list[list[list[Any]]] = []
    for event in events or ():
        if event[0] == "variant":
            apart.append([])
        elif apart:
            apart[-1].append(event)
    if not apart:
        return [_empty(result)] if len(variants) == 1 else []
    return [_ended_run(result, found) for found in apart]


def _ended_run(result: ExecResult, events: list[list[Any]]) -> TestRun:
    """One variant's. Without its end it is not complete."""
    ends = [event for event in events if event[0] == "end"]
    code = ends[0][1] if ends else None
    status = "exited" if code is not None else "timeout" if ends or result.status == "exited" else result.status
    own = dataclasses.replace(result, status=status, code=code, stdout=b"")
    return _whole(own, [event for event in events if event[0] != "end"])


def run_launch(sandbox: Sandbox, launch: Launch, *, wall_s: float) -> TestRun:
    """Run what an adapter launches. SandboxError as in run_tests."""
    config = {"env": ENV, "steps": [dataclasses.asdict(step) for step in launch.steps], "links": dict(launch.links)}
    return _whole(*_supervised(sandbox, _text("../languages/child.py"), config, {**CHILD_ENV, **launch.env}, wall_s))


def _supervised(
    sandbox: Sandbox, child: str, config: Mapping[str, Any], env: Mapping[str, str], wall_s: float
) -> tuple[ExecResult, list[list[Any]] | None]:
    """How it ended, and its events; None where they do not count."""
    request = {
        "child": child,
        "clock": _text("clock.py"),
        "config": config,
        "env": env,
        "wall_s": wall_s,
        "patience": PATIENCE,
        "max_events_bytes": MAX_EVENTS_BYTES,
        "max_output_bytes": MAX_OUTPUT_BYTES,
    }
    argv = [PYTHON, "-I", "-S", "-B", "-c", _text("supervise.py")]
    result = sandbox.run(argv, stdin=json.dumps(request).encode(), wall_s=PATIENCE * wall_s + GRACE_S)
    if result.status == "killed":
        raise SandboxError("the sandbox was closed while tests ran in it")
    return _assemble(result, _signed_body(sandbox, result.stdout))


def is_test_path(path: str) -> bool:
    """Can pytest be given this path, and takes it as one?"""
    return "::" not in path and "[" not in path and not path.startswith(("-", "/")) and ".." not in path.split("/")


def _signed_body(sandbox: Sandbox, printed: bytes) -> bytes | None:
    """What the supervisor wrote, if it is there and signed with the key that it committed to before the tests began."""
    try:
        data = sandbox.read(RESULT)
    except OSError:
        return None
    signature, body = data[: 256 * 64], data[256 * 64 :]
    number = int.from_bytes(_digest(body), "little")
    public = b""
    for bit in range(256):
        revealed, other = signature[64 * bit : 64 * bit + 32], signature[64 * bit + 32 : 64 * bit + 64]
        public += other + _digest(revealed) if number >> bit & 1 else _digest(revealed) + other
    return zlib.decompress(body) if _digest(public).hex().encode() == printed[:64] else None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _assemble(result: ExecResult, body: bytes | None) -> tuple[ExecResult, list[list[Any]] | None]:
    if body is None:
        if result.status == "exited" and not result.stdout:
            raise SandboxError(f"tests could not be started in the sandbox: {_last_line(result.stderr.decode(errors='replace'))}")
        return result, None  # killed with everything else, or by the code under test
    head_line, _, lines = body.partition(b"\n")
    head = json.loads(head_line)
    if head["status"] == "starved":
        ran_s = head["wall_s"] - head["waited_s"]
        raise SandboxError(f"tests had a CPU for {ran_s:.0f} of {head['wall_s']:.0f} s: too much else runs on this machine")
    timed_out = head["status"] == "timeout"
    status = "timeout" if timed_out else result.status  # of the sandbox: a limit that ended the tests, but not their supervisor
    result = dataclasses.replace(
        result,
        status=status,
        code=head["code"] if status == "exited" else None,
        stdout=_canonical(head["output"]).encode("utf-8", "surrogateescape"),
        stderr=b"",
        wall_s=head["wall_s"],
        waited_s=head["waited_s"],
    )
    events = _events(lines, head["nonce"])
    if events is None or head["status"] == "overflow":  # somebody else wrote into the pipe: nothing in it counts
        return result, None
    if not events and not timed_out:
        raise SandboxError(f"pytest did not start in the sandbox: {_last_line(head['output'])}")
    return result, events


def _whole(result: ExecResult, events: list[list[Any]] | None) -> TestRun:
    if events is None:
        return _empty(result)
    try:
        return _put_together(result, events)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):  # an event that the child does not write
        return _empty(result)


def _events(lines: bytes, nonce: str) -> list[list[Any]] | None:
    """The events; None if a line is not one. A last line without its end was cut off by a kill."""
    prefix = nonce.encode() + b" "
    whole = lines[: lines.rfind(b"\n") + 1].splitlines()
    if not all(line.startswith(prefix) for line in whole):
        return None
    try:
        return [json.loads(line[len(prefix) :]) for line in whole]
    except (ValueError, RecursionError):
        return None


def _put_together(result: ExecResult, events: list[list[Any]]) -> TestRun:
    collected: list[str] = []
    seen: set[str] = set()
    errors: list[str] = []
    reports: dict[str, list[tuple[str, str]]] = {}  # id -> (phase, what)
    messages: dict[str, str] = {}
    durations: dict[str, float] = {}
    codes: dict[int, tuple[str, int]] = {}
    reach: dict[str, set[tuple[str, int]]] = {}
    places: dict[str, tuple[str, int]] = {}
    modules: dict[str, tuple[str, str]] = {}
    step: str | None = None  # a process that has not said that it is done
    crash, unfinished = "", False
    said: int | None = None
    for kind, *rest in events:
        if kind == "items":
            collected += [id for id in rest[0] if id not in seen]
            seen.update(rest[0])
        elif kind == "error":
            errors.append(f"{rest[0]}: {_canonical(rest[1])}")
        elif kind == "start":
            reports.setdefault(rest[0], []).append(("start", "passed"))
        elif kind == "report":
            id, phase, outcome, was_xfail, seconds, message = rest
            what = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome) if was_xfail else outcome
            reports.setdefault(id, []).append((phase, what))
            durations[id] = durations.get(id, 0.0) + seconds
            if outcome == "failed":
                messages.setdefault(id, _canonical(message))
        elif kind == "code":
            codes[rest[0]] = (rest[1], rest[2])
        elif kind == "reach":
            reach.setdefault(rest[0], set()).update(codes[number] for number in rest[1])
        elif kind == "where":
            places.setdefault(rest[0], (rest[1], rest[2]))
        elif kind == "module":
            modules[rest[0]] = (rest[1], rest[2])
        elif kind == "crash":
            crash = rest[0]
        elif kind == "done":
            step = None
        elif kind in ("step", "exit"):
            if step is not None:
                unfinished = True
                errors.append(f"{step or 'the runner'}: {_canonical(crash or 'the process ended before its tests did')}")
            step, crash = (rest[0], "") if kind == "step" else (None, "")
            said = rest[0] if kind == "exit" else None
    return TestRun(
        outcomes={id: _outcome(of_id) for id, of_id in reports.items()},
        collected=tuple(collected),
        collect_errors=tuple(errors),
        result=result,
        complete=said is not None and result.status == "exited" and result.code == said and not unfinished,
        messages=messages,
        durations=durations,
        reach={owner: tuple(sorted(found)) for owner, found in reach.items()},
        places=places,
        modules=modules,
    )


def _outcome(reports: list[tuple[str, str]]) -> str:
    """One outcome for all reports of an id, subtests and repeated ids included: the worst of them."""
    found = {what for _, what in reports}
    for what in ("failed", "skipped", "xfailed", "xpassed"):
        if what in found:
            return what
    phases = [phase for phase, _ in reports]
    ended = phases.count("start") == phases.count("teardown") and "call" in phases
    return "passed" if ended else "failed"  # the process died in it


def _empty(result: ExecResult) -> TestRun:
    return TestRun(
        outcomes={}, collected=(), collect_errors=(), result=result, complete=False, messages={}, durations={}, reach={}
    )  # fmt: skip


def _canonical(text: str) -> str:
    """Without what differs from run to run: addresses, temporary folders, seconds."""
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", text)
    text = re.sub(r"/tmp/[\w.-]*pytest-[\w./-]*|/tmp/tmp\w{6,}", "/tmp/...", text)
    return re.sub(r" in \d+\.\d+s( \([\d:]+\))?", "", text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


@cache
def _text(name: str) -> str:
    return Path(__file__).parent.joinpath(name).read_text("utf-8")
