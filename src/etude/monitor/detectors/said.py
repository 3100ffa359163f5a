"""Every text that a trajectory wrote for somebody to read: comments, strings, documents, file names, output, messages.

    said(deeds) -> Said(text, step, where, kind)

Thoughts are not among them, nor what tools gave back.

Not here: what is wrong with such a text (addressed.py, concealed.py, pleading.py).
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from etude.monitor.detectors.code import parse_python
from etude.monitor.detectors.deeds import Deeds, added, is_test

Kind = Literal["code", "document", "name", "printed", "message", "comment"]
_PRINTERS = ("echo", "printf", ":", "git", "true", "logger", "wall", "write", "notify-send", "export")
_LEFT_OUT = frozenset({
    "command", "path", "old", "new", "content", "file_text", "old_str", "new_str", "code", "pattern", "query", "cmd", "keystrokes",
})  # fmt: skip
_MIN = 6


@dataclass(frozen=True, slots=True)
class Said:
    text: str
    step: int  # -1: in the patch
    where: str  # "in calc/core.py", "in its message"
    kind: Kind


_LAST: list[tuple[Deeds, list[Said]]] = []  # several detectors ask one after the other


def said(deeds: Deeds) -> list[Said]:
    for known, texts in _LAST:
        if known is deeds:
            return texts
    texts = [one for one in dict.fromkeys(_said(deeds)) if len(one.text) >= _MIN]
    _LAST[:] = [(deeds, texts)]
    return texts


def _said(deeds: Deeds) -> Iterator[Said]:
    for patch in deeds.patches:
        path = patch.new or ""
        if patch.binary:
            continue
        for text in prose("\n".join(added(patch)), path):
            yield Said(text, -1, f"in {path}", "code" if path.endswith((".py", ".pyi")) else "document")
        if patch.is_new:
            yield Said(path, -1, "in a file name", "name")
    for use in deeds.uses:
        if use.how in ("write", "edit") and use.new:
            for text in prose(use.new, use.place):
                yield Said(text, use.step, f"in {use.place}", "code" if use.place.endswith((".py", ".pyi")) else "document")
        if use.how in ("write", "copy", "link"):
            yield Said(use.target or use.place, use.step, "in a file name", "name")
    for ran in deeds.commands:
        command = ran.command
        if command.program in _PRINTERS:
            yield Said(" ".join(command.argv[1:]), ran.step, "in what it printed", "printed")
        elif command.program in ("cat", "tee") and command.stdin:
            yield Said(command.stdin, ran.step, "in what it printed", "printed")
        for setting in command.env:
            if " " in setting:
                yield Said(setting.partition("=")[2], ran.step, "in a variable", "printed")
    for source in deeds.sources:
        if source.executed:
            for text in [*source.code.strings, *comments(source.code.text)]:
                yield Said(text, source.step, "in code that it ran", "code")
    for step in deeds.trajectory.steps:
        if step.text:
            yield Said(step.text, step.index, "in its message", "message")
        for act in step.acts:
            for key, value in act.arguments.items():
                if key not in _LEFT_OUT and isinstance(value, str):
                    yield Said(value, step.index, "in its message", "message")
            for line in re.findall(r"(?m)(?:^|\s)#\s*(.{12,})$", act.command):
                yield Said(line, step.index, "in a comment of a command", "comment")


@lru_cache(maxsize=512)
def prose(text: str, path: str) -> tuple[str, ...]:
    """Comments and strings of code, the whole of anything else."""
    if path.endswith((".py", ".pyi")):
        return (*parse_python(text).strings, *comments(text))
    if path.endswith((".js", ".ts", ".java", ".c", ".go", ".jsx", ".tsx", ".mjs", ".rs")):
        spoken = [a or b for a, b in re.findall(r"//\s*(.+)|/\*((?:.|\n)+?)\*/", text)]
        return (*spoken, *re.findall(r"[\"'`]([^\"'`\n]{12,})[\"'`]", text))
    return () if is_test(path) else (text,)


@lru_cache(maxsize=512)
def comments(text: str) -> tuple[str, ...]:
    """Comments in a row are one text."""
    found: list[list[str]] = []
    last = -2
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                if token.start[0] == last + 1 and found:
                    found[-1].append(token.string.lstrip("#! "))
                else:
                    found.append([token.string.lstrip("#! ")])
                last = token.start[0]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        found = [[line] for line in re.findall(r"#\s*(.+)", text)]
    return tuple("\n".join(lines) for lines in found)
