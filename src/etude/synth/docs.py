"""Documents that name what is gone: their paragraphs, list items, table rows and directives go with it.

In: the text files of a repository and the names that no source holds any more; out: the new bytes of those that change. Markdown,
reStructuredText and plain text, by blank lines: a fenced block, a directive with its body and a list item each count as one. A document
that is not UTF-8 is taken byte for byte, as latin-1.

Not here: docstrings (they go with their definitions), code that names something gone (closure.py).
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from etude.synth.units import WORD

SUFFIXES = (".md", ".rst", ".txt", ".markdown")
NAMES = ("readme", "changelog", "changes", "history", "news", "pkg-info", "todo")
MAX_BYTES = 2**20
ITEM = re.compile(r"\s*([-*+•]|\d+[.)]|\|)\s")
FENCE = re.compile(r"\s*(```+|~~~+)")
DIRECTIVE = re.compile(r"\s*\.\. |.*::\s*$")


def is_document(path: str) -> bool:
    place = PurePosixPath(path)
    return place.suffix.lower() in SUFFIXES or place.stem.lower() in NAMES


def clean_documents(files: Mapping[str, Path], gone: frozenset[str], paths: frozenset[str]) -> dict[str, bytes | None]:
    """`paths`: names of files that are gone; a list of files (SOURCES.txt) loses its lines about them."""
    found: dict[str, bytes | None] = {}
    if not gone and not paths:
        return found
    for path, file in files.items():
        if is_document(path) and file.stat().st_size <= MAX_BYTES:
            data = file.read_bytes()
            encoding = _encoding(data)
            new = clean(data.decode(encoding), gone, paths).encode(encoding)
            if new != data:
                found[path] = new
    return found


def _encoding(data: bytes) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def clean(text: str, gone: frozenset[str], paths: frozenset[str] = frozenset()) -> str:
    """The text without every block that holds one of the words. The head of a PKG-INFO counts line by line."""
    if gone.isdisjoint(WORD.findall(text)) and not any(path in text for path in paths):
        return text
    out: list[str] = []
    for block in _blocks(text.splitlines(keepends=True)):
        said = "".join(block)
        if gone.isdisjoint(WORD.findall(said)) and not any(path in said for path in paths):
            out += block
        elif out and block and not block[-1].strip() and out[-1].strip():
            out.append(block[-1])  # the gap that was between its neighbours
    return "".join(out)


def _blocks(lines: list[str]) -> list[list[str]]:
    """Consecutive lines that go or stay together; blank lines belong to the block above."""
    blocks: list[list[str]] = []
    fence = ""
    body_of: int | None = None  # depth of the directive whose body may follow
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        blank = not line.strip()
        above = lines[number - 1] if number else ""
        if fence:
            blocks[-1].append(line)
            fence = "" if line.strip().startswith(fence) else fence
            continue
        match = FENCE.match(line)
        if match:
            fence, body_of = match[1], None
            blocks.append([line])
            continue
        if blank and blocks:
            blocks[-1].append(line)
            continue
        inside = body_of is not None and depth > body_of
        begins = bool(ITEM.match(line) or DIRECTIVE.match(line)) or ":" in above.split(" ")[0]
        new = not blocks or (not inside and (not above.strip() or begins))
        if not inside:
            body_of = depth if DIRECTIVE.match(line) else None
        if new:
            blocks.append([line])
        else:
            blocks[-1].append(line)
    return blocks
