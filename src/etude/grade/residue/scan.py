"""The residue scan: can what a cut removed still be read anywhere that the agent can look?

In: the agent's tree, Needles, and every other folder that is visible inside (the environment, a home); out: Findings, none for a clean
task. Every file is opened as far as it goes. What could not be looked into is a finding too: the scan fails closed.

How telling a hit is depends on where it is. The agent's tree came from the repository itself: one name of a removed definition outside
of the plain sources is enough. In another folder a word may be an accident, so it takes a good part of a removed piece, or several
names of it together that hardly any other file has.

A Scanner reads each content once, whatever the number of tasks: what stays of a file are hashes. Of the other folders they are kept on
disk too, so that what two environments share is read once. It may be used by many threads. Files of a runtime (node, a JDK) that are
byte for byte those of this machine are not looked into: they take minutes, and nothing of a project is in them.

Not here: what is looked for (needles.py), what may be removed (scrub.py).
"""

import contextlib
import filecmp
import hashlib
import json
import os
import stat
import sysconfig
import threading
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from etude.grade.residue.leftovers import is_removable
from etude.grade.residue.needles import Kind, Needle, Needles, bytecode_names, make_needles
from etude.grade.residue.unpack import ScanLimits, open_up
from etude.grade.residue.words import features, hash_word, split
from etude.sandbox.protocol import WORK

WORKSPACE = "workspace"
FORMAT = 3  # of what is kept on disk
SHOWN = 5  # hits named in a finding
OWN = {"definition": 1.0, "parameter": 0.5, "constant": 1.0, "name": 0.5, "word": 0.25, "lines": 0.5, "bytecode": 0.5, "compiled": 1.0}
OTHER = {"definition": 0.4, "parameter": 0.25, "constant": 0.25, "name": 0.2, "word": 0.0, "lines": 0.0, "bytecode": 0.0, "compiled": 0.0}
ROWS = ("lines", "bytecode")  # five words each
MAX_WORDS = 0.75  # what words of prose add up to at most
OTHER_SHARE, OTHER_GRAMS = 0.2, 5  # of a removed piece's rows of words, in one file of another folder
OTHER_CODE_SHARE = 0.5  # of its rows of names in bytecode
OTHER_NAMES = 0.4  # of a removed piece's names, in one file of another folder
NO_LIBRARY = frozenset({"site-packages", "dist-packages", "_bundled", "test"})  # hidden in a sandbox; the library's own tests
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


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    key: str  # of its content and name, see _key; "" where there is more to it
    parts: list[_Part]  # of the content; the last one is of the name


class Scanner:
    def __init__(self, limits: ScanLimits = ScanLimits(), *, cache: Path | None = None) -> None:
        """`cache`: a folder for what was read of the other folders; None: in memory only."""
        self.limits = limits
        self.cache = cache
        self._contents: dict[str, list[_Part]] = {}
        self._plain: dict[bytes, array[int]] = {}
        self._folders: dict[Path, list[_File]] = {}
        self._libraries: dict[Path, dict[str, bytes]] = {}
        self._lock = threading.Lock()  # one reads a folder, the others wait

    def needles(self, original: Path, cut: Path, *, but: Container[str] = ()) -> Needles:
        return make_needles(original, cut, self, but=but)

    def scan(
        self,
        workspace: Path,
        needles: Needles,
        others: Mapping[str, Path] = {},
        *,
        runtime: Sequence[Path] = (),
        libraries: Mapping[str, Path] = {},
    ) -> tuple[Finding, ...]:
        """Sorted by place. The other folders are taken as unchanged while this Scanner lives. `runtime`: files of this machine's own
        programs; what equals one of them in another folder is not looked into. `libraries`: see _library."""
        keys = frozenset(needles.by_feature)
        found: list[Finding] = []
        for file in self._files(workspace, self._contents):
            found += _own_findings(file, needles, keys)
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
            found += _other_findings(name, self._folder(folder, runtime), needles, keys)
        for name, folder in libraries.items():
            found += _other_findings(name, self._library(folder, needles), needles, keys)
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

    def _folder(self, folder: Path, runtime: Sequence[Path] = ()) -> list[_File]:
        with self._lock:
            if folder not in self._folders:
                place = self.cache / f"residue-{_fingerprint(folder, self.limits, runtime)}" if self.cache else None
                known = _load(place) if place else None
                if known is None:
                    known = list(self._files(folder, self._kept(), _by_size(runtime)))
                    if place:
                        _save(place, known)
                self._folders[folder] = known
            return self._folders[folder]

    def _library(self, folder: Path, needles: Needles) -> list[_File]:
        """The Python sources that name a removed definition which few others name. Reading a whole standard library takes half a minute
        and half a second for every task, and what a repository has from there or gave to it has its names."""
        with self._lock:
            if folder not in self._libraries:
                self._libraries[folder] = {
                    path.relative_to(folder).as_posix(): path.read_bytes()
                    for path in sorted(folder.rglob("*.py"))
                    if NO_LIBRARY.isdisjoint(path.relative_to(folder).parts) and path.is_file()
                }
        sources = self._libraries[folder]
        names = {needle.text.encode() for needle in needles.by_feature.values() if needle.kind == "definition" and len(needle.text) > 3}
        holders = [[path for path, data in sources.items() if name in data] for name in names]
        wanted = sorted({path for paths in holders if len(paths) <= COMMON_FILES for path in paths})
        return [_File(path, "", read_parts(path, sources[path], self.limits)) for path in wanted]

    def _kept(self) -> dict[str, list[_Part]]:
        """What was read of all other folders."""
        places = sorted(self.cache.glob("residue-*")) if self.cache and self.cache.is_dir() else []
        return {file.key: file.parts[:-1] for place in places for file in _load(place) or () if file.key}

    def _files(self, folder: Path, contents: dict[str, list[_Part]], runtime: Mapping[int, Sequence[Path]] = {}) -> Iterator[_File]:
        """Everything below a folder, links not followed. `contents`: what is known, by key; grows."""
        root = folder.resolve()
        todo = [root]
        while todo:
            where = todo.pop()
            try:
                entries = sorted(os.scandir(where), key=lambda entry: entry.name)
            except OSError as error:
                yield _File(_relative(where, root), "", [_problem(f"cannot be listed: {error.strerror}")])
                continue
            for entry in entries:
                path = Path(entry.path)
                name = _relative(path, root)
                words = split(os.fsencode(entry.name))
                of_name = _Part("", array("Q", map(hash_word, words)), "")
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path)
                    if words:
                        yield _File(name, "", [of_name])
                    continue
                if runtime and entry.is_file(follow_symlinks=False) and _is_one_of(path, runtime.get(entry.stat().st_size, ())):
                    continue
                key, parts = self._file(path, name, root, contents)
                yield _File(name, key, [*parts, of_name])

    def _file(self, path: Path, name: str, root: Path, contents: dict[str, list[_Part]]) -> tuple[str, list[_Part]]:
        try:
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return "", list(_link(path, root))
            if not stat.S_ISREG(status.st_mode):
                return "", [_problem("is no regular file")]
            if status.st_size > self.limits.file_bytes:
                return "", [_problem(f"is larger than {self.limits.file_bytes >> 20} MiB")]
            data = path.read_bytes()
        except OSError as error:
            return "", [_problem(f"cannot be read: {error.strerror}")]
        key = self._key(path.name, data)
        if key not in contents:
            contents[key] = read_parts(path.name, data, self.limits)
        if name.endswith("objects/info/alternates") or (path.name == ".git" and data.startswith(b"gitdir:")):
            return "", [_problem("points to git objects elsewhere"), *contents[key]]
        return key, contents[key]

    def _key(self, name: str, data: bytes) -> str:
        """Of all that read_parts is given."""
        told = (hashlib.sha256(data).digest(), os.fsencode(name), repr(self.limits).encode(), _reader())
        return hashlib.sha256(b"\0".join(told)).hexdigest()


def scan(workspace: Path, needles: Needles, others: Mapping[str, Path] = {}, *, limits: ScanLimits = ScanLimits()) -> tuple[Finding, ...]:
    """One scan by a Scanner of its own."""
    return Scanner(limits).scan(workspace, needles, others)


def visible_libraries() -> dict[str, Path]:
    """The standard libraries that every sandbox shows, {name: folder}. Other packages of this machine are hidden there (sandbox)."""
    places = [Path(sysconfig.get_path("stdlib")), *Path("/usr/lib").glob("python3.*"), *Path("/usr/local/lib").glob("python3.*")]
    return {f"library {place.name}" if number else "library": place for number, place in enumerate(_existing(places))}


def _existing(places: list[Path]) -> list[Path]:
    return sorted({place.resolve() for place in places if place.is_dir()}, key=lambda place: (place != places[0].resolve(), place))


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


def _own_findings(file: _File, needles: Needles, keys: frozenset[int]) -> list[Finding]:
    path = file.path
    found: list[tuple[set[int], Finding]] = []
    for part in _merged(file.parts):
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


def _other_findings(name: str, files: list[_File], needles: Needles, keys: frozenset[int]) -> list[Finding]:
    found: list[Finding] = []
    hits: list[tuple[str, str, list[Needle]]] = []
    spread: Counter[str] = Counter()
    names = Counter(needle.piece for needle in needles.by_feature.values() if OTHER[needle.kind])
    for file in files:
        seen: set[str] = set()
        for part in _merged(file.parts):
            if part.problem:
                found.append(_finding(name, file.path, part.inside, "unreadable", (), part.problem))
            if matched := [needles.by_feature[hit] for hit in keys.intersection(part.hashes)]:
                hits.append((file.path, part.inside, matched))
                seen |= {needle.text for needle in matched if needle.kind not in ROWS}
        spread.update(seen)
    for path, inside, matched in hits:
        rows = Counter(needle.piece for needle in matched if needle.kind == "lines")
        codes = Counter(needle.piece for needle in matched if needle.kind == "bytecode")
        held = [piece for piece, count in rows.items() if count >= OTHER_GRAMS and count >= OTHER_SHARE * needles.pieces[piece].grams]
        held += [piece for piece, count in codes.items() if count >= OTHER_CODE_SHARE * needles.pieces[piece].code_grams]
        held += {needle.piece for needle in matched if needle.kind == "compiled"}
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


def _by_size(files: Sequence[Path]) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for file in files:
        if file.is_file():
            found.setdefault(file.stat().st_size, []).append(file)
    return found


def _is_one_of(path: Path, files: Sequence[Path]) -> bool:
    """By content."""
    return any(filecmp.cmp(path, file, shallow=False) for file in files)


def _link(path: Path, root: Path) -> Iterator[_Part]:
    """A link tells its target's name. What it leads to is looked into only below the same folder."""
    target = os.readlink(path)
    yield _Part("", array("Q", map(hash_word, split(os.fsencode(target)))), "")
    place = Path(os.path.normpath(path.parent / target))
    if not place.is_relative_to(root) and target != WORK:  # in there the agent's tree, which is scanned itself
        yield _problem(f"is a link that leaves the folder: {target!r}")


@cache
def _reader() -> bytes:
    """A digest of the code that reads: what another one has kept says nothing."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))).digest()


def _fingerprint(folder: Path, limits: ScanLimits, runtime: Sequence[Path] = ()) -> str:
    """Of names, sizes and times of the files, of how they are read, and of what is left out."""
    total = hashlib.sha256(_reader() + repr(limits).encode())
    for path in sorted(runtime):
        total.update(os.fsencode(path) + f"\0{path.stat().st_size} {path.stat().st_mtime_ns}\n".encode() if path.is_file() else b"")
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        total.update(os.fsencode(path.relative_to(folder)) + f"\0{status.st_mode} {status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _save(place: Path, files: list[_File]) -> None:
    listing = [[file.path, file.key, [[part.inside, len(part.hashes), part.problem] for part in file.parts]] for file in files]
    new = place.with_name(f".{place.name}.{os.getpid()}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new.open("wb") as out:
            out.write(json.dumps([FORMAT, listing]).encode() + b"\n")
            for file in files:
                for part in file.parts:
                    part.hashes.tofile(out)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def _load(place: Path) -> list[_File] | None:
    """None where there is nothing, or something else."""
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError), place.open("rb") as file:
        version, listing = json.loads(file.readline())
        if version != FORMAT:
            return None
        files: list[_File] = []
        for path, key, parts in listing:
            row: list[_Part] = []
            for inside, size, problem in parts:
                hashes = array("Q")
                hashes.fromfile(file, size)
                row.append(_Part(inside, hashes, problem))
            files.append(_File(path, key, row))
        return files
    return None
