"""Files whose text is not plain: bytecode of Python and Java, pickles, SQLite databases. Read, never run or loaded.

In: the bytes of one file; out: the strings, byte strings and numbers in it, as bytes. ValueError where the file is not what it seems, after
what could be read has come out.

Not here: archives and compressed streams (unpack.py), git's objects (packs.py).
"""

import contextlib
import pickletools
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

PYC_HEADER_BYTES = 16
PYC_OLD = range(3413, 3440)  # magic numbers of Python 3.8 to 3.10
PYC_NEW = range(3495, 3700)  # of 3.11 and later, which write code objects in another way
SQLITE_STEPS = 20_000_000  # of its virtual machine, for one database
SQLITE = b"SQLite format 3\0"
JAVA = b"\xca\xfe\xba\xbe"


def is_pyc(data: bytes) -> bool:
    """By the magic number: PEP 3147's two bytes, CR, LF."""
    return data[2:4] == b"\r\n" and int.from_bytes(data[:2], "little") in range(3000, 3700) and len(data) > PYC_HEADER_BYTES


def pyc_values(data: bytes) -> Iterator[bytes]:
    """Names, constants and documentation in a .pyc file."""
    magic = int.from_bytes(data[:2], "little")
    if magic not in PYC_OLD and magic not in PYC_NEW:
        raise ValueError(f"bytecode of an unknown Python (magic number {magic})")
    try:
        yield from _marshal(data, PYC_HEADER_BYTES, new=magic in PYC_NEW)
    except (struct.error, IndexError):
        raise ValueError("the bytecode ends too early") from None


def _marshal(data: bytes, at: int, *, new: bool) -> Iterator[bytes]:
    """Every value of a marshal stream in order. A stack of what comes next, as nesting may be deep: 0 an object, -1 the rest of a dict,
    n > 0 so many bytes to pass over."""
    todo = [0]
    while todo:
        item = todo.pop()
        if item > 0:
            at += item
            continue
        kind = chr(data[at] & 0x7F)
        at += 1
        if item == -1:
            if kind == "0":
                continue
            todo += (-1, 0)  # this is a key: its value and the rest follow
        if kind in "0NFTS.":
            continue
        if kind in "stuaA":
            size = _long(data, at)
            yield _slice(data, at + 4, size)
            at += 4 + size
        elif kind in "zZ":
            yield _slice(data, at + 1, data[at])
            at += 1 + data[at]
        elif kind == "i":
            yield str(struct.unpack_from("<i", data, at)[0]).encode()
            at += 4
        elif kind == "l":
            digits = struct.unpack_from("<i", data, at)[0]
            size = 2 * abs(digits)
            value = sum(digit << (15 * n) for n, (digit,) in enumerate(struct.iter_unpack("<H", _slice(data, at + 4, size))))
            yield b"%x" % value if size > 1000 else str(value).encode()
            at += 4 + size
        elif kind in "gy":
            for _ in range(1 + (kind == "y")):
                yield repr(struct.unpack_from("<d", data, at)[0]).encode()
                at += 8
        elif kind == "I":
            at += 8
        elif kind == "r":
            at += 4
        elif kind in "([<>":
            todo += [0] * _count(data, _long(data, at))
            at += 4
        elif kind == ")":
            todo += [0] * data[at]
            at += 1
        elif kind == "{":
            todo.append(-1)
        elif kind == ":":
            todo += [0] * 3
        elif kind == "c":  # numbers, then objects with the first line among them
            todo += [0, 0, 4, *[0] * 8] if new else [0, 4, *[0] * 8]
            at += 20 if new else 24
        else:
            raise ValueError(f"bytecode that cannot be read: type {kind!r} at byte {at - 1}")


def class_values(data: bytes) -> Iterator[bytes]:
    """The constant pool of a Java class file: names, strings, numbers."""
    try:
        count, at, index = struct.unpack_from(">H", data, 8)[0], 10, 1
        while index < count:
            tag = data[at]
            index += 1
            if tag == 1:
                size = struct.unpack_from(">H", data, at + 1)[0]
                yield _slice(data, at + 3, size).replace(b"\xc0\x80", b"\0")
                at += 3 + size
            elif tag in (3, 4, 5, 6):
                form = {3: ">i", 4: ">f", 5: ">q", 6: ">d"}[tag]
                yield repr(struct.unpack_from(form, data, at + 1)[0]).encode()
                at += 1 + struct.calcsize(form)
                index += tag in (5, 6)  # these take two places
            elif tag in (7, 8, 16, 19, 20):
                at += 3
            elif tag in (9, 10, 11, 12, 17, 18):
                at += 5
            elif tag == 15:
                at += 4
            else:
                raise ValueError(f"class file that cannot be read: tag {tag} at byte {at}")
    except (struct.error, IndexError):
        raise ValueError("the class file ends too early") from None


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
