"""Requests that come one by one, as agents' tools finish, against any engine.

    for request, completion in serve(engine, source):
        ...                                 # hand it to whoever runs the tool; the next request reaches `source`

`source(idle)` gives the requests that have come since it was last called: () when there are none at present, None when none will come
any more. With `idle` true the engine has nothing to do until it returns, so it may wait.

An engine that can stream (LocalEngine) keeps its slots full: a short turn is answered while a long one goes on. Others get rounds.

Not here: tools, threads, agents (collect.py).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from etude.engine.protocol import Completion, Engine, Request

Source = Callable[[bool], Sequence[Request] | None]


@runtime_checkable
class Streaming(Protocol):
    """An engine that admits requests while it samples."""

    def stream(self, source: Source, on_tokens: Callable[[int], None] | None = None) -> Iterator[tuple[Request, Completion]]: ...


def serve(engine: Engine, source: Source, on_tokens: Callable[[int], None] | None = None) -> Iterator[tuple[Request, Completion]]:
    """Each request with its completion, in the order in which they end."""
    if isinstance(engine, Streaming):
        yield from engine.stream(source, on_tokens)
        return
    while (requests := source(True)) is not None:
        if requests:
            yield from zip(requests, engine.generate(requests, on_tokens=on_tokens), strict=True)
