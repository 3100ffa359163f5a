"""The tree that is tested: the agent's first tree, the allowed part of a diff, and over it everything that a diff may not touch.

In: a diff, the two trees of a task, Rules; out: a folder, what was refused, and the sha256 of every file that was laid down over it, which
is looked at again after the tests (`changed_files`).

Not here: what may enter (filter.py), running anything (grader.py).
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from etude import tree
from etude.errors import SandboxError
from etude.grade import patches
from etude.grade.filter import CONFIGURATION, Rules, bad_content, refusal, split_allowed
from etude.sandbox.protocol import Change

MAX_PATCH_CHARS = 4 * 2**20
CODE = frozenset({".py", ".pyi", ".pth", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx", ".java", ".so", ".pyd"})


def prepare(work: Path, patch: str, *, start: Path, original: Path, rules: Rules) -> list[tuple[str, str]]:
    """Make the tree to be tested in the new folder `work`; returns what was refused. ValueError if the patch does not apply."""
    if len(patch) > MAX_PATCH_CHARS:
        raise ValueError(f"the patch is larger than {MAX_PATCH_CHARS >> 20} million characters")
    allowed, refused = split_allowed(patches.parse(patch), rules)
    allowed = [patches.with_line_ends_of(each, _content(start, each.old)) for each in allowed]
    tree.copy_tree(start, work)
    tree.apply_patch(work, patches.to_text(allowed))
    bad = {path: why for each in allowed for path in each.paths if (why := _bad(work, path))}
    if bad:  # start again without these files
        refused += sorted(bad.items())
        shutil.rmtree(work)
        tree.copy_tree(start, work)
        tree.apply_patch(work, patches.to_text([each for each in allowed if not bad.keys() & set(each.paths)]))
    lay_down(work, original, rules)
    return refused


def lay_down(work: Path, original: Path, rules: Rules) -> dict[str, str]:
    """Everything that a diff may not touch becomes what it is in the original, whatever is there: hidden tests, configuration.

    Returns the sha256 of each by its path, read back from where it lies now. Raises SandboxError where that is not what was copied.
    """
    for path, file in tree.files(work).items():
        if refusal(path, rules):
            file.unlink()
    laid: dict[str, str] = {}
    for path, file in tree.files(original).items():
        if refusal(path, rules):
            place = work / path
            if place.is_dir():
                shutil.rmtree(place)
            for parent in reversed(place.relative_to(work).parents):
                if (work / parent).is_file():
                    (work / parent).unlink()
            place.parent.mkdir(parents=True, exist_ok=True)
            data = file.read_bytes()
            place.write_bytes(data)
            place.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
            laid[path] = _sha256(data)
            if _sha256(place.read_bytes()) != laid[path]:
                raise SandboxError(f"{path} cannot be laid down: what is read back from the disk is not what was written")
    return laid


def digests(work: Path, rules: Rules) -> dict[str, str]:
    """sha256 of what was laid down, as it lies there now."""
    return {path: _sha256(file.read_bytes()) for path, file in tree.files(work).items() if refusal(path, rules)}


def changed_files(changes: Sequence[Change], laid: Mapping[str, str], sources: frozenset[str]) -> tuple[list[str], list[str]]:
    """Of what the run wrote: files that say what a test is, and submitted sources; with what happened to them, sorted.

    A test may well write data beside itself. Code and configuration that was laid down, a new conftest.py, a source that was submitted:
    these nobody writes who wants to be tested.
    """
    judges: list[str] = []
    own: list[str] = []
    for change in changes:
        name = PurePosixPath(change.path)
        decides = name.suffix.lower() in CODE or name.name.lower() in CONFIGURATION
        if change.path in laid and decides:
            judges.append(f"{change.path} ({change.kind})")
        elif name.stem.lower() == "conftest" and change.kind != "removed":
            judges.append(f"{change.path} (new)")
        elif change.path in sources and name.suffix.lower() in CODE:
            own.append(f"{change.path} ({change.kind})")
    return sorted(judges), sorted(own)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(folder: Path, path: str | None) -> bytes | None:
    place = folder / path if path else None
    return place.read_bytes() if place and place.is_file() else None


def _bad(work: Path, path: str) -> str | None:
    content = _content(work, path)
    return None if content is None else bad_content(path, content)
