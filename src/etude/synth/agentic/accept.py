"""What the machine demands of an agent's deletion before anything is proven, with reasons that an agent can act on.

    only source files, none new        tests, configuration and documents are the factory's
    what is left is the original       purity.py
    whole definitions                  at least MIN_LINES lines of code in them: no sabotage of one line
    not too much                       MAX_SYMBOLS, MAX_LINES, and the share of tests that may go with a feature
    named as they are                  the symbols that are submitted are those that are gone
    something notices                  a stable test reaches what is gone

In: the changed files; out: a Proposal with what was measured as evidence.

Not here: the proof (prove.py) and the gates, which are those of every other kind of task.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.agentic.purity import Impure, Loss, compare, refuse_partial, whole_file
from etude.synth.candidates import MAX_LINES, MAX_SYMBOLS, attribute
from etude.synth.cut import CutError
from etude.synth.names import Key
from etude.synth.proposal import FEATURE_DELETION, Proposal, clean_slug, propose_change
from etude.synth.prove import MAX_GONE_SHARE
from etude.synth.source import Definition, FunctionNode, Unreadable, is_trivial, parse
from etude.synth.workshop import Baseline, Changes, Workshop

MIN_LINES = 4  # of code, in the definitions that are gone
FREE_LINES = 2  # that may be added to a file: an import and __all__ with less
ADDED_SHARE = 0.02  # and of what was removed


class Refused(CutError):
    """The work is no deletion that could make a task; the message says why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What an agent says of its work."""

    feature: str
    symbols: tuple[str, ...]
    summary: str


class Coverage:
    """Which stable tests reach which definitions."""

    def __init__(self, workshop: Workshop, baseline: Baseline) -> None:
        self.workshop, self.baseline = workshop, baseline
        self.reached, self.fixed = attribute(workshop.index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN))

    def tests_of(self, definitions: Sequence[Definition]) -> frozenset[str]:
        """Of the definitions and everything in them."""
        keys: set[Key] = set()
        for definition in definitions:
            inner = self.workshop.index.sources[definition.path].definitions
            keys |= {each.key for each in inner if definition.line <= each.line <= definition.end_line}
        return frozenset().union(*(self.reached.get(key, ()) for key in sorted(keys)))

    def only(self, tests: frozenset[str]) -> list[Definition]:
        """The functions that these tests reach and no others."""
        found = [key for key, owners in self.reached.items() if owners and owners <= tests and key not in self.fixed]
        return [self.workshop.index.sources[path].by_line[line] for path, line in sorted(found)]


def accept(coverage: Coverage, changes: Changes, said: Submission, *, name: str, evidence: Mapping[str, Any]) -> Proposal:
    """Raises Refused."""
    try:
        return _accept(coverage, changes, said, name, evidence)
    except Refused:
        raise
    except (Impure, CutError) as error:
        raise Refused(str(error)) from None


def _accept(coverage: Coverage, changes: Changes, said: Submission, name: str, evidence: Mapping[str, Any]) -> Proposal:
    workshop = coverage.workshop
    losses = [_loss(workshop, path, data) for path, data in sorted(changes.items())]
    losses = [loss for loss in losses if loss.left is None or loss.left.data != loss.source.data]
    if not losses:
        raise Refused("nothing was deleted")
    gone = sorted((d for loss in losses for d in loss.definitions), key=lambda d: d.key)
    touched = refuse_partial(losses, workshop.index.is_taken)
    _refuse_size(losses, gone)
    _refuse_names(workshop, gone, said)
    tests = coverage.tests_of([*gone, *touched])
    noticed = coverage.tests_of(gone)
    if not noticed:
        raise Refused(f"no test that passes every time reaches {_listed(d.qualname for d in gone)}, so nobody would miss it")
    share = len(noticed) / len(coverage.baseline.stable)
    if share > MAX_GONE_SHARE:
        raise Refused(f"{share:.0%} of the tests reach it; at most {MAX_GONE_SHARE:.0%} may")
    added, removed = (sum(getattr(loss, which) for loss in losses) for which in ("added_lines", "removed_lines"))
    facts = {
        "files": len(losses),
        "symbols": len(gone),
        "groups": _groups(workshop, coverage, gone),  # 1: all of them hang together
        "removed_lines": removed,
        "added_lines": added,
        "tests": len(noticed),
        "also_changed": [f"{d.path}:{d.qualname}" for d in touched],
    }
    told = {"feature": said.feature, "summary": said.summary, "facts": facts, **evidence}
    if touched:
        where = _listed(f"`{d.qualname}` in `{d.path}`" for d in touched)
        told["preface"] = (
            f"What is missing was also used by {where}; {'it does' if len(touched) == 1 else 'they do'} not any more and should."
        )
    return propose_change(
        workshop,
        {loss.source.path: None if loss.left is None else loss.left.data for loss in losses},
        kind=FEATURE_DELETION,
        name=name,
        mode="remove",
        symbols=gone,
        tests=tests,
        slug=clean_slug(said.feature),
        evidence=told,
    )


def _loss(workshop: Workshop, path: str, data: bytes | None) -> Loss:
    refused = refusal(workshop, path)
    if refused:
        raise Refused(refused)
    old = workshop.index.sources[path]
    if data is None:
        return whole_file(old)
    try:
        new = parse(path, data)
    except Unreadable as error:
        raise Refused(f"{path} no longer parses: {error}") from None
    if new.encoding != old.encoding:
        raise Refused(f"{path} has another encoding now")
    return compare(old, new)


def refusal(workshop: Workshop, path: str) -> str:
    """Why this file may not be changed; "" if it may."""
    if path in workshop.layout.sources and path in workshop.index.sources:
        return "" if path.endswith(".py") else f"{path} is no Python file; it follows by itself"
    if path not in workshop.files:
        return f"there is no file {path}"
    if path in workshop.layout.tests:
        return f"{path} is a test; tests of what is gone are taken out by themselves, so leave them alone"
    return f"{path} is no source file; only code may go, the rest is cleaned by itself"


def _refuse_size(losses: Sequence[Loss], gone: Sequence[Definition]) -> None:
    if not gone:
        raise Refused("no whole function, method or class is gone")
    if all(isinstance(d.node, FunctionNode) and is_trivial(d.node) for d in gone):
        raise Refused(f"{_listed(d.qualname for d in gone)} had no code in it")
    lines = sum(_code_lines(loss, d) for loss in losses for d in gone if d.path == loss.source.path)
    if lines < MIN_LINES:
        raise Refused(f"only {lines} lines of code are gone with whole definitions; at least {MIN_LINES} make a feature")
    partial = sum(loss.partial_lines for loss in losses)
    if partial > lines:
        raise Refused(f"{partial} lines are gone inside of functions that stay, but only {lines} with whole definitions")
    total = sum(d.end_line - d.line + 1 for d in gone)
    if total > MAX_LINES or len(gone) > MAX_SYMBOLS:
        raise Refused(f"{len(gone)} definitions of {total} lines are gone; at most {MAX_SYMBOLS} of {MAX_LINES} lines may")
    added = sum(loss.added_lines for loss in losses)
    allowed = max(FREE_LINES * sum(loss.left is not None for loss in losses), int(ADDED_SHARE * sum(loss.removed_lines for loss in losses)))
    if added > allowed:
        raise Refused(f"{added} lines are new; at most {allowed} may be here, as this is a deletion")


def _code_lines(loss: Loss, definition: Definition) -> int:
    lines = (loss.source.line(number).strip() for number in range(definition.line, definition.end_line + 1))
    return sum(bool(line) and not line.startswith(b"#") for line in lines)


def _refuse_names(workshop: Workshop, gone: Sequence[Definition], said: Submission) -> None:
    """The symbols that were said are those that are gone; members of a class that is gone need not be said."""
    told = {name.strip().rpartition(":")[2].strip("`'\" ()") for name in said.symbols} - {""}
    names = {d.qualname for d in gone}
    inner = {each.qualname for d in gone for each in workshop.index.sources[d.path].definitions if d.line <= each.line <= d.end_line}
    still = sorted(told - names - inner)
    unsaid = sorted(names - told - {each for each in names if each.rpartition(".")[0] in told})
    if still:
        raise Refused(f"symbols names {_listed(still)}, which {'is' if len(still) == 1 else 'are'} not gone")
    if unsaid:
        raise Refused(f"{_listed(unsaid)} {'is' if len(unsaid) == 1 else 'are'} gone too, but not in symbols; name it or put it back")


def _groups(workshop: Workshop, coverage: Coverage, gone: Sequence[Definition]) -> int:
    """Into how many parts the definitions fall that neither name each other, nor share a class or a test."""
    words = [workshop.index.unit_of(d).words if not d.is_class else _class_words(workshop, d) for d in gone]
    tests = [coverage.tests_of([d]) for d in gone]
    parent = list(range(len(gone)))

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    for one in range(len(gone)):
        for other in range(one):
            near = gone[one].name in words[other] or gone[other].name in words[one] or not tests[one].isdisjoint(tests[other])
            if near or (gone[one].owner is not None and gone[one].owner is gone[other].owner):
                parent[root(one)] = root(other)
    return len({root(number) for number in range(len(gone))})


def _class_words(workshop: Workshop, definition: Definition) -> frozenset[str]:
    start, end = workshop.index.sources[definition.path].span(definition.node)
    source = workshop.index.sources[definition.path]
    return frozenset(re.findall(r"\w+", source.data[start:end].decode(source.encoding, "replace")))


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
