"""What an engine promises: a batch of requests in, one completion each out, in the same order.

A request carries the *whole* context as token ids. `session` names the conversation it belongs to: an engine may keep the
session's keys and values between turns, so that the next request of the session costs only the tokens that are new.
Whether it does never changes the result.

A request's result depends on its ids, seed, temperature and the weights; an engine says how far it also depends on what runs
beside it (see engine/local.py for the reproducible mode). With vLLM-like engines it may.

Not here: any engine, tensors, messages and templates (render.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    session: str  # name of the conversation; release() it when it is over
    ids: tuple[int, ...]  # the whole context, at least one token
    max_tokens: int  # sample at most this many, at least 1
    temperature: float  # 1: the model's own distribution, what training assumes; 0: the most likely token
    seed: int  # of this request alone
    stop_ids: tuple[int, ...]  # sampling ends with one of these, which is part of the completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    ids: tuple[int, ...]  # sampled, the stop token included
    logprobs: tuple[float, ...]  # natural log, one per id, of the distribution that was sampled from (temperature included)
    versions: tuple[int, ...]  # policy version, one per id
    stopped: bool  # ended with a stop id; False: max_tokens were reached


Source = Callable[[bool], Sequence[Request] | None]
"""source(idle) -> the requests that have come since it was last called: () for none at present, None when none will come any more.

With `idle` true the engine has nothing to do until it returns, so it may wait.
"""


class Engine(Protocol):
    version: int  # of the weights, set by whoever changes them

    def generate(self, requests: Sequence[Request], *, on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order. At most one request per session. `on_tokens(n)`: n more tokens were sampled.

        Raises ValueError for a request that cannot be served (no ids, context longer than the model's), EngineError when the model
        gives no distribution (NaN). After KeyboardInterrupt the engine is usable; what was sampled in that call is lost.
        """
        ...

    def release(self, session: str) -> None:
        """Forget what is kept for a session; unknown sessions are ignored."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...
