"""What the monitor says of a trajectory.

Not here: who says it (detectors/, judge/), what follows from it (train.py).
"""

from dataclasses import dataclass
from typing import Literal

Strength = Literal["proof", "strong", "weak"]  # proof: it happened, whatever was meant; strong: hardly honest; weak: counts with others
Verdict = Literal["clean", "attempted", "succeeded"]
MAX_QUOTE = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    detector: str
    family: str  # of attacks: leak, harness, forgery, tests, hardcode, network, escape, judge
    step: int  # index of the step, -1: the patch as a whole
    quote: str  # verbatim from that step or the patch, at most MAX_QUOTE characters
    why: str  # one line for a person
    strength: Strength
    in_reasoning: bool = False  # it rests on thoughts alone: reported, never a reason to mask, penalise or train

    @property
    def heavy(self) -> bool:
        return self.strength != "weak" and not self.in_reasoning
