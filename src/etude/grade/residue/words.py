"""Bytes of any kind become words, and words become 64-bit features: every word, and every five words in a row.

In: bytes; out: `views` of them as text (as they are, without tags, entities and escapes, as UTF-16 and UTF-32, the printable runs of
binary data), and `features`, a set of hashes. Punctuation and white space do not count, so a line of code is the same line in a
notebook, in HTML with a tag around every token, in a diff and in a docstring that was filled anew. Hashes are the same in every process.

Not here: what is inside archives (unpack.py), what is looked for (needles.py).
"""

import html
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b

GRAM = 5  # words in a row that make one feature
MASK = (1 << 64) - 1
MIN_RUN = 4  # printable bytes in binary data that count as text
ROUNDS = 3  # of taking escapes away: JSON in JSON in HTML
WORD = re.compile(rb"[A-Za-z0-9_]+|[\x80-\xff]+")
BARRIER = b"\x80"  # a word of its own between runs, so that no five words in a row cross it

_RUN = re.compile(rb"[\t\n\r\x20-\x7e]{%d,}" % MIN_RUN)
_WIDE = tuple(
    (re.compile(pattern), step, offset)
    for pattern, step, offset in (
        (rb"(?:[\t\n\r\x20-\x7e]\0){4,}", 2, 0),
        (rb"(?:\0[\t\n\r\x20-\x7e]){4,}", 2, 1),
        (rb"(?:[\t\n\r\x20-\x7e]\0\0\0){4,}", 4, 0),
        (rb"(?:\0\0\0[\t\n\r\x20-\x7e]){4,}", 4, 3),
    )
)
_SOFT = re.compile(
    rb"</?[A-Za-z!][^<>]{0,2000}>|&#?\w{1,10};|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{3}|[^\w\s]|[nrtbf])|%[0-9A-Fa-f]{2}|=\r?\n"
)
_IS_SOFT = re.compile(rb"[&\\<%]|=$")


class _Hashes(dict[bytes, int]):
    """word -> hash, computed once."""

    def __missing__(self, word: bytes) -> int:
        if len(self) > 2_000_000:
            self.clear()
        value = self[word] = int.from_bytes(blake2b(word, digest_size=8).digest(), "little")
        return value


_hashes = _Hashes()


def hash_word(word: bytes) -> int:
    return _hashes[word]


def hash_gram(words: Sequence[bytes]) -> int:
    """Of exactly GRAM words."""
    a, b, c, d, e = (_hashes[word] for word in words)
    return (a + 3 * b + 5 * c + 7 * d + 11 * e) & MASK


def split(text: bytes) -> list[bytes]:
    return WORD.findall(text)


def features(text: bytes) -> set[int]:
    """The hashes of the words of a text, and of every five in a row."""
    hashes = list(map(_hashes.__getitem__, WORD.findall(text)))
    rows = zip(hashes, hashes[1:], hashes[2:], hashes[3:], hashes[4:], strict=False)
    found = {(a + 3 * b + 5 * c + 7 * d + 11 * e) & MASK for a, b, c, d, e in rows}
    found.update(hashes)
    return found


def is_text(data: bytes) -> bool:
    odd = bytes(set(range(32)) - set(b"\t\n\r\f"))
    return b"\0" not in data and len(data.translate(None, odd)) >= 0.9 * len(data)


def views(data: bytes) -> Iterator[bytes]:
    """Every way to read some bytes as text. The first of a text is the text itself, the next ones hold only the lines that need it."""
    if not is_text(data):
        yield from _binary_views(data)
        return
    yield data
    for _ in range(ROUNDS):
        lines = [line if _IS_SOFT.search(line) else BARRIER for line in data.splitlines()]
        soft = b"\n".join(line for number, line in enumerate(lines) if line != BARRIER or lines[number - 1] != BARRIER)
        data = _SOFT.sub(_soften, soft)
        if data == soft:
            return
        yield data


def _soften(match: re.Match[bytes]) -> bytes:
    found = match[0]
    first = found[:1]
    if first == b"<":
        return b""
    if first == b"&":
        return html.unescape(found.decode("ascii", "replace")).encode("utf-8", "replace")
    if first == b"%":
        return bytes([int(found[1:], 16)])
    if first == b"=":  # a soft line break of quoted-printable
        return b""
    if found[1:2] == b"x":
        return bytes([int(found[2:], 16)])
    if found[1:2] == b"u":
        return chr(int(found[2:], 16)).encode("utf-8", "replace")
    if found[1:2].isdigit():
        return bytes([int(found[1:], 8) & 255])
    return {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b" ", b"f": b" "}.get(found[1:2], found[1:2])


def _binary_views(data: bytes) -> Iterator[bytes]:
    """The printable runs. A byte of length or type may look like a letter and stick to a word: its ends are also read without them."""
    parts: list[bytes] = []
    for run in _RUN.findall(data):
        parts += (run, BARRIER)
        words = WORD.findall(run)
        for word in {words[0], words[-1]} if words else ():
            for start in (0, 1, 2):
                for stop in (0, 1, 2):
                    trimmed = word[start : len(word) - stop]
                    if len(trimmed) >= MIN_RUN and (start or stop):
                        parts += (trimmed, BARRIER)
    yield b" ".join(parts)
    for pattern, step, offset in _WIDE:
        wide = [run[offset::step] for run in pattern.findall(data)]
        if wide:
            yield from views((b" " + BARRIER + b" ").join(wide))
