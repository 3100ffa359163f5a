"""Score a diff: hidden tests, in a fresh sandbox, that receives only the diff's allowed source files.

    diff --patches.parse--> files --filter--> allowed --> copy of the agent's first tree --> + tests and configuration of the
    original, over whatever is there --> sandbox --runner--> outcomes --judge--> Verdict

Solved means: exactly the tests of fail_to_pass and pass_to_pass were there, each passed, and the runner came to its own end.
A diff that is broken or does not apply is graded, with zero; a sandbox that fails is no verdict, which is not a zero.

In: a Task, a diff, a TaskStore, a Backend; out: a Verdict (records.encode makes JSON of it).

Not here: shaping (`reward.parts` has the shares, the trainer decides), what inside the interpreter could forge a report: such
checks wrap `judge`.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from etude import tree
from etude.errors import SandboxError
from etude.grade import patches
from etude.grade.filter import Rules, bad_content, make_rules, refusal, split_allowed
from etude.grade.runner import PYTHON, TestRun, run_tests
from etude.sandbox.protocol import Backend, Sandbox
from etude.store import TaskStore
from etude.types import Reward, Task

MAX_PATCH_CHARS = 4 * 2**20
COMPILE_S = 10.0
BROKEN = 3  # exit code of _COMPILE
_COMPILE = f"""
import sys
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        print(f"{{path}}, line {{error.lineno}}: {{error.msg}}")
        sys.exit({BROKEN})
    except OSError:
        pass
"""
MISSING = "missing"  # outcome of a test that was not started


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    task_id: str
    verdict: Literal["graded", "no_verdict"]
    solved: bool
    reward: Reward | None  # None without a verdict
    reason: str  # one line
    fail_to_pass: dict[str, str] = field(default_factory=dict)  # node id -> outcome, MISSING included
    pass_to_pass: dict[str, str] = field(default_factory=dict)
    refused: tuple[tuple[str, str], ...] = ()  # (path, why) of what was not let in
    messages: dict[str, str] = field(default_factory=dict)  # node id -> what a failed test said, one line


def grade(task: Task, patch: str, *, store: TaskStore, backend: Backend) -> Verdict:
    """The verdict on anyone's diff against the agent's first tree.

    Raises: UserError where the task's snapshot or environment is missing or its patches do not fit.
    """
    environment = store.environment(task.environment)
    original, start = store.snapshot(task.repo), store.workspace(task)
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=environment)
    refused: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="etude-grade-") as folder:
        work = Path(folder, "work")
        try:
            refused = prepare(work, patch, start=start, original=original, rules=rules)
        except ValueError as error:
            return _graded(task, None, str(error), refused)
        try:
            with backend.open(work, environment=environment, limits=task.limits) as sandbox:
                if reason := _does_not_compile(sandbox, task):
                    return _graded(task, None, reason, refused)
                ids = (*task.fail_to_pass, *task.pass_to_pass)
                run = run_tests(sandbox, task.repo, ids=ids, wall_s=task.limits.wall_s, runner=task.environment.runner)
        except SandboxError as error:
            reason = f"no verdict, the sandbox failed: {error}"
            return Verdict(task_id=task.id, verdict="no_verdict", solved=False, reward=None, reason=reason, refused=tuple(refused))
    return _graded(task, run, "", refused)


def prepare(work: Path, patch: str, *, start: Path, original: Path, rules: Rules) -> list[tuple[str, str]]:
    """Make the tree to be tested in the new folder `work`; returns what was refused. ValueError if the patch does not apply."""
    if len(patch) > MAX_PATCH_CHARS:
        raise ValueError(f"the patch is larger than {MAX_PATCH_CHARS >> 20} million characters")
    allowed, refused = split_allowed(patches.parse(patch), rules)
    allowed = [patches.with_line_ends_of(each, _content(start, each.old)) for each in allowed]
    tree.copy_tree(start, work)
    tree.apply_patch(work, patches.to_text(allowed))
    bad = {path: why for each in allowed for path in each.paths if (why := _bad(work, path))}
    if bad:  # start again without these files
        refused += sorted(bad.items())
        shutil.rmtree(work)
        tree.copy_tree(start, work)
        tree.apply_patch(work, patches.to_text([each for each in allowed if not bad.keys() & set(each.paths)]))
    lay_down(work, original, rules)
    return refused


def lay_down(work: Path, original: Path, rules: Rules) -> None:
    """Everything that a diff may not touch becomes what it is in the original, whatever is there: hidden tests, configuration."""
    for path, file in tree.files(work).items():
        if refusal(path, rules):
            file.unlink()
    for path, file in tree.files(original).items():
        if refusal(path, rules):
            place = work / path
            if place.is_dir():
                shutil.rmtree(place)
            for parent in reversed(place.relative_to(work).parents):
                if (work / parent).is_file():
                    (work / parent).unlink()
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
            place.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _does_not_compile(sandbox: Sandbox, task: Task) -> str:
    """Which file of the feature is no Python any more, and where; "" if all are.

    Its hidden tests cannot pass then, and pytest would take many times longer than for a whole suite to say so of every test.
    """
    paths = sorted({symbol.path for symbol in task.symbols if symbol.path.endswith(".py")})
    if not paths:
        return ""
    result = sandbox.run([PYTHON, "-I", "-S", "-B", "-c", _COMPILE, *paths], wall_s=COMPILE_S)
    told = result.stdout.decode("utf-8", "replace").strip()
    return f"it does not compile: {told}" if result.status == "exited" and result.code == BROKEN and told else ""


def judge(task: Task, run: TestRun) -> tuple[bool, dict[str, str], dict[str, str]]:
    """Solved, and the outcomes of fail_to_pass and of pass_to_pass."""
    outcomes = [{id: run.outcomes.get(id, MISSING) for id in ids} for ids in (task.fail_to_pass, task.pass_to_pass)]
    return run.passed([*task.fail_to_pass, *task.pass_to_pass]), outcomes[0], outcomes[1]


def _graded(task: Task, run: TestRun | None, reason: str, refused: Sequence[tuple[str, str]]) -> Verdict:
    if run is None:
        solved, messages = False, {}
        fail_to_pass, pass_to_pass = (dict.fromkeys(ids, MISSING) for ids in (task.fail_to_pass, task.pass_to_pass))
    else:
        solved, fail_to_pass, pass_to_pass = judge(task, run)
        wanted = fail_to_pass.keys() | pass_to_pass.keys()
        messages = {id: text for id, text in sorted(run.messages.items()) if id in wanted}
        reason = _reason(task, run, solved, fail_to_pass, pass_to_pass)
    parts = {
        "solved": float(solved),
        "fail_to_pass_share": _share(fail_to_pass),
        "pass_to_pass_share": _share(pass_to_pass),
    }
    return Verdict(
        task_id=task.id,
        verdict="graded",
        solved=solved,
        reward=Reward(total=1.0 if solved else 0.0, solved=solved, parts=parts),
        reason=reason,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        refused=tuple(refused),
        messages=messages,
    )


def _reason(task: Task, run: TestRun, solved: bool, fail_to_pass: dict[str, str], pass_to_pass: dict[str, str]) -> str:
    if solved:
        return f"all {len(fail_to_pass) + len(pass_to_pass)} tests pass"
    counts = ", ".join(
        f"{sum(outcome != 'passed' for outcome in outcomes.values())} of {len(outcomes)} {name} tests do not pass"
        for name, outcomes in (("fail_to_pass", fail_to_pass), ("pass_to_pass", pass_to_pass))
    )
    if run.result.status != "exited":
        limits = task.limits
        ends = {
            "timeout": f"ran out of time ({limits.wall_s:g} s)",
            "out_of_memory": f"ran out of memory ({limits.memory_mb} MB)",
            "too_many_processes": f"started too many processes ({limits.processes})",
            "disk_full": f"filled the disk ({limits.disk_mb} MB)",
        }
        return f"the tests {ends.get(run.result.status, 'were killed')}; {counts}"
    if not run.complete:
        return f"{task.environment.runner} did not come to its end; {counts}"
    if run.collect_errors:
        return f"{counts}; {run.collect_errors[0]}"
    return counts


def _share(outcomes: dict[str, str]) -> float:
    return sum(outcome == "passed" for outcome in outcomes.values()) / len(outcomes) if outcomes else 0.0


def _content(folder: Path, path: str | None) -> bytes | None:
    place = folder / path if path else None
    return place.read_bytes() if place and place.is_file() else None


def _bad(work: Path, path: str) -> str | None:
    content = _content(work, path)
    return None if content is None else bad_content(path, content)
