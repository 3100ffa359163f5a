"""Does a change hold? Everything is measured in sandboxes, nothing is predicted.

    agent's tree    source cut, the feature's tests gone: what the agent sees
    hidden tree     source cut, all original tests there: what is graded

remove  agent's tree: every module that imported still imports, exactly the expected tests are collected, and all of them that are
        stable pass; the same in other orders. Hidden tree: the removed tests fail; the same in other orders. 2 * `rounds` runs and one more
        for each time that more tests had to go, those of the hidden tree of few files.
        A test that fails in the agent's tree is the feature's if it reaches the feature, and then goes too; else the cut is rejected.
stub    hidden tree: the whole suite runs; what fails is fail_to_pass and must reach the feature. Agent's tree: everything stable that is
        left passes, in the other orders. Hidden tree, in the same orders: fail_to_pass fails again. 2 * `rounds` - 1 runs: what is left
        passed in the hidden tree, and a plain run of the agent's tree is saved. The evidence says so (`in_hidden_tree`).
gold    Nothing runs here: the tree that the grader makes of the gold patch equals the original byte by byte (assemble.py), so the
        five runs of the baseline are its proof. check.py runs the grader.

Not here: what to cut (cut.py, reduce.py), the original's own runs (workshop.py).
"""

import ast
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.grade.runner import Order, TestRun
from etude.synth.cut import Cut, CutError, render
from etude.synth.docs import clean_documents
from etude.synth.proposal import Proposal
from etude.synth.reduce import Holder, path_of, reduce_tests
from etude.synth.refusal import Gate
from etude.synth.source import Definition
from etude.synth.units import WORD
from etude.synth.workshop import Baseline, Changes, Rejected, Workshop, write_tree

MAX_ROUNDS = 3  # of moving tests that turn out to need the feature among its tests
MAX_GONE_SHARE = 0.4  # of the stable tests may go with a feature
MAX_UNNEEDED = 1 / 3  # of the stable tests in a file or class that goes whole, because its tests are made while it runs or inherited
ORDERS: tuple[Order, ...] = ("plain", "shuffled", "reversed")
SLOW_S = 4.0  # a longer suite is first run where the feature's tests are


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A change that holds."""

    proposal: Proposal
    source_changes: Changes  # the hidden tree
    changes: Changes  # the agent's tree
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    lost: tuple[str, ...]  # stable tests that are neither: gone with their test function, but passing without the feature
    num_runs: int
    hidden_tree: Path
    agent_tree: Path
    measured: Mapping[str, Any] = field(default_factory=dict)  # gate -> what was seen
    messages: Mapping[str, str] = field(default_factory=dict)  # fail_to_pass id -> what the failed test said, one line

    @property
    def cut(self) -> Cut:
        return self.proposal.cut


def prove_change(workshop: Workshop, baseline: Baseline, proposal: Proposal, folder: Path, *, rounds: int = 2) -> Proof:
    """Any change of sources. Makes the two trees in `folder`. `rounds`: runs of everything, each in another order. Raises Rejected."""
    try:
        trial = _Trial(workshop, baseline, proposal, folder, ORDERS[1:rounds])
        return trial.remove() if proposal.mode == "remove" else trial.stub()
    except CutError as error:
        raise Rejected(str(error), error.gate) from None


class _Trial:
    """One proposal."""

    def __init__(self, workshop: Workshop, baseline: Baseline, proposal: Proposal, folder: Path, again: tuple[Order, ...]) -> None:
        self.workshop, self.baseline, self.proposal, self.cut = workshop, baseline, proposal, proposal.cut
        self.source_changes = proposal.source_changes
        self.orders = again
        self.names = _lost_names(workshop, proposal)
        self.measured: dict[str, Any] = {
            "parse": {"files": len(proposal.source_changes)},
        }
        self.reaching = baseline.stable if proposal.tests is None else proposal.tests
        self.hidden, self.agent = folder / "hidden", folder / "agent"
        write_tree(workshop.files, self.source_changes, self.hidden, workshop.bytecode)
        self.feature: set[Definition] = set()  # test functions known to be the feature's
        self.taken: dict[tuple[str, int], Holder] = {}  # the same of tests that are made while running
        self.changes: Changes = {}
        self.gone: frozenset[str] = frozenset()  # ids that are not in the agent's tree
        self.unimportable: frozenset[str] = frozenset()  # test files that cannot be imported in the hidden tree
        self.messages: dict[str, str] = {}  # of failed tests in the hidden tree
        self.num_runs = 0

    def remove(self) -> Proof:
        self.feature |= self.mentioning()
        self.reduce()
        for _ in range(MAX_ROUNDS):
            failing = self.run_agent("plain")
            if not failing:
                break
            self.feature |= self.functions(failing)
            self.reduce()
        else:
            raise Rejected(f"tests keep failing after {MAX_ROUNDS} rounds: {min(failing)}", "pass_to_pass")
        gone = self.gone & self.baseline.stable
        fail_to_pass = self.failing_hidden(gone, "plain")
        if not fail_to_pass:
            raise Rejected("no test fails without it", "fail_to_pass")
        self.again(fail_to_pass)
        return self.proof(fail_to_pass)

    def stub(self) -> Proof:
        if self.baseline.seconds > SLOW_S:
            self.note(self.failing_hidden(self.reaching, "plain"))
            self.num_runs = 0  # how fast this machine is does not get into a task
        run = self.run(self.hidden, imports=True)
        self.expect_collected(run)
        self.expect(run, self.baseline.collected)
        failing = frozenset(id for id in self.baseline.stable if run.outcomes.get(id) != "passed")
        self.note(failing)
        self.messages = {id: run.messages[id] for id in sorted(failing & run.messages.keys())}
        self.expect_reaching(failing, run)
        self.feature |= self.functions(failing)
        self.reduce()
        self.again(failing)
        return self.proof(failing)

    # -- steps

    def reduce(self) -> None:
        closure = self.cut.closure.copy()
        feature = sorted(self.feature, key=lambda definition: definition.key)
        holders = list(dict.fromkeys(self.baseline.holders.values()))
        tests, taken = self.workshop.layout.tests, [self.taken[key] for key in sorted(self.taken)]
        gone = reduce_tests(closure, tests, feature, self.cut.culprits, holders=holders, taken=taken)
        made = [each for each in holders if isinstance(each.node, ast.Assign) and each.key not in gone]
        if torn := [each for each in made if any(function.key in gone for function in each.functions)]:
            self.taken |= {each.key: each for each in torn}  # with a rule less it would pass, and in the hidden tree it fails
            return self.reduce()
        changes = {**self.source_changes, **render(closure, paths=self.workshop.layout.tests)}
        documents = clean_documents(self.workshop.files, self.names, frozenset(path for path, data in changes.items() if data is None))
        self.measured["documents"] = {"changed": sorted(documents)}
        self.changes = {**documents, **changes}
        shutil.rmtree(self.agent, ignore_errors=True)
        write_tree(self.workshop.files, self.changes, self.agent, self.workshop.bytecode)
        found = {**self.baseline.tests, **self.baseline.holders}
        self.gone = frozenset(id for id, test in found.items() if test is not None and test.key in gone)
        lost_files = {path for path, data in self.changes.items() if data is None}
        self.gone |= {id for id, heir in self.baseline.heirs.items() if heir.key in gone}
        self.gone |= {id for id in self.baseline.collected if path_of(self.workshop.index, id) in lost_files}
        share = len(self.gone & self.baseline.stable) / len(self.baseline.stable)
        if share > MAX_GONE_SHARE:
            raise Rejected(f"{share:.0%} of the tests would go with it", "share")

    def run_agent(self, order: Order) -> frozenset[str]:
        """The stable tests that fail in the agent's tree although they should be there and pass; all of them reach the feature."""
        return self.failing_agent(self.run(self.agent, order=order, imports=order == "plain"))

    def failing_agent(self, run: TestRun) -> frozenset[str]:
        """The same of a run that was."""
        self.expect_collected(run)
        self.expect(run, self.baseline.collected - self.gone)
        failing = frozenset(id for id in self.baseline.stable - self.gone if run.outcomes.get(id) != "passed")
        self.expect_reaching(failing, run)
        return failing

    def expect_reaching(self, failing: frozenset[str], run: TestRun) -> None:
        others = failing - self.reaching
        if others:
            raise Rejected(
                f"{len(others)} other tests fail, first {min(others)}: {run.messages.get(min(others), 'no report')}", "pass_to_pass"
            )

    def expect_collected(self, run: TestRun) -> None:
        new = [error for error in run.collect_errors if error.split(": ")[0] not in self.baseline.broken]
        if new:
            raise Rejected(f"collection breaks: {new[0]}", "collect")

    def failing_hidden(self, ids: Iterable[str], order: Order) -> frozenset[str]:
        """Which of these tests do not pass in the hidden tree. A file that cannot be imported fails whole, the others still run."""
        ids = frozenset(ids)
        run = self.run(self.hidden, order=order, ids=ids)
        self.unimportable = frozenset(error.split(": ")[0] for error in run.collect_errors)
        self.messages = {**run.messages, **self.messages}
        return frozenset(id for id in ids if run.outcomes.get(id) != "passed")

    def again(self, fail_to_pass: frozenset[str]) -> None:
        """The same in other orders."""
        importable = not {path_of(self.workshop.index, id) for id in fail_to_pass} <= self.unimportable
        self.agent_again()
        self.hidden_again(fail_to_pass)
        runs = 1 + len(self.orders)
        there = {"in_hidden_tree": 1} if self.proposal.mode == "stub" else {}  # of these runs
        self.measured["pass_to_pass"] = {"runs": runs, **there, "tests": len(self.baseline.stable - self.gone)}
        self.measured["fail_to_pass"] = {"runs": runs, "tests": len(fail_to_pass), "importable": importable}

    def agent_again(self) -> None:
        for order, run in zip(self.orders, self.run_orders(self.agent), strict=True):
            failing = self.failing_agent(run)
            if failing:
                raise Rejected(f"{len(failing)} tests fail in {order} order only, first {min(failing)}", "pass_to_pass")

    def hidden_again(self, fail_to_pass: frozenset[str]) -> None:
        for order, run in zip(self.orders, self.run_orders(self.hidden, fail_to_pass), strict=True):
            self.messages = {**run.messages, **self.messages}
            passing = frozenset(id for id in fail_to_pass if run.outcomes.get(id) == "passed")
            if passing:
                raise Rejected(f"{len(passing)} tests pass without it in {order} order, first {min(passing)}", "fail_to_pass")

    def note(self, failing: frozenset[str]) -> None:
        if not failing:
            raise Rejected("no test fails without it", "fail_to_pass")

    def expect(self, run: TestRun, ids: frozenset[str]) -> None:
        if run.result.status != "exited":
            gate: Gate = "time" if run.result.status == "timeout" else "collect"
            raise Rejected(f"the tests end badly: {run.result.status.replace('_', ' ')}", gate)
        if not run.complete:
            raise Rejected("the tests stop pytest before its end", "collect")
        found = self.baseline.known(run.collected)
        if made := (ids - found) & self.baseline.holders.keys() & self.baseline.stable:
            ids -= made  # what makes them went, so that they fail: what else they hang on goes in the next round
        if found != ids:
            missing, new = sorted(ids - found), sorted(found - ids)
            raise Rejected(
                f"collection changes: {len(missing)} tests are missing, {len(new)} are new, first {(missing + new)[0]}", "collect"
            )
        self.measured["collect"] = {"tests": len(ids), "of": len(self.baseline.collected)}

    def functions(self, failing: frozenset[str]) -> set[Definition]:
        """The test functions behind ids. Of inherited tests the class goes, if they pass in others that inherit them too."""
        found = {id: self.baseline.tests.get(id) for id in failing}
        for id in sorted(id for id, definition in found.items() if definition is None):
            self.take(id, failing)
        needed = {definition.key for id, definition in found.items() if definition is not None}
        passing = self.baseline.stable - failing - self.gone
        kept = {test.key for id in passing if (test := self.baseline.tests.get(id)) is not None and test.key in needed}
        for id in sorted(id for id in failing & self.baseline.heirs.keys() if (test := found[id]) is not None and test.key in kept):
            heir = self.baseline.heirs[id]
            if len(self.unneeded(heir, failing)) <= MAX_UNNEEDED * len(self.inside(heir)):
                self.taken[heir.key] = heir
        taken = {id for id in failing if id in self.baseline.heirs and self.baseline.heirs[id].key in self.taken}
        return {definition for id, definition in found.items() if definition is not None and id not in taken}

    def inside(self, holder: Holder) -> set[str]:
        return {each for each in self.baseline.stable if each.startswith(holder.prefix)}

    def unneeded(self, holder: Holder, failing: frozenset[str]) -> set[str]:
        return self.inside(holder) - failing - self.gone

    def take(self, id: str, failing: frozenset[str]) -> None:
        """What holds a test that is made while running goes: an assignment always, a class or file only if most in it fails too."""
        holder = self.baseline.holders.get(id)
        assigned = holder is not None and isinstance(holder.node, ast.Assign)
        if holder is None or (not assigned and len(self.unneeded(holder, failing)) > MAX_UNNEEDED * len(self.inside(holder))):
            raise Rejected(f"the function behind {id} cannot be found, so it cannot be removed", "reduce")
        self.taken[holder.key] = holder

    def mentioning(self) -> set[Definition]:
        """Test functions that reach the feature, whatever their parameters and class, and name a removed member of a class.

        Attributes cannot be resolved statically. Of which only some tests reach it, a run tells more.
        """
        names = {definition.name for definition in self.cut.removed if definition.owner is not None}
        if not names:
            return set()
        behind = self.baseline.tests
        apart = {test.key for id in self.baseline.stable - self.reaching if (test := behind.get(id)) is not None}
        found = {test for id in self.reaching if (test := behind.get(id)) is not None and test.key not in apart}
        return {test for test in found if not names.isdisjoint(self.workshop.index.unit_of(test).words)}

    def run(self, tree: Path, *, order: Order = "plain", ids: Iterable[str] | None = None, imports: bool = False) -> TestRun:
        workshop, baseline = self.workshop, self.baseline
        self.num_runs += 1
        with workshop.open(tree) as sandbox:
            if imports:
                removed = {workshop.index.modules.get(path, "") for path, data in self.source_changes.items() if data is None}
                lost = sorted(baseline.imports - removed - workshop.importable(sandbox, baseline.imports - removed))
                if lost:
                    raise Rejected(f"{len(lost)} modules no longer import, first {lost[0]}", "import")
                self.measured["import"] = {"modules": len(baseline.imports - removed)}
            return workshop.run_in(sandbox, order=order, ids=ids)

    def run_orders(self, tree: Path, ids: frozenset[str] | None = None) -> list[TestRun]:
        """A run in each other order, in one sandbox."""
        self.num_runs += len(self.orders)
        return self.workshop.run_together(tree, [self.workshop.variant(order=order, ids=ids) for order in self.orders])

    def proof(self, fail_to_pass: frozenset[str]) -> Proof:
        left = self.baseline.stable - self.gone
        if not left:
            raise Rejected("no other test is left", "share")
        if not fail_to_pass & self.reaching:
            raise Rejected("no test that reaches it fails without it", "fail_to_pass")
        return Proof(
            proposal=self.proposal,
            source_changes=self.source_changes,
            changes=self.changes,
            fail_to_pass=tuple(sorted(fail_to_pass)),
            pass_to_pass=tuple(sorted(left)),
            lost=tuple(sorted(self.baseline.stable - left - fail_to_pass)),
            num_runs=self.num_runs,
            hidden_tree=self.hidden,
            agent_tree=self.agent,
            measured=dict(self.measured),
            messages={id: self.messages[id] for id in sorted(fail_to_pass) if id in self.messages},
        )


def _lost_names(workshop: Workshop, proposal: Proposal) -> frozenset[str]:
    """What was removed and no source holds any more."""
    names = {inner.name for definition in proposal.cut.removed for inner in _with_members(workshop, definition)}
    for path in workshop.layout.sources if names else ():
        source = workshop.index.sources[path]
        data = proposal.source_changes.get(path, source.data)
        if data is not None:
            names -= set(WORD.findall(data.decode(source.encoding, "replace")))
    return frozenset(names)


def _with_members(workshop: Workshop, definition: Definition) -> list[Definition]:
    inner = workshop.index.sources[definition.path].definitions if definition.is_class else (definition,)
    return [each for each in inner if definition.line <= each.line <= definition.end_line]
