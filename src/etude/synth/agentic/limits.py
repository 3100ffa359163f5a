"""What an agent that deletes features may use, and the models that can be asked.

Not here: HTTP (agent/endpoint.py), counting (agent/meter.py).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from etude.agent.chat import BYTES_PER_TOKEN, ChatPolicy, plain_renderer
from etude.agent.endpoint import Endpoint
from etude.agent.meter import Meter, Prices
from etude.agent.policy import Policy
from etude.engine.protocol import Completion, Engine, Request
from etude.errors import UserError
from etude.render import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    runs: int = 20  # of the agent, each of which may give one candidate
    turns: int = 16  # of one run
    tokens: int = 400_000  # of one run, input of every request and output together
    context_tokens: int = 48_000
    turn_tokens: int = 2048
    observation_chars: int = 6000
    test_runs: int = 4  # of one run
    dollars: float | None = None  # of one run
    total_dollars: float | None = None  # of all runs
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: UserError."""
        for name in ("runs", "turns", "tokens", "context_tokens", "turn_tokens", "observation_chars"):
            if getattr(self, name) < 1:
                raise UserError(f"the agent's {name} is {getattr(self, name)}; give 1 or more")
        for name in ("dollars", "total_dollars"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < float("inf"):
                raise UserError(f"the agent's limit is {limit} dollars; give more than 0")
        if self.test_runs < 0 or self.temperature < 0:
            raise UserError("the agent's test runs and temperature cannot be negative")


class Model(Protocol):
    """Somebody who can be asked."""

    name: str
    renderer: Renderer
    prices: Prices | None
    unit: int  # ids of the renderer that make one token
    context_tokens: int | None  # the longest context that it takes, where that is known

    def policy(self, session: str, meter: Meter, limits: AgentLimits) -> Policy: ...
    def end(self, session: str) -> None: ...


class EndpointModel:
    """Behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: Endpoint, *, prices: Prices | None = None) -> None:
        self.name, self.prices = endpoint.model, prices
        self.context_tokens: int | None = None
        self.renderer, self.unit = plain_renderer(), BYTES_PER_TOKEN
        self._endpoint = endpoint

    def policy(self, session: str, meter: Meter, limits: AgentLimits) -> Policy:
        return ChatPolicy(self._endpoint, meter, turn_tokens=limits.turn_tokens, temperature=limits.temperature)

    def end(self, session: str) -> None:
        pass


class EngineModel:
    """An engine in this process. One caller at a time."""

    def __init__(self, name: str, engine: Engine, renderer: Renderer, *, context_tokens: int | None = None) -> None:
        self.name, self.renderer, self.context_tokens = name, renderer, context_tokens
        self.prices: Prices | None = None
        self.unit = 1
        self._engine, self._lock = engine, threading.Lock()

    def policy(self, session: str, meter: Meter, limits: AgentLimits) -> Policy:
        def ask(request: Request) -> Completion | None:
            if not meter.room(len(request.ids), limits.turn_tokens):
                return None
            with self._lock:
                completion = self._engine.generate([request])[0]
            meter.add(len(request.ids), len(completion.ids))
            return completion

        return ask

    def end(self, session: str) -> None:
        with self._lock:
            self._engine.release(session)


def parse_prices(text: str) -> Prices:
    """ "0.25,2": dollars for a million tokens of input and of output. Raises: UserError."""
    parts: Sequence[str] = text.split(",")
    try:
        first, second = map(float, parts)
    except ValueError:
        raise UserError(f"prices are {text!r}; give dollars for a million tokens of input and of output, such as 0.25,2") from None
    return Prices(input=first, output=second)
