"""Anyone's diff, read file by file, and written again the way git does.

In: the text of a unified or git diff, with or without a/ and b/ prefixes, with either line end, mails and commit messages around
it. Out: FilePatch records, and the text of each with a/ and b/ prefixes, ready for tree.apply_patch.

Not here: which of them may be used (filter.py), applying them (tree.py).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from etude.tree import unquote

PREFIXES = {("a", "b"), ("b", "a"), ("i", "w"), ("c", "i"), ("c", "w"), ("o", "w")}  # git's own, and diff.mnemonicPrefix
NOTHING = "/dev/null"
KEPT_HEADERS = ("old mode ", "new mode ", "deleted file mode ", "new file mode ", "similarity index ", "dissimilarity index ", "index ")
RENAMES = ("rename from ", "rename to ", "copy from ", "copy to ")
HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What a diff does to one file."""

    old: str | None  # relative path; None: the file is new
    new: str | None  # relative path; None: the file goes
    headers: tuple[str, ...] = ()  # git's extended header lines, names as above
    body: tuple[str, ...] = ()  # hunks or a binary patch, lines without their ends
    binary: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({path for path in (self.old, self.new) if path is not None}))

    @property
    def is_new(self) -> bool:
        return self.old is None


def parse(text: str) -> list[FilePatch]:
    """The files of a diff; none for a blank text. ValueError, one line, where it is no diff or a broken one."""
    if not text.strip():
        return []
    text = _plain_line_ends(text)
    lines = text.split("\n")[:-1]
    found: list[FilePatch] = []
    named: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        if lines[at].startswith("diff --git ") or _names_follow(lines, at):
            patch, names, at = _one_file(lines, at)
            found.append(patch)
            named.append(names)
        elif HUNK.match(lines[at]):
            raise ValueError(f"the patch is malformed: line {at + 1} is a hunk of no file")
        elif found and lines[at][:1] in ("+", "-", " ") and lines[at].strip() not in ("", "--") and found[-1].body:
            raise ValueError(f"the patch is malformed: line {at + 1} is beyond the length that its hunk gives")
        else:
            at += 1
    if not found:
        raise ValueError("this is no patch: it has neither a 'diff --git' line nor '---' and '+++' lines")
    return _without_prefixes(found) if all(_has_prefixes(*names) for names in named) else _with_plain_names(found)


def to_text(patches: Sequence[FilePatch]) -> str:
    """The diff that git would print for them."""
    return "".join(f"{line}\n" for patch in patches for line in _lines_of(patch))


def with_line_ends_of(patch: FilePatch, content: bytes | None) -> FilePatch:
    """A patch without carriage returns, for a file all of whose lines have them: with them."""
    if not content or patch.binary or content.count(b"\n") != content.count(b"\r\n") or b"\r\n" not in content:
        return patch
    if any(line.endswith("\r") for line in patch.body):
        return patch
    following = [*patch.body[1:], ""]
    changed = (
        f"{line}\r" if not line.startswith(("@@", "\\")) and not after.startswith("\\") else line
        for line, after in zip(patch.body, following, strict=True)
    )
    return replace(patch, body=tuple(changed))


def _plain_line_ends(text: str) -> str:
    """A diff that was saved with CRLF: its header lines show it."""
    header = re.search(r"^(?:diff --git|--- ).*$", text, re.MULTILINE)
    if header and header[0].endswith("\r"):
        text = re.sub(r"\r$", "", text, flags=re.MULTILINE)
    return text if text.endswith("\n") else text + "\n"


def _names_follow(lines: list[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _one_file(lines: list[str], at: int) -> tuple[FilePatch, tuple[str, str], int]:
    """The file that starts at line `at` with its names as they stand, the names that tell about prefixes, the line after it."""
    old: str | None = None
    new: str | None = None
    headers: list[str] = []
    moved: dict[str, str] = {}
    header: tuple[str | None, str | None] = (None, None)
    if lines[at].startswith("diff --git "):
        old, new = header = _header_names(lines[at].removeprefix("diff --git "))
        at += 1
        while at < len(lines) and lines[at].startswith((*KEPT_HEADERS, *RENAMES)):
            key = next((key for key in RENAMES if lines[at].startswith(key)), None)
            if key:
                moved[key] = unquote(lines[at][len(key) :])
            else:
                headers.append(lines[at])
            at += 1
        if any(line.startswith("new file") for line in headers):
            old = NOTHING
        if any(line.startswith("deleted file") for line in headers):
            new = NOTHING
    if at < len(lines) and _names_follow(lines, at):
        old, new = (unquote(lines[at + k][4:].split("\t")[0].rstrip()) for k in (0, 1))
        at += 2
    if old is None or new is None:
        raise ValueError(f"the patch is malformed: cannot read the names before line {at + 1}")
    if moved:  # these lines never carry prefixes
        headers += [f"{key}{name}" for key, name in moved.items()]
    body, at, binary = _body(lines, at)
    names = (header[0] or old, header[1] or new)
    return FilePatch(old=old, new=new, headers=tuple(headers), body=tuple(body), binary=binary), names, at


def _body(lines: list[str], at: int) -> tuple[list[str], int, bool]:
    start = at
    if at < len(lines) and lines[at].startswith(("GIT binary patch", "Binary files ")):
        while at < len(lines) and not lines[at].startswith("diff --git "):
            at += 1
        return lines[start:at], at, True
    while at < len(lines) and (match := HUNK.match(lines[at])):
        at = _after_hunk(lines, at, int(match[1] or 1), int(match[2] or 1))
    return lines[start:at], at, False


def _after_hunk(lines: list[str], at: int, old: int, new: int) -> int:
    header = at
    at += 1
    while old > 0 or new > 0:
        line = lines[at] if at < len(lines) else "end"
        kind = line[:1] or " "  # mailers strip the blank of an empty line
        if kind not in " +-\\":
            raise ValueError(f"the patch is malformed: the hunk at line {header + 1} is shorter than it says")
        old -= kind in " -"
        new -= kind in " +"
        at += 1
    if old < 0 or new < 0:
        raise ValueError(f"the patch is malformed: the hunk at line {header + 1} is not as long as it says")
    while at < len(lines) and lines[at].startswith("\\"):
        at += 1
    return at


def _header_names(names: str) -> tuple[str | None, str | None]:
    """Both names of a "diff --git" line; None where they differ by more than a prefix and other lines must tell."""
    quoted = re.fullmatch(r'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', names)
    if quoted:
        return unquote(quoted[1]), unquote(quoted[2])
    middle = len(names) // 2
    first, second = names[:middle], names[middle + 1 :]
    if first == second or (first[2:] == second[2:] and (first[:1], second[:1]) in PREFIXES):
        return first, second
    return None, None


def _without_prefixes(found: list[FilePatch]) -> list[FilePatch]:
    def bare(name: str | None) -> str | None:
        return name[2:] if name and name != NOTHING else name

    return _with_plain_names([replace(patch, old=bare(patch.old), new=bare(patch.new)) for patch in found])


def _with_plain_names(found: list[FilePatch]) -> list[FilePatch]:
    """None for /dev/null, and one name where a file was compared with a copy of itself (`diff -u x.orig x`)."""
    result = []
    for patch in found:
        old, new = (None if name == NOTHING else name for name in (patch.old, patch.new))
        if old is not None and new is not None and not any(line.startswith(RENAMES) for line in patch.headers):
            old = new
        result.append(replace(patch, old=old, new=new))
    return result


def _has_prefixes(old: str, new: str) -> bool:
    if old == NOTHING or new == NOTHING:
        name = new if old == NOTHING else old
        return name[1:2] == "/" and any(name[0] in pair for pair in PREFIXES) and bool(name[2:])
    return old[1:2] == "/" and new[1:2] == "/" and (old[0], new[0]) in PREFIXES


def _lines_of(patch: FilePatch) -> list[str]:
    old, new = patch.old or patch.new, patch.new or patch.old
    lines = [f"diff --git {_quoted(f'a/{old}')} {_quoted(f'b/{new}')}"]
    headers = list(patch.headers)
    if patch.old is None and not any(line.startswith("new file") for line in headers):
        headers.append("new file mode 100644")
    if patch.new is None and not any(line.startswith("deleted file") for line in headers):
        headers.append("deleted file mode 100644")
    lines += headers
    if patch.body and not patch.binary:
        for key, name, side in (("---", patch.old, "a"), ("+++", patch.new, "b")):
            lines.append(f"{key} {NOTHING if name is None else _quoted(f'{side}/{name}')}" + ("\t" if name and " " in name else ""))
    return [*lines, *patch.body]


def _quoted(name: str) -> str:
    """As git's core.quotePath does: everything but printable ASCII as octal bytes, in double quotes."""
    data = name.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return name
    escaped = (f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in data)
    return f'"{"".join(escaped)}"'
