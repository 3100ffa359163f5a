"""A client of OpenAI-compatible chat endpoints: one conversation in, one answer with its token usage out.

    POST URL/chat/completions {"model", "messages", "max_tokens", "temperature", "seed"}   -> choices[0].message, usage

Nothing streams. 408, 409, 429, 5xx, a lost connection, a timeout and an answer that is no completion are tried again, with growing pauses
or those that the server asks for; a parameter that a server names as unsupported is left out from then on. Redirects are not followed, so
the key goes nowhere else; it is never part of a message.

Not here: conversations as token ids (chat.py), what may be spent (meter.py).
"""

import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from etude.agent.calls import CLOSE, OPEN, write_call
from etude.errors import UserError

AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)
MAX_ANSWER_BYTES = 8 << 20
MAX_PAUSE_S = 60.0
SHOWN = 300  # characters of a server's message
TOO_LONG = ("context length", "context_length", "maximum context", "too long", "too many tokens", "context window")


class EndpointError(UserError):
    """The endpoint cannot be used, or does not answer."""


class ContextTooLong(EndpointError):
    """The conversation does not fit into the model's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str  # with the calls of the answer, in our form
    input_tokens: int
    output_tokens: int
    stopped: bool  # it came to its end; False: max_tokens were reached


class Endpoint:
    """Safe to share between threads: every request has its own connection."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        deadline_s: float = 300.0,
        tries: int = 5,
        pause_s: float = 2.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`deadline_s`: of one try. Raises: UserError for a URL that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no address of an endpoint; give one such as http://127.0.0.1:8000/v1")
        try:
            self._port = parts.port
        except ValueError:
            raise UserError(f"{url!r} has no valid port; give an address such as http://127.0.0.1:8000/v1") from None
        if not model:
            raise UserError("no model is named for the endpoint; give the name that it knows it by")
        if any(not " " < c <= "~" for c in key):
            raise UserError("the key of the endpoint holds a space, a line break or a character that is not ASCII; set it again")
        path = parts.path.rstrip("/")
        self._path = path if path.endswith("/chat/completions") else f"{path}/chat/completions"
        self._path += f"?{parts.query}" if parts.query else ""
        self._secure, self._host, self._key = parts.scheme == "https", parts.hostname, key
        self.host = parts.hostname if self._port is None else f"{parts.hostname}:{self._port}"
        self.model, self.deadline_s, self.tries = model, deadline_s, max(1, tries)
        self._pause_s, self._sleep = pause_s, sleep
        self._renamed: dict[str, str] = {}  # parameter -> the name that the server wants, "": it takes none

    def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Raises: EndpointError, with what the server said; ContextTooLong."""
        asked: dict[str, Any] = {"model": self.model, "messages": list(messages), "max_tokens": max_tokens, "temperature": temperature}
        if seed is not None:
            asked["seed"] = seed
        if tools:
            asked["tools"] = list(tools)
        why, renamed = "", 0
        tried = 0
        while tried < self.tries:
            body = {name: value for key, value in asked.items() if (name := self._renamed.get(key, key))}
            pause: float | None = None
            try:
                status, data, retry_after = self._post(json.dumps(body).encode())
                if status == 200:
                    return read_answer(data)
                why, pause = f"{status}: {_said(data)}", retry_after
                if status not in AGAIN:
                    if status in (400, 422) and renamed < len(asked) and self._leave_out(why, asked):
                        renamed += 1
                        continue
                    raise self._refused(status, why)
            except ValueError as error:
                why = f"its answer is no completion ({error})"
            except (OSError, http.client.HTTPException) as error:
                why = "no answer in time" if isinstance(error, TimeoutError) else " ".join(str(error).split()) or type(error).__name__
            tried += 1
            if tried < self.tries:
                grown = self._pause_s * 2 ** (tried - 1) * (0.75 + random.random() / 2)
                self._sleep(min(grown if pause is None else max(pause, 0.0), MAX_PAUSE_S))
        raise EndpointError(self._clean(f"{self.host} gives no answer after {self.tries} tries: {why}; give the command again to go on"))

    def _post(self, body: bytes) -> tuple[int, bytes, float | None]:
        """Status, body and the pause that the server asks for."""
        until = time.monotonic() + self.deadline_s
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.deadline_s)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            parts: list[bytes] = []
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if isinstance(connection.sock, socket.socket):
                    connection.sock.settimeout(left)
                part = response.read1(65536)
                if not part:
                    break
                parts.append(part)
                if sum(map(len, parts)) > MAX_ANSWER_BYTES:
                    raise ValueError(f"more than {MAX_ANSWER_BYTES >> 20} MB")
            return response.status, b"".join(parts), _seconds(response.getheader("Retry-After"))
        finally:
            connection.close()

    def _leave_out(self, why: str, asked: Mapping[str, Any]) -> bool:
        """Does the server refuse a parameter that can go? OpenAI's newer models take max_completion_tokens, some servers no seed."""
        told = why.lower()
        if "max_completion_tokens" in told and self._renamed.get("max_tokens") != "max_completion_tokens":
            self._renamed["max_tokens"] = "max_completion_tokens"
            return True
        for name in ("seed", "temperature"):
            if name in asked and name not in self._renamed and name in told:
                self._renamed[name] = ""
                return True
        return False

    def _refused(self, status: int, why: str) -> EndpointError:
        if status in (400, 413, 422) and any(text in why.lower() for text in TOO_LONG):
            return ContextTooLong(self._clean(f"{self.host} takes no conversation of this length: {why}"))
        remedies = {401: "check the key", 403: "check the key", 404: f"check the address and the model's name {self.model!r}"}
        return EndpointError(self._clean(f"{self.host} refuses the request with {why}; {remedies.get(status, 'see its documentation')}"))

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())
        return text.replace(self._key, "[key]") if self._key else text


def read_answer(data: bytes) -> Answer:
    """Raises: ValueError for what is no completion."""
    try:
        told = json.loads(data)
        choice = told["choices"][0]
        message = choice["message"]
        text = _content(message.get("content"))
        calls = [_call(each["function"]) for each in message.get("tool_calls") or ()]
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    usage = told.get("usage") if isinstance(told.get("usage"), dict) else {}
    text = "\n".join(part for part in (text, *calls) if part)
    return Answer(
        text=text.encode("utf-8", "replace").decode(),  # JSON can spell half a character
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        stopped=choice.get("finish_reason") != "length",
    )


def _content(content: Any) -> str:
    """A text, nothing, or a list of parts of which some are texts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _call(function: Mapping[str, Any]) -> str:
    """A call of OpenAI's form in ours; one whose arguments are no JSON stays as it is, so that the model is told."""
    name, arguments = str(function["name"]), function.get("arguments") or "{}"
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return f"{OPEN}{name} {arguments}{CLOSE}"
    return write_call(name, values)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _said(data: bytes) -> str:
    """What a server says of an error: error.message where it is JSON, else the beginning."""
    try:
        told = json.loads(data)
        error = told.get("error", told)
        text = error.get("message") if isinstance(error, dict) else error
        text = str(text if text is not None else told)
    except (ValueError, AttributeError, RecursionError):
        text = data[: 4 * SHOWN].decode("utf-8", "replace")
    return " ".join(text.split())[:SHOWN] or "nothing"


def _seconds(text: str | None) -> float | None:
    """Of Retry-After; one that is a date is left to the growing pauses."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None
