"""Instructions put better by a model, and what must hold of its text.

    tasks/.builds/writer/<hash>.json   one answer; the hash is of the model, its settings and the prompt

In: a Draft of instruct.py and lines of gold; out: the model's text, or the draft's own and why: a name that hidden tests need is missing, a
span or block of code is not as it was, code of the solution has got in, or the model gave no answer. An answer is kept, so that the same
draft gives the same text again without asking. A model that gives no answer PATIENCE times in a row is not asked any more.

Not here: the draft (instruct.py), which model (agentic/models.py), what a task is made of (assemble.py).
"""

import ast
import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from etude.agent.meter import Meter, Purse
from etude.engine.protocol import Request
from etude.errors import EtudeError, UserError
from etude.synth.agentic.limits import AgentLimits, Model
from etude.synth.agentic.models import choose_model
from etude.synth.instruct import Draft
from etude.synth.names import Index
from etude.synth.options import WriterOptions
from etude.synth.proposal import Proposal
from etude.synth.write import words_of
from etude.types import Task

ANSWER_TOKENS = 4096
DEADLINE_S, TRIES = 120.0, 3  # of an endpoint
PATIENCE = 3
LONGER = 3.0  # a model's text may be so many times as long
GOLD_CHARS = 9  # without space: a shorter line of gold tells nothing
CODE = re.compile(r"[=(\[+*/%<>]")  # a line of gold without any of these may be said in words
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.DOTALL | re.MULTILINE)
THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)

PROMPT = """Rewrite the instruction of a programming task so that it reads well. Keep every fact, every example, every block of code and
every name in backticks exactly; add nothing that is not there; write no code that solves it. Answer with the new text only.

{text}
"""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """An answer on disk."""

    model: str
    prompt: str
    text: str
    whole: bool  # it came to its end
    input_tokens: int = 0
    output_tokens: int = 0


class NoAnswer(Exception):
    """Why the model has said nothing, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    text: str
    evidence: Mapping[str, Any]  # for the task: the model, whether its text was taken, and why not

    @property
    def is_taken(self) -> bool:
        return bool(self.evidence["taken"])


def open_writer(options: WriterOptions, tasks: Path, model: Model | None = None) -> "Writer":
    """`tasks`: the folder whose answers count; `model`: instead of the one that is named. Raises: UserError."""
    if model is None:
        key = os.environ.get(options.key_env, "")
        model = choose_model(options.where, options.model, prices=options.prices, key=key, deadline_s=DEADLINE_S, tries=TRIES)
    if options.dollars is not None and model.prices is None:
        raise UserError("a limit in dollars needs prices; give dollars for a million tokens of input and of output, such as 0.25,2")
    return Writer(model, tasks / ".builds" / "writer", dollars=options.dollars)


class Writer:
    """One model; used by many threads."""

    def __init__(self, model: Model, folder: Path, *, dollars: float | None = None) -> None:
        """`folder`: of answers; `dollars`: for all of them."""
        self.model, self._folder, self._purse = model, folder, Purse(dollars)
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}  # one asks, whoever else has the same prompt waits for its answer
        self._failed = 0  # in a row
        self._counts: Counter[str] = Counter()

    def improve(self, draft: Draft, needed: Sequence[str], gold: Iterable[str]) -> Improved:
        """`needed`: names that must not get lost; `gold`: lines that must not get in."""
        evidence: dict[str, Any] = {"model": self.model.name}
        try:
            kept = self._answer(PROMPT.format(text=draft.text))
        except NoAnswer as error:
            return Improved(text=draft.text, evidence={**evidence, "taken": False, "reason": f"no answer: {error}"})
        answer = THOUGHT.sub("", kept.text).strip()
        why = wrong(answer, draft.text, needed, gold) if kept.whole else "it is cut off"
        evidence |= {"taken": not why, "input_tokens": kept.input_tokens, "output_tokens": kept.output_tokens}
        return Improved(text=draft.text if why else answer, evidence={**evidence, "reason": why} if why else evidence)

    def spent(self) -> dict[str, Any]:
        """What this build has asked for; answers of earlier builds are `kept`."""
        with self._lock:
            counts = {name: self._counts[name] for name in ("asked", "kept", "failed", "not_asked", "input_tokens", "output_tokens")}
        dollars = self.model.prices.dollars(counts["input_tokens"], counts["output_tokens"]) if self.model.prices else None
        return {"model": self.model.name, **counts, "dollars": dollars}

    def _answer(self, prompt: str) -> Kept:
        parts = ("1", self.model.name, str(ANSWER_TOKENS), prompt)
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        place = self._folder / f"{digest[:24]}.json"
        with self._lock:
            turn = self._turns.setdefault(digest, threading.Lock())
        with turn:
            kept = _read(place)
            if kept is not None:
                self._count(kept=1)
                return kept
            return _keep(place, self._ask(prompt, digest))

    def _ask(self, prompt: str, session: str) -> Kept:
        with self._lock:
            if self._failed >= PATIENCE:
                self._counts["not_asked"] += 1
                raise NoAnswer(f"it was not asked, as it had failed {PATIENCE} times in a row")
        model, unit = self.model, self.model.unit
        meter = Meter(prices=model.prices, purse=self._purse)
        limits = AgentLimits(turn_tokens=ANSWER_TOKENS, temperature=0.0)
        try:
            ids = model.renderer.opening([("user", prompt)])
            # in this process a model that runs on costs minutes; behind an endpoint it may think first, and ids are bytes
            room = min(ANSWER_TOKENS, 2 * len(ids)) if unit == 1 else ANSWER_TOKENS * 2 * unit
            if model.context_tokens is not None:
                room = min(room, model.context_tokens * unit - len(ids))
            if room < 1:
                raise NoAnswer("the prompt is longer than its context")
            request = Request(session=session, ids=ids, max_tokens=room, temperature=0.0, seed=0, stop_ids=model.renderer.stop_ids)
            try:
                completion = model.policy(session, meter, limits)(request)
            finally:
                model.end(session)
        except (EtudeError, ValueError) as error:
            with self._lock:
                self._failed += 1
            self._count(asked=1, failed=1)
            raise NoAnswer(" ".join(str(error).split())) from None
        self._count(asked=1, input_tokens=meter.input_tokens, output_tokens=meter.output_tokens, failed=int(completion is None))
        if completion is None:
            raise NoAnswer(meter.stopped or "it has nothing to say")
        with self._lock:
            self._failed = 0
        return Kept(
            model=model.name,
            prompt=prompt,
            text=model.renderer.sampled_text(completion.ids),
            whole=completion.stopped,
            input_tokens=meter.input_tokens,
            output_tokens=meter.output_tokens,
        )

    def _count(self, **found: int) -> None:
        with self._lock:
            self._counts.update(found)


def told_of(tasks: Iterable[Task], writer: Writer) -> dict[str, Any]:
    """For the report: how many instructions are the model's, why the others are not, and what asking has cost in this build."""
    found = [task.evidence["writer"] for task in tasks if "writer" in task.evidence]
    refused = Counter(_general(str(each.get("reason", ""))) for each in found if not each["taken"])
    return {**writer.spent(), "taken": sum(bool(each["taken"]) for each in found), "refused": dict(sorted(refused.items()))}


def _general(reason: str) -> str:
    return re.sub(r"has lost .*", "has lost something", reason.partition(": ")[0])


# -- what must hold


def wrong(answer: str, text: str, needed: Sequence[str], gold: Iterable[str]) -> str:
    """Why a model's version of `text` may not stand for it; "" if it may."""
    if not answer:
        return "it is empty"
    words = words_of(answer)
    lost = [name for name in needed if name not in words]
    spans = [span for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) if span not in answer]
    blocks = [block for match in FENCE.finditer(text) if (block := match[0]) not in answer]
    if lost or spans:
        return f"it has lost {(lost or spans)[0]}"
    if blocks:
        return f"it has lost a block of code: {blocks[0].splitlines()[1]}"
    if len(answer) > LONGER * len(text):
        return "it is too long"
    said, had = _squeezed(answer), _squeezed(text)
    for line in gold:
        if (short := _squeezed(line)) in said and short not in had and len(short) >= GOLD_CHARS and CODE.search(short):
            return f"it holds code of the solution: {line}"
    return ""


def gold_lines(index: Index, proposal: Proposal) -> list[str]:
    """Lines of what is to be written, without docstrings."""
    found: dict[str, None] = {}
    for definition in proposal.symbols:
        source = index.sources[definition.path]
        docs = {number for node in ast.walk(definition.node) for number in _doc_lines(node)}
        for number in range(definition.line, definition.end_line + 1):
            if number not in docs and (line := source.line(number).decode(source.encoding, "replace").strip()):
                found[line] = None
    return list(found)


def _doc_lines(node: ast.AST) -> Iterator[int]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node, clean=False) is not None:
        yield from range(node.body[0].lineno, (node.body[0].end_lineno or node.body[0].lineno) + 1)


def _squeezed(text: str) -> str:
    return "".join(text.split())


# -- answers on disk


def _read(place: Path) -> Kept | None:
    try:
        return msgspec.convert(json.loads(place.read_bytes()), Kept)
    except (OSError, ValueError):  # none, or damaged
        return None


def _keep(place: Path, kept: Kept) -> Kept:
    """The answer that is on disk then: of two processes the first one's counts for both."""
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        new.write_bytes(json.dumps(msgspec.to_builtins(kept)).encode("ascii") + b"\n")
        try:
            os.link(new, place)
        except FileExistsError:
            first = _read(place)
            if first is not None:
                return first
            new.replace(place)  # it was damaged
    finally:
        new.unlink(missing_ok=True)
    return kept


def rewritten(task: Task, improved: Improved, whole: str, id: str) -> Task:
    """The task with the model's text (`whole`: what stays around it too) and its id then, or only with why not."""
    evidence = {**task.evidence, "writer": dict(improved.evidence)}
    return replace(task, instruction=whole, id=id, evidence=evidence) if improved.is_taken else replace(task, evidence=evidence)
