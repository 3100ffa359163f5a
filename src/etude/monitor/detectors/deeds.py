"""What a trajectory did, whichever tools it used for it: commands, files that were touched, code that was run or left behind.

    Trajectory --look.py, uses.py--> Deeds(commands, uses, sources, patches, ...)

A place is a path as the workspace sees it: relative inside of it, absolute elsewhere. Uses come from tool calls, from shell commands and
from Python code that was run (-c, heredocs, scripts that the trajectory wrote itself), and from the sandbox's log where one was kept.

Not here: which of it is suspicious (the detectors).
"""

import posixpath
import re
from dataclasses import dataclass, field

from etude.grade.patches import FilePatch
from etude.monitor.detectors.code import Code
from etude.monitor.detectors.shell import Command
from etude.monitor.trajectory import Act, Trajectory

_QUOTE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A file or folder that was touched."""

    step: int
    how: str  # read | list | search | write | edit | delete | copy | link | log
    place: str
    quote: str
    new: str = ""  # written text
    old: str = ""  # what an edit replaced
    target: str = ""  # of a copy or a link
    result: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One simple command."""

    step: int
    command: Command
    act: Act

    @property
    def quote(self) -> str:
        return shorten(self.command.text or " ".join(self.command.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Python text that was run, written, or submitted."""

    step: int  # -1: in the patch
    path: str  # "" for code that was run from no file
    code: Code
    executed: bool = False
    act: Act | None = None

    @property
    def submitted(self) -> bool:
        return self.step < 0


@dataclass(slots=True, kw_only=True)
class Deeds:
    trajectory: Trajectory
    root: str
    commands: list[Ran] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    patches: list[FilePatch] = field(default_factory=list)
    packages: tuple[str, ...] = ()
    made: dict[str, int] = field(default_factory=dict)  # place -> the step in which the trajectory made it

    def made_before(self, place: str, step: int) -> bool:
        """The trajectory itself wrote that file, or a file in that folder, earlier."""
        return any(
            at <= step and (place == own or own.startswith(f"{place.rstrip('/')}/") or place.startswith(f"{own}/"))
            for own, at in self.made.items()
        )

    @property
    def code_in_patch(self) -> list[Source]:
        """Submitted sources that are no tests; what was written, where there is no patch."""
        submitted = [source for source in self.sources if source.submitted and not is_test(source.path)]
        if submitted or self.patches:
            return submitted
        return [one for one in self.sources if one.path and not one.executed and not is_test(one.path) and not one.path.startswith("/")]


def shorten(text: str, limit: int = _QUOTE) -> str:
    return text.strip()[:limit]


def is_test(path: str) -> bool:
    name = posixpath.basename(path)
    named = name.startswith("test_") or name.endswith(("_test.py", "_tests.py", "_test.go", ".test.js", ".test.ts", ".spec.js", ".spec.ts"))
    return (
        named
        or name == "conftest.py"
        or name.endswith(("Test.java", "Tests.java"))
        or bool({"tests", "test", "__tests__", "testing"} & set(path.split("/")[:-1]))
    )


def added(patch: FilePatch) -> list[str]:
    return [line[1:] for line in patch.body if line.startswith("+")]


def removed(patch: FilePatch) -> list[str]:
    return [line[1:] for line in patch.body if line.startswith("-")]


def new_side(patch: FilePatch) -> str:
    """The new file as far as the diff shows it: added lines and those around them."""
    return "\n".join(line[1:] if line[:1] in "+ " else "" for line in patch.body if line[:1] in ("+", " ", "") or line.startswith("@@"))


def place_of(path: str, cwd: str, root: str) -> str:
    path = path.strip().removeprefix("file://")
    path = re.sub(r"^\$(?:HOME\b|\{HOME\})", "~", path)
    if path.startswith("~"):
        path = "/root" + path[1:]
    if not path.startswith("/"):
        path = posixpath.join(cwd or root, path)
    path = posixpath.normpath(path)
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) + 1 :] or "."
    return path
