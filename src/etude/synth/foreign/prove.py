"""Does a cut of a foreign repository hold? Everything is measured in sandboxes, as in synth/prove.py.

    agent's tree    source cut, the feature's tests gone      hidden tree    source cut, all original tests

Both modes: every changed file parses; what could be loaded still can; in the agent's tree exactly the expected tests are there and every
stable one passes, in all of `rounds` runs of everything in different orders; in the hidden tree the feature's tests fail, twice; the
residue scan finds nothing of the feature in what the agent sees. A test that fails in the agent's tree must be one that reached the
feature, and then goes too; else the cut is rejected. Rounds that only look for such tests run only the test files that reached it.

Not here: what to cut (the adapter, candidates.py), the original's own runs (workshop.py).
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.grade.residue import Scanner
from etude.grade.residue.scan import WORKSPACE
from etude.grade.runner import Order, TestRun
from etude.languages.edits import merged
from etude.languages.protocol import Definition, Edit, TestBlock
from etude.synth.cut import Mode
from etude.synth.foreign.candidates import Candidate
from etude.synth.foreign.turns import TimedOut
from etude.synth.foreign.workshop import Baseline, Workshop
from etude.synth.workshop import Changes, Rejected, write_tree

MAX_ROUNDS = 3
MAX_GONE_SHARE = 0.4
ORDERS: tuple[Order, ...] = ("plain", "shuffled", "reversed")
SHORT_S = 20.0  # a shorter suite is run whole at once: fewer runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    removed: tuple[Definition, ...]
    stubbed: tuple[Definition, ...]
    blockers: tuple[str, ...]
    source_changes: Changes
    changes: Changes
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    lost: tuple[str, ...]
    num_runs: int
    hidden_tree: Path
    agent_tree: Path
    measured: Mapping[str, Any]  # gate -> what was seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    removed: tuple[Definition, ...]
    stubbed: tuple[Definition, ...]
    blockers: tuple[str, ...]
    changes: Changes


class Inapplicable(Rejected):
    """This mode has nothing to cut here; another may."""


def prove(
    workshop: Workshop, baseline: Baseline, candidate: Candidate, mode: Mode, folder: Path, *, rounds: int, scanner: Scanner
) -> Proof:
    """Makes the two trees in `folder`. Raises Rejected."""
    return _Trial(workshop, baseline, candidate, _cut(workshop, candidate, mode), folder, rounds, scanner).proof(mode)


def _cut(workshop: Workshop, candidate: Candidate, mode: Mode) -> _Cut:
    language, codes = workshop.language, workshop.codes
    edits: dict[str, list[Edit] | None] = {}
    removed: tuple[Definition, ...] = ()
    stubbed: tuple[Definition, ...] = candidate.targets
    blockers: tuple[str, ...] = ()
    if mode == "remove":
        removal = language.remove(codes, workshop.project.sources, candidate.targets)
        if not removal.removed:
            places = ", ".join(removal.blockers[:3]) or "places that always need it"
            raise Inapplicable(f"nothing can be removed: needed at {places}", "proposal")
        edits = {path: None if found is None else list(found) for path, found in removal.edits.items()}
        removed, stubbed, blockers = removal.removed, removal.kept, removal.blockers
    for definition in stubbed:
        found = edits.setdefault(definition.path, [])
        if found is not None:
            found += language.stub(codes[definition.path], definition)
    if not any(found is None or found for found in edits.values()):
        raise Inapplicable("no body to stub", "proposal")
    changes = {path: None if found is None else workshop.read(path, merged(found)) for path, found in sorted(edits.items())}
    changed = {path: data for path, data in changes.items() if data is None or data != codes[path].data}
    return _Cut(removed=removed, stubbed=stubbed, blockers=blockers, changes=changed)


class _Trial:
    def __init__(
        self, workshop: Workshop, baseline: Baseline, candidate: Candidate, cut: _Cut, folder: Path, rounds: int, scanner: Scanner
    ) -> None:
        self.workshop, self.baseline, self.candidate, self.cut = workshop, baseline, candidate, cut
        self.rounds, self.scanner = rounds, scanner
        self.hidden, self.agent = folder / "hidden", folder / "agent"
        write_tree(workshop.files, cut.changes, self.hidden)
        self.feature: dict[tuple[str, int], TestBlock] = {}
        self.changes: Changes = {}
        self.gone: frozenset[str] = frozenset()
        self.measured: dict[str, Any] = {"parse": {"files": len(cut.changes)}}
        self.num_runs = 0

    def proof(self, mode: Mode) -> Proof:
        known: frozenset[str] | None = None
        if mode == "stub":
            known = self.failing_hidden(self.candidate.tests, "plain")
            if not known:
                raise Rejected("no test fails without it", "fail_to_pass")
            self.add(known)
        else:
            self.mentioning()
        self.reduce()
        near = self.near()
        for _ in range(MAX_ROUNDS):
            failing = self.failing_agent("plain", near)
            if not failing:
                break
            self.add(failing)
            self.reduce()
        else:
            raise Rejected(f"tests keep failing after {MAX_ROUNDS} rounds: {min(failing)}", "pass_to_pass")
        self.loads()
        gone = self.gone & self.baseline.stable
        is_known = known is not None and gone <= self.candidate.tests
        fail_to_pass = known & gone if known is not None and is_known else self.failing_hidden(gone, "plain")
        if not fail_to_pass & self.candidate.tests:
            raise Rejected("no test that reaches it fails without it", "fail_to_pass")
        self.leftovers()
        for order in ORDERS[1 if near == self.baseline.collected else 0 : self.rounds]:  # it was all of them then: that was the plain run
            failing = self.failing_agent(order, None)
            if failing:
                raise Rejected(f"{len(failing)} tests fail in {order} order only, first {min(failing)}", "pass_to_pass")
        passing = fail_to_pass - self.failing_hidden(fail_to_pass, "shuffled")
        if passing:
            raise Rejected(f"{len(passing)} tests pass without it in another run, first {min(passing)}", "fail_to_pass")
        left = self.baseline.stable - self.gone
        if not left:
            raise Rejected("no other test is left", "share")
        self.selection(fail_to_pass | left)
        self.measured["pass_to_pass"] = {"runs": self.rounds, "tests": len(left)}
        self.measured["fail_to_pass"] = {"runs": 2, "tests": len(fail_to_pass)}
        return Proof(
            removed=self.cut.removed,
            stubbed=self.cut.stubbed,
            blockers=self.cut.blockers,
            source_changes=self.cut.changes,
            changes=self.changes,
            fail_to_pass=tuple(sorted(fail_to_pass)),
            pass_to_pass=tuple(sorted(left)),
            lost=tuple(sorted(self.baseline.stable - left - fail_to_pass)),
            num_runs=self.num_runs,
            hidden_tree=self.hidden,
            agent_tree=self.agent,
            measured=dict(self.measured),
        )

    # -- steps

    def mentioning(self) -> None:
        """Tests that reach the feature and name something of it that is gone."""
        names = [definition.name.encode() for definition in self.cut.removed]
        for id in self.candidate.tests:
            block = self.baseline.blocks.get(id)
            if block is not None:
                text = self.workshop.codes[block.path].data[block.start : block.end]
                if any(name in text for name in names):
                    self.feature[block.key] = block

    def add(self, failing: Iterable[str]) -> None:
        """The tests behind ids; of tests inside one another the inner ones first."""
        blocks: dict[tuple[str, int], TestBlock] = {}
        for id in failing:
            block = self.baseline.blocks.get(id)
            if block is None:
                raise Rejected(f"the test behind {id} cannot be found, so it cannot be removed", "reduce")
            blocks[block.key] = block
        new = [block for block in blocks.values() if block.key not in self.feature]
        if not new:
            raise Rejected(f"a test fails although it was removed: {min(failing)}", "reduce")
        for block in new:
            if not any(_holds(block, other) for other in new):
                self.feature[block.key] = block

    def reduce(self) -> None:
        edits = self.workshop.language.remove_tests(self.workshop.codes, list(self.feature.values()), self.cut.removed)
        tests = {path: None if found is None else self.workshop.read(path, found) for path, found in sorted(edits.items())}
        self.changes = {**self.cut.changes, **tests}
        shutil.rmtree(self.agent, ignore_errors=True)
        write_tree(self.workshop.files, self.changes, self.agent)
        self.gone = frozenset(id for id, block in self.baseline.blocks.items() if _is_gone(id, block, edits))
        share = len(self.gone & self.baseline.stable) / len(self.baseline.stable)
        if share > MAX_GONE_SHARE:
            raise Rejected(f"{share:.0%} of the tests would go with it", "share")

    def near(self) -> frozenset[str]:
        """The tests of every file in which a test reached the feature, or that is changed; all of a short suite."""
        if self.baseline.seconds < SHORT_S:
            return self.baseline.collected
        files = {id.partition("::")[0] for id in self.candidate.tests} | self.changes.keys()
        return frozenset(id for id in self.baseline.collected if id.partition("::")[0] in files)

    def failing_agent(self, order: Order, near: frozenset[str] | None) -> frozenset[str]:
        expected = (self.baseline.collected if near is None else near) - self.gone
        if not expected:
            return frozenset()
        run = self.run(self.agent, order, None if near is None else expected)
        if run.collect_errors:
            raise Rejected(f"loading breaks: {run.collect_errors[0]}", "collect")
        if run.result.status != "exited":
            raise _bad_end("the tests", run)
        if not run.complete:
            raise Rejected("the tests stop before their end", "collect")
        failing = frozenset(id for id in self.baseline.stable & expected if run.outcomes.get(id) != "passed")
        others = failing - self.candidate.tests
        if others:
            raise Rejected(
                f"{len(others)} other tests fail, first {min(others)}: {run.messages.get(min(others), 'no report')}", "pass_to_pass"
            )
        missing, new = sorted(expected - set(run.collected) - failing), sorted(set(run.collected) - expected - self.workshop.left_out)
        if missing or (new and not failing):
            raise Rejected(
                f"collection changes: {len(missing)} tests are missing, {len(new)} are new, first {(missing + new)[0]}", "collect"
            )
        if near is None or near == self.baseline.collected:
            self.measured["collect"] = {"tests": len(expected), "of": len(self.baseline.collected)}
        return failing

    def failing_hidden(self, ids: Iterable[str], order: Order) -> frozenset[str]:
        ids = frozenset(ids)
        if not ids:
            return ids
        run = self.run(self.hidden, order, ids)
        if run.result.status != "exited":  # what comes after a test that hangs does not fail by itself
            raise _bad_end("without it the tests", run)
        return frozenset(id for id in ids if run.outcomes.get(id) != "passed")

    def loads(self) -> None:
        wanted = self.baseline.imports - {path for path, data in self.cut.changes.items() if data is None}
        lost = sorted(wanted - self.workshop.importable(self.agent, wanted))
        if lost:
            raise Rejected(f"{len(lost)} source files no longer load, first {lost[0]}", "import")
        self.measured["import"] = {"files": len(wanted)}

    def selection(self, chosen: frozenset[str]) -> None:
        """The tests that a grading chooses pass without the others, in the original."""
        if chosen != self.baseline.collected:
            run = self.run(self.workshop.original, "plain", chosen)
            if run.result.status != "exited":
                raise _bad_end("the chosen tests", run)
            if not run.passed(tuple(chosen)):
                bad = sorted(id for id in chosen if run.outcomes.get(id) != "passed")
                raise Rejected(f"{len(bad)} tests need others that are not graded{f', first {bad[0]}' if bad else ''}", "selection")
        self.measured["selection"] = {"tests": len(chosen), "of": len(self.baseline.collected)}

    def leftovers(self) -> None:
        needles = self.scanner.needles(self.workshop.original, self.agent, but=frozenset(self.workshop.project.tests))
        runtime = self.workshop.language.runtime()
        found = self.scanner.scan(self.agent, needles, {"environment": self.workshop.environment}, runtime=runtime)
        manifests = {(WORKSPACE, path) for path in self.workshop.project.manifests}  # name packages that a test that is gone needed
        found = tuple(finding for finding in found if (finding.folder, finding.path) not in manifests)
        if found:
            raise Rejected(f"the feature can still be read: {found[0]}", "residue")
        self.measured["residue"] = {"findings": 0}

    def run(self, tree: Path, order: Order, ids: Iterable[str] | None) -> TestRun:
        self.num_runs += 1
        return self.workshop.run(tree, order=order, ids=ids)


def _bad_end(what: str, run: TestRun) -> Rejected:
    why = f"{what} end badly: {run.result.status.replace('_', ' ')}"
    return TimedOut(why, "time") if run.result.status == "timeout" else Rejected(why, "collect")


def _holds(outer: TestBlock, inner: TestBlock) -> bool:
    return outer.path == inner.path and outer.key != inner.key and outer.start <= inner.start and inner.end <= outer.end


def _is_gone(id: str, block: TestBlock | None, edits: Mapping[str, tuple[Edit, ...] | None]) -> bool:
    path = id.partition("::")[0]
    if path in edits and edits[path] is None:
        return True
    if block is None or block.path not in edits:
        return False
    found = edits[block.path]
    return found is None or any(edit.start <= block.start and block.end <= edit.end for edit in found)
