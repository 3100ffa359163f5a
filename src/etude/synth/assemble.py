"""A proof becomes a Task: patches, symbols, instruction, and the proof that gold restores the original byte by byte.

In: a Proof; out: a Task. The gold patch goes through the grader's own filter and preparation; the tree that comes out must have the
digest of the original, so every run of the baseline is a run of gold. The empty patch must give the hidden tree that was checked.

Not here: the runs (prove.py, workshop.py).
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from etude import tree
from etude.grade.filter import Rules, make_rules, refusal
from etude.grade.grader import prepare
from etude.synth.candidates import Candidate
from etude.synth.cut import Mode
from etude.synth.discover import TEST_FOLDERS, Layout
from etude.synth.prove import Proof
from etude.synth.source import Definition
from etude.synth.workshop import Baseline, Rejected, Workshop, write_tree
from etude.synth.write import instruction, missing_names
from etude.types import Environment, Limits, Repo, Symbol, Task

BANDS = ((40, "S"), (200, "M"), (1000, "L"))  # up to so many lines of gold
WALL_S = (60.0, 300.0, 900.0)  # a task's limit is the first that holds FACTOR runs of the suite: coarse, so that two builds agree
FACTOR = 5.0


def assemble(
    workshop: Workshop,
    environment: Environment,
    baseline: Baseline,
    candidate: Candidate,
    mode: Mode,
    proof: Proof,
    words: Mapping[str, frozenset[str]],
) -> Task:
    """Raises Rejected where the patches do not do exactly what was checked."""
    protected = protected_globs(workshop.repo, workshop.layout, workshop.original)
    rules = make_rules(workshop.repo, tree.files(workshop.original), protected=protected, environment=workshop.environment)
    cut, gold = _patches(workshop, proof, rules)
    tests = _functions(baseline, proof.fail_to_pass)
    text = instruction(workshop, proof, tests, words)
    missing = missing_names(workshop, proof, tests, words, text)
    if missing:
        raise Rejected(f"the hidden tests need names that the instruction lacks: {', '.join(missing)}")
    symbols = tuple(_symbol(definition) for definition in sorted((*proof.cut.removed, *proof.cut.stubbed), key=lambda d: d.key))
    gold_lines = sum(line.startswith("+") and not line.startswith("+++ ") for line in gold.splitlines())
    digest = hashlib.sha256("\0".join((workshop.repo.digest, mode, cut)).encode("utf-8", "surrogateescape")).hexdigest()
    return Task(
        id=f"{workshop.repo.name}-{mode}-{_slug(candidate)}-{digest[:8]}",
        repo=workshop.repo,
        environment=environment,
        instruction=text,
        cut=cut,
        gold=gold,
        fail_to_pass=proof.fail_to_pass,
        pass_to_pass=proof.pass_to_pass,
        symbols=symbols,
        mode=mode,
        protected=protected,
        limits=Limits(wall_s=next((wall for wall in WALL_S if FACTOR * baseline.seconds <= wall), WALL_S[-1])),
        band=next((band for lines, band in BANDS if gold_lines <= lines), "XL"),
        evidence={
            "candidate": candidate.kind,
            "gold_lines": gold_lines,
            "removed": [definition.qualname for definition in proof.cut.removed],
            "stubbed": [definition.qualname for definition in proof.cut.stubbed],
            "stubbed_because_used_at": list(proof.cut.blockers),
            "lost": list(proof.lost),
            "baseline_runs": baseline.num_runs,
            "cut_runs": proof.num_runs,
            "gold": "equals the original byte by byte",
        },
    )


def protected_globs(repo: Repo, layout: Layout, original: Path) -> tuple[str, ...]:
    """Test folders, and every other test file that the grader does not know as one by its name."""
    folders = {str(parent) for path in layout.tests for parent in PurePosixPath(path).parents if parent.name.lower() in TEST_FOLDERS}
    globs = tuple(sorted(f"{folder}/*" for folder in folders))
    rules = make_rules(repo, tree.files(original), protected=globs)
    return (*globs, *sorted(path for path in layout.tests if refusal(path, rules) is None))


def _patches(workshop: Workshop, proof: Proof, rules: Rules) -> tuple[str, str]:
    original, folder = workshop.original, proof.agent_tree.parent
    solved = folder / "solved"
    sources = set(workshop.layout.sources)
    write_tree(original, {path: data for path, data in proof.changes.items() if path not in sources}, solved)
    cut, gold = tree.make_patch(original, proof.agent_tree), tree.make_patch(proof.agent_tree, solved)
    work = folder / "work"
    tree.copy_tree(original, work)
    tree.apply_patch(work, cut)
    if tree.digest(work) != tree.digest(proof.agent_tree):
        raise Rejected("the cut patch does not make the tree that was checked")
    for what, patch, expected in (("gold", gold, workshop.repo.digest), ("empty", "", tree.digest(proof.hidden_tree))):
        graded = folder / what
        refused = prepare(graded, patch, start=proof.agent_tree, original=original, rules=rules)
        if refused:
            raise Rejected(f"the grader refuses {refused[0][0]} of the gold patch: {refused[0][1]}")
        if tree.digest(graded) != expected:
            raise Rejected(f"grading the {what} patch does not test the tree that was checked")
    return cut, gold


def _functions(baseline: Baseline, ids: tuple[str, ...]) -> list[Definition]:
    found = {test.key: test for id in ids if (test := baseline.tests.get(id)) is not None}
    return [found[key] for key in sorted(found)]


def _symbol(definition: Definition) -> Symbol:
    num_lines = definition.end_line - definition.line + 1
    return Symbol(path=definition.path, qualname=definition.qualname, line=definition.line, num_lines=num_lines)


def _slug(candidate: Candidate) -> str:
    largest = max(candidate.targets, key=lambda d: (d.end_line - d.line, d.key))
    name = PurePosixPath(largest.path).stem if candidate.kind == "module" else largest.qualname
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:60] or "code"
