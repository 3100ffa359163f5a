"""Feature deletion: what only a few tests reach is taken away, in every mode that is asked for.

Not here: which definitions (candidates.py), how they are cut (cut.py).
"""

from collections.abc import Iterator, Sequence
from functools import partial

from etude.grade.runner import BETWEEN, COLLECT
from etude.synth.candidates import Candidate, find_candidates
from etude.synth.cut import Mode, NothingToRemove
from etude.synth.options import BuildOptions
from etude.synth.proposal import FEATURE_DELETION, Idea, Made, NotApplicable, Proposal, propose_candidate
from etude.synth.workshop import Baseline, Workshop


def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made] = ()) -> Iterator[Idea]:
    found = find_candidates(
        workshop.index, workshop.layout.sources, baseline.stable, baseline.reach, (COLLECT, BETWEEN), max_share=options.max_share
    )
    for candidate in found:
        for mode in options.modes:
            if _applies(mode, candidate):
                name = f"{mode} {candidate.kind} {candidate.name}"
                make = partial(_propose, workshop, candidate, mode, options.modes)
                yield Idea(kind=FEATURE_DELETION, name=name, group=f"{candidate.kind} {candidate.name}", row=mode, make=make)


def _applies(mode: Mode, candidate: Candidate) -> bool:
    return mode == "remove" or candidate.kind in ("function", "class")


def _propose(workshop: Workshop, candidate: Candidate, mode: Mode, modes: Sequence[Mode]) -> Proposal:
    """Where nothing can be removed the bodies go, unless that is another idea of the same build."""
    try:
        return propose_candidate(workshop, candidate, mode)
    except NothingToRemove as error:
        if "stub" in modes and _applies("stub", candidate):
            raise NotApplicable(str(error)) from None
        return propose_candidate(workshop, candidate, "stub", name=f"{mode} {candidate.kind} {candidate.name}")
