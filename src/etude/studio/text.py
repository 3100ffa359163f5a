"""Text of models, tools and repositories, made fit to be shown: it is data, and never becomes markup or moves anything on the page.

Characters that a browser does not show, or that change the order of what it shows, are written out: control characters as their pictures
(␛ for escape), bidirectional overrides, zero-width and other format characters by their code point.

Not here: shortening (transcript.py).
"""

import unicodedata

from markupsafe import Markup, escape

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, format, surrogate, private use, line and paragraph separators
BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"  # Hangul fillers: letters by category, shown as nothing
SHOWN = '<span class="ctl" title="{0}">{1}</span>'


def visible(text: str) -> Markup:
    """Escaped, with everything hidden written out in a marked span. Newline and tab stay; CR LF becomes a newline."""
    text = text.replace("\r\n", "\n")
    hidden = {c for c in set(text) if _hidden(c)}
    if not hidden:
        return escape(text)
    return Markup("").join(Markup(SHOWN).format(f"U+{ord(c):04X}", _picture(c)) if c in hidden else escape(c) for c in text)


def plain(text: str) -> Markup:
    """The same for an attribute, where there can be no span. Escaped, one line."""
    return escape("".join(_picture(c) if _hidden(c) else c for c in " ".join(text.split())))


def _hidden(char: str) -> bool:
    return char not in "\n\t" and (char in BLANK_LETTERS or unicodedata.category(char) in HIDDEN)


def _picture(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"U+{code:04X}"
