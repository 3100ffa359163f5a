"""The reproducible mode: equal bits for a request whatever runs beside it, whenever it comes, computed or copied."""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import LlamaForCausalLM

from etude.engine.local import LocalEngine
from etude.engine.protocol import Completion, Request
from etude.model.tiny import tiny_model

Ask = Callable[..., Request]
Context = Callable[[int, int], tuple[int, ...]]


def reproducible(model: LlamaForCausalLM, slots: int = 4) -> LocalEngine:
    return LocalEngine(model, slots=slots, reproducible=True, prefill_tokens=16)


def by_session(requests: Sequence[Request], answers: Sequence[Completion]) -> dict[str, Completion]:
    return {request.session: answer for request, answer in zip(requests, answers, strict=True)}


def test_the_same_requests_give_the_same_bits_in_any_order_of_arrival(model: LlamaForCausalLM, group: list[Request]) -> None:
    first = by_session(group, reproducible(model).generate(group))
    assert by_session(group, reproducible(model).generate(group)) == first
    backwards = group[::-1]
    assert by_session(backwards, reproducible(model).generate(backwards)) == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_gives_the_same_bits_alone_and_in_company(group: list[Request], dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype)
    together = reproducible(model).generate(group)
    alone = [reproducible(model).generate([request])[0] for request in group]  # nothing shared: every prompt is computed
    assert together == alone


def test_bits_do_not_depend_on_when_a_request_joins(model: LlamaForCausalLM, group: list[Request]) -> None:
    expected = by_session(group, reproducible(model).generate(group))
    arrivals = [[group[3]], [], [], [group[8], group[0]], [], group[4:8], [group[1]], [], [group[2]]]
    streamed = dict(reproducible(model).stream(lambda idle: arrivals.pop(0) if arrivals else None))
    assert {request.session: answer for request, answer in streamed.items()} == expected


def test_later_turns_are_the_same_bits_beside_others(model: LlamaForCausalLM, group: list[Request], context: Context, ask: Ask) -> None:
    def two_turns(company: Sequence[Request]) -> Completion:
        engine = reproducible(model)
        first = ask("mine", context(1, 70) + context(50, 9), 10, seed=4)
        answer = engine.generate([first, *company])[0]
        return engine.generate([ask("mine", first.ids + answer.ids + context(51, 20), 15, seed=5), *company])[0]

    assert two_turns(group) == two_turns([])


def test_long_windows_do_not_reach_the_short_ones_beside_them(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    short = ask("short", context(0, 20), 10)
    alone = reproducible(model).generate([short])
    beside = reproducible(model).generate([short, ask("long", context(1, 1100), 10)])
    assert beside[:1] == alone


def test_seeds_and_sessions_matter_only_where_they_should(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    ids = context(0, 20)
    one, other_seed, other_name = [
        reproducible(model).generate([ask(name, ids, 20, seed=seed)])[0] for name, seed in (("a", 1), ("a", 2), ("b", 1))
    ]
    assert one == other_name
    assert one.ids != other_seed.ids


@pytest.mark.parametrize("seed", [-1, 2**64 + 5])
def test_any_whole_number_is_a_seed(model: LlamaForCausalLM, context: Context, ask: Ask, seed: int) -> None:
    request = ask("s", context(0, 20), 5, seed=seed)
    assert reproducible(model).generate([request]) == reproducible(model).generate([request])
