"""Looks into a file as far as it goes: archives in archives, compressed streams, encodings, bytecode, databases, git's objects.

In: the bytes of one file; out: Pieces, each the texts of one thing inside and where it lies ("!pkg/core.py" in a wheel), or a problem:
what could not be looked into. Kinds are told by content, not by name. Nothing is written anywhere and nothing is run. A Budget bounds
bytes, entries, depth and tries for one file, so that a bomb ends as a problem.

Not here: text from bytes (words.py), single formats (formats.py, packs.py).
"""

import base64
import bz2
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from etude.grade.residue import formats, packs
from etude.grade.residue.classfile import class_values
from etude.grade.residue.words import BARRIER, is_text, views

CLOSED = (  # what this Python has no reader for
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x1f\x9d", "compress"),
    (b"\xed\xab\xee\xdb", "rpm"),
    (b"MSCF", "cab"),
    (b"hsqs", "squashfs"),
)
STREAM = re.compile(rb"\x1f\x8b\x08|x[\x01\x5e\x9c\xda]|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x5d\0\0\x80\0")
ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{40,}(?:(?:\r?\n|\\n|\\r\\n)[ \t#*>]{0,8}[A-Za-z0-9+/_-]{4,})*={0,2}")
MAGIC = (b"PK\x03\x04", formats.SQLITE, formats.JAVA, b"PACK\0\0\0", b"# v2 git bundle")
HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){40,}")
LZMA_MEMORY = 256 << 20
MIN_DECODED = 24  # bytes; less holds no line of code
BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError, OverflowError, KeyError,
    IndexError, AttributeError, TypeError,
)  # fmt: skip  # what zipfile and tarfile raise on made-up input


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """For one file, all that is inside it together."""

    file_bytes: int = 256 << 20
    unpacked_bytes: int = 512 << 20
    entries: int = 100_000
    depth: int = 6
    tries: int = 20_000  # places in binary data that look like the start of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    inside: str  # "" for the file itself, "!name" for what is in it
    texts: tuple[bytes, ...] = ()
    problem: str = ""  # why it could not be looked into


class Full(Exception):
    """A bound is reached; the message says which."""


@dataclass
class Budget:
    limits: ScanLimits
    room: int
    entries: int
    tries: int

    @classmethod
    def of(cls, limits: ScanLimits) -> "Budget":
        return cls(limits=limits, room=limits.unpacked_bytes, entries=limits.entries, tries=limits.tries)

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise Full(f"unpacks to more than {self.limits.unpacked_bytes >> 20} MiB")

    def enter(self) -> None:
        self.entries -= 1
        if self.entries < 0:
            raise Full(f"holds more than {self.limits.entries:,} entries")

    def attempt(self) -> None:
        self.tries -= 1
        if self.tries < 0:
            raise Full(f"has more than {self.limits.tries:,} places that look like compressed data")


def open_up(name: str, data: bytes, limits: ScanLimits) -> Iterator[Piece]:
    """The pieces of one file. Never raises for what is in it."""
    try:
        yield from _open("", name, data, Budget.of(limits), 0)
    except Full as error:
        yield Piece(inside="", problem=str(error))
    except RecursionError:
        yield Piece(inside="", problem="is nested too deeply")


def _open(inside: str, name: str, data: bytes, budget: Budget, depth: int) -> Iterator[Piece]:
    budget.enter()
    if depth > budget.limits.depth:
        raise Full(f"is nested more than {budget.limits.depth} levels deep")
    if loose := packs.LOOSE.match(data):
        data = data[loose.end() :]
    texts = () if formats.is_pyc(data) else tuple(views(data))  # of bytecode the values, below
    yield Piece(inside=inside, texts=texts)
    for magic, kind in CLOSED:
        if data.startswith(magic):
            yield Piece(inside=inside, problem=f"is a {kind} archive, which cannot be opened here")
    values = _values(name, data)
    if values is not None:
        yield from _collected(inside, data, values, budget, depth)
    for members in _containers(name, data, budget):
        try:
            for member, content in members:
                yield from _open(f"{inside}!{member}", member, content, budget, depth + 1)
        except BROKEN as error:
            yield Piece(inside=inside, problem=f"cannot be unpacked to its end: {str(error) or type(error).__name__}")
    for content in {content: None for text in (data, *texts[1:]) for content in _decoded(text, budget)}:
        yield from _open(f"{inside}!encoded", "", content, budget, depth + 1)


def _values(name: str, data: bytes) -> Iterator[bytes] | None:
    if formats.is_pyc(data):
        return formats.pyc_values(data)
    if data.startswith(formats.JAVA) and (name.endswith(".class") or 45 <= int.from_bytes(data[6:8], "big") <= 90):
        return class_values(data)
    if data.startswith(formats.SQLITE):
        return formats.sqlite_values(data)
    if formats.is_pickle(data, name):
        return formats.pickle_values(data)
    return None


def _collected(inside: str, data: bytes, values: Iterator[bytes], budget: Budget, depth: int) -> Iterator[Piece]:
    """The values of one file as texts; those that are containers themselves are opened."""
    found: list[bytes] = []
    problem = ""
    try:
        for value in values:
            budget.take(len(value))
            if len(value) > MIN_DECODED and (STREAM.search(value) or b"PK\x03\x04" in value or value.startswith(MAGIC)):
                yield from _open(f"{inside}!value", "", value, budget, depth + 1)
            elif b"\0" in value:
                found += views(value)
            elif value:
                found.append(value)
    except ValueError as error:
        problem = str(error)
    yield Piece(inside=inside, texts=tuple(views((b" " + BARRIER + b" ").join(found))))
    if problem:
        yield Piece(inside=inside, texts=tuple(views(data)), problem=problem)


def _containers(name: str, data: bytes, budget: Budget) -> Iterator[Iterator[tuple[str, bytes]]]:
    """An iterator over (name, content) for everything that some bytes can be opened as."""
    if data[257:262] == b"ustar" or name.endswith(".tar"):
        yield _tar(data, budget)
    elif data.startswith(b"!<arch>\n"):
        yield _ar(data, budget)
    elif packs.is_pack(data):
        yield _pack(data, budget)
    if b"PK\x05\x06" in data[-66_000:] and zipfile.is_zipfile(io.BytesIO(data)):
        yield _zip(data, budget)
    elif data.startswith(b"PK\x03\x04"):
        yield _broken_zip()
    if not packs.is_pack(data):
        yield _streams(name, data, budget)


def _zip(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            budget.enter()
            if not info.is_dir():
                with archive.open(info) as file:
                    yield info.filename, _all(file.read, budget)


def _broken_zip() -> Iterator[tuple[str, bytes]]:
    raise zipfile.BadZipFile("a zip archive without its directory")
    yield


def _tar(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            budget.enter()
            if member.isreg() and (file := archive.extractfile(member)) is not None:
                yield member.name, _all(file.read, budget)


def _ar(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """A .deb or a static library."""
    at = 8
    while at + 60 <= len(data):
        name, size = data[at : at + 16].decode("latin-1").strip(), int(data[at + 48 : at + 58])
        if size < 0 or at + 60 + size > len(data):
            raise ValueError("an ar archive that ends too early")
        budget.take(size)
        yield name, data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def _pack(data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    for number, (kind, content) in enumerate(packs.pack_objects(data, budget.room)):
        budget.take(len(content))
        yield f"{kind}-{number}", content


def _streams(name: str, data: bytes, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """Every compressed stream in some bytes, whatever is around it: files, objects.inv, PDF, a value in a database."""
    end = 0
    for match in STREAM.finditer(data):
        start = match.start()
        if start < end:
            continue
        content, stop, whole = _stream(data, start, budget)
        if whole or start == 0 or (len(content) >= MIN_DECODED and is_text(content)):
            end = stop
            yield _inner_name(name) if start == 0 else f"at-{start}", content
        if start == 0 and not whole and match[0][:1] not in b"x]":
            raise ValueError("compressed data that is broken")


def _stream(data: bytes, start: int, budget: Budget) -> tuple[bytes, int, bool]:
    """What could be had of the stream at `start`, where it ends, and whether it is whole."""
    budget.attempt()
    makers: dict[int, Callable[[], zlib._Decompress | bz2.BZ2Decompressor | lzma.LZMADecompressor]] = {
        0x1F: lambda: zlib.decompressobj(31),
        0x78: zlib.decompressobj,
        0x42: bz2.BZ2Decompressor,
        0xFD: lambda: lzma.LZMADecompressor(memlimit=LZMA_MEMORY),
        0x5D: lambda: lzma.LZMADecompressor(memlimit=LZMA_MEMORY),
    }
    make = makers[data[start]]
    parts: list[bytes] = []
    at, view = start, memoryview(data)
    try:
        while True:  # gzip, bzip2 and xz files may be several streams in a row
            stream = make()
            first = at
            while not stream.eof:
                piece = bytes(view[at : at + (64 if at == start else 1 << 16)])
                if not piece:
                    raise EOFError
                at += len(piece)
                part = stream.decompress(piece, budget.room + 1)
                budget.take(len(part))
                parts.append(part)
            at -= len(stream.unused_data)
            if at <= first or data[at : at + 2] != data[start : start + 2] or data[start] == 0x78:
                return b"".join(parts), at, True
    except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError):
        return b"".join(parts), at, False


def _decoded(text: bytes, budget: Budget) -> Iterator[bytes]:
    """What base64 and hexadecimal digits stand for, where that is text or a container."""
    for match in ENCODED.finditer(text):
        budget.attempt()
        digits = re.sub(rb"\\r|\\n|[^A-Za-z0-9+/_-]", b"", match[0]).translate(bytes.maketrans(b"-_", b"+/"))
        contents = [base64.b64decode(digits[: len(digits) // 4 * 4])]
        contents += [bytes.fromhex(found[0].decode()) for found in HEX.finditer(digits)]
        for content in filter(_telling, contents):
            budget.take(len(content))
            yield content


def _telling(content: bytes) -> bool:
    if len(content) < MIN_DECODED:
        return False
    if is_text(content):
        return b" " in content or b"\n" in content
    return STREAM.match(content) is not None or content.startswith(MAGIC) or formats.is_pyc(content)


def _inner_name(name: str) -> str:
    """data.tar.gz -> data.tar"""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")
    return f"{stem}.tar" if suffix in ("tgz", "tbz2", "txz") else stem or "content"


def _all(read: Callable[[int], bytes], budget: Budget) -> bytes:
    content = read(budget.room + 1)
    budget.take(len(content))
    return content
