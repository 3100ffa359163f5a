"""The checks that a task must pass beyond its proof, each with what it measured.

    inverse      every symbol matters: with it alone stubbed, at least one hidden test fails. A symbol without a body to stub (a class of
                 constants) and one beyond MAX_RUNS is not asked, and counted as such; of several symbols at least one is asked
    mutation     the hidden tests notice small wrong versions of the code that is gone: at least half of a sample, however small that is
    residue      nothing in the agent's tree, the environment or Python's own library tells the removed code
    duplicate    no other repository of the pool has a task about the same code, by its syntax trees without docstrings (duplicates.py);
                 build.py asks again when the task gets into the store, and lets the same code be cut once in a repository
    empty_patch  scored by the grader for one task in SAMPLE (verdicts.py), derived for the others (assemble.py); so is gold

Inverse and mutation need many small runs. Changes of code that different tests reach share one: a test that reaches only one of the changed
definitions speaks for that one, and the run ends when every change has a test that does not pass. What is not noticed there is asked again
alone, with all the tests that reach it. These runs share a sandbox (run_variants).

In: a Proof and its Task; out: the task with evidence. Raises Rejected, or DoesNotMatter with the symbols that do.

Not here: the proof itself (prove.py), what counts as residue (grade/residue), mutants (mutate.py).
"""

import ast
import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.grade.residue import Scanner, visible_libraries
from etude.grade.runner import BETWEEN, COLLECT, TestRun, Variant
from etude.store import TaskStore
from etude.synth import edit, mutate
from etude.synth.candidates import attribute
from etude.synth.cut import stub_targets
from etude.synth.duplicates import Duplicates
from etude.synth.edit import Edits
from etude.synth.groups import round_robin
from etude.synth.names import Key
from etude.synth.notice import MAX_TESTS, group_apart, own_tests
from etude.synth.proposal import Proposal
from etude.synth.prove import Proof
from etude.synth.source import Definition, FunctionNode, docstring
from etude.synth.verdicts import every_symbol_matters, graded_sample, mutants_are_noticed
from etude.synth.workshop import Baseline, Changes, Rejected, Workshop, write_tree
from etude.types import Task

MAX_RUNS = 12  # for the symbols of one task
MAX_MUTANTS = 6
FLOOR_S, SLOWDOWN = 10.0, 5.0  # a changed definition may loop: a run gets so many seconds and so many times its tests'
MAX_FINDINGS = 3  # named in a reason


@dataclass(frozen=True, slots=True)
class _Change:
    """One definition changed in one way."""

    definition: Definition
    mutation: mutate.Mutation | None  # None: its body is stubbed
    tests: frozenset[str]  # hidden ones that reach it

    @property
    def place(self) -> tuple[str, int, int]:
        return self.definition.path, self.definition.line, self.definition.end_line


@dataclass
class Gates:
    """The gates of one repository; used by many threads."""

    workshop: Workshop
    baseline: Baseline
    store: TaskStore
    scanner: Scanner
    duplicates: Duplicates | None = None  # None: read from the store

    def __post_init__(self) -> None:
        sources = self.workshop.layout.sources
        self.reached, _ = attribute(self.workshop.index, sources, self.baseline.stable, self.baseline.reach, (COLLECT, BETWEEN))
        self.reach_sizes = Counter(id for ids in self.reached.values() for id in ids)
        self._lock = threading.Lock()
        self.duplicates = self.duplicates or Duplicates(self.store, self.workshop.repo.name)

    def refuse_duplicate(self, proposal: Proposal) -> None:
        """Before anything runs."""
        assert self.duplicates is not None
        same = self.duplicates.of_others(code_hash(proposal.symbols))
        if same is not None:
            raise Rejected(f"the same code as {same}", "duplicate")

    def check(self, proof: Proof, task: Task) -> Task:
        """The task with what the gates measured."""
        measured = {
            "duplicate": {"in_the_pool": 0},
            "residue": self.residue(proof),
            "inverse": self.inverse(proof),
            "mutation": self.mutation(proof),
        }
        graded = graded_sample(task, self.store, self.workshop.backend, self.baseline.num_runs)
        gates = {**task.evidence["gates"], **measured, **graded}
        return replace(task, evidence={**task.evidence, "code_hash": code_hash(proof.proposal.symbols), "gates": gates})

    # -- one by one

    def residue(self, proof: Proof) -> dict[str, Any]:
        workspace = proof.agent_tree.parent / "work"  # made of the cut patch, without bytecode
        # what data files hold of the removed tests alone is the author's; a copy of a test that calls the feature still tells its names
        needles = self.scanner.needles(self.workshop.original, workspace, but=frozenset(self.workshop.layout.tests))
        environment = {"environment": self.workshop.environment}
        found = self.scanner.scan(workspace, needles, environment, libraries=visible_libraries())
        if found:
            raise Rejected(f"{len(found)} left-overs of it: {'; '.join(map(str, found[:MAX_FINDINGS]))}", "residue")
        return {"findings": 0}

    def inverse(self, proof: Proof) -> dict[str, Any]:
        symbols = proof.proposal.symbols
        if len(symbols) == 1:
            return {"symbols": 1, "matter": 1, "runs": 0}
        hidden = frozenset(proof.fail_to_pass)
        asked = [_Change(d, None, self.tests_of(d) & hidden) for d in symbols if stub_targets(self.workshop.index, [d])]
        noticed, runs = self.notice(asked)
        return every_symbol_matters(symbols, {change.definition: seen for change, seen in noticed.items()}, runs)

    def mutation(self, proof: Proof) -> dict[str, Any]:
        hidden = frozenset(proof.fail_to_pass)
        lanes = []
        for definition in proof.proposal.symbols:
            tests = self.tests_of(definition) & hidden
            source = self.workshop.index.sources[definition.path]
            if tests:
                lanes.append([_Change(definition, each, tests) for each in mutate.mutants(source, definition, limit=MAX_MUTANTS)])
        return mutants_are_noticed(*self.notice(round_robin(lanes)[:MAX_MUTANTS]))

    # -- many small runs

    def tests_of(self, definition: Definition) -> frozenset[str]:
        """Stable tests that reach a definition, or anything in it."""
        inner = self.workshop.index.sources[definition.path].definitions if definition.is_class else (definition,)
        keys: list[Key] = [each.key for each in inner if definition.line <= each.line <= definition.end_line]
        return frozenset().union(*(self.reached.get(key, ()) for key in keys))

    def notice(self, changes: Sequence[_Change]) -> tuple[dict[_Change, bool], int]:
        """Which changes make a test fail, as far as MAX_RUNS went; and the number of runs."""
        noticed: dict[_Change, bool] = {change: False for change in changes if not change.tests}
        asked = [self.own_tests(group) for group in group_apart([change for change in changes if change.tests])[:MAX_RUNS]]
        again: list[_Change] = []
        for private, failing in zip(asked, self.failing(asked), strict=True):
            for change, tests in private.items():
                if tests & failing if failing is not None else len(private) == 1:
                    noticed[change] = True
                elif len(private) > 1 or tests != change.tests:
                    again.append(change)
                else:
                    noticed[change] = False
        alone = [{change: change.tests} for change in again[: MAX_RUNS - len(asked)]]
        for private, failing in zip(alone, self.failing(alone), strict=True):
            noticed |= {change: failing is None or bool(failing) for change in private}
        return noticed, len(asked) + len(alone)

    def own_tests(self, group: Sequence[_Change]) -> dict[_Change, frozenset[str]]:
        """Some of the tests that speak for each, those first that reach little else."""
        return {
            change: frozenset(sorted(tests, key=lambda id: (self.reach_sizes[id], id))[:MAX_TESTS])
            for change, tests in own_tests(group).items()
        }

    def failing(self, asked: Sequence[Mapping[_Change, frozenset[str]]]) -> list[frozenset[str] | None]:
        """For each group of changes together the tests that do not pass, at least one of each change that has any; None if pytest did
        not come to its end."""
        variants = [self.variant(private) for private in asked]
        runs = self.workshop.run_together(self.original(), variants)
        return [not_passing(variant, run) for variant, run in zip(variants, runs, strict=True)]

    def variant(self, private: Mapping[_Change, frozenset[str]]) -> Variant:
        ids = frozenset().union(*private.values())
        wall_s = FLOOR_S + SLOWDOWN * sum(self.baseline.durations.get(id, 0.0) for id in ids)
        files = {path: data for path, data in self.changed(tuple(private)).items() if data is not None}
        return self.workshop.variant(ids=ids, files=files, until=tuple(private.values()), wall_s=wall_s)

    def original(self) -> Path:
        """The original with its bytecode, written once. Nobody writes to it: a sandbox keeps its changes apart."""
        place = self.workshop.scratch / f"original-{id(self):x}"
        with self._lock:
            if not place.exists():
                write_tree(self.workshop.files, {}, place, self.workshop.bytecode)
        return place

    def changed(self, group: Sequence[_Change]) -> Changes:
        by_path: dict[str, list[_Change]] = {}
        for change in group:
            by_path.setdefault(change.definition.path, []).append(change)
        out: dict[str, bytes | None] = {}
        for path, changes in by_path.items():
            source = self.workshop.index.sources[path]
            mutations = [change.mutation for change in changes if change.mutation is not None]
            if mutations:
                out[path] = mutate.apply(source, mutations)
                continue
            stubs = stub_targets(self.workshop.index, [change.definition for change in changes])
            out[path] = edit.apply(source, Edits(stubs={each.node for each in stubs if isinstance(each.node, FunctionNode)}))
        return out


def not_passing(variant: Variant, run: TestRun) -> frozenset[str] | None:
    """None if pytest did not come to its end. What was not run passes only where enough was known before."""
    if not run.complete:
        return None
    ids, collected = variant.ids or (), frozenset(run.collected)
    failing = frozenset(id for id in ids if id not in collected or run.outcomes.get(id, "passed") != "passed")
    if all(each & failing for each in variant.until):
        return failing
    return frozenset(id for id in ids if run.outcomes.get(id) != "passed")


def code_hash(symbols: Sequence[Definition]) -> str:
    """Of the definitions' syntax trees, without docstrings, comments and places."""
    texts = sorted(_normal(definition.node) for definition in symbols)
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def _normal(node: ast.AST) -> str:
    docs = {doc for inner in ast.walk(node) if isinstance(inner, (FunctionNode, ast.ClassDef)) and (doc := docstring(inner)) is not None}
    return _dump(node, docs)


def _dump(node: object, docs: set[ast.Expr]) -> str:
    if isinstance(node, ast.AST):
        return f"{type(node).__name__}({','.join(_dump(value, docs) for _, value in ast.iter_fields(node))})"
    if isinstance(node, list):
        return f"[{','.join(_dump(each, docs) for each in node if each not in docs)}]"
    return repr(node)
