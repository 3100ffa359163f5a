"""Score a diff: hidden tests, in a fresh sandbox, that receives only the diff's allowed source files.

    diff --patches.parse--> files --filter--> allowed --> copy of the agent's first tree --> + tests and configuration of the
    original, over whatever is there (lay.py) --> + tests that nobody can foresee (canary.py) --> sandbox --runner--> outcomes
    --judge--> solved? --guards--> Verdict

Solved means: exactly the tests of fail_to_pass and pass_to_pass were there, each passed, the runner came to its own end, and no guard has
an objection (guards.py). A diff that is broken or does not apply is graded, with zero; a sandbox that fails is no verdict, which is not a
zero. The same diff gets the same verdict with the same evidence every time; `seconds` alone differ.

In: a Task, a diff, a TaskStore, a Backend; out: a Verdict (records.encode makes JSON of it).

Not here: shaping (`reward.parts` has the shares, the trainer decides).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from etude import tree
from etude.errors import SandboxError
from etude.grade import facts as known
from etude.grade import generated as calls
from etude.grade import guards, lay, patches, scratch
from etude.grade.canary import Canary
from etude.grade.filter import make_rules
from etude.grade.guards import ALWAYS, Findings, Grading, Guards
from etude.grade.lay import MAX_PATCH_CHARS as MAX_PATCH_CHARS
from etude.grade.lay import prepare as prepare
from etude.grade.runner import PYTHON, TestRun, run_tests
from etude.sandbox.protocol import Backend, Sandbox
from etude.store import TaskStore
from etude.types import Reward, Task

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
    guard: str = ""  # that took the reward away, see guards.py
    evidence: dict[str, Any] = field(default_factory=dict)  # of the guards, by name
    seconds: dict[str, float] = field(default_factory=dict, compare=False)  # prepare | facts | tests | guards | ablation


def grade(task: Task, patch: str, *, store: TaskStore, backend: Backend, checks: Guards = ALWAYS) -> Verdict:
    """The verdict on anyone's diff against the agent's first tree.

    checks: the cheap guards, or guards.FIRST_SOLVE with the ablation regrade, for the first time that a task is solved.
    Raises: UserError where the task's snapshot or environment is missing or its patches do not fit.
    """
    original, start = store.snapshot(task.repo), store.workspace(task)
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=store.environment(task.environment))
    refused: list[tuple[str, str]] = []
    seconds: dict[str, float] = {}
    with scratch.folder() as folder:
        work, clock = folder / "work", time.monotonic()
        try:
            refused = prepare(work, patch, start=start, original=original, rules=rules)
            paths = frozenset(path for each in patches.parse(patch) for path in each.paths) - {path for path, _ in refused}
        except ValueError as error:
            return _graded(task, None, str(error), refused)
        clock = _took(seconds, "prepare", clock)
        try:
            facts = known.facts_of(task, store=store, backend=backend, rules=rules) if checks.need_facts else known.NONE
            clock = _took(seconds, "facts", clock)
            grading = Grading(
                task=task, patch=patch, store=store, backend=backend, rules=rules, facts=facts, guards=checks, folder=folder, paths=paths
            )
            run, found, reason = _run(grading, work, seconds)
            clock = time.monotonic()
            if run is not None and checks.ablation and judge(task, run)[0]:
                seconds["ablation"] = guards.regrade(found, grading)
        except SandboxError as error:
            reason = f"no verdict, the sandbox failed: {error}"
            return Verdict(task_id=task.id, verdict="no_verdict", solved=False, reward=None, reason=reason, refused=tuple(refused))
    return _graded(task, run, reason, refused, found, seconds)


def _run(grading: Grading, work: Path, seconds: dict[str, float]) -> tuple[TestRun | None, Findings, str]:
    """The run without its canaries, what the guards that need no other run found, and why there was none."""
    task, facts, found = grading.task, grading.facts, Findings()
    clock = time.monotonic()
    canaries = guards.lay_canaries(grading, work)
    laid, sources = lay.digests(work, grading.rules), frozenset(tree.files(work))
    with grading.backend.open(work, environment=grading.store.environment(task.environment), limits=task.limits) as sandbox:
        if reason := _does_not_compile(sandbox, task):
            return None, found, reason
        whole = run_tests(
            sandbox,
            task.repo,
            ids=_ids(task, canaries),
            wall_s=task.limits.wall_s,
            runner=task.environment.runner,
            modules=tuple(facts.modules),
        )
        clock = _took(seconds, "tests", clock)
        run = guards.without(whole, canaries)
        solved = judge(task, run)[0]
        changes = sandbox.changes() if whole.result.status == "exited" else []
        ask = solved and grading.guards.generated and facts.cases
        given = calls.answers(sandbox, [(c.module, c.name, c.args, c.kwargs) for c in facts.cases], task.repo) if ask else []
    guards.say_what_is_missing(found, grading)
    guards.look_at_files(found, grading, changes, laid, sources - laid.keys())
    guards.look_at_canaries(found, grading, canaries, whole, solved)
    if solved:
        guards.look_at_imports(found, grading, whole, work, sources)
        guards.look_at_answers(found, grading, given, work)
    _took(seconds, "guards", clock)
    return run, found, ""


def _ids(task: Task, canaries: Sequence[Canary]) -> tuple[str, ...]:
    return (*task.fail_to_pass, *task.pass_to_pass, *(id for each in canaries for id in each.ids))


def _took(seconds: dict[str, float], what: str, since: float) -> float:
    now = time.monotonic()
    seconds[what] = round(now - since, 3)
    return now


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


def _graded(
    task: Task,
    run: TestRun | None,
    reason: str,
    refused: Sequence[tuple[str, str]],
    found: Findings | None = None,
    seconds: dict[str, float] | None = None,
) -> Verdict:
    found = found or Findings()
    if run is None:
        solved, messages = False, {}
        fail_to_pass, pass_to_pass = (dict.fromkeys(ids, MISSING) for ids in (task.fail_to_pass, task.pass_to_pass))
    else:
        solved, fail_to_pass, pass_to_pass = judge(task, run)
        wanted = fail_to_pass.keys() | pass_to_pass.keys()
        messages = {id: text for id, text in sorted(run.messages.items()) if id in wanted}
        reason = _reason(task, run, solved, fail_to_pass, pass_to_pass)
    if found.guard:  # nothing of such a report is believed
        solved, reason = False, found.reason
    parts = {
        "solved": float(solved),
        "fail_to_pass_share": 0.0 if found.guard else _share(fail_to_pass),
        "pass_to_pass_share": 0.0 if found.guard else _share(pass_to_pass),
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
        guard=found.guard,
        evidence=found.evidence,
        seconds=seconds or {},
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
