"""Requests one by one against an engine that streams and one that does not."""

from collections.abc import Callable, Sequence

from transformers import LlamaForCausalLM

from etude.engine.local import LocalEngine
from etude.engine.protocol import Completion, Request
from etude.engine.serve import serve


class Rounds:
    """A scripted engine without a stream: answers every request with its last id, and notes the size of each round."""

    def __init__(self) -> None:
        self.version = 3
        self.rounds: list[int] = []

    def generate(self, requests: Sequence[Request], *, on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        self.rounds.append(len(requests))
        if on_tokens is not None:
            on_tokens(len(requests))
        return [Completion(ids=request.ids[-1:], logprobs=(0.0,), versions=(self.version,), stopped=True) for request in requests]

    def release(self, session: str) -> None: ...

    def close(self) -> None: ...


def test_an_engine_without_a_stream_gets_rounds(ask: Callable[..., Request]) -> None:
    engine, arrivals, counts = Rounds(), [[ask("a", (1, 2)), ask("b", (3,))], [], [ask("a", (1, 2, 9))]], list[int]()
    answers = list(serve(engine, lambda idle: arrivals.pop(0) if arrivals else None, counts.append))
    assert [(request.session, answer.ids) for request, answer in answers] == [("a", (2,)), ("b", (3,)), ("a", (9,))]
    assert engine.rounds == counts == [2, 1]


def test_a_short_turn_is_answered_and_followed_while_a_long_one_goes_on(model: LlamaForCausalLM, ask: Callable[..., Request]) -> None:
    arrivals: list[list[Request]] = [[ask("long", (7, 8), 40), ask("short", (7, 9), 2)]]
    order = []
    for request, answer in serve(LocalEngine(model, slots=2), lambda idle: arrivals.pop(0) if arrivals else (None if idle else [])):
        order.append(request.session)
        if request.session == "short" and order.count("short") < 4:
            arrivals.append([ask("short", request.ids + answer.ids + (11,), 2)])
    assert order == ["short", "short", "short", "short", "long"]
