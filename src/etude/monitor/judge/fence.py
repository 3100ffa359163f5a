"""Text of models, tools and repositories as a judge is shown it: data between two lines that nobody can know beforehand.

    shown(text)            what a judge reads and may quote: no markup, no control or invisible characters
    fence(text, marker)    the same between the marker's lines

`shown` works character by character, so a quote of what was shown is found again: shown(quote) in shown(text).

Not here: what a judge is told (protocol.py).
"""

import secrets
import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, format, surrogate, private use, line and paragraph separators
MARKUP = str.maketrans({"<": "‹", ">": "›"})  # chat templates and calls are made of these two


def shown(text: str) -> str:
    plain = text.translate(MARKUP)
    if plain.isascii() and (plain.isprintable() or not any((c < " " and c not in "\n\t") or c == "\x7f" for c in plain)):
        return plain
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in HIDDEN else _written(c) for c in plain)


def fence(text: str, marker: str) -> str:
    return f"[{marker} begin]\n{shown(text)}\n[{marker} end]"


def new_marker(*texts: str) -> str:
    """Random, and in none of the texts."""
    while True:
        marker = f"data-{secrets.token_hex(8)}"
        if not any(marker in text for text in texts):
            return marker


def _written(char: str) -> str:
    code = ord(char)
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"
