"""What grading has to know about a task beforehand, from a run of its gold patch; kept in the store, so that it is found out once.

    which tests can be changed so that they fail, which copies pass, and where in a file they may stand (canary.py)
    which modules of the feature the tests import, and from where
    calls that the tests make of the feature's functions, such calls with other inputs, and what gold answers (generated.py)
    what the tests themselves write into the tree

Two runs at most: with everything, and, where the hidden tests do not pass then (some count lines, or look at functions), with copies at the
end of files only. If they do not pass even so, the task has no canaries, and the evidence of each grading says so.

In: a task, its store, a Backend; out: Facts. Python only: for others there are none.

Not here: what follows from them (guards.py).
"""

import hashlib
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from etude import tree
from etude.grade import canary, generated, lay, scratch
from etude.grade.canary import Canary, Candidate
from etude.grade.filter import Rules
from etude.grade.generated import Case
from etude.grade.runner import PYTEST, TestRun, run_tests
from etude.records import decode, encode
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.types import Task

VERSION = "2"
FILE = "facts.json"
SLOW_S, SLOW_SHARE = 0.25, 0.1  # a copy may take so long, or so much of all tests


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    known: bool = False  # gold was run and solved the task
    place: canary.Place = "between"
    candidates: tuple[Candidate, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)  # of the feature: name -> path in the tree, as far as gold's tests import them
    cases: tuple[Case, ...] = ()
    written: tuple[str, ...] = ()  # files of the tree that gold's own run changes
    seconds: float = 0.0  # of finding out


NONE = Facts()


def facts_of(task: Task, *, store: TaskStore, backend: Backend, rules: Rules) -> Facts:
    """Raises SandboxError where a sandbox failed; nothing is kept then."""
    if task.environment.runner != PYTEST:
        return NONE
    parts = (
        VERSION,
        task.repo.digest,
        task.environment.digest,
        task.cut,
        task.gold,
        *task.fail_to_pass,
        *task.pass_to_pass,
        *task.protected,
    )
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    name = f"{task.id}.facts-{digest[:12]}"
    kept = store.cached(name)
    if kept is not None:
        try:
            return decode((kept / FILE).read_bytes(), Facts)
        except (OSError, ValueError):  # of another version of etude
            pass
    rng = random.Random(f"{store.secret().hex()} facts {digest}")
    found = _find_out(task, store, backend, rules, rng)
    if found.known:
        store.cache(name, lambda new: (new / FILE).write_bytes(encode(found)))
    return found


def _find_out(task: Task, store: TaskStore, backend: Backend, rules: Rules, rng: random.Random) -> Facts:
    seconds = 0.0
    for place in ("between", "end"):
        with scratch.folder() as folder:
            work = folder / "work"
            try:
                lay.prepare(work, task.gold, start=store.workspace(task), original=store.snapshot(task.repo), rules=rules)
            except ValueError:
                return NONE
            found, took = _run_gold(task, work, store, backend, rules, rng, place)
            seconds += took
            if found is not None:
                return replace(found, seconds=round(seconds, 3))
    return NONE


def _run_gold(
    task: Task, work: Path, store: TaskStore, backend: Backend, rules: Rules, rng: random.Random, place: canary.Place
) -> tuple[Facts | None, float]:
    modules = modules_of(task)
    if place == "between":
        generated.recorder(work, task.repo, task.symbols)
    sources = frozenset(tree.files(work))
    laid = canary.lay(work, canary.propose(work, task.fail_to_pass, rng), rng, place, early=True)
    laid_down = lay.digests(work, rules)
    ids = (*task.fail_to_pass, *task.pass_to_pass)
    with backend.open(work, environment=store.environment(task.environment), limits=task.limits) as sandbox:
        asked = (*ids, *(id for each in laid for id in each.ids))
        run = run_tests(sandbox, task.repo, ids=asked, wall_s=task.limits.wall_s, modules=tuple(modules))
        if not run.complete or any(run.outcomes.get(id) != "passed" for id in ids):
            return None, run.result.wall_s
        judges, own = lay.changed_files(sandbox.changes(), laid_down, sources)
        varied = generated.vary(generated.noted(sandbox), rng) if place == "between" else []
        once, twice = (
            generated.answers(sandbox, [call for call, _, _ in varied], task.repo, hash_seed=seed) if varied else [] for seed in (0, 1)
        )
    facts = Facts(
        known=True,
        place=place,
        candidates=tuple(each.candidate for each in laid if _proved(each, run)),
        modules={name: path for name, path in modules.items() if run.modules.get(name, ("", ""))[0]},
        cases=generated.cases(varied, once, twice),
        written=tuple(sorted(line.rpartition(" (")[0] for line in (*judges, *own))),
    )
    return facts, run.result.wall_s


def modules_of(task: Task) -> dict[str, str]:
    """The feature's modules by their names: where each lies."""
    named = {generated.module_name(symbol.path, task.repo.import_roots): symbol.path for symbol in task.symbols}
    return {name: path for name, path in sorted(named.items()) if name}


def _proved(each: Canary, run: TestRun) -> bool:
    took = sum(run.durations.get(id, 0.0) for id in each.ids)
    fast = took <= max(SLOW_S, SLOW_SHARE * run.result.wall_s)
    return fast and not canary.misbehaving([each], run.outcomes)
