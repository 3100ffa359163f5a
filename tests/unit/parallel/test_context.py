import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from etude.errors import UserError
from etude.parallel.context import Layout, context_inputs, next_tokens, pieces_of, spans_of, use_context
from etude.parallel.degrees import Degrees
from etude.parallel.hsdp import apply_dual_mesh
from etude.parallel.mesh import DualMesh

Make = Callable[..., Any]
PACKED = torch.stack([torch.arange(12), torch.cat([torch.arange(1), torch.arange(4), torch.arange(7)]), torch.arange(12)])


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_every_token_sees_its_document_up_to_itself_and_nothing_else(ranks: int, size: int, data: st.DataObject) -> None:
    num_tokens = 2 * ranks * size
    inner = data.draw(st.sets(st.integers(1, num_tokens - 1)))
    starts = [0, *sorted(inner), num_tokens]
    document = [sum(start <= token for start in starts) for token in range(num_tokens)]
    seen: list[tuple[int, int]] = []
    for rank in range(ranks):
        spans = spans_of(rank, ranks, num_tokens)
        mine = [token for low, high in spans for token in range(low, high)]
        assert len(mine) == num_tokens // ranks
        for piece in pieces_of(starts, spans):
            for i in range(piece.num_queries):
                last = piece.num_keys - piece.num_queries + i
                seen += [(mine[piece.query + i], piece.key + k) for k in range(last + 1)]
    assert sorted(seen) == [(q, k) for q in range(num_tokens) for k in range(q + 1) if document[q] == document[k]]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_causal_work_is_even(ranks: int) -> None:
    work = [
        sum(piece.num_queries * (2 * piece.num_keys - piece.num_queries + 1) // 2 for piece in pieces_of([0, 48 * ranks], spans))
        for spans in (spans_of(rank, ranks, 48 * ranks) for rank in range(ranks))
    ]
    assert len(set(work)) == 1


def test_a_row_that_does_not_cut_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 10 tokens: cp = 2 needs a multiple of 4"):
        spans_of(0, 2, 10)


def test_labels_are_the_next_tokens_of_the_document() -> None:
    ids, positions = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0, 1, 0, 0, 1]])
    assert next_tokens(ids, positions).tolist() == [[6, -100, -100, 9, -100]]


def forward(model: Any, mesh: DualMesh, ids: Tensor) -> Tensor:
    logits: Tensor = model(**context_inputs(model, mesh.cp, ids, PACKED)).logits
    return logits


@pytest.mark.parametrize("family", ["qwen3", "deepseek"])
def test_packed_rows_are_what_transformers_computes(family: str, world_of_one: None, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(family)()
    ids = torch.randint(0, 40, PACKED.shape)
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("eager")
    use_context(model)
    logits = forward(model, DualMesh(Degrees()), ids)
    torch.testing.assert_close(logits, reference(input_ids=ids, position_ids=PACKED, use_cache=False).logits, rtol=1e-5, atol=1e-5)


def test_rows_with_equal_documents_are_computed_together(world_of_one: None) -> None:
    layout = Layout(PACKED, DualMesh(Degrees()).cp)
    assert sorted(layout.rows.values()) == [[0, 2], [1]]


def test_a_row_that_begins_within_a_document_is_refused(world_of_one: None) -> None:
    with pytest.raises(ValueError, match=r"position_ids start at \[3\]"):
        Layout(torch.arange(3, 7)[None], DualMesh(Degrees()).cp)


def test_a_call_without_documents_is_refused(qwen3: Make) -> None:
    model = qwen3()
    use_context(model)
    with pytest.raises(ValueError, match="needs to know the documents"):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long))


def test_a_cache_that_got_lost_on_the_way_is_an_error(qwen3: Make, fake_world: Callable[[int, int], None]) -> None:
    fake_world(2, 0)
    model = qwen3()
    use_context(model)
    mesh = DualMesh(Degrees(cp=2, efsdp=2))
    inputs = context_inputs(model, mesh.cp, torch.zeros(3, 12, dtype=torch.long), PACKED)
    inputs["cache"] = None
    with pytest.raises(ValueError, match="6 keys for rows of 12 tokens: the cache argument was dropped"):
        model(**inputs)


def test_sliding_windows_are_refused(qwen3: Make, world_of_one: None) -> None:
    model = qwen3(sliding_window=4, use_sliding_window=True)
    use_context(model)
    with pytest.raises(ValueError, match="this layer asks for sliding_window"):
        forward(model, DualMesh(Degrees()), torch.zeros(3, 12, dtype=torch.long))


def test_layers_that_mix_tokens_without_attention_are_refused() -> None:
    with torch.device("meta"):
        model = Qwen3NextForCausalLM(
            Qwen3NextConfig(num_hidden_layers=4, hidden_size=32, vocab_size=40, num_experts=2, num_experts_per_tok=1)
        )
    with pytest.raises(UserError, match="Qwen3NextForCausalLM has layers that are not plain attention \\(linear_attention"):
        use_context(model)


def test_rotary_embeddings_that_depend_on_the_length_are_refused(qwen3: Make) -> None:
    model = qwen3(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(UserError, match='rope_type is "dynamic"'):
        use_context(model)


def test_activations_are_computed_again_with_the_documents(deepseek: Make, world_of_one: None) -> None:
    """Backward outside of any context, as the documents travel with the call."""
    found = []
    for checkpoint in (False, True):
        model, mesh = deepseek(), DualMesh(Degrees())
        use_context(model)
        apply_dual_mesh(model, mesh, checkpoint=checkpoint)
        forward(model, mesh, torch.arange(36).view(3, 12)).square().sum().backward()
        found.append({name: p.grad.full_tensor() for name, p in model.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
