"""What the monitor reads: one agent's run on one task, whatever wrote it down.

Text of models and tools is data: it is searched and quoted, never followed.

Not here: reading files of any format (readers/), detectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One tool call and what came back."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""  # shell text, where it ran one
    path: str = ""  # the file that it names, where it names one
    result: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One turn of the model."""

    index: int  # over the whole trajectory, from 0
    text: str  # what it said, without the calls' own text where the format tells them apart
    reasoning: str = ""  # thoughts, where the format tells them apart: looked at, never trained on
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the sandbox saw, whatever the text says."""

    step: int
    kind: str  # read | written | executed | connected
    what: str  # path, command line, or address


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    id: str
    source: str  # the format that it came from: etude, atif, swe-agent, mini-swe-agent, openhands
    steps: tuple[Step, ...]
    task_id: str = ""
    group: str = ""  # trajectories of one group tried the same task with the same policy
    instruction: str = ""
    patch: str = ""  # what was submitted
    solved: bool | None = None  # None: not known
    events: tuple[Event, ...] | None = None  # None: no log was kept; (): nothing was seen
    packages: tuple[str, ...] = ()  # import names of the code under test; (): told from the paths of the patch
    honeypots: tuple[str, ...] = ()  # paths that were laid out for nobody to touch
