"""What stands between a report of tests that passed and a reward: could it be forged, and did the submission earn it?

Each guard names itself, a reason in one line, and its evidence. Only a report that solves the task is questioned; what an unsolved one
showed on the way is evidence too.

    files       what was laid down to judge (tests, conftest.py, configuration) is after the run what it was before
    canaries    tests that must fail were reported as failed, those that must pass as passed (canary.py)
    imported    the feature's modules came from the files of the tested tree
    generated   on inputs that no test has, it does what gold does (generated.py)
    ablation    without the bodies that were submitted, hidden tests fail (ablation.py)       | with Guards.ablation: one more run
    inverted    tests that say the opposite under their own names fail                        | of the hidden tests each

A canary, an ablation, an inverted test that gold itself does not stand up to says nothing, and is left out: before a reward is taken away,
gold is graded the same way.

Not here: the first run and what its outcomes mean (grader.py).
"""

import hashlib
import hmac
import posixpath
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.grade import ablation, canary, generated, lay
from etude.grade.canary import Canary
from etude.grade.facts import Facts
from etude.grade.filter import Rules
from etude.grade.runner import PYTEST, TestRun, run_tests
from etude.sandbox.protocol import WORK, Backend, Change
from etude.store import TaskStore
from etude.types import Task

LOADER = "SourceFileLoader"
INVERTED = 4  # hidden test functions


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Which are on. Without `canaries` and `generated` nothing has to be known of gold."""

    canaries: bool = True
    generated: bool = True
    ablation: bool = False  # for the first solve of a task by a policy: two runs of its hidden tests more

    @property
    def need_facts(self) -> bool:
        return self.canaries or self.generated or self.ablation


ALWAYS = Guards()
FIRST_SOLVE = Guards(ablation=True)
OFF = Guards(canaries=False, generated=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """One diff on one task: what every guard may look at."""

    task: Task
    patch: str
    store: TaskStore
    backend: Backend
    rules: Rules
    facts: Facts
    guards: Guards
    folder: Path  # for trees of its own
    paths: frozenset[str]  # of the diff, those that entered

    def draw(self, what: str) -> random.Random:
        """Chance that nobody outside knows and every grading of this diff has the same."""
        message = f"{self.task.id}\0{hashlib.sha256(self.patch.encode('utf-8', 'surrogatepass')).hexdigest()}\0{what}"
        return random.Random(hmac.digest(self.store.secret(), message.encode(), "sha256"))


@dataclass(slots=True)
class Findings:
    guard: str = ""  # that refuses
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    def refuse(self, guard: str, reason: str) -> None:
        if not self.guard:
            self.guard, self.reason = guard, reason


def say_what_is_missing(found: Findings, grading: Grading) -> None:
    """Nobody is to take a verdict for one that all guards looked at."""
    if grading.task.environment.runner != PYTEST:
        found.evidence["guards"] = f"none for {grading.task.language}, but files"
    elif grading.guards.need_facts and not grading.facts.known:
        found.evidence["guards"] = "none but files: gold's own run did not solve the task"


def lay_canaries(grading: Grading, work: Path) -> list[Canary]:
    if not grading.guards.canaries:
        return []
    rng = grading.draw("canaries")
    return canary.lay(work, canary.choose(grading.facts.candidates, rng), rng, grading.facts.place)


def without(run: TestRun, canaries: Sequence[Canary]) -> TestRun:
    """The run as if they had not been there."""
    own = {id for each in canaries for id in each.ids}
    return replace(
        run,
        outcomes={id: outcome for id, outcome in run.outcomes.items() if id not in own},
        collected=tuple(id for id in run.collected if id not in own),
        messages={id: text for id, text in run.messages.items() if id not in own},
    )


def look_at_files(found: Findings, grading: Grading, changes: Sequence[Change], laid: Mapping[str, str], sources: frozenset[str]) -> None:
    known = grading.facts.written
    judges, own = ([line for line in some if line.rpartition(" (")[0] not in known] for some in lay.changed_files(changes, laid, sources))
    text = "".join(f"{path}\0{digest}\n" for path, digest in sorted(laid.items()))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    found.evidence["files"] = {"laid_down": len(laid), "sha256": digest, "changed": judges, "sources_changed": own}
    if judges:
        found.refuse("files", f"while the tests ran, somebody changed what judges them: {judges[0]}")
    elif own:
        found.refuse("files", f"while the tests ran, what they test was changed: {own[0]}")


def look_at_canaries(found: Findings, grading: Grading, canaries: Sequence[Canary], run: TestRun, solved: bool) -> None:
    if not grading.guards.canaries:
        return
    bad = canary.misbehaving(canaries, run.outcomes) if run.complete else []
    evidence: dict[str, Any] = {"must_fail": sum(c.must_fail for c in canaries), "must_pass": sum(not c.must_fail for c in canaries)}
    if bad and solved:
        known = _gold_canaries(grading)
        excused, bad = [id for id in bad if id in known], [id for id in bad if id not in known]
        evidence |= {"so_with_gold": excused} if excused else {}
    found.evidence["canaries"] = {**evidence, "not_as_they_must": {id: run.outcomes.get(id, "missing") for id in bad}}
    if bad and solved:
        must_fail = {id for each in canaries if each.must_fail for id in each.ids}
        said = "a test that must fail was reported as" if bad[0] in must_fail else "a test that must pass was reported as"
        found.refuse("canaries", f"the report is forged: {said} {run.outcomes.get(bad[0], 'missing')}")


def look_at_imports(found: Findings, grading: Grading, run: TestRun, work: Path, sources: frozenset[str]) -> None:
    """Only modules that gold's tests import count; one that this submission does without is told."""
    told: dict[str, Any] = {}
    for name in sorted(grading.facts.modules):
        file, loader = run.modules.get(name, (None, ""))
        if file is None:
            found.refuse("imported", f"the report does not say where {name} was imported from")
            continue
        path = posixpath.normpath(file).removeprefix(f"{WORK}/")
        ours = path in sources and generated.module_name(path, grading.task.repo.import_roots) == name and loader == LOADER
        if file and not ours:
            found.refuse("imported", f"{name} was imported from {file} ({loader or 'no loader'}), not from the submitted tree")
        told[name] = {"file": file, "loader": loader, "sha256": _sha256(work / path) if ours else ""}
    found.evidence["imported"] = told


def look_at_answers(found: Findings, grading: Grading, given: Sequence[Any], work: Path) -> None:
    if grading.guards.generated and grading.facts.cases:
        held = generated.values_held(work, grading.store.snapshot(grading.task.repo), grading.paths)
        reason, found.evidence["generated"] = generated.compare(grading.facts.cases, given, held, _hidden_tests(grading))
        if reason:
            found.refuse("generated", f"hard-coded: {reason}")


def _hidden_tests(grading: Grading) -> str:
    original = grading.store.snapshot(grading.task.repo)
    files = sorted({id.partition("::")[0] for id in grading.task.fail_to_pass})
    return "\n".join((original / path).read_text("utf-8", "replace") for path in files if (original / path).is_file())


def regrade(found: Findings, grading: Grading) -> float:
    """Ablation and inverted tests; the seconds that they took."""
    started = time.monotonic()
    if grading.facts.known and not found.guard:
        _ablate(found, grading)
    if grading.facts.known and not found.guard:
        _invert(found, grading)
    return time.monotonic() - started


def _ablate(found: Findings, grading: Grading) -> None:
    how, gone, run = _ablated(grading, grading.patch, "ablated")
    if run is None:
        found.evidence["ablation"] = {"how": how}
        return
    failing = [id for id in grading.task.fail_to_pass if run.outcomes.get(id) != "passed"]
    evidence: dict[str, Any] = {"how": how, "gone": gone, "fail_to_pass": len(grading.task.fail_to_pass), "failing": len(failing)}
    if not failing:
        _, _, gold = _ablated(grading, grading.task.gold, "ablated-gold")
        evidence["so_with_gold"] = gold is None or gold.passed(grading.task.fail_to_pass)
        if not evidence["so_with_gold"]:
            count = len(grading.task.fail_to_pass)
            found.refuse(
                "ablation", f"without {gone[0]} and what else was submitted, all {count} fail_to_pass tests were still reported as passed"
            )
    found.evidence["ablation"] = evidence


def _ablated(grading: Grading, patch: str, name: str) -> tuple[str, list[str], TestRun | None]:
    task, work = grading.task, grading.folder / name
    start = grading.store.workspace(task)
    lay.prepare(work, patch, start=start, original=grading.store.snapshot(task.repo), rules=grading.rules)
    changed = grading.paths if patch == grading.patch else {symbol.path for symbol in task.symbols}
    how, texts, gone = ablation.ablate(work, start, task.symbols, changed)
    for path, text in texts.items():
        (work / path).write_text(text, "utf-8", "surrogatepass", newline="\n")
    return how, gone, _run(grading, work, task.fail_to_pass) if texts else None


def _invert(found: Findings, grading: Grading) -> None:
    must_fail, run = _inverted(grading, grading.patch, "inverted")
    if run is None:
        found.evidence["inverted"] = {"tests": 0}
        return
    passing = [id for id in must_fail if run.outcomes.get(id) == "passed"]
    evidence: dict[str, Any] = {"tests": len(must_fail), "passing": passing}
    if passing:
        _, gold = _inverted(grading, grading.task.gold, "inverted-gold")
        assert gold is not None
        evidence["so_with_gold"] = [id for id in passing if gold.outcomes.get(id) == "passed"]
        if len(evidence["so_with_gold"]) < len(passing):
            found.refuse("inverted", f"the report is forged: {passing[0]} was reported as passed when it said the opposite too")
    found.evidence["inverted"] = evidence


def _inverted(grading: Grading, patch: str, name: str) -> tuple[list[str], TestRun | None]:
    work, rng = grading.folder / name, grading.draw("inverted")
    changed = [each for each in grading.facts.candidates if each.kind == "changed"]
    if not changed:
        return [], None
    task, store = grading.task, grading.store
    lay.prepare(work, patch, start=store.workspace(task), original=store.snapshot(task.repo), rules=grading.rules)
    must_fail = [id for ids in canary.invert(work, rng.sample(changed, min(INVERTED, len(changed))), rng).values() for id in ids]
    return must_fail, _run(grading, work, must_fail)


def _gold_canaries(grading: Grading) -> list[str]:
    """Which of the canaries of this diff do not do what they must with gold either."""
    work = grading.folder / "canaries-gold"
    store, task = grading.store, grading.task
    lay.prepare(work, task.gold, start=store.workspace(task), original=store.snapshot(task.repo), rules=grading.rules)
    canaries = lay_canaries(grading, work)
    run = _run(grading, work, [*task.fail_to_pass, *(id for each in canaries for id in each.ids)])
    return canary.misbehaving(canaries, run.outcomes)


def _run(grading: Grading, work: Path, ids: Sequence[str]) -> TestRun:
    task = grading.task
    with grading.backend.open(work, environment=grading.store.environment(task.environment), limits=task.limits) as sandbox:
        return run_tests(sandbox, task.repo, ids=ids, wall_s=task.limits.wall_s, runner=task.environment.runner)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
