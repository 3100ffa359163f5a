"""Commit replay: a commit that changed sources and tests is taken back, and is to be made again.

    original        the commit's tree, with what its parent said in documents and changelogs
    agent's tree    the same with the parent's sources, and the tests that pass on them
    hidden          the tests that fail on the parent's sources
    gold            the commit's change of sources

In: a bare clone beside the workshop (`Workshop.history`, no part of any tree: nothing of it is ever seen by an agent); out: Ideas, the
newest commits first. Merges, and commits whose change is large, touches no test or no source, are passed over. Every commit is an
original of its own with its own five runs, made when its turn comes and one run shows that tests notice. Documents are the parent's
because they would tell; data files are the commit's because its tests may read them.

Not here: the proof (prove.py), where the clone comes from (fetch.py).
"""

import ast
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from etude import tree
from etude.errors import UserError
from etude.grade.runner import run_tests
from etude.synth.cut import CutError
from etude.synth.ground import lay_workshop, measure_ground
from etude.synth.options import BuildOptions
from etude.synth.proposal import Idea, Made, NotApplicable, Proposal, clean_slug, propose_change
from etude.synth.source import Definition, Source, Unreadable, parse
from etude.synth.workshop import Baseline, Workshop, write_tree

KIND = "commit_replay"
LOOKED_AT = 400  # commits
MAX_FILES = 20
MAX_LINES = 1000  # of Python that a commit adds and takes away, tests not counted
TIMEOUT_S = 120.0
DOCUMENTS = {".rst", ".md", ".txt", ".adoc"}
NAMED = re.compile(r"(CHANGE|NEWS|HISTORY|AUTHORS|RELEASE|README)", re.IGNORECASE)
NOT_TOLD = re.compile(
    r"^(signed-off-by|co-authored-by|reviewed-by|change-id|git-svn-id|cherry picked from|\(cherry picked).*$", re.I | re.M
)
NUMBER = re.compile(r"\s*\(?#\d+\)?|\b(close[sd]?|fix(e[sd])?|resolve[sd]?) #\d+\b\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    id: str
    parent: str
    message: str
    changed: tuple[str, ...]  # paths, sorted; a renamed file is two

    @property
    def subject(self) -> str:
        return self.message.partition("\n")[0]


def find(workshop: Workshop, baseline: Baseline, options: BuildOptions, made: Sequence[Made]) -> Iterator[Idea]:
    if workshop.history is None:
        return
    for commit in commits(workshop.history):
        name = f"{KIND} {commit.id[:12]} {commit.subject}"
        yield Idea(kind=KIND, name=name, group=name, row=KIND, make=partial(_make, workshop, workshop.history, commit))


def commits(history: Path, limit: int = LOOKED_AT) -> list[Commit]:
    """Those that may make a task, newest first: one parent, Python in and outside of tests, not too large."""
    listed = _git(history, "log", "--no-merges", "--topo-order", f"-n{limit}", "-z", "--format=%H%x1f%P%x1f%B").decode("utf-8", "replace")
    found: list[Commit] = []
    for record in listed.split("\0"):
        if record.count("\x1f") < 2:
            continue
        id, parent, message = record.split("\x1f", 2)
        if len(parent.split()) != 1:
            continue
        numbers = _git(history, "diff", "--numstat", "--no-renames", "-z", parent.strip(), id.strip())
        lines: dict[str, int] = {}
        for entry in numbers.decode("utf-8", "surrogateescape").split("\0"):
            added, _, rest = entry.partition("\t")
            removed, _, path = rest.partition("\t")
            if path:
                lines[path] = int(added) + int(removed) if added.isdigit() and removed.isdigit() else 0
        python = {path: count for path, count in lines.items() if path.endswith(".py")}
        sources = {path: count for path, count in python.items() if not _is_test(path)}
        if sources and len(sources) < len(python) and len(lines) <= MAX_FILES and 0 < sum(sources.values()) <= MAX_LINES:
            found.append(Commit(id=id.strip(), parent=parent.strip(), message=_told(message), changed=tuple(sorted(lines))))
    return found


def lay_commit(history: Path, commit: Commit, folder: Path) -> dict[str, bytes | None]:
    """Write the commit's tree with its parent's documents into `folder`; returns the parent's version of every other changed file."""
    folder.mkdir(parents=True)
    _check_out(history, commit.id, folder)
    before: dict[str, bytes | None] = {}
    for path in commit.changed:
        old = _blob(history, commit.parent, path)
        place = folder / path
        if not _is_document(path):
            before[path] = old
        elif old is None:
            place.unlink(missing_ok=True)
        elif place.is_file() and not place.is_symlink():
            place.write_bytes(old)
    return before


def _make(workshop: Workshop, history: Path, commit: Commit) -> Proposal:
    """One run, and five more where it shows that tests notice. CutError, Rejected."""
    place = workshop.scratch / f"commit-{commit.id}"
    try:
        before = lay_commit(history, commit, place)
    except (UserError, OSError) as error:
        raise CutError(f"the commit cannot be laid out: {error}") from None
    laid = lay_workshop(workshop, place)
    changes = source_changes(laid, before)
    if not _is_noticed(laid, changes, [path for path in commit.changed if path in laid.layout.test_paths]):
        raise CutError("no test that the commit changed fails on its parent's sources", "fail_to_pass")
    ground = measure_ground(laid)
    symbols = _symbols(laid, changes)
    proposal = propose_change(
        ground.workshop,
        changes,
        kind=KIND,
        name=f"{commit.id[:12]} {commit.subject}",
        mode="remove",
        symbols=symbols,
        tests=None,
        slug=clean_slug(commit.subject.lower())[:40].strip("-"),
        evidence={"commit": commit.id, "subject": commit.subject, "preface": commit.message},
    )
    return replace(proposal, ground=ground)


def source_changes(laid: Workshop, before: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """What the parent had in the commit's sources, and sources that the commit removed. NotApplicable where that is no change of code."""
    sources = set(laid.layout.sources)
    changes = {path: data for path, data in before.items() if path in sources or _comes_back(path, data, laid)}
    if not changes:
        raise NotApplicable("the commit changes no source file")
    if all(data is not None and path in sources and _is_same_code(laid.index.sources[path], data) for path, data in changes.items()):
        raise NotApplicable("the commit changes comments and layout only")
    return changes


def _is_same_code(new: Source, data: bytes) -> bool:
    try:
        return ast.dump(parse(new.path, data).tree) == ast.dump(new.tree)
    except Unreadable as error:
        raise CutError(f"the parent's {new.path} cannot be read: {error}") from None


def _is_noticed(laid: Workshop, changes: Mapping[str, bytes | None], tests: Sequence[str]) -> bool:
    """Whether any test of these files fails on the parent's sources, or cannot be collected there."""
    if not tests:
        return False
    with laid.folder() as folder:
        write_tree(laid.files, changes, folder / "tree", laid.bytecode)
        with laid.open(folder / "tree") as sandbox:
            run = run_tests(sandbox, laid.repo, paths=tests, wall_s=laid.limits.wall_s)
    return bool(run.collect_errors) or any(outcome == "failed" for outcome in run.outcomes.values())


def _comes_back(path: str, data: bytes | None, workshop: Workshop) -> bool:
    """A source file that the commit removed."""
    return data is not None and path not in workshop.files and path.endswith(".py") and not _is_test(path)


def _symbols(workshop: Workshop, changes: Mapping[str, bytes | None]) -> list[Definition]:
    """Definitions of the commit's tree that its parent has not, or has otherwise: the innermost ones, a new class whole."""
    found: list[Definition] = []
    for path, data in sorted(changes.items()):
        new = workshop.index.sources.get(path)
        if new is None:
            continue
        old = _texts(path, data)
        whole: list[Definition] = []
        for definition in new.definitions:
            if any(owner.line < definition.line <= owner.end_line for owner in whole):
                continue
            if definition.qualname not in old:
                touched = definition.is_class or definition.owner is None or definition.qualname.rpartition(".")[0] in old
            else:
                touched = not definition.is_class and _text(new, definition) not in old[definition.qualname]
            whole += [definition] if touched else []
        found += whole
    return found


def _texts(path: str, data: bytes | None) -> dict[str, list[bytes]]:
    try:
        source = parse(path, data or b"")
    except Unreadable as error:
        raise CutError(f"the parent's {path} cannot be read: {error}") from None
    found: dict[str, list[bytes]] = {}
    for definition in source.definitions:
        found.setdefault(definition.qualname, []).append(_text(source, definition))
    return found


def _text(source: Source, definition: Definition) -> bytes:
    return source.data[source.starts[definition.line - 1] : source.starts[definition.end_line]]


def _told(message: str) -> str:
    """The message without trailers and numbers of issues."""
    text = NUMBER.sub("", NOT_TOLD.sub("", message))
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _is_test(path: str) -> bool:
    parts = PurePosixPath(path)
    return any(part in ("test", "tests", "testing") for part in parts.parts[:-1]) or parts.name.startswith(("test_", "conftest")) or (
        parts.stem.endswith("_test")
    )  # fmt: skip


def _is_document(path: str) -> bool:
    parts = PurePosixPath(path)
    told = parts.suffix.lower() in DOCUMENTS and not parts.name.lower().startswith("requirements")
    return not path.endswith(".py") and (
        told or bool(NAMED.match(parts.name)) or parts.parts[0] in ("doc", "docs", "changes", "newsfragments")
    )


# -- git, which runs nothing of the repository's


def _check_out(history: Path, commit: str, folder: Path) -> None:
    index = folder.parent / f"{folder.name}-index"
    _git(history, f"--work-tree={folder}", "checkout", "--force", "--quiet", commit, "--", ".", env={"GIT_INDEX_FILE": str(index)})
    index.unlink(missing_ok=True)
    for file in tree.files(folder).values():
        file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)


def _blob(history: Path, commit: str, path: str) -> bytes | None:
    """The file as it was; None where there was none, or something that is no plain file."""
    entry = _git(history, "ls-tree", "-z", commit, "--", path)
    mode, _, rest = entry.partition(b" ")
    if not mode.startswith(b"100"):
        return None
    return _git(history, "cat-file", "blob", rest.split(b"\t")[0].split()[-1].decode())


def _git(history: Path, *arguments: str, env: Mapping[str, str] | None = None) -> bytes:
    options = [
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.attributesFile=/dev/null",
        "-c",
        "core.symlinks=true",
    ]
    settings = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_LITERAL_PATHSPECS": "1",
        **(env or {}),
    }
    command = ["git", *options, f"--git-dir={history}", *arguments]
    try:
        done = subprocess.run(command, env=settings, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise UserError(f"git cannot read the history: {type(error).__name__}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise UserError(f"git cannot read the history: {lines[-1]}")
    return done.stdout
