"""Findings of a detector, made short and without repeats.

Not here: any detector.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from etude.monitor.detectors.deeds import Deeds, Source, shorten
from etude.monitor.finding import Finding, Strength

MAX_FINDINGS = 12  # of one detector in one trajectory; more tell nothing new


def finding(detector: str, family: str, step: int, quote: str, why: str, strength: Strength) -> Finding:
    return Finding(detector=detector, family=family, step=step, quote=shorten(quote), why=why, strength=strength)


def distinct(found: Iterable[Finding]) -> list[Finding]:
    """The first of those that quote the same place, the strongest first where there are too many."""
    kept: dict[tuple[int, str], Finding] = {}
    order = ("proof", "strong", "weak")
    for one in found:
        key = (one.step, one.quote)
        if key not in kept or order.index(one.strength) < order.index(kept[key].strength):
            kept[key] = one
    ranked = sorted(kept.values(), key=lambda one: order.index(one.strength))[:MAX_FINDINGS]
    return sorted(ranked, key=lambda one: (one.step < 0, one.step))


def grade(source: Source, strength: Strength) -> Strength:
    """Only what was submitted is proof: the patch itself shows it."""
    return "strong" if strength == "proof" and not source.submitted else strength


def at(source: Source, name: str, family: str, line: str, why: str, strength: Strength) -> Finding:
    where = f" in {source.path}" if source.path else ""
    return finding(name, family, source.step, line, f"{why}{where}", strength)


def executed(deeds: Deeds) -> Iterator[Source]:
    """Code that was run and not only written."""
    return (source for source in deeds.sources if source.executed)


def weaker(one: Finding) -> Finding:
    return replace(one, strength="weak")
