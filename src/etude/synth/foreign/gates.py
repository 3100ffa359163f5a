"""What a task of a foreign language must pass beyond its proof: the gates of synth/gates.py by syntax trees of tree-sitter.

    inverse      every symbol matters: with it alone stubbed, at least one hidden test fails; one without a body is not asked
    mutation     the hidden tests notice small wrong versions of the code that is gone (languages/mutants.py): at least half of a sample
    duplicate    no other repository of the pool has a task about the same code, by its tokens without comments
    empty_patch  scored by the grader for one task in SAMPLE (synth/verdicts.py), derived for the others (assemble.py); so is gold

Residue is looked for in the proof. In: a Proof and its Task; out: the task with evidence. Raises Rejected, or DoesNotMatter.

Not here: the proof (prove.py), how many changes share a run (synth/notice.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etude.languages.edits import merged
from etude.languages.mutants import Mutant, mutants
from etude.languages.protocol import Code, Definition, Edit
from etude.languages.syntax import tokens
from etude.store import TaskStore
from etude.synth.duplicates import Duplicates
from etude.synth.foreign.candidates import Candidate
from etude.synth.foreign.prove import Proof
from etude.synth.foreign.workshop import Baseline, Workshop
from etude.synth.gates import MAX_MUTANTS, MAX_RUNS
from etude.synth.groups import round_robin
from etude.synth.notice import Void, notice
from etude.synth.verdicts import MIN_MUTANTS, every_symbol_matters, graded_sample, mutants_are_noticed
from etude.synth.workshop import Rejected, write_tree
from etude.types import Task

MAX_TRIED = 2 * MAX_MUTANTS  # mutants that may turn out not to parse
SLOW_S = 5.0  # where a run takes longer, MIN_MUTANTS are enough: each is a run


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """One definition changed in one way."""

    definition: Definition
    edits: tuple[Edit, ...]
    tests: frozenset[str]  # hidden ones that reach it

    @property
    def place(self) -> tuple[str, int, int]:
        return self.definition.path, self.definition.start, self.definition.end


@dataclass
class Gates:
    """The gates of one repository; used by many threads."""

    workshop: Workshop
    baseline: Baseline
    store: TaskStore
    duplicates: Duplicates | None = None  # None: read from the store

    def __post_init__(self) -> None:
        self.duplicates = self.duplicates or Duplicates(self.store, self.workshop.repo.name)

    def refuse_duplicate(self, candidate: Candidate) -> None:
        """Before anything runs."""
        assert self.duplicates is not None
        same = self.duplicates.of_others(code_hash(self.workshop.codes, candidate.targets))
        if same is not None:
            raise Rejected(f"the same code as {same}", "duplicate")

    def check(self, candidate: Candidate, proof: Proof, task: Task) -> Task:
        """The task with what the gates measured."""
        symbols = sorted((*proof.removed, *proof.stubbed), key=lambda d: d.key)
        hidden = frozenset(proof.fail_to_pass)
        measured = {
            "duplicate": {"in_the_pool": 0},
            "inverse": self.inverse(symbols, hidden),
            "mutation": self.mutation(symbols, hidden),
        }
        graded = graded_sample(task, self.store, self.workshop.backend, self.baseline.num_runs)
        gates = {**task.evidence["gates"], **measured, **graded}
        return replace(task, evidence={**task.evidence, "code_hash": code_hash(self.workshop.codes, candidate.targets), "gates": gates})

    # -- one by one

    def inverse(self, symbols: Sequence[Definition], hidden: frozenset[str]) -> dict[str, Any]:
        if len(symbols) == 1:
            return {"symbols": 1, "matter": 1, "runs": 0}
        stubs = {d: tuple(self.workshop.language.stub(self.workshop.codes[d.path], d)) for d in symbols}
        asked = [_Change(d, edits, self.tests_of(d) & hidden) for d, edits in stubs.items() if edits]
        noticed, runs = notice(asked, self.failing, max_runs=MAX_RUNS)
        return every_symbol_matters(symbols, {change.definition: seen for change, seen in noticed.items()}, runs)

    def mutation(self, symbols: Sequence[Definition], hidden: frozenset[str]) -> dict[str, Any]:
        lanes: list[list[_Change]] = []
        for definition in symbols:
            tests = self.tests_of(definition) & hidden
            if tests:
                code = self.workshop.codes[definition.path]
                found = mutants(code, definition, limit=MAX_TRIED)
                lanes.append([_Change(definition, each.edits, tests) for each in found if self.parses(code, each)])
        limit = MIN_MUTANTS if self.baseline.seconds > SLOW_S else MAX_MUTANTS
        return mutants_are_noticed(*notice(round_robin(lanes)[:limit], self.failing, max_runs=MAX_RUNS))

    # -- what they need

    def tests_of(self, definition: Definition) -> frozenset[str]:
        """Stable tests that reach a definition, or anything in it."""
        inside = [
            d.key for d in self.workshop.codes[definition.path].definitions if definition.start <= d.start and d.end <= definition.end
        ]
        return frozenset().union(*(self.baseline.reached.get(key, ()) for key in inside))

    def parses(self, code: Code, mutant: Mutant) -> bool:
        try:
            self.workshop.read(code.path, mutant.edits)
        except Rejected:
            return False
        return True

    def failing(self, group: Sequence[_Change], ids: frozenset[str]) -> frozenset[str] | None:
        """The tests that do not pass with these changes together; None if the run did not come to its end. Raises Void."""
        edits: dict[str, list[Edit]] = {}
        for change in group:
            edits.setdefault(change.definition.path, []).extend(change.edits)
        with self.workshop.folder() as folder:
            changes = {path: self.workshop.read(path, merged(each)) for path, each in edits.items()}
            write_tree(self.workshop.files, changes, folder / "changed")
            run = self.workshop.run(folder / "changed", ids=ids)
        if run.collect_errors and not run.outcomes:
            raise Void(run.collect_errors[0])
        if not run.complete:
            return None
        return frozenset(id for id in ids if run.outcomes.get(id) != "passed")


def code_hash(codes: Mapping[str, Code], targets: Sequence[Definition]) -> str:
    """Of the definitions' tokens, without comments, space and places."""
    texts = sorted("\n".join(tokens(codes[d.path].tree.root, d.start, d.end)) for d in targets)
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
