"""git's pack files read without git: every object in them, deltas resolved, reachable or not.

In: the bytes of a pack (or of a bundle, which ends in one); out: (kind, content) of every object. No git process reads a foreign
repository, so its configuration, hooks and filters do not matter. A delta whose base lies in another file comes out as the text that it
inserts: whatever is new in it.

Not here: loose objects, which are plain zlib streams (unpack.py).
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
OFS_DELTA, REF_DELTA = 6, 7
CHUNK = 1 << 14
LOOSE = re.compile(rb"(blob|tree|commit|tag) \d{1,12}\0")


@dataclass
class _Pack:
    data: bytes
    room: int  # bytes that may still be unpacked
    kept: dict[int, tuple[str, bytes]] = field(default_factory=dict)  # offset -> object
    size: int = 0


def is_pack(data: bytes) -> bool:
    return (data[:4] == b"PACK" and data[4:8] in (b"\0\0\0\2", b"\0\0\0\3")) or re.match(rb"# v[23] git bundle\n", data) is not None


def pack_objects(data: bytes, room: int) -> Iterator[tuple[str, bytes]]:
    """(kind, content) of every object. ValueError where the pack is broken, or holds more than `room` bytes."""
    start = data.find(b"PACK\0\0\0")
    if start < 0:
        raise ValueError("a bundle without a pack")
    pack = _Pack(data=data[start:], room=room)
    count, at = int.from_bytes(pack.data[8:12], "big"), 12
    for _ in range(count):
        try:
            kind, content, end = _entry(pack, at)
        except (IndexError, zlib.error) as error:
            raise ValueError(f"a pack that cannot be read at byte {at}: {error}") from None
        yield kind, content
        pack.kept[at] = (kind, content)
        at = end


def _entry(pack: _Pack, start: int) -> tuple[str, bytes, int]:
    byte = pack.data[start]
    at, kind = start + 1, (byte >> 4) & 7
    while byte & 0x80:
        byte, at = pack.data[at], at + 1
    base: tuple[str, bytes] | None = None
    if kind == OFS_DELTA:
        byte, at = pack.data[at], at + 1
        distance = byte & 0x7F
        while byte & 0x80:
            byte, at = pack.data[at], at + 1
            distance = ((distance + 1) << 7) | (byte & 0x7F)
        base = pack.kept.get(start - distance)
    elif kind == REF_DELTA:
        at += 20
    elif kind not in KINDS:
        raise ValueError(f"a pack that cannot be read: object of type {kind} at byte {start}")
    content, end = _inflate(pack, at)
    name = KINDS.get(kind, "blob")
    if kind in (OFS_DELTA, REF_DELTA):
        name, content = (base[0], _apply(base[1], content, pack.room)) if base else ("delta", _inserted(content))
    pack.room -= len(content)
    if pack.room < 0:
        raise ValueError("a pack that unpacks to more than may be looked into")
    return name, content, end


def _inflate(pack: _Pack, at: int) -> tuple[bytes, int]:
    """The content of a zlib stream, and where it ends. In small pieces: what lies behind it is copied each time."""
    stream, parts, room = zlib.decompressobj(), [], pack.room
    while not stream.eof:
        piece = pack.data[at : at + CHUNK]
        parts.append(stream.decompress(piece, room + 1))
        room -= len(parts[-1])
        if not piece or room < 0:
            raise ValueError("a pack that is broken, or unpacks to more than may be looked into")
        at += len(piece)
    return b"".join(parts), at - len(stream.unused_data)


def _steps(delta: bytes) -> Iterator[tuple[int, int] | bytes]:
    """(offset, size) to copy from the base, or bytes to insert."""
    at = 0
    for _ in range(2):  # sizes of base and result
        while delta[at] & 0x80:
            at += 1
        at += 1
    while at < len(delta):
        code, at = delta[at], at + 1
        if code & 0x80:
            values = [0, 0]
            for which, bits in ((0, range(4)), (1, range(4, 7))):
                for shift, bit in enumerate(bits):
                    if code & (1 << bit):
                        values[which] |= delta[at] << (8 * shift)
                        at += 1
            yield values[0], values[1] or 0x10000
        else:
            yield delta[at : at + code]
            at += code


def _apply(base: bytes, delta: bytes, room: int) -> bytes:
    parts: list[bytes] = []
    for step in _steps(delta):
        parts.append(step if isinstance(step, bytes) else base[step[0] : step[0] + step[1]])
        room -= len(parts[-1])
        if room < 0:
            raise ValueError("a pack that unpacks to more than may be looked into")
    return b"".join(parts)


def _inserted(delta: bytes) -> bytes:
    return b"\n".join(step for step in _steps(delta) if isinstance(step, bytes))
