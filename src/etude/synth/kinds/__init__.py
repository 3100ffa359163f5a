"""The kinds of task, one file each: every one has a `find` that says what could be tried, in a fixed order.

    find(workshop, baseline, options, made) -> Iterable[Idea]      `made`: the tasks of this build so far, for kinds that combine them

An Idea is cheap: what it costs to work out is done in `make`, by the build's threads. All kinds go through the same proof and gates.

Not here: trying them (build.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from etude.synth.kinds import bug, deletion, joined, refactor, replay
from etude.synth.options import BuildOptions
from etude.synth.proposal import Idea, Made
from etude.synth.workshop import Baseline, Workshop

Find = Callable[[Workshop, Baseline, BuildOptions, Sequence[Made]], Iterable[Idea]]
FINDERS: Mapping[str, Find] = {
    "feature_deletion": deletion.find,
    "bug_injection": bug.find,
    "joined_features": joined.find,
    "commit_replay": replay.find,
    "refactor_back": refactor.find,
}
