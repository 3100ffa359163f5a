"""Requests that come one by one, as agents' tools finish, against any engine.

    for request, completion in serve(engine, source):
        ...                                 # hand it to whoever runs the tool; the next request reaches `source`

An engine that can stream (LocalEngine) keeps its slots full: a short turn is answered while a long one goes on. Others get rounds, so
for them a source that is asked with `idle` true does well to wait for many requests.

Not here: tools, threads, agents (collect.py).
"""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from etude.engine.protocol import Completion, Engine, Request, Source


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
