"""What could become a task: a change of source files, what it is about, and the tests that may notice it.

In: the index of a repository and either definitions to cut or the new bytes of files; out: a `Proposal`. Of a change that is no cut, the
names that it takes away are found by comparing the bindings of modules and classes before and after, so that tests which import them can
be reduced as they are for a cut.

Not here: whether it holds (prove.py), where proposals come from (kinds/).
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from etude.synth.candidates import Candidate
from etude.synth.closure import Closure
from etude.synth.cut import Cut, CutError, Mode, cut_sources, render
from etude.synth.ground import Ground
from etude.synth.names import Index, Key, bound_name
from etude.synth.source import Definition, Unreadable, parse
from etude.synth.units import units
from etude.synth.workshop import Changes, Workshop
from etude.types import Task

FEATURE_DELETION = "feature_deletion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change of source files that some tests should notice.

    mode "stub": every name is still there, so the whole suite is run on the hidden tree and what fails is fail_to_pass. Mode "remove":
    names may be gone, tests that refer to them are taken away before anything runs.
    """

    kind: str  # Task.kind
    name: str  # for people, and for what a build that was stopped has tried: one of its kind and mode
    slug: str  # part of the task's id
    mode: Mode
    source_changes: Changes  # the hidden tree: only files of Layout.sources, or new ones beside them
    cut: Cut  # what is gone (removed) and what is still there in another form (stubbed): the task's symbols
    tests: frozenset[str] | None  # the stable tests that reach the changed code; None: not known, so any test may fail
    instruction: str = ""  # "": written from the cut (write.py)
    origin: tuple[str, ...] = ()  # Task.origin
    evidence: Mapping[str, Any] = field(default_factory=dict)  # goes into the task's
    ground: Ground | None = None  # where another original than the repository's is changed

    @property
    def symbols(self) -> tuple[Definition, ...]:
        return tuple(sorted((*self.cut.removed, *self.cut.stubbed), key=lambda definition: definition.key))


class NotApplicable(CutError):
    """An idea that turns out to be none of its own, such as a removal that would be the stub that is tried anyway. Not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """Something to try, not worked out yet."""

    kind: str  # of the task
    name: str  # one in a build
    group: str  # ideas of one group count as one candidate against the limit
    row: str  # where it is counted in reports: the mode of a deletion, else the kind
    make: Callable[[], Proposal]  # may raise CutError

    @classmethod
    def of(cls, proposal: Proposal) -> "Idea":
        name = f"{proposal.kind} {proposal.name}"
        return cls(kind=proposal.kind, name=name, group=name, row=proposal.kind, make=lambda: proposal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A task of this build with the idea that it came from."""

    task: Task
    idea: Idea


def propose_cut(
    workshop: Workshop,
    targets: Sequence[Definition],
    mode: Mode,
    *,
    name: str,
    tests: frozenset[str] | None,
    kind: str = FEATURE_DELETION,
    slug: str = "",
    origin: tuple[str, ...] = (),
    evidence: Mapping[str, Any] | None = None,
) -> Proposal:
    """Definitions that go, with all that hangs on them. Raises CutError."""
    cut = cut_sources(workshop.index, workshop.layout.sources, targets, mode)
    return Proposal(
        kind=kind,
        name=name,
        slug=slug or make_slug(targets),
        mode=mode,
        source_changes=render(cut.closure, cut.stubbed),
        cut=cut,
        tests=tests,
        origin=origin,
        evidence=evidence or {},
    )


def propose_candidate(workshop: Workshop, candidate: Candidate, mode: Mode, *, name: str = "") -> Proposal:
    """Feature deletion. Raises CutError."""
    slug = PurePosixPath(candidate.targets[0].path).stem if candidate.kind == "module" else ""
    name = name or f"{mode} {candidate.kind} {candidate.name}"
    evidence = {"candidate": candidate.kind}
    return propose_cut(
        workshop, candidate.targets, mode, name=name, tests=candidate.tests, slug=clean_slug(slug) if slug else "", evidence=evidence
    )


def propose_change(
    workshop: Workshop,
    changes: Changes,
    *,
    kind: str,
    name: str,
    mode: Mode,
    symbols: Sequence[Definition],
    tests: frozenset[str] | None,
    slug: str = "",
    instruction: str = "",
    origin: tuple[str, ...] = (),
    evidence: Mapping[str, Any] | None = None,
) -> Proposal:
    """New bytes of source files. `symbols`: definitions of the original that the task is about.

    Raises CutError for bytes that do not parse, a change of a file that is no source, or none at all.
    """
    sources = set(workshop.layout.sources)
    changes = {path: data for path, data in sorted(changes.items()) if data != _bytes(workshop, path)}
    foreign = [path for path in changes if path in workshop.files and path not in sources]
    if foreign or not changes:
        raise CutError(f"{foreign[0]} is no source file" if foreign else "nothing changes")
    closure = Closure(workshop.index)
    culprits = frozenset(definition.key for definition in symbols) or frozenset([(next(iter(changes)), 1)])
    for path, data in changes.items():
        if path in workshop.index.scopes:
            _drop_lost(closure, path, data, culprits)
    gone = [d for d in symbols if d.node in closure.covered or d.path in closure.gone.files]
    left = [d for d in symbols if d not in gone]
    cut = Cut(mode=mode, removed=tuple(gone), stubbed=tuple(left), blockers=(), closure=closure)
    return Proposal(
        kind=kind,
        name=name,
        slug=slug or (make_slug(symbols) if symbols else clean_slug(name)),
        mode=mode,
        source_changes=changes,
        cut=cut,
        tests=tests,
        instruction=instruction,
        origin=origin,
        evidence=evidence or {},
    )


def make_slug(targets: Iterable[Definition]) -> str:
    """By the largest of the definitions."""
    return clean_slug(max(targets, key=lambda d: (d.end_line - d.line, d.key)).qualname)


def clean_slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:60] or "code"


def _bytes(workshop: Workshop, path: str) -> bytes | None:
    if path in workshop.index.sources:
        return workshop.index.sources[path].data
    return workshop.files[path].read_bytes() if path in workshop.files else None


def _drop_lost(closure: Closure, path: str, data: bytes | None, culprits: frozenset[Key]) -> None:
    """Mark every binding of the old file whose name the new one does not bind in the same place."""
    if data is None:
        closure.drop_file(path, culprits)
        return
    try:
        new = parse(path, data)
    except Unreadable as error:
        raise CutError(f"the change leaves {path} broken: {error}", "parse") from None
    names = _class_names(closure.index, path)
    there = {(names.get(owner, "") if owner else "", name) for owner, name in _bindings(closure.index, path)}
    new_names = {d.node: d.qualname for d in new.definitions}
    kept: set[tuple[str, str]] = set()
    for unit in units(new):
        owner = new_names.get(unit.owner, "") if unit.owner else ""
        found = [bound_name(alias) for alias in unit.node.names] if isinstance(unit.node, (ast.Import, ast.ImportFrom)) else unit.bound
        kept |= {(owner, name) for name in found}
    lost = there - kept
    for unit in closure.index.units[path]:
        owner = names.get(unit.owner, "") if unit.owner else ""
        if unit.node in closure.covered:
            continue
        if isinstance(unit.node, (ast.Import, ast.ImportFrom)):
            for alias in unit.node.names:
                if (owner, bound_name(alias)) in lost:
                    closure.drop(path, alias, culprits, [bound_name(alias)])
        elif unit.bound and all((owner, name) in lost for name in unit.bound):
            closure.drop(path, unit.node, culprits, unit.bound)


def _class_names(index: Index, path: str) -> dict[ast.stmt, str]:
    return {d.node: d.qualname for d in index.sources[path].definitions}


def _bindings(index: Index, path: str) -> set[tuple[ast.ClassDef | None, str]]:
    found: set[tuple[ast.ClassDef | None, str]] = set()
    for unit in index.units[path]:
        if isinstance(unit.node, (ast.Import, ast.ImportFrom)):
            found |= {(unit.owner, bound_name(alias)) for alias in unit.node.names}
        else:
            found |= {(unit.owner, name) for name in unit.bound}
    return found
