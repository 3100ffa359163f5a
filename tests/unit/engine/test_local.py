"""The local sampler: its log-probabilities are the trainer's, whatever is kept, shared, refilled or dropped on the way.

Pinned here: sessions over turns, cut-back, shared prompts, more requests than slots, lack of capacity, weight updates, interrupts,
broken weights, bad requests, models that cannot be sampled from.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import LlamaForCausalLM, MistralConfig, MistralForCausalLM

from etude.engine.local import LocalEngine
from etude.engine.oracle import full_logprobs
from etude.engine.protocol import Completion, Engine, Request
from etude.errors import EngineError, UserError
from etude.model.load import default_model, load_model
from etude.model.tiny import VOCAB_SIZE, tiny_model

Ask = Callable[..., Request]
Context = Callable[[int, int], tuple[int, ...]]


def worst_gap(model: LlamaForCausalLM, requests: Sequence[Request], answers: Sequence[Completion]) -> float:
    """Largest difference of a log-probability from that of a full forward."""
    gaps = [
        abs(ours - exact)
        for request, answer in zip(requests, answers, strict=True)
        for ours, exact in zip(answer.logprobs, full_logprobs(model, request.ids, answer.ids, request.temperature), strict=True)
    ]
    return max(gaps)


def next_turn(request: Request, answer: Completion, more: tuple[int, ...], seed: int) -> Request:
    return Request(
        session=request.session, ids=request.ids + answer.ids + more, max_tokens=7, temperature=1.0, seed=seed, stop_ids=request.stop_ids
    )


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("slots", [1, 4, 16])
def test_logprobs_are_those_of_a_full_forward_over_three_turns(
    model: LlamaForCausalLM, group: list[Request], context: Context, slots: int, reproducible: bool
) -> None:
    engine: Engine = LocalEngine(model, slots=slots, reproducible=reproducible, prefill_tokens=16)
    requests = group
    for turn in range(3):
        answers = engine.generate(requests)
        assert worst_gap(model, requests, answers) < 1e-4
        requests = [next_turn(r, a, context(turn, 2 + 5 * i), seed=turn) for i, (r, a) in enumerate(zip(requests, answers, strict=True))]


def test_logprobs_of_the_default_model_in_fp32(context: Context, ask: Ask) -> None:
    model = load_model(default_model(), "float32")
    engine = LocalEngine(model, slots=3)
    ids = tuple(7 * token for token in context(0, 24))
    requests = [ask("a", ids, 4), ask("b", (*ids, 99), 4, seed=1), ask("c", ids[5:], 4, seed=2)]
    assert worst_gap(model, requests, engine.generate(requests)) < 1e-4


def test_bf16_stays_near_the_full_forward(group: list[Request]) -> None:
    model = tiny_model(dtype=torch.bfloat16)
    answers = LocalEngine(model, slots=4).generate(group)
    gaps = [
        abs(ours - exact)
        for request, answer in zip(group, answers, strict=True)
        for ours, exact in zip(answer.logprobs, full_logprobs(model, request.ids, answer.ids, request.temperature), strict=True)
    ]
    assert sum(gaps) / len(gaps) < 0.1


def test_a_request_ends_with_a_stop_id_or_after_max_tokens(model: LlamaForCausalLM, group: list[Request]) -> None:
    answers = LocalEngine(model, slots=4).generate(group)
    assert {answer.stopped for answer in answers} == {True, False}
    for request, answer in zip(group, answers, strict=True):
        assert len(answer.ids) == len(answer.logprobs) == len(answer.versions)
        assert all(token not in request.stop_ids for token in answer.ids[:-1])
        assert answer.stopped == (answer.ids[-1] in request.stop_ids)
        assert answer.stopped or len(answer.ids) == request.max_tokens


def test_progress_adds_up_to_the_tokens_sampled(model: LlamaForCausalLM, group: list[Request]) -> None:
    counts: list[int] = []
    answers = LocalEngine(model, slots=4).generate(group, on_tokens=counts.append)
    assert sum(counts) == sum(len(answer.ids) for answer in answers)
    assert max(counts) == 4  # slots are refilled, never exceeded


def test_a_turn_computes_only_what_is_new(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2)
    first = ask("s", context(0, 50), 8)
    answer = engine.generate([first])[0]
    before = engine.stats.computed
    engine.generate([next_turn(first, answer, context(1, 11), seed=1)])
    assert engine.stats.computed - before == 12  # eleven, and the last sampled token, which was never fed
    assert engine.stats.reused == 50 + 7


def test_a_context_that_diverges_is_cut_back(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2)
    ids = context(0, 50)
    engine.generate([ask("s", ids, 8)])
    request = ask("s", ids[:30] + context(1, 6), 8, seed=3)
    answers = engine.generate([request])
    assert engine.stats.reused == 30
    assert worst_gap(model, [request], answers) < 1e-4
    shorter = ask("s", ids[:20], 8, seed=4)
    assert worst_gap(model, [shorter], engine.generate([shorter])) < 1e-4


def test_a_prompt_that_sessions_share_is_computed_once(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=4)
    prompt = context(0, 100)
    together = [ask(f"s{i}", prompt + context(i, 5), 3, seed=i) for i in range(4)]
    answers = engine.generate(together)
    assert engine.stats.copied == 300
    assert engine.stats.computed == 105 + 3 * 5
    late = [ask("late", prompt + context(9, 5), 3)]
    answers += engine.generate(late)
    assert engine.stats.copied == 400
    assert worst_gap(model, together + late, answers) < 1e-4


def test_lack_of_capacity_drops_the_oldest_session_and_costs_only_time(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2, capacity_tokens=1024)  # two rows of 512
    requests = [ask(f"s{i}", context(i, 20), 4, seed=i) for i in range(3)]
    for request in requests:
        engine.generate([request])
    assert engine.stats.dropped == 1
    assert engine.kept_tokens() == 2 * 23
    again = [engine.generate([request])[0] for request in requests]
    assert worst_gap(model, requests, again) < 1e-4


def test_rows_grow_with_contexts_and_keep_what_they_hold(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=4, capacity_tokens=4096)
    small = [ask(f"s{i}", context(i, 40), 4, seed=i) for i in range(3)]
    first = engine.generate(small)
    large = ask("large", context(9, 700), 4)
    assert worst_gap(model, [large], engine.generate([large])) < 1e-4
    more = [next_turn(request, answer, (3,), seed=5) for request, answer in zip(small, first, strict=True)]
    reused = engine.stats.reused
    assert worst_gap(model, more, engine.generate(more)) < 1e-4
    assert engine.stats.reused - reused == 3 * 43


def test_a_long_context_waits_for_room_beside_short_ones(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=4, capacity_tokens=1536)  # three short rows, or one of 1,024
    requests = [ask(f"s{i}", context(i, 30), 6, seed=i) for i in range(3)] + [ask("long", context(8, 900), 3)]
    assert worst_gap(model, requests, engine.generate(requests)) < 1e-4


def test_release_forgets_and_a_new_version_forgets_all(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2)
    for name in ("a", "b"):
        engine.generate([ask(name, context(0, 30), 2)])
    engine.release("a")
    engine.release("unknown")
    assert engine.kept_tokens() == 31
    engine.version = engine.version
    assert engine.kept_tokens() == 31
    engine.version += 1
    assert engine.kept_tokens() == 0
    assert engine.generate([ask("b", context(0, 30), 2)])[0].versions == (1, 1)


def test_new_weights_are_sampled_from_at_once(context: Context, ask: Ask) -> None:
    model = tiny_model()
    engine = LocalEngine(model, slots=2)
    request = ask("s", context(0, 30), 8)
    engine.generate([request])
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    engine.version = 7
    assert worst_gap(model, [request], engine.generate([request])) < 1e-4


def test_temperature_zero_takes_the_most_likely_token(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    request = ask("s", context(0, 20), 6, temperature=0.0)
    answer = LocalEngine(model).generate([request])[0]
    ids = torch.tensor([request.ids + answer.ids])
    assert answer.ids == tuple(model(ids).logits[0, len(request.ids) - 1 : -1].argmax(-1).tolist())
    assert answer.logprobs == (0.0,) * 6


def test_a_session_streams_while_others_end_and_come(model: LlamaForCausalLM, group: list[Request], context: Context) -> None:
    engine = LocalEngine(model, slots=3)
    waiting, answered, idle_calls = [list(group[:5]), list(group[5:])], list[tuple[Request, Completion]](), list[bool]()

    def source(idle: bool) -> list[Request] | None:
        idle_calls.append(idle)
        return waiting.pop(0) if waiting else None if len(answered) > 8 else []

    for request, answer in engine.stream(source):
        answered.append((request, answer))
        if len(answered) == 4:  # a next turn joins what is under way
            waiting.append([next_turn(request, answer, context(3, 4), seed=3)])
    assert len(answered) == 10
    assert idle_calls[0]
    assert not all(idle_calls)
    assert worst_gap(model, [r for r, _ in answered], [a for _, a in answered]) < 1e-4


def test_a_session_released_under_way_keeps_its_row_to_the_end(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2, capacity_tokens=1024)
    waiting = [[ask("quick", context(0, 20), 2), ask("slow", context(1, 20), 20)], [ask("third", context(2, 20), 10)]]
    answered = []
    for request, answer in engine.stream(lambda idle: waiting.pop(0) if waiting else None):
        engine.release("slow")
        answered.append((request, answer))
    assert sorted(request.session for request, _ in answered) == ["quick", "slow", "third"]
    assert worst_gap(model, [r for r, _ in answered], [a for _, a in answered]) < 1e-4


def test_an_interrupt_leaves_the_engine_usable_and_its_kept_sessions_true(model: LlamaForCausalLM, group: list[Request]) -> None:
    engine = LocalEngine(model, slots=4, prefill_tokens=16)
    steps: list[int] = []

    def interrupt(count: int) -> None:
        steps.append(count)
        if len(steps) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(group, on_tokens=interrupt)
    assert engine.kept_tokens() > 0
    assert worst_gap(model, group, engine.generate(group)) < 1e-4


def test_training_mode_is_put_back_also_after_an_error(context: Context, ask: Ask) -> None:
    model = tiny_model().train()
    engine = LocalEngine(model)
    engine.generate([ask("s", context(0, 5), 2)])
    assert model.training

    def fail(count: int) -> None:
        assert not model.training
        raise RuntimeError

    with pytest.raises(RuntimeError):
        engine.generate([ask("s", context(0, 5), 2)], on_tokens=fail)
    assert model.training


def test_broken_weights_are_an_error_and_leave_nothing_behind(context: Context, ask: Ask) -> None:
    model = tiny_model()
    engine = LocalEngine(model, slots=2, reproducible=True)  # reads whole blocks, so it would meet what a longer session left
    good = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="NaN or infinite"):
        engine.generate([ask("s", context(0, 30), 6)])
    model.load_state_dict(good)
    request = ask("s", context(0, 10), 6)
    assert worst_gap(model, [request], engine.generate([request])) < 1e-4


def test_requests_that_cannot_be_served_say_why(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2, capacity_tokens=512)
    for request, reason in (
        (ask("empty", ()), "at least one id"),
        (ask("foreign", (VOCAB_SIZE,)), f"each in 0..{VOCAB_SIZE - 1}"),
        (ask("negative", (-1,)), "each in 0"),
        (ask("nothing", (1,), 0), "max_tokens 0 must be at least 1"),
        (ask("cold", (1,), temperature=-1.0), "temperature -1.0 at least 0"),
        (ask("odd", (1,), temperature=float("nan")), "temperature nan"),
        (ask("long", context(0, 510), 3), r"needs 510 \+ 3 tokens; .* capacity_tokens 512"),
    ):
        with pytest.raises(ValueError, match=reason):
            engine.generate([request])
    with pytest.raises(ValueError, match="two requests of session 'twice' at one time"):
        engine.generate([ask("twice", (1,)), ask("twice", (2,))])
    with pytest.raises(ValueError, match="slots 0"):
        LocalEngine(model, slots=0)
    assert engine.generate([]) == []


def test_the_models_context_is_a_limit(context: Context, ask: Ask) -> None:
    engine = LocalEngine(tiny_model(context=64))
    with pytest.raises(ValueError, match="the model's context is 64"):
        engine.generate([ask("s", context(0, 60), 5)])
    assert len(engine.generate([ask("s", context(0, 60), 4)])[0].ids) == 4


def test_models_with_other_attention_are_refused_with_a_remedy() -> None:
    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
    )
    with pytest.raises(UserError, match=r"mistral model has another kind .* choose another model"):
        LocalEngine(MistralForCausalLM(config))
    plain = tiny_model()
    plain.set_attn_implementation("sdpa")
    with pytest.raises(UserError, match="was not loaded by load_model"):
        LocalEngine(plain)


def test_close_gives_everything_back_and_may_be_called_twice(model: LlamaForCausalLM, context: Context, ask: Ask) -> None:
    engine = LocalEngine(model, slots=2)
    engine.generate([ask("s", context(0, 30), 2)])
    engine.close()
    engine.close()
    assert engine.kept_tokens() == 0
    request = ask("s", context(0, 30), 2)
    assert worst_gap(model, [request], engine.generate([request])) < 1e-4
