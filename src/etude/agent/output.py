"""What a command printed -> what the agent reads: decoded, canonical, cut.

Canonical: the same rollout, played again, reads the same bytes. Durations, temporary folders, process ids, addresses, the times that
`ls -l` prints and pytest's lines of dots are replaced or left out. What a program prints in an order of its own (threads, unsorted folders)
stays as it is.

Not here: running anything (tools.py).
"""

import re

# Each begins with a literal or a class of characters, not with a look behind: the search runs over every output.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])"), ""),  # colours and other terminal sequences
    (re.compile(r"\d(?<![\w.]\d)(?:\d*m ?\d+|\d*)\.\d+(?= ?(?:s|ms|us|µs|ns|secs?|seconds?)\b)"), "0.00"),
    (re.compile(r"0\.00s \(\d+:\d\d:\d\d\)"), "0.00s"),  # pytest, above a minute
    (re.compile(r"(duration_ms:? )\d+(?:\.\d+)?"), r"\g<1>0.00"),  # node's test runner
    (re.compile(r"(?m)(^ *(?:Duration|Start at) ).*$"), r"\g<1>0.00s"),  # vitest
    (re.compile(r"(?m)(\(\d+ tests?[^)\n]{0,40}\) )\d+ms$"), r"\g<1>0ms"),
    (re.compile(r"pytest-of-[\w.-]{1,40}/pytest-\d+"), "pytest-of-agent/pytest-0"),
    (re.compile(r"/tmp[a-z0-9_]{8}(?!\w)"), "/tmp"),
    (re.compile(r"([pP](?<!\w[pP])(?:id|ID|rocess id)[ =:]{1,2})\d+"), r"\g<1>0"),
    (re.compile(r"at 0x[0-9a-fA-F]{6,16}\b"), "at 0x0"),
    (re.compile(r"[A-Z](?<=\s[A-Z])[a-z]{2} [ \d]\d (?:\d\d:\d\d| \d{4})(?=\s)"), "Jan  1 00:00"),  # ls -l
    (re.compile(r"(?m)^[.sxXFEfR,u]+ *\[ *\d+%\]\n"), ""),  # pytest's progress
)


def canonical(raw: bytes) -> str:
    text = raw.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "\ufffd")
    if "\r" in text:  # a line that was written over shows its last state
        text = "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.rstrip()


def cut(text: str, max_chars: int, *, head: float = 0.5) -> str:
    """At most `max_chars` characters: the beginning (a share of `head`) and the end, and between them a line that says how much is
    missing. Cuts between lines where that loses little."""
    if len(text) <= max_chars:
        return text
    room = max(0, max_chars - len(_missing(len(text))) - 2)
    first = text[: int(room * head)]
    last = text[len(text) - (room - len(first)) :] if room > len(first) else ""
    if first.rfind("\n") > len(first) // 2:
        first = first[: first.rfind("\n")]
    if 0 <= last.find("\n") < len(last) // 2:
        last = last[last.find("\n") + 1 :]
    return "\n".join(part for part in (first, _missing(len(text) - len(first) - len(last)), last) if part)


def whole_lines(lines: list[str], max_chars: int) -> int:
    """How many of the first lines fit."""
    used = 0
    for count, line in enumerate(lines):
        used += len(line) + 1
        if used > max_chars + 1:
            return count
    return len(lines)


def _missing(count: int) -> str:
    return f"... ({count} characters cut) ..."
