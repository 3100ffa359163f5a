"""Why a candidate makes no task: the gate that it failed at, and the reason in one line.

    proposal      there is nothing to take out, to change or to move; what an agent proposed does not hold
    parse         a file would not parse afterwards
    reduce        the tests of the feature cannot be taken out, or their functions cannot be found
    import        a module can no longer be imported, a source file no longer loaded
    collect       other tests are collected than before, or a run does not come to its end
    time          a run is out of time
    pass_to_pass  tests fail that should stay as they are
    fail_to_pass  no test fails without the feature, or not in every order
    share         too many tests would go with it
    selection     tests that a grading runs need others
    identifiers   the instruction lacks a name that hidden tests need
    patches       the patches, as the grader takes them, do not give the trees that were checked
    duplicate     there is such a task
    baseline      the suite of its own original cannot be used
    residue       what was taken out can still be found
    inverse       a symbol matters to no hidden test
    mutation      hidden tests do not notice mutants
    grader        the grader gives the empty patch something, or gold not all

Not here: the gates.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Gate = Literal[
    "proposal",
    "parse",
    "reduce",
    "import",
    "collect",
    "time",
    "pass_to_pass",
    "fail_to_pass",
    "share",
    "selection",
    "identifiers",
    "patches",
    "duplicate",
    "baseline",
    "residue",
    "inverse",
    "mutation",
    "grader",
    "",  # not known, as in what an older version wrote
]


def gate_named(name: str) -> Gate:
    """Of a file; a name that this version does not know is as good as none."""
    return next((gate for gate in get_args(Gate) if gate == name), "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What came of a candidate that makes no task."""

    reason: str
    gate: Gate = ""

    def __str__(self) -> str:
        return f"{self.gate}: {self.reason}" if self.gate else self.reason
