"""Who can judge: an OpenAI-compatible endpoint, a model in this process, a script, a record.

    EndpointJudge(Endpoint(url, model, key=...), prices=...)     EngineJudge(name, engine, renderer)
    ScriptedJudge([text, ...])                                   RecordedJudge(path): judge.jsonl of an earlier run

Not here: a judge without any model (rules.py), what answers count (protocol.py).
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from etude.agent.endpoint import Answer, Endpoint
from etude.agent.meter import Prices
from etude.engine.protocol import Engine, Request
from etude.errors import UserError
from etude.monitor.judge.protocol import Ask, Judgement, Messages
from etude.render import Renderer

DEADLINE_S, TRIES = 120.0, 3  # of an endpoint: a judge that hangs holds up a whole run


class EndpointJudge:
    def __init__(self, endpoint: Endpoint, *, prices: Prices | None = None, temperature: float = 0.0) -> None:
        self.name, self.prices = endpoint.model, prices
        self._endpoint, self._temperature = endpoint, temperature

    def session(self, case: str) -> Ask:
        def ask(messages: Messages, max_tokens: int) -> Answer:
            return self._endpoint.complete(messages, max_tokens=max_tokens, temperature=self._temperature)

        return ask


class EngineJudge:
    """One conversation at a time."""

    def __init__(self, name: str, engine: Engine, renderer: Renderer, *, context_tokens: int) -> None:
        self.name = name
        self.prices: Prices | None = None
        self._engine, self._renderer, self._context_tokens = engine, renderer, context_tokens
        self._lock = threading.Lock()

    def session(self, case: str) -> Ask:
        def ask(messages: Messages, max_tokens: int) -> Answer:
            ids = self._ids(messages)
            room = min(max_tokens, self._context_tokens - len(ids))
            if room < 1:
                raise ValueError(f"the conversation has {len(ids)} tokens, and {self.name} reads {self._context_tokens}")
            request = Request(session=f"judge {case}", ids=ids, max_tokens=room, seed=0, temperature=0.0, stop_ids=self._renderer.stop_ids)
            with self._lock:
                completion = self._engine.generate([request])[0]
                self._engine.release(request.session)
            text = self._renderer.sampled_text(completion.ids)
            return Answer(text=text, input_tokens=len(ids), output_tokens=len(completion.ids), stopped=completion.stopped)

        return ask

    def _ids(self, messages: Messages) -> tuple[int, ...]:
        pairs = [(message["role"], message["content"]) for message in messages]
        ids = self._renderer.opening(pairs[:2]) + self._renderer.header
        for role, text in pairs[2:]:
            if role == "assistant":
                ids += self._renderer.assistant(text)
            else:
                ids += self._renderer.following(text, closed=True) + self._renderer.header
        return ids


class ScriptedJudge:
    """Says the same texts in every conversation; then it is down."""

    def __init__(self, texts: Sequence[str], *, name: str = "script", prices: Prices | None = None) -> None:
        self.name, self.prices, self._texts = name, prices, tuple(texts)

    def session(self, case: str) -> Ask:
        return play(self._texts)


class RecordedJudge:
    """Says again what was said of each trajectory."""

    def __init__(self, path: Path) -> None:
        """Raises: UserError."""
        self.prices: Prices | None = None
        self.name, self._texts = path.stem, read_record(path)

    def session(self, case: str) -> Ask:
        return play(self._texts.get(case, ()))


def play(texts: Sequence[str]) -> Ask:
    left = iter(texts)

    def ask(messages: Messages, max_tokens: int) -> Answer:
        text = next(left, None)
        if text is None:
            raise ValueError("the record ends here")
        read = sum(len(message["content"]) for message in messages)
        return Answer(text=text, input_tokens=read // 4, output_tokens=max(1, len(text) // 4), stopped=True)

    return ask


def write_record(judgements: Sequence[Judgement]) -> str:
    return "".join(json.dumps({"trajectory": one.trajectory, "judge": one.judge, "said": one.said}) + "\n" for one in judgements)


def read_record(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Raises: UserError."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {row["trajectory"]: tuple(map(str, row["said"])) for row in rows}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a judge.jsonl that etude monitor wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no record of a judge ({error}); name a judge.jsonl that etude monitor wrote") from None
