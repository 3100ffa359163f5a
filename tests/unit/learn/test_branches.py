"""Teacher branches equal separate full-context forwards; what they are not exact for is found out."""

import pytest
import torch

from etude.learn.branches import Branch, Trunk, attend_after, branch_hidden, branch_of, branches_reason, separate_hidden
from etude.learn.head import hidden_states
from etude.model.attention import attention
from etude.types import HintSpan


def branches_and_trunk(model, samples) -> tuple[list[Branch], Trunk, list[tuple[int, ...]]]:
    rows = [sample.ids for sample in samples]
    branches = [branch_of(row, sample, span) for row, sample in enumerate(samples) for span in sample.hints]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    trunk = Trunk()
    with torch.no_grad(), attention(trunk.plan):
        hidden_states(model, ids)
    return branches, trunk, rows


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    ],
)
def test_packed_branches_equal_a_full_forward_per_hint(make_model, make_samples, kind: str, fields: dict) -> None:
    model = make_model(kind, torch.float32, **fields)
    branches, trunk, rows = branches_and_trunk(model, make_samples(model, num=5))
    assert len(branches) == 6
    packed, separate = branch_hidden(model, trunk, branches), separate_hidden(model, branches, rows)
    assert packed.shape == separate.shape
    torch.testing.assert_close(packed, separate, rtol=0, atol=1e-5)
    assert not packed.requires_grad


def test_in_fp64_they_agree_to_rounding_and_in_bf16_to_its_resolution(make_model, make_samples) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 0.1)):
        model = make_model("llama", dtype)
        branches, trunk, rows = branches_and_trunk(model, make_samples(model))
        torch.testing.assert_close(branch_hidden(model, trunk, branches), separate_hidden(model, branches, rows), rtol=0, atol=tolerance)


def test_running_few_branches_at_once_changes_nothing_but_memory(make_model, make_samples) -> None:
    model = make_model()
    branches, trunk, _ = branches_and_trunk(model, make_samples(model))
    at_once = branch_hidden(model, trunk, branches)
    torch.testing.assert_close(branch_hidden(model, trunk, branches, max_tokens=1), at_once, rtol=0, atol=1e-12)


def test_the_outputs_are_those_that_predict_the_turn(make_model, make_samples) -> None:
    model = make_model()
    sample = make_samples(model, num=1)[0]
    span = sample.hints[1]
    branch = branch_of(0, sample, span)
    full = sample.ids[: span.splice] + span.hint_ids + sample.ids[span.splice : span.stop]
    assert sample.ids[: branch.prefix] + branch.ids == full[:-1]
    predicted = full[len(full) - (span.stop - span.start) :]
    assert predicted == sample.ids[span.start : span.stop]
    assert range(len(full))[branch.outputs.start + branch.prefix] + 1 == len(full) - len(predicted)


def test_a_hint_before_the_very_first_token_is_a_branch_without_a_prefix(make_model, make_samples) -> None:
    model = make_model()
    sample = make_samples(model, num=1)[0]
    first = sample.hints[0]
    span = HintSpan(splice=0, start=first.start, stop=first.stop, hint_ids=first.hint_ids)
    branches = [branch_of(0, sample, span)]
    _, trunk, rows = branches_and_trunk(model, [sample])
    torch.testing.assert_close(branch_hidden(model, trunk, branches), separate_hidden(model, branches, rows), rtol=0, atol=1e-12)


def test_both_ways_to_attend_after_a_prefix_agree() -> None:
    g = torch.Generator().manual_seed(0)
    query, (key, value) = torch.randn(1, 6, 5, 8, generator=g), torch.randn(2, 1, 2, 5, 8, generator=g)
    past_key, past_value = torch.randn(2, 1, 2, 33, 8, generator=g)
    with torch.no_grad():
        merged = attend_after(query, past_key, past_value, key, value, 0.5)
    joined = attend_after(query.requires_grad_(), past_key, past_value, key, value, 0.5)
    assert joined.requires_grad
    torch.testing.assert_close(merged, joined.detach(), rtol=0, atol=1e-6)


def test_plain_causal_models_take_branches_and_others_say_why_not(make_model) -> None:
    assert branches_reason(make_model("llama")) is None
    assert branches_reason(make_model("qwen2")) is None
    assert "not plain causal" in str(branches_reason(make_model("mistral", implementation="sdpa", sliding_window=8)))
    assert "not plain causal" in str(branches_reason(make_model("gemma2", implementation="eager")))
    assert 'attn_implementation="sdpa"' in str(branches_reason(make_model("llama", implementation="sdpa")))
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert "rotary" in str(branches_reason(make_model("llama", rope_parameters=rope)))


def test_a_model_whose_layers_bypass_the_function_is_found_by_its_trunk(make_model) -> None:
    model = make_model("llama")
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    assert "only 1 of its 2 layers" in str(branches_reason(model))
