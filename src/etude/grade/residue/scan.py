"""The residue scan: can what a cut removed still be read anywhere that the agent can look?

In: the agent's tree, Needles, and every other folder that is visible inside (the environment, a home); out: Findings, none for a clean
task. Every file is opened as far as it goes. What could not be looked into is a finding too: the scan fails closed.

How telling a hit is depends on where it is. The agent's tree came from the repository itself: one name of a removed definition outside
of the plain sources is enough. In another folder a word may be an accident, so it takes a good part of a removed piece, or several
names of it together that hardly any other file has.

A Scanner reads each content once, whatever the number of tasks: what stays of a file are hashes. It may be used by many threads.

Not here: what is looked for (needles.py), what may be removed (scrub.py).
"""

import contextlib
import hashlib
import json
import os
import stat
import sysconfig
import threading
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.grade.residue.leftovers import is_removable
from etude.grade.residue.needles import Kind, Needle, Needles, bytecode_names, make_needles
from etude.grade.residue.unpack import ScanLimits, open_up
from etude.grade.residue.words import features, hash_word, split

WORKSPACE = "workspace"
FORMAT = 1  # of what is kept on disk
SHOWN = 5  # hits named in a finding
OWN = {"definition": 1.0, "parameter": 0.5, "constant": 1.0, "name": 0.5, "word": 0.25, "lines": 0.5, "bytecode": 0.5}
OTHER = {"definition": 0.4, "parameter": 0.25, "constant": 0.25, "name": 0.2, "word": 0.0, "lines": 0.0, "bytecode": 0.0}
ROWS = ("lines", "bytecode")  # five words each
MAX_WORDS = 0.75  # what words of prose add up to at most
OTHER_SHARE, OTHER_GRAMS = 0.2, 5  # of a removed piece's rows of words, in one file of another folder
OTHER_CODE_SHARE = 0.5  # of its rows of names in bytecode
OTHER_NAMES = 0.4  # of a removed piece's names, in one file of another folder
COMMON_FILES = 12  # a word in more files of another folder says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    folder: str  # "workspace", or the name that the caller gave
    path: str  # of the file in it
    inside: str  # "!pkg/core.py" within an archive, "" for the file itself
    kind: Kind
    matched: tuple[str, ...]  # the most telling ones
    why: str
    removable: bool  # the scrub may take the file away

    @property
    def place(self) -> str:
        return f"{self.folder}:{self.path}{self.inside}"

    def __str__(self) -> str:
        return "".join(letter if letter.isprintable() else "?" for letter in f"{self.place}: {self.why}")


@dataclass(frozen=True, slots=True)
class _Part:
    """What is remembered of one piece of a file."""

    inside: str
    hashes: "array[int]"
    problem: str


class Scanner:
    def __init__(self, limits: ScanLimits = ScanLimits(), *, cache: Path | None = None) -> None:
        """`cache`: a folder for what was read of the other folders; None: in memory only."""
        self.limits = limits
        self.cache = cache
        self._contents: dict[tuple[bytes, str], list[_Part]] = {}
        self._plain: dict[bytes, array[int]] = {}
        self._folders: dict[Path, list[tuple[str, list[_Part]]]] = {}
        self._lock = threading.Lock()  # one reads a folder, the others wait

    def needles(self, original: Path, cut: Path, *, but: Container[str] = ()) -> Needles:
        return make_needles(original, cut, self, but=but)

    def scan(self, workspace: Path, needles: Needles, others: Mapping[str, Path] = {}) -> tuple[Finding, ...]:
        """Sorted by place. The other folders are taken as unchanged while this Scanner lives."""
        keys = frozenset(needles.by_feature)
        found: list[Finding] = []
        for path, parts in self._files(workspace):
            found += _own_findings(path, parts, needles, keys)
        found += [
            _finding(
                WORKSPACE,
                copy.path,
                "",
                "copy",
                (needles.pieces[copy.piece].name,),
                f"still holds {copy.share:.0%} of {_where(needles, copy.piece)}",
            )
            for copy in needles.copies
            if (workspace / copy.path).is_file()
        ]
        for name, folder in others.items():
            found += _other_findings(name, self._folder(folder), needles, keys)
        return tuple(sorted(found, key=lambda finding: (finding.folder != WORKSPACE, finding.place, finding.kind)))

    def features_of(self, file: Path) -> tuple[bytes, set[int]]:
        """The bytes of a plain file and the features of its text, and of its bytecode."""
        data = file.read_bytes()
        key = hashlib.sha256(data).digest()
        if key not in self._plain:
            found = features(data)
            if file.suffix == ".py":
                for optimize in (0, 2):
                    found = found.union(*(features(names) for _, names in bytecode_names(data, optimize)))
            self._plain[key] = array("Q", found)
        return data, set(self._plain[key])

    def _folder(self, folder: Path) -> list[tuple[str, list[_Part]]]:
        with self._lock:
            if folder not in self._folders:
                place = self.cache / f"residue-{_fingerprint(folder)}" if self.cache else None
                known = _load(place) if place else None
                if known is None:
                    known = list(self._files(folder, remember=False))
                    if place:
                        _save(place, known)
                self._folders[folder] = known
            return self._folders[folder]

    def _files(self, folder: Path, *, remember: bool = True) -> Iterator[tuple[str, list[_Part]]]:
        """(path, parts) of everything below a folder, links not followed."""
        root = folder.resolve()
        todo = [root]
        while todo:
            where = todo.pop()
            try:
                entries = sorted(os.scandir(where), key=lambda entry: entry.name)
            except OSError as error:
                yield _relative(where, root), [_problem(f"cannot be listed: {error.strerror}")]
                continue
            for entry in entries:
                path = Path(entry.path)
                name = _relative(path, root)
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path)
                    if words := split(os.fsencode(entry.name)):
                        yield name, [_Part("", array("Q", map(hash_word, words)), "")]
                    continue
                parts = list(self._file(path, name, root, remember))
                yield name, [*parts, _Part("", array("Q", map(hash_word, split(os.fsencode(entry.name)))), "")]

    def _file(self, path: Path, name: str, root: Path, remember: bool) -> Iterator[_Part]:
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield from _link(path, root)
                return
            if not stat.S_ISREG(status.st_mode):
                yield _problem("is no regular file")
                return
            if status.st_size > self.limits.file_bytes:
                yield _problem(f"is larger than {self.limits.file_bytes >> 20} MiB")
                return
            data = path.read_bytes()
        except OSError as error:
            yield _problem(f"cannot be read: {error.strerror}")
            return
        if name.endswith("objects/info/alternates") or (path.name == ".git" and data.startswith(b"gitdir:")):
            yield _problem("points to git objects elsewhere")
        key = (hashlib.sha256(data).digest(), path.name)
        parts = self._contents.get(key)
        if parts is None:
            parts = read_parts(path.name, data, self.limits)
            if remember:
                self._contents[key] = parts
        yield from parts


def scan(workspace: Path, needles: Needles, others: Mapping[str, Path] = {}, *, limits: ScanLimits = ScanLimits()) -> tuple[Finding, ...]:
    """One scan by a Scanner of its own."""
    return Scanner(limits).scan(workspace, needles, others)


def visible_folders(language: str = "python") -> dict[str, Path]:
    """What the sandbox shows of this machine beside the workspace and the environment, where packages may lie: {name: folder}."""
    folders = {
        "python": [
            Path(sysconfig.get_path("stdlib"), "ensurepip/_bundled"),
            Path("/usr/share/python-wheels"),
        ],  # they hold vendored packages
        "javascript": [Path(root, "node_modules") for root in ("/usr/lib", "/usr/local/lib")] + [Path("/usr/share/nodejs")],
        "java": [Path("/usr/share/java"), Path("/usr/share/maven-repo")],
    }
    return {str(folder): folder for folder in folders.get(language, []) if folder.is_dir()}


def read_parts(name: str, data: bytes, limits: ScanLimits) -> list[_Part]:
    """Everything in a file as hashes. A name inside an archive counts as part of what it names."""
    parts: list[_Part] = []
    for piece in open_up(name, data, limits):
        found: set[int] = set()
        for text in piece.texts:
            found |= features(text)
        if piece.inside:
            found.update(map(hash_word, split(piece.inside.rpartition("!")[2].encode("utf-8", "surrogateescape"))))
        parts.append(_Part(piece.inside, array("Q", found), piece.problem))
    return parts


def _own_findings(path: str, parts: list[_Part], needles: Needles, keys: frozenset[int]) -> list[Finding]:
    found: list[tuple[set[int], Finding]] = []
    for part in _merged(parts):
        if part.problem:
            found.append((set(), _finding(WORKSPACE, path, part.inside, "unreadable", (), part.problem)))
        hits = keys.intersection(part.hashes)
        if not hits:
            continue
        needle_hits = [needles.by_feature[hit] for hit in hits]
        prose = sum(OWN["word"] for needle in needle_hits if needle.kind == "word")
        score = min(prose, MAX_WORDS) + sum(OWN[needle.kind] for needle in needle_hits if needle.kind != "word")
        if score >= 1.0:
            found.append((set(hits), _hit(WORKSPACE, path, part.inside, needle_hits, needles)))
    return [finding for hits, finding in found if not any(_covers(finding, hits, other, more) for more, other in found)]


def _covers(finding: Finding, hits: set[int], other: Finding, more: set[int]) -> bool:
    """Is the same found again, further inside the same file?"""
    return bool(hits) and hits <= more and other.inside.count("!") > finding.inside.count("!")


def _other_findings(name: str, files: list[tuple[str, list[_Part]]], needles: Needles, keys: frozenset[int]) -> list[Finding]:
    found: list[Finding] = []
    hits: list[tuple[str, str, list[Needle]]] = []
    spread: Counter[str] = Counter()
    names = Counter(needle.piece for needle in needles.by_feature.values() if OTHER[needle.kind])
    for path, parts in files:
        seen: set[str] = set()
        for part in _merged(parts):
            if part.problem:
                found.append(_finding(name, path, part.inside, "unreadable", (), part.problem))
            if matched := [needles.by_feature[hit] for hit in keys.intersection(part.hashes)]:
                hits.append((path, part.inside, matched))
                seen |= {needle.text for needle in matched if needle.kind not in ROWS}
        spread.update(seen)
    for path, inside, matched in hits:
        rows = Counter(needle.piece for needle in matched if needle.kind == "lines")
        codes = Counter(needle.piece for needle in matched if needle.kind == "bytecode")
        held = [piece for piece, count in rows.items() if count >= OTHER_GRAMS and count >= OTHER_SHARE * needles.pieces[piece].grams]
        held += [piece for piece, count in codes.items() if count >= OTHER_CODE_SHARE * needles.pieces[piece].code_grams]
        rare = [needle for needle in matched if needle.kind not in ROWS and spread[needle.text] <= COMMON_FILES]
        if held or _tell_together(rare, names):
            found.append(_hit(name, path, inside, [*rare, *(needle for needle in matched if needle.piece in held)], needles))
    return found


def _tell_together(rare: list[Needle], names: Mapping[int, int]) -> bool:
    """Several names of one removed piece, and a good part of them: a protocol's method names alone are an accident."""
    for piece in {needle.piece for needle in rare}:
        own = [needle for needle in rare if needle.piece == piece and OTHER[needle.kind]]
        telling = any(needle.kind in ("definition", "constant") for needle in own)
        if telling and sum(OTHER[needle.kind] for needle in own) >= 1.0 and len(own) >= OTHER_NAMES * names[piece]:
            return True
    return False


def _merged(parts: list[_Part]) -> list[_Part]:
    """One part for each place in the file."""
    whole: dict[str, _Part] = {}
    for part in parts:
        old = whole.get(part.inside)
        whole[part.inside] = part if old is None else _Part(part.inside, old.hashes + part.hashes, old.problem or part.problem)
    return list(whole.values())


def _hit(folder: str, path: str, inside: str, matched: list[Needle], needles: Needles) -> Finding:
    order = sorted(OWN, key=lambda kind: -OWN[kind])
    best = sorted(matched, key=lambda needle: (order.index(needle.kind), needle.text))
    lines = sum(needle.kind in ROWS for needle in matched)
    piece = Counter(needle.piece for needle in matched).most_common(1)[0][0]
    shown = tuple(dict.fromkeys(needle.text for needle in best))[:SHOWN]
    kind: Kind = "lines" if lines >= OTHER_GRAMS else best[0].kind
    return _finding(folder, path, inside, kind, shown, f"tells {', '.join(map(repr, shown))} of {_where(needles, piece)}")


def _finding(folder: str, path: str, inside: str, kind: Kind, matched: tuple[str, ...], why: str) -> Finding:
    removable = folder == WORKSPACE and is_removable(path)
    return Finding(folder=folder, path=path, inside=inside, kind=kind, matched=matched, why=why, removable=removable)


def _where(needles: Needles, piece: int) -> str:
    removed = needles.pieces[piece]
    return f"what was cut at {removed.path}:{removed.line}{f' ({removed.name})' if removed.name else ''}"


def _problem(text: str) -> _Part:
    return _Part("", array("Q"), text)


def _link(path: Path, root: Path) -> Iterator[_Part]:
    """A link tells its target's name. What it leads to is looked into only below the same folder."""
    target = os.readlink(path)
    yield _Part("", array("Q", map(hash_word, split(os.fsencode(target)))), "")
    place = Path(os.path.normpath(path.parent / target))
    if not place.is_relative_to(root):
        yield _problem(f"is a link that leaves the folder: {target!r}")


def _fingerprint(folder: Path) -> str:
    """Of names, sizes and times of the files."""
    total = hashlib.sha256(str(FORMAT).encode())
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        total.update(os.fsencode(path.relative_to(folder)) + f"\0{status.st_mode} {status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _save(place: Path, files: list[tuple[str, list[_Part]]]) -> None:
    head = json.dumps([FORMAT, [[path, [[part.inside, len(part.hashes), part.problem] for part in parts]] for path, parts in files]])
    new = place.with_name(f".{place.name}.{os.getpid()}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new.open("wb") as file:
            file.write(head.encode() + b"\n")
            for _, parts in files:
                for part in parts:
                    part.hashes.tofile(file)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def _load(place: Path) -> list[tuple[str, list[_Part]]] | None:
    """None where there is nothing, or something else."""
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError), place.open("rb") as file:
        version, listing = json.loads(file.readline())
        if version != FORMAT:
            return None
        files: list[tuple[str, list[_Part]]] = []
        for path, parts in listing:
            row: list[_Part] = []
            for inside, size, problem in parts:
                hashes = array("Q")
                hashes.fromfile(file, size)
                row.append(_Part(inside, hashes, problem))
            files.append((path, row))
        return files
    return None
