"""Files whose text is not plain: bytecode of Python, pickles, SQLite databases. Read, never run or loaded.

In: the bytes of one file; out: the strings, byte strings and numbers in it, as bytes. ValueError where the file is not what it seems, after
what could be read has come out.

Not here: archives and compressed streams (unpack.py), git's objects (packs.py), class files (classfile.py).
"""

import contextlib
import marshal
import pickletools
import re
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

PYC_HEADER_BYTES = 16
PYC_OLD = range(3413, 3440)  # magic numbers of Python 3.8 to 3.10
PYC_NEW = range(3495, 3700)  # of 3.11 and later, which write code objects in another way
MAX_VALUES = 1_000_000
MAX_TUPLE = 256  # values of a tuple that are remembered
SQLITE_STEPS = 20_000_000  # of its virtual machine, for one database
SQLITE = b"SQLite format 3\0"
NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.<>]*|\.\d+")
JAVA = b"\xca\xfe\xba\xbe"


def is_pyc(data: bytes) -> bool:
    """By the magic number: PEP 3147's two bytes, CR, LF."""
    return data[2:4] == b"\r\n" and int.from_bytes(data[:2], "little") in range(3000, 3700) and len(data) > PYC_HEADER_BYTES


def pyc_values(data: bytes) -> Iterator[bytes]:
    """Names, constants and documentation in a .pyc file; first all names in their order, as one text with a function's own in a row."""
    magic = int.from_bytes(data[:2], "little")
    if magic not in PYC_OLD and magic not in PYC_NEW:
        raise ValueError(f"bytecode of an unknown Python (magic number {magic})")
    stream = _Marshal(data=data, at=PYC_HEADER_BYTES, new=magic in PYC_NEW)
    problem = ""
    try:
        stream.read()
    except (struct.error, IndexError):
        problem = "the bytecode ends too early"
    except ValueError as error:
        problem = str(error)
    yield names_text(stream)
    yield from (value for value, _ in stream.values)
    if problem:
        raise ValueError(problem)


def code_names(code: CodeType) -> bytes:
    """The names of one code object and of those in it, as pyc_values gives them for a file."""
    stream = _Marshal(data=marshal.dumps(code), at=0, new=sys.version_info >= (3, 11))
    stream.read()
    return names_text(stream)


def names_text(stream: "_Marshal") -> bytes:
    return b" ".join(value for value, is_text in stream.values if is_text and NAME.fullmatch(value) and not value.endswith(b".py"))


@dataclass
class _Marshal:
    """A marshal stream read as a row of values, references followed, nothing built.

    Nesting may be deep, so it keeps a stack of what comes next: 0 an object, -1 the rest of a dict, n > 0 so many bytes to pass over,
    (number, start) the end of a tuple that may be meant again.
    """

    data: bytes
    at: int
    new: bool  # code objects as Python 3.11 and later write them
    values: list[tuple[bytes, bool]] = field(default_factory=list)  # (value, is it text)
    known: list[list[tuple[bytes, bool]]] = field(default_factory=list)  # what later references mean
    todo: list[int | tuple[int, int]] = field(default_factory=lambda: [0])

    def read(self) -> None:
        """Raises: ValueError, IndexError, struct.error."""
        while self.todo:
            item = self.todo.pop()
            if isinstance(item, tuple):
                self.known[item[0]] = self.values[item[1] :][:MAX_TUPLE]
            elif item > 0:
                self.at += item
            else:
                kind, marked = chr(self.data[self.at] & 0x7F), bool(self.data[self.at] & 0x80)
                self.at += 1
                if item == -1:
                    if kind == "0":
                        continue
                    self.todo += (-1, 0)  # this is a key: its value and the rest follow
                if marked:
                    self.known.append([])
                self.object(kind, marked)
                if len(self.values) > MAX_VALUES:
                    raise ValueError(f"bytecode with more than {MAX_VALUES:,} values")
        if self.at < len(self.data):
            raise ValueError(f"bytecode with {len(self.data) - self.at} more bytes behind it")

    def object(self, kind: str, marked: bool) -> None:
        data, at, size = self.data, self.at, 0
        value: bytes | None = None
        if kind in "stuaAzZ":
            size, at = (data[at], at + 1) if kind in "zZ" else (_long(data, at), at + 4)
            value = _slice(data, at, size)
        elif kind == "i":
            value, size = str(struct.unpack_from("<i", data, at)[0]).encode(), 4
        elif kind == "l":
            size = 2 * abs(struct.unpack_from("<i", data, at)[0])
            value, at = _digits(_slice(data, at + 4, size)), at + 4
        elif kind in "gy":
            size = 8 if kind == "g" else 16
            value = " ".join(repr(number) for number in struct.unpack_from("<dd"[: 1 + size // 8], data, at)).encode()
        elif kind in "Ir":
            size = 8 if kind == "I" else 4
            if kind == "r" and (number := _long(data, at)) < len(self.known):
                self.values += self.known[number]
        elif kind in "([<>)":
            size = 1 if kind == ")" else 4
            count = data[at] if kind == ")" else _count(data, _long(data, at))
            self.todo += [(len(self.known) - 1, len(self.values))] if marked else []
            self.todo += [0] * count
        elif kind in "{:":
            self.todo += [-1] if kind == "{" else [0] * 3
        elif kind == "c":  # numbers, then objects with the first line among them
            self.todo += [0, 0, 4, *[0] * 8] if self.new else [0, 4, *[0] * 8]
            size = 20 if self.new else 24
        elif kind not in "0NFTS.":
            raise ValueError(f"bytecode that cannot be read: type {kind!r} at byte {at - 1}")
        self.at = at + size
        if value is not None:
            self.values.append((value, kind in "tuaAzZ"))
            if marked:
                self.known[-1] = [self.values[-1]]


def _digits(data: bytes) -> bytes:
    """An int of any size: 15 bits in every two bytes."""
    if len(data) > 1000:
        return b""
    return str(sum(digit << (15 * n) for n, (digit,) in enumerate(struct.iter_unpack("<H", data)))).encode()


def is_pickle(data: bytes, name: str) -> bool:
    return (data[:1] == b"\x80" and data[1:2] in b"\2\3\4\5" and data[-1:] == b".") or name.endswith((".pickle", ".pkl"))


def pickle_values(data: bytes) -> Iterator[bytes]:
    """The arguments of every opcode; nothing is built from them."""
    try:
        for _, argument, _ in pickletools.genops(data):
            if isinstance(argument, str):
                yield argument.encode("utf-8", "surrogatepass")
            elif isinstance(argument, bytes | bytearray):
                yield bytes(argument)
            elif isinstance(argument, int | float):
                yield str(argument).encode() if argument < 1 << 1000 else b"%x" % int(argument)
    except (ValueError, IndexError, OverflowError, UnicodeError) as error:
        raise ValueError(f"a pickle that cannot be read to its end: {error}") from None


def sqlite_values(data: bytes) -> Iterator[bytes]:
    """Every cell of every table. What was deleted is only in the raw bytes."""
    with tempfile.TemporaryDirectory(prefix="etude-scan-") as folder:
        file = Path(folder, "copy.db")
        file.write_bytes(data)
        try:
            with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as database:
                database.text_factory = bytes
                database.execute("PRAGMA trusted_schema = OFF")
                steps = iter(range(SQLITE_STEPS // 100_000))
                database.set_progress_handler(lambda: next(steps, None) is None, 100_000)
                names = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
                for name, sql in names:
                    if (sql or b"").upper().startswith(b"CREATE VIRTUAL"):
                        continue  # its cells lie in plain tables beside it
                    quoted = name.decode().replace('"', '""')
                    for row in database.execute(f'SELECT * FROM "{quoted}"'):
                        yield from (cell if isinstance(cell, bytes) else str(cell).encode() for cell in row if cell is not None)
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise ValueError(f"a database that cannot be read: {error}") from None


def _long(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _slice(data: bytes, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise IndexError
    return data[start : start + size]


def _count(data: bytes, count: int) -> int:
    if count > len(data):  # every item takes a byte
        raise IndexError
    return count
