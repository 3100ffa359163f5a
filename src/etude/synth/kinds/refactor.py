"""Refactor-back: a feature that upstream has in one module is demanded in another one.

    original        the repository with some functions moved, each from its module M to another module N of its package: the sources take
                    it from N, and every test that imported it by whatever way imports it from N
    agent's tree    the original without the function, in N and anywhere else; M is as if it had never had it
    hidden          the tests of the function, which import it from N
    gold            the function in N, and the imports of it

What is known of upstream by heart does not fit: with the function back in M the hidden tests still fail. `make` runs them on such a tree,
and where all of them pass there is no task. The move is mechanical and checked: the moved original has its own baseline of five runs, and
each move is first run alone against the tests that reach the function.

A function is moved if it stands at module level, is bound once, refers to nothing of its module but imports, runs in no import, is not
reached through its module as an attribute, is used by nothing that stays, and some test imports it by name. N is a module beside M with
which none of this makes a cycle, else a new one.

Not here: the deletion itself (cut.py, prove.py), moving text between files (move.py).
"""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from etude.errors import UserError
from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.candidates import attribute
from etude.synth.cut import CutError, cut_sources
from etude.synth.ground import Ground, lay_ground
from etude.synth.move import Move, destinations, is_movable, move
from etude.synth.options import BuildOptions
from etude.synth.proposal import Idea, Made, Proposal, propose_cut
from etude.synth.refusal import Gate
from etude.synth.source import Definition, FunctionNode, is_trivial
from etude.synth.workshop import Baseline, Rejected, Workshop, write_tree

KIND = "refactor_back"
MAX_MOVES = 12  # of one original


def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
    """The moves are tried alone here, as they share one original that is laid when the first idea is worked out."""
    moves = _moves(workshop, baseline, options)
    laid = _Laid(workshop, moves)
    for each in moves:
        name = f"{KIND} {each.name} from {each.old} to {each.new}"
        yield Idea(kind=KIND, name=name, group=name, row=KIND, make=partial(_make, workshop, laid, each))


def _moves(workshop: Workshop, baseline: Baseline, options: BuildOptions) -> list[Move]:
    index = workshop.index
    reached, fixed = attribute(index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN))
    limit = max(1, int(options.max_share * len(baseline.stable)))
    ranked = sorted(
        (
            definition
            for path in workshop.layout.sources
            for definition in index.sources[path].definitions
            if isinstance(definition.node, FunctionNode) and definition.owner is None and not is_trivial(definition.node)
            if definition.key not in fixed and 1 <= len(reached.get(definition.key, ())) <= limit
        ),
        key=lambda definition: hashlib.sha256(f"{definition.path}\0{definition.qualname}".encode("utf-8", "surrogateescape")).digest(),
    )
    found: list[Move] = []
    for definition in ranked:
        if len(found) == min(MAX_MOVES, options.max_candidates or MAX_MOVES):
            break
        if is_movable(index, workshop.layout.sources, workshop.layout.tests, definition) and _can_go(workshop, definition):
            for new in destinations(index, workshop.layout.sources, definition):
                each = Move(name=definition.name, old=definition.path, new=new)
                if _works_alone(workshop, baseline, each, reached[definition.key]):
                    found.append(each)
                    break
    return found


def _can_go(workshop: Workshop, definition: Definition) -> bool:
    """Nothing that stays refers to it."""
    try:
        return bool(cut_sources(workshop.index, workshop.layout.sources, [definition], "remove").removed)
    except CutError:
        return False


def _works_alone(workshop: Workshop, baseline: Baseline, each: Move, tests: frozenset[str]) -> bool:
    """Every module still imports, and the tests that reach the function pass."""
    try:
        changes = move(workshop.index, workshop.layout.sources, workshop.layout.tests, [each], workshop.repo.import_roots)
    except CutError:
        return False
    with workshop.folder() as folder:
        write_tree(workshop.files, changes, folder / "tree", workshop.bytecode)
        with workshop.open(folder / "tree") as sandbox:
            if baseline.imports - workshop.importable(sandbox, baseline.imports):
                return False
            run = workshop.run_in(sandbox, ids=tests)
    return run.complete and all(run.outcomes.get(id) == "passed" for id in tests)


class _Laid:
    """The moved original, made once by whichever thread comes first."""

    def __init__(self, workshop: Workshop, moves: Sequence[Move]) -> None:
        self.workshop, self.moves = workshop, moves
        self.lock = threading.Lock()
        self.made: Ground | None = None
        self.why = ""
        self.gate: Gate = ""

    def ground(self) -> Ground:
        with self.lock:
            if self.made is None and not self.why:
                try:
                    self.made = self.lay()
                except (Rejected, CutError, UserError) as error:
                    self.why = str(error)
                    self.gate = "baseline" if isinstance(error, UserError) else error.gate
            if self.made is None:
                raise CutError(self.why, self.gate)
            return self.made

    def lay(self) -> Ground:
        workshop = self.workshop
        layout = workshop.layout
        changes = move(workshop.index, layout.sources, layout.tests, self.moves, workshop.repo.import_roots)
        folder = workshop.scratch / "moved"
        write_tree(workshop.files, changes, folder)
        return lay_ground(workshop, folder)


def _make(workshop: Workshop, laid: _Laid, each: Move) -> Proposal:
    """CutError, Rejected."""
    ground = laid.ground()
    moved, baseline = ground.workshop, ground.baseline
    definition = next((d for d in moved.index.sources[each.new].definitions if d.qualname == each.name), None)
    if definition is None:
        raise CutError(f"{each.name} is not in {each.new}")
    reached, _ = attribute(moved.index, moved.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN))
    tests = reached.get(definition.key, frozenset())
    old, new = moved.index.modules[each.old], moved.index.modules[each.new]
    proposal = propose_cut(
        moved,
        [definition],
        "remove",
        name=f"{each.name} from {each.old} to {each.new}",
        tests=tests,
        kind=KIND,
        evidence={"moved": [each.old, each.new], "preface": f"`{each.name}` belongs into the module `{new}`; `{old}` shall not define it."},
    )
    if not proposal.cut.removed:
        raise CutError(f"{each.name} cannot be removed from {each.new}")
    failing = _failing_in_old_place(workshop, moved, laid, each, proposal, tests)
    if not failing:
        raise CutError(f"the tests do not ask for {new}: with {each.name} in {old} all of them pass", "fail_to_pass")
    return replace(proposal, ground=ground, evidence={**proposal.evidence, "failing_in_the_old_place": failing})


def _failing_in_old_place(workshop: Workshop, moved: Workshop, laid: _Laid, each: Move, proposal: Proposal, tests: frozenset[str]) -> int:
    """How many of its tests fail where it stands in its old module again and nowhere else."""
    others = [other for other in laid.moves if other != each]
    layout = workshop.layout
    as_before = move(workshop.index, layout.sources, layout.tests, others, workshop.repo.import_roots)
    back = {
        path: as_before.get(path, workshop.index.sources[path].data)
        for path in layout.sources
        if path != each.new and path in workshop.files
    }
    changes = {path: data for path, data in back.items() if data != moved.index.sources[path].data}
    changes |= {each.new: proposal.source_changes.get(each.new)}
    with moved.folder() as folder:
        write_tree(moved.files, changes, folder / "tree", moved.bytecode)
        with moved.open(folder / "tree") as sandbox:
            run = moved.run_in(sandbox, ids=tests)
    return sum(run.outcomes.get(id) != "passed" for id in tests)
