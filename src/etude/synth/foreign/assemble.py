"""A proof of a foreign repository becomes a Task: patches, symbols, instruction, and the proof that gold restores every byte.

In: a Proof; out: a Task. As in synth/assemble.py, the gold patch goes through the grader's own filter and preparation, and the tree that
comes out must have the digest of the original; the empty patch must give the hidden tree that was checked.

Not here: the runs (prove.py).
"""

import re
from collections.abc import Iterable

from etude.grade.filter import make_rules, refusal
from etude.languages.protocol import Definition
from etude.synth.assemble import band_of, derived, id_digest, lines_of, make_patches, wall_s_of, with_digest
from etude.synth.cut import Mode
from etude.synth.foreign.candidates import Candidate
from etude.synth.foreign.prove import Proof
from etude.synth.foreign.workshop import Baseline, Workshop
from etude.synth.instruct import TAIL, Draft
from etude.synth.workshop import Rejected
from etude.synth.writer import Writer, rewritten
from etude.types import Environment, Limits, Symbol, Task

WORD = re.compile(r"[A-Za-z_$][\w$]*")
MAX_TESTS = 8
MAX_DOC_LINES = 60
MEMORY_MB = 2048  # node reserves more than Python


class Assembler:
    """Makes the tasks of one repository; used by many threads."""

    def __init__(self, workshop: Workshop, environment: Environment, baseline: Baseline) -> None:
        self.workshop, self.environment, self.baseline = workshop, environment, baseline
        globs = workshop.project.protected
        rules = make_rules(workshop.repo, workshop.files, protected=globs)
        code = (*workshop.project.tests, *workshop.project.support)
        self.protected = (*globs, *sorted(path for path in code if refusal(path, rules) is None))
        self.rules = make_rules(workshop.repo, workshop.files, protected=self.protected)

    def assemble(self, candidate: Candidate, mode: Mode, proof: Proof) -> Task:
        """Raises Rejected where the patches do not do exactly what was checked."""
        repo = self.workshop.repo
        workshop = self.workshop
        cut, gold = make_patches(
            repo, workshop.original, workshop.files, proof.agent_tree, proof.changes, proof.source_changes, self.rules
        )  # fmt: skip
        text = self._instruction(proof)
        missing = self._missing(proof, text)
        if missing:
            text = text.replace("\n\nEvery other", f"\n\nThe hidden tests also use these names: {_quoted(missing)}.\n\nEvery other")
        if self._missing(proof, text):
            raise Rejected(f"the hidden tests need names that the instruction lacks: {', '.join(missing)}", "identifiers")
        gold_lines = lines_of(gold)
        definitions = sorted((*proof.removed, *proof.stubbed), key=lambda d: d.key)
        return Task(
            id=f"{repo.name}-{mode}-{_slug(candidate)}-{id_digest(repo, mode, cut)}",
            repo=repo,
            environment=self.environment,
            instruction=text,
            cut=cut,
            gold=gold,
            fail_to_pass=proof.fail_to_pass,
            pass_to_pass=proof.pass_to_pass,
            symbols=tuple(Symbol(path=d.path, qualname=d.qualname, line=d.line, num_lines=d.end_line - d.line + 1) for d in definitions),
            mode=mode,
            language=self.workshop.project.language,
            protected=self.protected,
            limits=Limits(wall_s=wall_s_of(self.baseline.seconds), memory_mb=MEMORY_MB, processes=128),
            band=band_of(gold_lines),
            evidence={
                "candidate": candidate.kind,
                "gold_lines": gold_lines,
                "removed": [d.qualname for d in proof.removed],
                "stubbed": [d.qualname for d in proof.stubbed],
                "stubbed_because_used_at": list(proof.blockers),
                "lost": list(proof.lost),
                "baseline_runs": self.baseline.num_runs,
                "cut_runs": proof.num_runs,
                "gates": {**proof.measured, **derived(self.baseline.num_runs)},
            },
        )

    def rewrite(self, proof: Proof, task: Task, writer: Writer) -> Task:
        """The task with the text that a model makes of its instruction, if that can stand for it."""
        draft = Draft(text=task.instruction.removesuffix("\n").removesuffix(TAIL).strip())
        needed = [name for name in self._missing(proof, "") if name in set(WORD.findall(draft.text))]
        codes = ((self.workshop.codes[d.path].data, d) for d in (*proof.removed, *proof.stubbed))
        gold = [line.strip() for data, d in codes for line in data[d.start : d.end].decode("utf-8", "replace").splitlines()]
        improved = writer.improve(draft, needed, gold)
        id = with_digest(task.id, id_digest(task.repo, task.mode, task.cut, writer=writer.model.name))
        return rewritten(task, improved, draft.whole(improved.text), id)

    # -- instruction

    def _instruction(self, proof: Proof) -> str:
        parts = [
            *self._described(proof.removed, "Write it again in"),
            *self._described(proof.stubbed, "Only a body that throws is left in"),
        ]
        named = ", ".join(f"`{name}`" for name in dict.fromkeys(d.qualname for d in (*proof.removed, *proof.stubbed)))
        hidden = sorted(proof.fail_to_pass)
        shown = "\n".join(f"- {' '.join(id.split())}" for id in hidden[:MAX_TESTS])
        more = f"\n- and {len(hidden) - MAX_TESTS} more" if len(hidden) > MAX_TESTS else ""
        return (
            f"A feature is missing from this repository: {named}.\n\n"
            + "\n\n".join(parts)
            + f"\n\nHidden tests will check it:\n{shown}{more}"
            + f"\n\n{TAIL}\n"
        )

    def _described(self, definitions: Iterable[Definition], what: str) -> list[str]:
        found: list[str] = []
        by_path: dict[str, list[Definition]] = {}
        for definition in definitions:
            by_path.setdefault(definition.path, []).append(definition)
        for path, mine in sorted(by_path.items()):
            blocks = [self._signature(definition) for definition in mine]
            found.append(f"{what} `{path}`:\n\n" + "\n\n".join(f"```\n{block}\n```" for block in blocks))
        return found

    def _signature(self, definition: Definition) -> str:
        text = self.workshop.language.signature(self.workshop.codes[definition.path], definition)
        doc = "\n".join(f"// {line}".rstrip() for line in definition.doc.splitlines()[:MAX_DOC_LINES])
        head = f"// in {definition.owner}\n" if definition.owner else ""
        return f"{head}{doc}\n{text}" if doc else f"{head}{text}"

    def _missing(self, proof: Proof, text: str) -> list[str]:
        """Identifiers of the original sources in the hidden tests that neither the agent's sources nor `text` hold."""
        workshop = self.workshop
        before: set[str] = set()
        after: set[str] = set(WORD.findall(text))
        for path in workshop.project.sources:
            code = workshop.codes.get(path)
            if code is None:
                continue
            before |= code.words
            if path not in proof.source_changes:
                after |= code.words
            elif (data := proof.source_changes[path]) is not None:
                after |= workshop.language.read(path, data, is_test=False).words
        used: set[str] = set()
        for id in proof.fail_to_pass:
            block = self.baseline.blocks.get(id)
            if block is not None:
                body = workshop.codes[block.path].data[block.start : block.end].decode("utf-8", "replace")
                used |= set(WORD.findall(body)) & workshop.codes[block.path].words
        return sorted((used & before) - after)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _slug(candidate: Candidate) -> str:
    largest = candidate.largest
    name = largest.path.rpartition("/")[2].partition(".")[0] if candidate.kind == "file" else largest.qualname
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:60] or "code"
