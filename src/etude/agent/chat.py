"""Models behind an endpoint in the harness: conversations of bytes, read back as messages.

The harness (loop.py) speaks in token ids. An endpoint has its own, which nobody here knows, so `plain_renderer` has one id for every byte
and two for what stands between messages. `ChatPolicy` turns the ids of a request into messages again and asks; no text can forge a message,
as the ids between them come from no text. Limits of a context count bytes then, those of the meter count the model's tokens.

Not here: HTTP (endpoint.py).
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from etude.agent.calls import OPEN, parse_calls
from etude.agent.endpoint import ContextTooLong, Endpoint
from etude.agent.meter import Meter
from etude.agent.tools import TESTS, Tool
from etude.engine.protocol import Completion, Request
from etude.languages.shell import shell_of
from etude.render import Message, Renderer

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BYTES_PER_TOKEN = 3  # fewer than any usual tokenizer has in code, so that an estimate is rather too high


@cache
def plain_renderer() -> Renderer:
    """One id for every byte."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (START, END)])
    return Renderer(tokenizer.to_str(), TEMPLATE)


def read_messages(renderer: Renderer, ids: Sequence[int]) -> list[Message]:
    """The whole messages of a conversation that `plain_renderer` wrote; a header at its end is none."""
    start, end = renderer.header[0], renderer.stop_ids[0]
    found: list[Message] = []
    begun = -1
    for place, id in enumerate(ids):
        if id == start:
            begun = place + 1
        elif id == end and begun >= 0:
            role, _, text = renderer.decode(ids[begun:place]).partition("\n")
            found.append((role, text))
            begun = -1
    return found


class ChatPolicy:
    """Asks an endpoint. Falls silent where the meter is empty or the context too long; `meter.stopped` says so then."""

    def __init__(
        self,
        endpoint: Endpoint,
        meter: Meter,
        *,
        turn_tokens: int,
        tools: Mapping[str, Tool] | None = None,
        runner: str = "pytest",
        temperature: float = 1.0,
    ) -> None:
        """`tools`: given to the endpoint in OpenAI's form, with the test command of `runner`; None: the model writes calls as the prompt
        says."""
        self._endpoint, self._meter, self._turn_tokens, self._temperature = endpoint, meter, turn_tokens, temperature
        self._renderer, self._tools = plain_renderer(), tools
        self._declared = declared(tools or {}, runner=runner)

    def __call__(self, request: Request) -> Completion | None:
        room = self._meter.room(len(request.ids) // BYTES_PER_TOKEN, self._turn_tokens)
        if not room:
            return None
        messages = read_messages(self._renderer, request.ids)
        asked = native(messages) if self._tools is not None else [{"role": role, "content": text} for role, text in messages]
        try:
            answer = self._endpoint.complete(
                asked, max_tokens=room, temperature=self._temperature, seed=request.seed >> 32, tools=self._declared
            )
        except ContextTooLong:
            self._meter.stopped = "the conversation is too long for the model"
            return None
        guessed = not answer.input_tokens and not answer.output_tokens  # a server that tells nothing is not for free
        self._meter.add(
            len(request.ids) // BYTES_PER_TOKEN if guessed else answer.input_tokens,
            len(answer.text.encode()) // BYTES_PER_TOKEN if guessed else answer.output_tokens,
        )
        return said(self._renderer, answer.text, request.max_tokens, stopped=answer.stopped)


def said(renderer: Renderer, text: str, max_tokens: int, *, stopped: bool = True) -> Completion:
    """A text as if it had been sampled."""
    ids = renderer.assistant(text)
    kept = (ids if stopped else ids[:-1])[:max_tokens]
    whole = stopped and len(kept) == len(ids)
    return Completion(ids=kept, logprobs=(0.0,) * len(kept), versions=(0,) * len(kept), stopped=whole)


def declared(tools: Mapping[str, Tool], *, runner: str = "pytest") -> list[dict[str, Any]]:
    """Tools in OpenAI's form. What tells how tests are run tells it for this runner, as the system prompt does."""
    tests = shell_of(runner).tests
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.about.replace(TESTS, tests), "parameters": dict(tool.schema)},
        }
        for tool in tools.values()
    ]


def native(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with calls and answers in OpenAI's form. Several calls of one turn have one answer, which the first one gets."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number, (role, text) in enumerate(messages):
        if role == "assistant":
            calls = [parsed.call for parsed in parse_calls(text) if parsed.problem is None]
            waiting = [f"call_{number}_{place}" for place in range(len(calls))]
            found.append({"role": role, "content": text.partition(OPEN)[0].strip() if calls else text})
            if calls:
                found[-1]["tool_calls"] = [
                    {
                        "id": id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                    }
                    for id, call in zip(waiting, calls, strict=True)
                ]
        elif role == "user" and waiting:
            for place, id in enumerate(waiting):
                found.append({"role": "tool", "tool_call_id": id, "content": text if not place else "(in the answer to the first call)"})
            waiting = []
        else:
            found.append({"role": role, "content": text})
    return found
