"""A proof becomes a Task: patches, symbols, instruction, and the proof that gold restores the original byte by byte.

In: a Proof; out: a Task. The gold patch goes through the grader's own filter and preparation; the tree that comes out must have the
digest of the original, so every run of the baseline is a run of gold. The empty patch must give the hidden tree that was checked.

Not here: the runs (prove.py, workshop.py).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from etude import tree
from etude.grade.filter import Rules, make_rules, refusal
from etude.grade.grader import prepare
from etude.synth.discover import TEST_FOLDERS
from etude.synth.instruct import BUG, TAIL, Draft, draft, missing_identifiers, needed_names
from etude.synth.observe import observe
from etude.synth.options import Level
from etude.synth.proposal import FEATURE_DELETION
from etude.synth.prove import Proof
from etude.synth.reduce import functions_of
from etude.synth.source import Definition
from etude.synth.workshop import Baseline, Changes, Rejected, Workshop, write_tree
from etude.synth.write import words_of
from etude.synth.writer import Writer, gold_lines, rewritten
from etude.types import Environment, Limits, Repo, Symbol, Task

BANDS = ((40, "S"), (200, "M"), (1000, "L"))  # up to so many lines of gold
WALL_S = (20.0, 60.0, 300.0, 900.0)  # a task's limit is the first that holds FACTOR runs of the suite: coarse, so that two builds agree
FACTOR = 5.0
ID_CHARS = 8  # of the digest at an id's end


class Assembler:
    """Makes the tasks of one repository; used by many threads."""

    def __init__(self, workshop: Workshop, environment: Environment, baseline: Baseline) -> None:
        self.workshop, self.environment, self.baseline = workshop, environment, baseline
        self.protected = protected_globs(workshop)
        self.rules = make_rules(workshop.repo, workshop.files, protected=self.protected, environment=workshop.environment)
        sources = (workshop.index.sources[path] for path in workshop.layout.sources)
        self.words = {source.path: words_of(source.data.decode(source.encoding)) for source in sources}

    def draft(self, proof: Proof, *, level: Level = "A", visible_share: float = 0.0) -> Draft:
        """The instruction."""
        given = proof.proposal.instruction
        if given:
            return Draft(text=given.removesuffix("\n").removesuffix(TAIL).strip())
        tests = self._tests(proof)
        seen = observe(self.workshop, proof.hidden_tree, tests) if proof.proposal.kind == BUG else None
        return draft(self.workshop, proof, tests, self.words, level=level, visible=visible_share, observed=seen)

    def assemble(self, proof: Proof, draft: Draft, *, level: Level = "A", visible_share: float = 0.0) -> Task:
        """Raises Rejected where the patches do not do exactly what was checked."""
        repo, proposal = self.workshop.repo, proof.proposal
        rules = self._rules(proof)
        workshop = self.workshop
        cut, gold = make_patches(
            repo, workshop.original, workshop.files, proof.agent_tree, proof.changes, proof.source_changes, rules
        )  # fmt: skip
        text = proposal.instruction or draft.whole()
        missing = missing_identifiers(self.workshop, proof, self._tests(proof), self.words, text)
        if missing:
            raise Rejected(f"the hidden tests need names that the instruction lacks: {', '.join(missing)}", "identifiers")
        num_lines = lines_of(gold)
        what = what_of(proposal.kind, proposal.mode)
        return Task(
            id=f"{repo.name}-{what}-{proposal.slug}-{id_digest(repo, what, cut, level, visible_share)}",
            repo=repo,
            environment=self.environment,
            instruction=text,
            cut=cut,
            gold=gold,
            fail_to_pass=proof.fail_to_pass,
            pass_to_pass=proof.pass_to_pass,
            symbols=tuple(map(_symbol, proposal.symbols)),
            mode=proposal.mode,
            kind=proposal.kind,
            level=level,
            visible_share=visible_share,
            origin=proposal.origin,
            protected=rules.protected,
            limits=Limits(wall_s=wall_s_of(self.baseline.seconds)),
            band=band_of(num_lines),
            evidence={
                **proposal.evidence,
                "gold_lines": num_lines,
                "removed": [definition.qualname for definition in proof.cut.removed],
                "stubbed": [definition.qualname for definition in proof.cut.stubbed],
                "stubbed_because_used_at": list(proof.cut.blockers),
                "lost": list(proof.lost),
                "baseline_runs": self.baseline.num_runs,
                "cut_runs": proof.num_runs,
                "gates": {
                    **proof.measured,
                    **derived(self.baseline.num_runs),
                },
            },
        )

    def rewrite(self, proof: Proof, task: Task, draft: Draft, writer: Writer) -> Task:
        """The task with the text that a model makes of the draft, if that can stand for it."""
        needed = needed_names(self.workshop, proof, self._tests(proof), self.words, draft)
        improved = writer.improve(draft, needed, gold_lines(self.workshop.index, proof.proposal))
        what, by = what_of(task.kind, task.mode), writer.model.name
        id = with_digest(task.id, id_digest(task.repo, what, task.cut, task.level, task.visible_share, writer=by))
        return rewritten(task, improved, draft.whole(improved.text), id)

    def _tests(self, proof: Proof) -> list[Definition]:
        return functions_of(self.baseline.tests, self.baseline.holders, proof.fail_to_pass)

    def _rules(self, proof: Proof) -> Rules:
        """Documents that the cut changes are laid down again by the grader, as tests are."""
        changed = proof.changes.keys() - proof.source_changes.keys()
        return replace(self.rules, protected=(*self.protected, *sorted(path for path in changed if refusal(path, self.rules) is None)))


def make_patches(
    repo: Repo, original: Path, files: Mapping[str, Path], agent: Path, changes: Changes, source_changes: Changes, rules: Rules
) -> tuple[str, str]:
    """Cut and gold. What the grader makes of gold must be the original, and of an empty patch the hidden tree. Raises Rejected.

    `agent`: the tree that the agent sees, made by `changes`; trees are made beside it.
    """
    work, solved, graded = agent.parent / "work", agent.parent / "solved", agent.parent / "graded"
    write_tree(files, {path: data for path, data in changes.items() if path not in source_changes}, solved)
    cut, gold = tree.make_patch(original, agent), tree.make_patch(agent, solved)
    tree.copy_tree(original, work)
    tree.apply_patch(work, cut)
    if tree.digest(work) != tree.digest(agent):
        raise Rejected("the cut patch does not make the tree that was checked", "patches")
    refused = prepare(graded, gold, start=work, original=original, rules=rules)
    if refused:
        raise Rejected(f"the grader refuses {refused[0][0]} of the gold patch: {refused[0][1]}", "patches")
    if tree.digest(graded) != repo.digest:
        raise Rejected("grading the gold patch does not test the original", "patches")
    left = {path: data for path, data in changes.items() if refusal(path, rules) is None}  # the others are laid down again
    if left != source_changes:
        raise Rejected("grading an empty patch does not test the tree that was checked", "patches")
    return cut, gold


def what_of(kind: str, mode: str) -> str:
    """How an id calls it."""
    return mode if kind == FEATURE_DELETION else kind.partition("_")[0]


def id_digest(repo: Repo, what: str, cut: str, level: Level = "A", visible_share: float = 0.0, *, writer: str = "") -> str:
    """The end of an id. `writer`: the model whose text the instruction is."""
    told = (*((level, str(visible_share)) if (level, visible_share) != ("A", 0.0) else ()), *((f"written by {writer}",) if writer else ()))
    parts = (repo.digest, what, *told, cut)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:ID_CHARS]


def with_digest(id: str, digest: str) -> str:
    """An id with another end; one that has none, as of a task of others, gets it."""
    return f"{re.sub(rf'-[0-9a-f]{{{ID_CHARS}}}$', '', id)}-{digest}"


def derived(baseline_runs: int) -> dict[str, Any]:
    """What make_patches and the check of names have shown."""
    return {
        "gold": {"runs": baseline_runs, "equals": "the original, byte by byte"},
        "empty_patch": {"score": 0, "known": "what is graded equals the hidden tree, byte by byte"},
        "identifiers": {"missing": 0},
    }


def lines_of(patch: str) -> int:
    """Lines that it adds."""
    return sum(line.startswith("+") and not line.startswith("+++ ") for line in patch.splitlines())


def band_of(gold_lines: int) -> str:
    return next((band for lines, band in BANDS if gold_lines <= lines), "XL")


def wall_s_of(seconds: float) -> float:
    """A task's limit, of the seconds that its suite takes."""
    return next((wall for wall in WALL_S if FACTOR * seconds <= wall), WALL_S[-1])


def protected_globs(workshop: Workshop) -> tuple[str, ...]:
    """Test folders, and every other test file that the grader does not know as one by its name."""
    tests = workshop.layout.tests
    folders = {str(parent) for path in tests for parent in PurePosixPath(path).parents if parent.name.lower() in TEST_FOLDERS}
    globs = tuple(sorted(f"{folder}/*" for folder in folders))
    rules = make_rules(workshop.repo, workshop.files, protected=globs)
    return (*globs, *sorted(path for path in tests if refusal(path, rules) is None))


def _symbol(definition: Definition) -> Symbol:
    num_lines = definition.end_line - definition.line + 1
    return Symbol(path=definition.path, qualname=definition.qualname, line=definition.line, num_lines=num_lines)
