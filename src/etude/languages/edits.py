"""Byte edits: applied together, overlapping ones merged, and whole lines taken where nothing else is left on them.

In: the bytes of a file and Edits in any order; out: new bytes.

Not here: which edits (the adapters).
"""

from collections.abc import Iterable

from etude.languages.protocol import Edit


def apply(data: bytes, edits: Iterable[Edit]) -> bytes:
    """An edit inside a larger one is dropped; two removals that overlap become one. ValueError for others that overlap."""
    out: list[bytes] = []
    at = 0
    for edit in merged(edits):
        out += [data[at : edit.start], edit.data]
        at = edit.end
    return b"".join([*out, data[at:]])


def merged(edits: Iterable[Edit]) -> list[Edit]:
    found: list[Edit] = []
    for edit in sorted(set(edits), key=lambda e: (e.start, -e.end)):
        if found and edit.start < found[-1].end:
            last = found[-1]
            if edit.end <= last.end:
                continue
            if edit.data or last.data:
                raise ValueError(f"edits overlap at byte {edit.start}")
            found[-1] = Edit(start=last.start, end=edit.end)
        else:
            found.append(edit)
    return found


def line_of(data: bytes, offset: int) -> int:
    """From 1."""
    return data.count(b"\n", 0, offset) + 1


def removal(data: bytes, start: int, end: int) -> Edit:
    """Take a range away; with the whole lines and the blank lines after it if nothing else stands on them: no ghosts stay."""
    first, last = line_start(data, start), line_end(data, end)
    if data[first:start].strip() or data[end:last].strip(b" \t\r\n;"):
        return Edit(start=start, end=end)
    before = _blank_before(data, first)
    after = last
    while after < len(data) and not data[after : line_end(data, after)].strip():
        after = line_end(data, after)
    if after > last and (before or first == 0 or _opens(data, first) or _closes(data, after)):
        return Edit(start=first, end=after)  # blank lines on both sides: those after it go
    if _closes(data, last) and before:
        return Edit(start=first - before, end=last)
    return Edit(start=first, end=last)


def line_start(data: bytes, offset: int) -> int:
    return data.rfind(b"\n", 0, offset) + 1


def line_end(data: bytes, offset: int) -> int:
    """One past the line end."""
    found = data.find(b"\n", offset)
    return len(data) if found < 0 else found + 1


def _blank_before(data: bytes, first: int) -> int:
    """Bytes of the blank lines just before a line's start."""
    start = first
    while start > 0 and not data[line_start(data, start - 1) : start].strip():
        start = line_start(data, start - 1)
    return first - start


def _opens(data: bytes, first: int) -> bool:
    return data[:first].rstrip().endswith((b"{", b"(", b"["))


def _closes(data: bytes, last: int) -> bool:
    rest = data[last:].lstrip()
    return not rest or rest.startswith((b"}", b")", b"]"))
