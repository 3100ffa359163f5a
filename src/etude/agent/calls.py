"""Tool calls in a model's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number, any text around them.

In: the text of one turn. Out: the calls in order, each with what is wrong with its form, if anything.
The JSON is read to its end first, so that the closing tag inside a string is only text.

Not here: whether the tool exists and its arguments fit (tools.py).
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from etude.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORMAT = OPEN + '{"name": ..., "arguments": {...}}' + CLOSE
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    call: ToolCall
    problem: str | None = None  # why it is malformed


def parse_calls(text: str) -> list[ParsedCall]:
    """All calls of a turn. A text without any gives an empty list."""
    calls = []
    position = text.find(OPEN)
    while position >= 0:
        parsed, position = _parse_one(text, position + len(OPEN))
        calls.append(parsed)
        position = text.find(OPEN, position)
    return calls


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """The one way in which calls are written, by the scripted expert and in the prompt."""
    return OPEN + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + CLOSE


def _parse_one(text: str, start: int) -> tuple[ParsedCall, int]:
    """The call whose opening tag ends at `start`, and where to go on."""
    try:
        value, stop = _DECODER.raw_decode(text, _skip_space(text, start))
    except (ValueError, RecursionError):
        return _malformed(text, start, "it is not valid JSON")
    close = _skip_space(text, stop)
    if not text.startswith(CLOSE, close):
        return _malformed(text, start, f"after the JSON comes something else than {CLOSE}")
    wrong = _wrong_shape(value)
    if wrong is not None:
        return _malformed(text, start, wrong)
    call = ToolCall(name=value["name"], arguments=value["arguments"], raw=text[start:close])
    return ParsedCall(call=call), close + len(CLOSE)


def _skip_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _malformed(text: str, start: int, problem: str) -> tuple[ParsedCall, int]:
    """What there is up to the next tag."""
    close, following = (text.find(tag, start) for tag in (CLOSE, OPEN))
    if close < 0 or 0 <= following < close:
        problem = f"it does not end with {CLOSE}"
        stop = following if following >= 0 else len(text)
    else:
        stop = close
    return ParsedCall(call=ToolCall(name="", arguments={}, raw=text[start:stop]), problem=problem), stop


def _wrong_shape(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "it is not a JSON object"
    if not isinstance(value.get("name"), str) or not value["name"]:
        return "it has no name"
    if not isinstance(value.get("arguments"), dict):
        return "arguments is not an object"
    if set(value) - {"name", "arguments"}:
        return "it has keys besides name and arguments"
    if not _is_text(value):
        return "it holds half a character"
    return None


def _is_text(value: Any) -> bool:
    """JSON can spell half a surrogate pair, which is no text."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
