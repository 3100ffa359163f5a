"""The same task at another level, or with other tests shown: only its instruction is written again.

    task at A --relevel--> task at B: cut, gold, tests, limits and evidence are the old one's, so nothing is proven again

In: a Task and its store; out: a Task of the id that a build at that level would give it, whose `origin` ends with the old one's id. The
repository is parsed and cut once more, without a sandbox, as the writer needs both; trees must come out as the old task's patches say.
Only the symptoms of a bug are seen by running its hidden tests once more. The gate of the instruction holds here too: every name that the
hidden tests need is in it.

Not here: which level (pool/evolve.py), the writer (instruct.py), languages other than Python.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude import tree
from etude.errors import UserError
from etude.grade.filter import make_rules
from etude.grade.grader import prepare
from etude.sandbox.protocol import Backend
from etude.store import TaskStore
from etude.synth.assemble import id_digest, what_of, with_digest
from etude.synth.cut import CutError, cut_sources, render
from etude.synth.discover import discover
from etude.synth.instruct import BUG, draft, missing_identifiers, needed_names
from etude.synth.names import Index
from etude.synth.observe import observe
from etude.synth.options import Level
from etude.synth.proposal import FEATURE_DELETION, Proposal, propose_change
from etude.synth.prove import Proof
from etude.synth.read import read_sources, without
from etude.synth.reduce import behind, functions_of
from etude.synth.source import Definition
from etude.synth.workshop import Changes, Rejected, Workshop
from etude.synth.write import words_of
from etude.synth.writer import Writer, gold_lines
from etude.types import Task

CUTS = (FEATURE_DELETION, "joined_features", "refactor_back")  # kinds whose change of sources is a cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A repository as the writer needs it: parsed, nothing measured."""

    workshop: Workshop
    words: Mapping[str, frozenset[str]]  # of every source file


def read_repository(task: Task, store: TaskStore, backend: Backend) -> Reading:
    """The same for all tasks of a repository's state. Raises: UserError, Rejected."""
    if task.language != "python":
        raise Rejected(f"{task.id} is in {task.language}: only Python tasks are written at another level")
    original = store.snapshot(task.repo)
    layout = discover(original, task.repo.name)
    sources, skipped = read_sources(original, layout)
    layout = without(layout, skipped)
    workshop = Workshop(
        repo=task.repo,
        layout=layout,
        index=Index(sources, layout.import_roots),
        original=original,
        files=tree.files(original),
        environment=store.environment(task.environment),
        backend=backend,
        limits=task.limits,
        scratch=Path(),  # whoever writes gives it one
    )
    words = {path: words_of(sources[path].data.decode(sources[path].encoding)) for path in layout.sources}
    return Reading(workshop=workshop, words=words)


def relevel(
    task: Task,
    store: TaskStore,
    backend: Backend,
    *,
    level: Level | None = None,
    visible_share: float | None = None,
    known: Reading | None = None,
    writer: Writer | None = None,
) -> Task:
    """What is None stays. `known`: of another task of the same state of the repository; `writer`: puts the instruction better.

    Raises: UserError where the store lacks something, Rejected where it cannot be written so, SandboxError.
    """
    level = task.level if level is None else level
    visible_share = task.visible_share if visible_share is None else visible_share
    if level not in ("A", "B", "C") or not 0 <= visible_share <= 1:
        raise UserError(f"level {level!r} with a share of {visible_share}; give A, B or C, and a share from 0 to 1")
    if (level, visible_share) == (task.level, task.visible_share):
        raise Rejected(f"{task.id} is at level {level} with {visible_share:g} of its tests shown already")
    with tempfile.TemporaryDirectory(prefix="etude-relevel-") as folder:
        reading = known or read_repository(task, store, backend)
        workshop = replace(reading.workshop, scratch=Path(folder))
        text, told = _write(task, store, workshop, reading.words, level, visible_share, writer)
    if text == task.instruction:
        raise Rejected(f"{task.id} reads the same at level {level} with {visible_share:g} of its tests shown")
    gates = {**task.evidence.get("gates", {}), "identifiers": {"missing": 0}}
    id = new_id(task, level, visible_share, told["model"] if told.get("taken") else "")
    evidence = {name: value for name, value in task.evidence.items() if name != "writer"} | ({"writer": told} if told else {})
    if id in task.origin:
        raise Rejected(f"{task.id} was made from {id}")
    return replace(
        task,
        id=id,
        level=level,
        visible_share=visible_share,
        instruction=text,
        origin=(*task.origin, task.id),
        pass_rate=None,
        evidence={**evidence, "gates": gates, "releveled": {"from": task.level, "visible_share": task.visible_share}},
    )


def new_id(task: Task, level: Level, visible_share: float, writer: str = "") -> str:
    """As a build at that level would call it."""
    digest = id_digest(task.repo, what_of(task.kind, task.mode), task.cut, level, visible_share, writer=writer)
    return with_digest(task.id, digest)


def _write(
    task: Task,
    store: TaskStore,
    workshop: Workshop,
    words: Mapping[str, frozenset[str]],
    level: Level,
    visible_share: float,
    writer: Writer | None,
) -> tuple[str, dict[str, Any]]:
    """The instruction, and what a task tells of its writer."""
    proof = _proof(task, store, workshop)
    tests = functions_of(*behind(workshop.index, task.fail_to_pass), task.fail_to_pass)
    seen = observe(workshop, proof.hidden_tree, tests) if task.kind == BUG else None
    made = draft(workshop, proof, tests, words, level=level, visible=visible_share, observed=seen)
    text = made.whole()
    missing = missing_identifiers(workshop, proof, tests, words, text)
    if missing:
        raise Rejected(f"the hidden tests need names that the instruction lacks: {', '.join(missing)}", "identifiers")
    if writer is None:
        return text, {}
    improved = writer.improve(made, needed_names(workshop, proof, tests, words, made), gold_lines(workshop.index, proof.proposal))
    return made.whole(improved.text), dict(improved.evidence)


def _proof(task: Task, store: TaskStore, workshop: Workshop) -> Proof:
    """What was proven when the task was built, as far as the writer looks at it."""
    agent, hidden = store.workspace(task), workshop.scratch / "hidden"
    rules = make_rules(task.repo, workshop.files, protected=task.protected, environment=workshop.environment)
    prepare(hidden, "", start=agent, original=workshop.original, rules=rules)
    changed = _changes(workshop.original, hidden)
    try:
        proposal = _proposal(task, workshop, changed)
    except CutError as error:
        raise Rejected(f"{task.id} cannot be read as a change of its repository: {error}") from None
    return Proof(
        proposal=proposal,
        source_changes=changed,
        changes=_changes(workshop.original, agent),
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        lost=(),
        num_runs=0,
        hidden_tree=hidden,
        agent_tree=agent,
        messages=_messages(task, workshop, hidden) if task.kind == BUG else {},
    )


def _proposal(task: Task, workshop: Workshop, changed: Changes) -> Proposal:
    """By the same cut again where it gives the same sources; else read off the bytes, which tells of names but not of what went along."""
    symbols = [_definition(task, workshop, symbol.path, symbol.line, symbol.qualname) for symbol in task.symbols]
    proposal = propose_change(
        workshop,
        changed,
        kind=task.kind,
        name=task.id,
        mode=task.mode,
        symbols=symbols,
        tests=None,
        origin=task.origin,
        evidence={name: task.evidence[name] for name in ("preface",) if name in task.evidence},
    )
    if task.kind in CUTS:
        cut = cut_sources(workshop.index, workshop.layout.sources, symbols, task.mode)
        if render(cut.closure, cut.stubbed) == changed:
            return replace(proposal, cut=cut)
    return proposal


def _definition(task: Task, workshop: Workshop, path: str, line: int, name: str) -> Definition:
    source = workshop.index.sources.get(path)
    found: Sequence[Definition] = source.definitions if source is not None else ()
    for definition in found:
        if (definition.line, definition.qualname) == (line, name):
            return definition
    raise Rejected(f"{task.id}: {name} is not in line {line} of {path}")


def _messages(task: Task, workshop: Workshop, hidden: Path) -> dict[str, str]:
    """What each hidden test says when it fails."""
    with workshop.open(hidden) as sandbox:
        run = workshop.run_in(sandbox, ids=task.fail_to_pass)
    return {id: run.messages[id] for id in task.fail_to_pass if id in run.messages}


def _changes(old: Path, new: Path) -> dict[str, bytes | None]:
    """What became of every file that is not the same in both."""
    before, after = tree.files(old), tree.files(new)
    found: dict[str, bytes | None] = {}
    for path in sorted({*before, *after}):
        data = after[path].read_bytes() if path in after else None
        if path not in before or data != before[path].read_bytes():
            found[path] = data
    return found
