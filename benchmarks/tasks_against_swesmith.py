"""The factory beside the procedural modifiers of SWE-smith, on the same repository with the same number of candidates.

    swesmith, its rule    its modifiers' bugs, drawn as its own generator draws them (--interleave, seed 24); valid by its rule: in one run
                          of all tests at least one that passed fails, and at least one still passes
    swesmith, our gates   the same bugs through the proof and all gates that every task of ours passes
    our kinds             candidates of ours through the same

All runs are ours, in our sandbox. CPU s are those of all processes (tasks_factory.py); `once` of them every repository pays only once,
however many tasks it gives. Lines (added and removed) and files are medians of the gold patches of the valid tasks, without tests.

    python -m benchmarks.tasks_against_swesmith --swesmith PYTHON [--candidates N] [--kinds KIND,...] [--json] [SOURCE ...]

PYTHON is the interpreter of a virtual environment that holds swesmith 0.0.9: it is no dependency of ours. Its modifiers read source files
there and run none of them.

Not here: bugs that SWE-smith makes with a model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.tasks_factory import STEPS, Built, build, in_process
from etude import tree
from etude.errors import UserError
from etude.grade.runner import TestRun
from etude.synth.build import BuildOptions
from etude.synth.cut import CutError
from etude.synth.kinds import FINDERS, Find
from etude.synth.kinds.bug import KIND as BUG
from etude.synth.proposal import Idea, Made, Proposal, make_slug, propose_change
from etude.synth.source import Unreadable, parse
from etude.synth.workshop import Baseline, Changes, Workshop, write_tree
from etude.types import Task

SOURCES = ("toolz==1.0.0", "inflection==0.5.1")
KINDS = ("bug_injection", "feature_deletion")
SEED = 24  # SWE-smith's own
ROW = "swesmith"
NEEDED = (
    "libcst pyyaml astor python-dotenv 'tree-sitter>=0.25' tree-sitter-c tree-sitter-cpp tree-sitter-c-sharp tree-sitter-go "
    "tree-sitter-java tree-sitter-javascript tree-sitter-php tree-sitter-ruby tree-sitter-rust tree-sitter-typescript"
)
# What swesmith/bug_gen/procedural/generate.py does with --interleave, without its clone of a repository from GitHub
GENERATOR = """
import json, random, sys
from swesmith.bug_gen.adapters.python import get_entities_from_file_py
from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON
from swesmith.bug_gen.utils import generate_patch_fast
request = json.load(sys.stdin)
random.seed(request["seed"])
entities = []
for path in request["paths"]:
    get_entities_from_file_py(entities, request["folder"] + "/" + path)
pairs = [(entity, modifier) for modifier in MODIFIERS_PYTHON for entity in entities if modifier.can_change(entity)]
random.shuffle(pairs)
bugs, seen, tried = [], set(), 0
for entity, modifier in pairs:
    if len(bugs) == request["count"]:
        break
    tried += 1
    bug = modifier.modify(entity)
    patch = bug and generate_patch_fast(entity, bug, request["folder"])
    if patch and patch not in seen:
        seen.add(patch)
        path = entity.file_path[len(request["folder"]) + 1 :]
        bugs.append({"modifier": modifier.name, "path": path, "line": entity.line_start, "name": entity.name, "patch": patch})
json.dump({"bugs": bugs, "tried": tried, "pairs": len(pairs)}, sys.stdout)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    modifier: str
    path: str
    line: int  # of the def or class
    name: str
    patch: str  # git patch, original -> with the bug, without a "diff --git" line

    @property
    def label(self) -> str:
        return f"{ROW} {self.modifier} in {self.path}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """By SWE-smith's rule."""

    fail_to_pass: int = 0
    pass_to_pass: int = 0
    problem: str = ""

    @property
    def valid(self) -> bool:
        return self.fail_to_pass >= 1 and self.pass_to_pass >= 1


@dataclass(slots=True, kw_only=True)
class Theirs:
    """What is known of SWE-smith's bugs after a build."""

    bugs: list[Bug] = field(default_factory=list)
    tried: int = 0  # pairs of a modifier and a function or class until there were enough bugs
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # label -> by its rule


Generate = Callable[[Path, Sequence[str], int], tuple[list[Bug], int]]


def generate(python: str, folder: Path, paths: Sequence[str], count: int) -> tuple[list[Bug], int]:
    """`count` different bugs in these files, and how many pairs were tried for them. UserError where SWE-smith cannot be used."""
    if os.sep in python:
        python = os.path.abspath(python)  # links stay: they make the environment
    request = {"folder": str(folder), "paths": list(paths), "count": count, "seed": SEED}
    try:
        done = subprocess.run([python, "-c", GENERATOR], input=json.dumps(request), capture_output=True, text=True, check=False, cwd="/")
    except OSError as error:
        raise UserError(f"{python} cannot be started: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        install = f"pip install --no-deps swesmith==0.0.9 && {python} -m pip install {NEEDED}"
        raise UserError(f"SWE-smith does not run in {python} ({last}); install it there: {python} -m {install}")
    answer = json.loads(done.stdout)
    return [Bug(**bug) for bug in answer["bugs"]], answer["tried"]


def finder(make: Generate, count: int, theirs: Theirs) -> Find:
    """Bugs of `make` as ideas of a build. Before they are tried each is judged by SWE-smith's rule, in `theirs`."""

    def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
        paths = [path for path in workshop.layout.sources if path.endswith(".py")]
        theirs.bugs, theirs.tried = make(workshop.original, paths, count)
        theirs.verdicts = judge_all(workshop, theirs.bugs)
        for bug in theirs.bugs:
            yield Idea(kind=BUG, name=bug.label, group=bug.label, row=ROW, make=partial(propose, workshop, bug))

    return find


def judge_all(workshop: Workshop, bugs: Sequence[Bug]) -> dict[str, Verdict]:
    """One run of the original for all, and one for each bug."""
    before = _run_all(workshop, {})
    return {bug.label: judge(workshop, before, bug) for bug in bugs}


def judge(workshop: Workshop, before: TestRun, bug: Bug) -> Verdict:
    """As swesmith/harness/grading.py: tests that are missing in one of the runs count for nothing."""
    try:
        after = _run_all(workshop, changes(workshop, bug))
    except ValueError as error:
        return Verdict(problem=str(error))
    if after.result.status != "exited":
        return Verdict(problem=after.result.status)
    passed = [id for id, outcome in before.outcomes.items() if outcome == "passed"]
    return Verdict(
        fail_to_pass=sum(after.outcomes.get(id) == "failed" for id in passed),
        pass_to_pass=sum(after.outcomes.get(id) == "passed" for id in passed),
    )


def propose(workshop: Workshop, bug: Bug) -> Proposal:
    """A bug as a candidate of ours; any test may fail by it. CutError where it cannot be one."""
    try:
        changed = changes(workshop, bug)
        new = parse(bug.path, changed[bug.path] or b"")
    except (ValueError, Unreadable) as error:
        raise CutError(str(error)) from None
    old = workshop.index.sources[bug.path]
    around = [definition for definition in old.definitions if definition.line <= bug.line <= definition.end_line]
    if not around:
        raise CutError(f"{bug.name} is in no definition of {bug.path}")
    symbols = [max(around, key=lambda definition: definition.line)]  # a function inside another one is no definition of ours
    same = {d.qualname for d in old.definitions} <= {d.qualname for d in new.definitions}
    return propose_change(
        workshop,
        changed,
        kind=BUG,
        name=bug.label,
        mode="stub" if same else "remove",
        symbols=symbols,
        tests=None,
        slug=make_slug(symbols),
        evidence={"modifier": bug.modifier},
    )


def changes(workshop: Workshop, bug: Bug) -> Changes:
    """ValueError where git does not take its patch."""
    with workshop.folder() as folder:
        place = folder / bug.path
        place.parent.mkdir(parents=True)
        place.write_bytes(workshop.files[bug.path].read_bytes())
        tree.apply_patch(folder, f"diff --git a/{bug.path} b/{bug.path}\n{bug.patch}")
        return {bug.path: place.read_bytes()}


def _run_all(workshop: Workshop, changed: Changes) -> TestRun:
    with workshop.folder() as folder:
        write_tree(workshop.files, changed, folder / "tree", workshop.bytecode)
        with workshop.open(folder / "tree") as sandbox:
            return workshop.run_in(sandbox)


def build_theirs(source: str, python: str, count: int) -> tuple[Built, Theirs]:
    """Both verdicts of SWE-smith's bugs."""
    theirs = Theirs()
    options = BuildOptions(kinds=(ROW,), gates="full", jobs=1, max_candidates=None)
    steps: Mapping[Callable[..., object], str] = {**STEPS, generate: "generate", judge_all: "its rule"}
    return build(source, options, False, {ROW: finder(partial(generate, python), count, theirs)}, steps), theirs


def size(patch: str) -> tuple[int, int]:
    """Lines added and removed, and files."""
    lines = patch.split("\n")
    changed = sum(line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")) for line in lines)
    return changed, sum(line.startswith("+++ ") for line in lines)


def line(
    name: str, tried: int, valid: int, cpu_s: float, once_s: float, sizes: Sequence[tuple[int, int]], hidden: Sequence[int]
) -> dict[str, Any]:
    """One row: a source, who made the tasks and how they were checked, and what came of it."""
    return {
        "tasks": name,
        "candidates": tried,
        "valid": valid,
        "CPU s": cpu_s,
        "of it once": once_s,
        "CPU s a valid task": cpu_s / valid if valid else None,
        "without once": (cpu_s - once_s) / valid if valid else None,
        "lines": statistics.median(each[0] for each in sizes) if sizes else None,
        "files": statistics.median(each[1] for each in sizes) if sizes else None,
        "most files": max((each[1] for each in sizes), default=None),
        "hidden tests": statistics.median(hidden) if hidden else None,
    }


def rows_of_theirs(source: str, built: Built, theirs: Theirs) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Two rows, and what else is worth keeping."""
    by_rule = {bug.label: bug for bug in theirs.bugs if theirs.verdicts[bug.label].valid}
    seconds = {name: step.cpu_s for name, step in built.steps.items()}
    rule = seconds.get("its rule", 0.0)
    made, fetched = seconds.get("generate", 0.0), seconds.get("fetch", 0.0) + seconds.get("environment", 0.0)
    rejected = dict(built.report.rejected) if built.report else {}
    hidden = [theirs.verdicts[label].fail_to_pass for label in by_rule]
    sizes = [size(bug.patch) for bug in by_rule.values()]
    rows = [
        line(f"{source}: swesmith, its rule", len(theirs.bugs), len(by_rule), fetched + made + rule, fetched + made, sizes, hidden),
        line(
            f"{source}: swesmith, our gates",
            len(theirs.bugs),
            len(built.tasks),
            built.cpu_s - rule,
            built.once_cpu_s + made,
            [size(task.gold) for task in built.tasks],
            [len(task.fail_to_pass) for task in built.tasks],
        ),
    ]
    more = {
        "pairs_tried": theirs.tried,
        "valid_by_its_rule": len(by_rule),
        "of_them_pass_our_gates": sum(label not in rejected for label in by_rule) if built.report else 0,
        "why_not": {label: rejected.get(label, built.problem) for label in by_rule if not built.report or label in rejected},
        "problems": {label: verdict.problem for label, verdict in theirs.verdicts.items() if verdict.problem},
    }
    return rows, more


def row_of_ours(source: str, kind: str, built: Built) -> dict[str, Any]:
    tasks: Sequence[Task] = built.tasks
    tried = sum(built.report.tried.values()) if built.report else 0
    golds, hidden = [size(task.gold) for task in tasks], [len(task.fail_to_pass) for task in tasks]
    return line(f"{source}: {kind}", tried, len(tasks), built.cpu_s, built.once_cpu_s, golds, hidden)


def _said(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, told at once: a run of hours that is stopped has not been for nothing."""
    for row in rows:
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swesmith", metavar="PYTHON", required=True, help="interpreter of an environment that holds swesmith")
    parser.add_argument("--candidates", type=int, default=20, help="of each; default: 20")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of ours, with commas: {', '.join(FINDERS)}")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("sources", nargs="*", help=f"default: {' '.join(SOURCES)}")
    chosen = parser.parse_args()
    if chosen.candidates < 1:
        parser.error(f"--candidates is {chosen.candidates}; give 1 or more")
    rows: list[dict[str, Any]] = []
    more: dict[str, Mapping[str, Any]] = {}
    load = os.getloadavg()
    try:
        generate(chosen.swesmith, Path("/"), (), 0)  # before anything is built
        for source in chosen.sources or SOURCES:
            (built, theirs), _ = in_process(build_theirs, source, chosen.swesmith, chosen.candidates)
            found, more[source] = rows_of_theirs(source, built, theirs)
            rows += _said(found)
            for kind in chosen.kinds.split(","):
                modes: Any = {"modes": ("remove",)} if kind == "feature_deletion" else {}
                options = BuildOptions(kinds=(kind,), gates="full", jobs=1, max_candidates=chosen.candidates, **modes)
                ours, _ = in_process(build, source, options)
                rows += _said([row_of_ours(source, kind, ours)])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    result = {"rows": rows, "swesmith": more, "cores": len(os.sched_getaffinity(0)), "load": (load, os.getloadavg())}
    if chosen.json:
        print(json.dumps({"benchmark": "tasks_against_swesmith", **result}, sort_keys=True))
        return
    report("tasks_against_swesmith", rows, result)


if __name__ == "__main__":
    main()
