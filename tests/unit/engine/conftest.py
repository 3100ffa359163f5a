"""Requests over random ids, and the tiny model."""

import random
from collections.abc import Callable

import pytest
from transformers import LlamaForCausalLM

from etude.engine.protocol import Request
from etude.model.tiny import VOCAB_SIZE, tiny_model


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return tiny_model()


def tokens(seed: int, count: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(VOCAB_SIZE) for _ in range(count))


def make_request(
    session: str, ids: tuple[int, ...], max_tokens: int = 12, *, seed: int = 0, temperature: float = 1.0, stop_ids: tuple[int, ...] = ()
) -> Request:
    return Request(session=session, ids=ids, max_tokens=max_tokens, temperature=temperature, seed=seed, stop_ids=stop_ids)


@pytest.fixture(scope="session")
def context() -> Callable[[int, int], tuple[int, ...]]:
    """context(seed, count) -> that many random ids"""
    return tokens


@pytest.fixture(scope="session")
def ask() -> Callable[..., Request]:
    """ask(session, ids, max_tokens=12, *, seed=0, temperature=1.0, stop_ids=()) -> Request"""
    return make_request


@pytest.fixture(scope="session")
def group() -> list[Request]:
    """Nine requests of unequal lengths; three share one prompt, three another, three none."""
    prompts = [tokens(1, 70), tokens(2, 45)]
    contexts = [prompts[i // 3] + tokens(10 + i, 3 + 2 * i) if i < 6 else tokens(10 + i, 5 + 9 * i) for i in range(9)]
    return [
        make_request(f"s{i}", ids, 4 + 3 * i, seed=i, temperature=0.7 if i % 3 == 1 else 1.0, stop_ids=(5, 60, 61))
        for i, ids in enumerate(contexts)
    ]
