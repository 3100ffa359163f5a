"""Messages <-> token ids, so that sampled tokens are never tokenised again.

In: a model folder (tokenizer.json, chat_template.jinja or tokenizer_config.json). Out: ids of the pieces that a conversation is put
together from:

    opening(system, user) + header + sampled + following(observation) + header + sampled + following(observation) + header ...
                                                                      ^ a hint goes here, before the header

The pieces come from rendering the chat template once per role and taking differences. That is only right where adding a message never
changes what was there before, so the constructor renders several conversations, message by message, and refuses a template that
rewrites earlier ones (strips thoughts, moves the system message), tokenises differently in pieces, or takes no system message in the
middle. The text of messages is encoded without special tokens: "<|im_end|>" in a tool's output stays text.

Not here: what the messages say (agent/prompt.py), sampling (engine/).
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from etude.errors import TemplateError, UserError

Message = tuple[str, str]  # role, text
REMEDY = "use a model with a plainer template, or put one as chat_template.jinja beside its tokenizer.json"


class Renderer:
    """Pieces of one model's conversations as token ids. Safe to share between threads."""

    header: tuple[int, ...]  # what comes before an assistant's turn
    stop_ids: tuple[int, ...]  # sampling ends with one of these; the first is the one that the template writes

    def __init__(
        self,
        tokenizer_json: str,
        template: str,
        *,
        special: Mapping[str, str] | None = None,
        stops: Sequence[int] = (),
        roles: Sequence[str] = ("user",),
    ) -> None:
        """`special`: bos_token and others that the template asks for; `stops`: further ids that end a turn; `roles`: of observations.

        Raises: TemplateError.
        """
        self._special = Tokenizer.from_str(tokenizer_json)  # reads special tokens: only ever sees what the template wrote
        self._plain = Tokenizer.from_str(tokenizer_json)
        self._plain.encode_special_tokens = True
        for tokenizer in (self._special, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._template = _compile(template)
        self._variables = dict(special or {})
        start = self._render(_START)
        self.header = self._ids(_rest(start, self._render(_START, header=True), "the assistant header"))
        if not self.header:
            raise TemplateError(f"the chat template has no add_generation_prompt part; {REMEDY}")
        end = _rest(self._render(_START, header=True) + "done", self._render([*_START, ("assistant", "done")]), "the assistant header")
        self._end = self._ids(end)
        eos = self._special.token_to_id(self._variables.get("eos_token", ""))
        self.stop_ids = tuple(dict.fromkeys((self._stop_id(end), *stops, *(() if eos is None else (eos,)))))
        self._check_control_tokens()
        self._messages: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._check(roles)

    @classmethod
    def from_folder(cls, path: Path, *, roles: Sequence[str] = ("user",)) -> "Renderer":
        """Raises: UserError for a folder without a tokenizer or template, TemplateError."""
        tokenizer = path / "tokenizer.json"
        if not tokenizer.is_file():
            raise UserError(f"no tokenizer.json in {path}; name a Hugging Face model folder with a fast tokenizer")
        config = _json_file(path / "tokenizer_config.json")
        template_file = path / "chat_template.jinja"
        template = template_file.read_text(encoding="utf-8") if template_file.is_file() else config.get("chat_template")
        if isinstance(template, list):  # several named ones
            template = next((t["template"] for t in template if t.get("name") == "default"), None)
        if not isinstance(template, str):
            raise TemplateError(f"no chat template in {path}; put one into {template_file.name}")
        tokenizer_json = tokenizer.read_text(encoding="utf-8")
        special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        stops = _json_file(path / "generation_config.json").get("eos_token_id") or []
        stops = [stops] if isinstance(stops, int) else list(stops)
        return cls(tokenizer_json, template, special={k: v for k, v in special.items() if v}, stops=stops, roles=roles)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text; names of special tokens in it are text like any other."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._special.decode(list(ids), skip_special_tokens=False))

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The first messages of a conversation, without a header."""
        rendered = self._render([(role, _mark(i)) for i, (role, _) in enumerate(messages)])
        parts = re.split(f"{_OPEN}([0-9]+){_CLOSE}", rendered)
        if [int(i) for i in parts[1::2]] != list(range(len(messages))):
            raise TemplateError(f"the chat template does not write each message once and in order; {REMEDY}")
        texts = [messages[int(part)][1] if i % 2 else part for i, part in enumerate(parts)]
        return tuple(t for i, text in enumerate(texts) for t in (self.encode(text) if i % 2 else self._ids(text)))

    def following(self, text: str, *, closed: bool, role: str = "user") -> tuple[int, ...]:
        """What comes after a sampled turn: its end, where it has none (`closed`: it ended with the template's stop token, see `closes`),
        and one message. No header."""
        before, after = self._message(role)
        return (*(self._end[1:] if closed else self._end), *before, *self.encode(text), *after)

    def hint(self, text: str) -> tuple[int, ...]:
        """A whole system message, to be spliced in just before a header."""
        before, after = self._message("system")
        return (*before, *self.encode(text), *after)

    def assistant(self, text: str) -> tuple[int, ...]:
        """A turn as a model would have sampled it, stop token included."""
        return (*self.encode(text), self.stop_ids[0])

    def closes(self, sampled: Sequence[int]) -> bool:
        """Did the turn end with the template's own stop token? After another one `following` has to write the end."""
        return bool(sampled) and sampled[-1] == self.stop_ids[0]

    def sampled_text(self, sampled: Sequence[int]) -> str:
        """A sampled turn as text, without the stop token."""
        return self.decode(sampled[:-1] if sampled and sampled[-1] in self.stop_ids else sampled)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._special.encode(text, add_special_tokens=False).ids)

    def _render(self, messages: Sequence[Message], *, header: bool = False) -> str:
        conversation = [{"role": role, "content": text} for role, text in messages]
        try:
            return self._template.render(messages=conversation, add_generation_prompt=header, **self._variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            roles = " -> ".join(role for role, _ in messages)
            raise TemplateError(f"the chat template takes no conversation of {roles} ({_one_line(error)}); {REMEDY}") from error

    def _stop_id(self, end: str) -> int:
        first = self._end[0] if self._end else -1
        if first not in self._special.get_added_tokens_decoder():
            raise TemplateError(f"the chat template ends a turn with {end!r}, which does not begin with a special token; {REMEDY}")
        return first

    def _check_control_tokens(self) -> None:
        """What structures a conversation must not come out of a message's text."""
        added = self._special.get_added_tokens_decoder()
        for token in {*self.header, *self._end, *self._ids(self._render(_START))} & added.keys():
            if token in self.encode(added[token].content):
                raise TemplateError(f"tokenizer.json does not mark {added[token].content!r} as special, so a text could forge it; mark it")

    def _message(self, role: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and after the text of one message, after an assistant's turn."""
        found = self._messages.get(role)
        if found is None:
            base = [*_START, ("assistant", "done")]
            added = _rest(self._render(base), self._render([*base, (role, _mark(0))]), f"a {role} message")
            before, mark, after = added.partition(_mark(0))
            if not mark:
                raise TemplateError(f"the chat template leaves out the text of {role} messages; {REMEDY}")
            found = self._messages[role] = (self._ids(before), self._ids(after))
        return found

    def _check(self, roles: Sequence[str]) -> None:
        """Grow conversations message by message: what was there stays, and our pieces are the tokens of the whole."""
        for role in roles:
            for hints in (False, True):
                self._check_conversation(_conversation(role, hints=hints), role)

    def _check_conversation(self, messages: Sequence[Message], role: str) -> None:
        ids = self.opening(messages[:2])
        for size in range(2, len(messages) + 1):
            if size > 2:
                ids += self._piece(messages[size - 1], messages[size - 2], role)
            shown = self._render(messages[:size])
            ends_with_turn = messages[size - 1][0] == "assistant"
            whole = self._ids(shown)
            if (*ids, *(self._end[1:] if ends_with_turn else ())) != whole:
                raise TemplateError(f"the chat template writes a {messages[size - 1][0]} message otherwise than its pieces; {REMEDY}")
            if size < len(messages):
                _rest(shown, self._render(messages[: size + 1]), f"a {messages[size][0]} message")
            if not ends_with_turn and self._ids(_rest(shown, self._render(messages[:size], header=True), "the header")) != self.header:
                raise TemplateError(f"the chat template's assistant header differs between turns; {REMEDY}")

    def _piece(self, message: Message, before: Message, role: str) -> tuple[int, ...]:
        if message[0] == "assistant":
            return (*self.header, *self.assistant(message[1]))
        if before[0] == "assistant":
            return self.following(message[1], closed=True, role=role)
        return self.hint(message[1])


_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters around a placeholder: no template strips or changes them
_START: list[Message] = [("system", "You help."), ("user", "Begin.")]


def _mark(index: int) -> str:
    return f"{_OPEN}{index}{_CLOSE}"


def _conversation(role: str, *, hints: bool) -> list[Message]:
    """One with what templates like to treat specially: thoughts, JSON, line breaks, calls between tags, non-ASCII."""
    call = '<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>'
    messages = list(_START)
    for i, turn in enumerate((f"<think>\nFirst I look.\n</think>\n\n{call}", call, f"Well:\n{call}\nDone… naïve")):
        if hints:
            messages.append(("system", f'Reminder {i}: "list" comes first.'))
        messages += [("assistant", turn), (role, f'a.py:{i}: x = {{"y": "ü"}}\n\n    return <x>')]
    return messages


def _rest(shorter: str, longer: str, what: str) -> str:
    if not longer.startswith(shorter):
        raise TemplateError(f"the chat template changes earlier text when {what} is added; {REMEDY}")
    return longer[len(shorter) :]


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


def _compile(template: str) -> jinja2.Template:
    """As transformers compiles it, but without the clock (`strftime_now`): the same messages give the same ids on any day."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template is not valid: {_one_line(error)}") from error


def _json_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {_one_line(error)}") from error
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    """A special token of tokenizer_config.json: its text, or a record with it."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
