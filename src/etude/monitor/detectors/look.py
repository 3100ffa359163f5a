"""A trajectory -> its Deeds: made once and remembered for the last few, as every detector asks.

Not here: what single calls, commands and scripts did (uses.py).
"""

import re
from collections import Counter
from collections.abc import Sequence

from etude.grade.patches import FilePatch, parse
from etude.monitor.detectors.code import parse_python
from etude.monitor.detectors.deeds import Deeds, Ran, Source, Use, added, is_test, place_of
from etude.monitor.detectors.shell import parse_shell
from etude.monitor.detectors.uses import by_command, by_tool
from etude.monitor.trajectory import Trajectory

_ROOTS = ("/work", "/testbed", "/workspace", "/repo", "/app", "/src", "/code", "/project")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/dev", "/sys", "/proc", "/var", "/boot", "/run")

_LAST: list[tuple[Trajectory, Deeds]] = []


def look(trajectory: Trajectory) -> Deeds:
    for known, deeds in _LAST:
        if known is trajectory:
            return deeds
    deeds = _look(trajectory)
    _LAST.insert(0, (trajectory, deeds))
    del _LAST[4:]
    return deeds


def _look(trajectory: Trajectory) -> Deeds:
    patches = _patches(trajectory.patch)
    deeds = Deeds(trajectory=trajectory, root=_root(trajectory, patches), patches=patches)
    deeds.packages = trajectory.packages or _packages(trajectory, patches)
    scripts: dict[str, str] = {}  # place -> Python text that the trajectory wrote
    for step in trajectory.steps:
        for act in step.acts:
            by_tool(act, step.index, deeds, scripts)
            cwd = deeds.root
            for command in parse_shell(act.command, cwd) if act.command else ():
                ran = Ran(step=step.index, command=command, act=act)
                deeds.commands.append(ran)
                by_command(ran, deeds, scripts)
    for patch in patches:
        path = patch.new or patch.old or ""
        if path.endswith((".py", ".pyi", ".pth")) and not patch.binary and patch.new:
            deeds.sources.append(Source(step=-1, path=path, code=parse_python("\n".join(added(patch)))))
    for event in trajectory.events or ():
        if event.kind in ("read", "written"):
            deeds.uses.append(
                Use(
                    step=event.step,
                    how="log" if event.kind == "read" else "write",
                    place=place_of(event.what, "", deeds.root),
                    quote=event.what,
                )
            )
    return deeds


def _patches(text: str) -> list[FilePatch]:
    try:
        return parse(text)
    except ValueError:
        return []


def _root(trajectory: Trajectory, patches: Sequence[FilePatch]) -> str:
    """The workspace, as the agent names it: a patched file shows it, else where it works most, else a usual one that is named."""
    if trajectory.source == "etude":
        return "/work"
    paths = [act.path for step in trajectory.steps for act in step.acts if act.path.startswith("/")]
    commands = [act.command for step in trajectory.steps for act in step.acts if act.command]
    named = {path for patch in patches for path in patch.paths}
    for path in paths:
        root = next((path.removesuffix(f"/{inner}") for inner in named if path.endswith(f"/{inner}")), None)
        if root is not None:
            return root
    places: Counter[str] = Counter(match for command in commands for match in re.findall(r"(?:^|[;&\n(]\s*)cd\s+(/[\w./-]+)", command))
    for place, _ in places.most_common():
        if not place.startswith((*SYSTEM, "/tmp")):
            return place.rstrip("/")
    text = "\n".join([*paths, *commands])
    return next((root for root in _ROOTS if re.search(rf"{root}(?:/|\b)", text)), "")


def _packages(trajectory: Trajectory, patches: Sequence[FilePatch]) -> tuple[str, ...]:
    names = set()
    for patch in patches:
        for path in patch.paths:
            parts = [part for part in path.split("/") if part not in ("src", "lib", "python", "packages", ".")]
            if path.endswith(".py") and len(parts) > 1 and not is_test(path):
                names.add(parts[0])
    match = re.match(r"(?:[\w.-]+__)?([A-Za-z][\w.]*)-\d+\Z", trajectory.task_id)
    if match:
        names.add(match[1])
    return tuple(sorted(names))
