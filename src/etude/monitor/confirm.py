"""A confirmed case becomes a regression test: its trajectory, reduced to what the detectors need, as one JSON file.

    confirm(trajectory, findings, out)  ->  OUT/CASE.json {"case", "families", "detectors", "note", "trajectory"}
    missed(read_confirmed(path))        ->  families that nothing finds any more: a test that runs over all files asserts none

Steps, results and texts go as long as every detector that spoke still says the same. Where no detector spoke (a judge or a person found
it), the steps that the findings name stay, and the test fails until a detector is written: that is its purpose.

Not here: the decision (queue.py).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from etude.errors import UserError
from etude.monitor.finding import Finding
from etude.monitor.inspect import Inspected, inspect
from etude.monitor.trajectory import Act, Step, Trajectory
from etude.runfolder import write_atomically

KEPT_CHARS = 400  # of a text that a finding does not need whole
MAX_TRIES = 400  # inspections while reducing


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    case: str
    families: tuple[str, ...]
    detectors: tuple[str, ...]  # that found it when it was confirmed; () where none did
    trajectory: Trajectory
    note: str = ""


def confirm(trajectory: Trajectory, findings: Sequence[Finding], out: Path, *, note: str = "") -> tuple[Path, Confirmed]:
    """`findings`: those of the case. Raises: UserError where there are none."""
    if not findings:
        raise UserError(f"{trajectory.id} has no finding that says what it did; a test needs one")
    alone = _found(trajectory)
    reduced = _reduce(trajectory, alone) if alone else _around(trajectory, findings)
    made = Confirmed(
        case=trajectory.id,
        families=tuple(sorted({family for _, family in alone} or {one.family for one in findings})),
        detectors=tuple(sorted({detector for detector, _ in alone})),
        trajectory=reduced,
        note=note,
    )
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", trajectory.id).strip("-.")[:80] or "case"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    text = json.dumps(msgspec.to_builtins(made), indent=1, sort_keys=True)  # half characters stay, as escapes
    write_atomically(path, f"{text}\n")
    return path, made


def read_confirmed(path: Path) -> Confirmed:
    """Raises: UserError."""
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Confirmed)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UserError(f"{path} is no confirmed case: {error}") from None


def missed(confirmed: Confirmed) -> list[str]:
    """Families of the case in which nothing heavy is found; [] where all is as it was confirmed."""
    (one,) = inspect([confirmed.trajectory], compare=False)
    found = {finding.family for finding in one.findings if finding.heavy}
    return [family for family in confirmed.families if family not in found]


def _heavy(one: Inspected) -> frozenset[tuple[str, str]]:
    return frozenset((f.detector, f.family) for f in one.findings if f.heavy)


def _found(one: Trajectory) -> frozenset[tuple[str, str]]:
    (inspected,) = inspect([one], compare=False)
    return _heavy(inspected)


def _reduce(one: Trajectory, wanted: frozenset[tuple[str, str]]) -> Trajectory:
    """Without the steps that no finding needs, larger groups first; then with short texts where they do."""
    left = MAX_TRIES

    def holds(candidate: Trajectory) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and wanted <= _found(candidate)

    size = len(one.steps) // 2
    while size:
        at = 0
        while at < len(one.steps):
            shorter = replace(one, steps=(*one.steps[:at], *one.steps[at + size :]))
            if len(shorter.steps) < len(one.steps) and holds(shorter):
                one = shorter
            else:
                at += size
        size //= 2
    for k, step in enumerate(one.steps):
        shorter = replace(one, steps=(*one.steps[:k], _short(step), *one.steps[k + 1 :]))
        one = shorter if shorter != one and holds(shorter) else one
    for shorter in (replace(one, instruction=""), replace(one, patch="", instruction="")):
        one = shorter if shorter != one and holds(shorter) else one
    return one


def _around(one: Trajectory, findings: Sequence[Finding]) -> Trajectory:
    named = {finding.step for finding in findings}
    return replace(one, steps=tuple(step for step in one.steps if step.index in named))


def _short(step: Step) -> Step:
    return replace(step, text=step.text[:KEPT_CHARS], reasoning="", acts=tuple(map(_short_act, step.acts)))


def _short_act(act: Act) -> Act:
    return replace(act, result=act.result[:KEPT_CHARS])
