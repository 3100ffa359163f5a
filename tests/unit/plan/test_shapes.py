"""Parameter counts against those that the models' authors publish, or that are multiplied out here."""

import pytest

from etude.plan.config import Optimizer
from etude.plan.shapes import active, bill, parameters, total
from tests.unit.plan import models


def count(model, kind):
    return total(one for one in parameters(model) if one.kind == kind)


@pytest.mark.parametrize(
    ("model", "published_total", "published_active"),
    [
        (models.DEEPSEEK_V3, 671e9, 37e9),
        (models.QWEN3_30B_A3B, 30.5e9, 3.3e9),
        (models.QWEN3_8B, 8.2e9, None),
        (models.QWEN2_7B, 7.62e9, None),
        (models.LLAMA3_8B, 8.03e9, None),
    ],
)
def test_totals_are_the_published_ones(model, published_total, published_active):
    assert total(parameters(model)) == pytest.approx(published_total, rel=0.005)
    if published_active:
        # the authors count the embedding table as active; of a tied one there is none to add
        table = model.vocab_size * model.hidden_size
        assert active(parameters(model), model) + table == pytest.approx(published_active, rel=0.02)


def test_a_tied_table_is_counted_once_and_is_active_as_the_head():
    assert total(parameters(models.SMOLLM2_135M)) == 134_515_008
    assert active(parameters(models.SMOLLM2_135M), models.SMOLLM2_135M) == 134_515_008


def test_kimi_k2_multiplied_out_by_kind():
    model = models.kimi().model
    assert count(model, "routed expert") == 60 * 384 * 3 * 2048 * 7168 == 1_014_686_023_680
    latent = 7168 * 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 * 64 * 256 + 64 * 128 * 7168
    assert count(model, "attention") == 61 * latent == 6_168_444_928
    assert count(model, "dense FFN") == 3 * 18432 * 7168
    assert count(model, "shared expert") == 60 * 3 * 2048 * 7168
    assert count(model, "router") == 60 * 384 * 7168
    assert count(model, "embedding") == count(model, "output head") == 163840 * 7168
    assert count(model, "norm") == 61 * (2 * 7168 + 1536 + 512) + 7168
    language = total(one for one in parameters(model) if one.algorithm != "frozen")
    assert language == 1_026_408_209_408


def test_kimi_k2_has_32_billion_active_parameters():
    model = models.kimi().model
    experts = 60 * (8 + 1) * 3 * 2048 * 7168
    others = 61 * 101_122_048 + 3 * 18432 * 7168 + 60 * 384 * 7168 + 163840 * 7168 + 61 * 16384 + 7168
    assert active(parameters(model), model) == experts + others
    assert round((experts + others) / 1e9) == 32


def test_muon_takes_the_trillion_of_the_notes():
    config = models.kimi()
    muon = {True: 0, False: 0}
    for one in parameters(config.model, config.optimizer):
        if one.algorithm == "muon":
            muon[one.on_expert_mesh] += one.numel
    assert muon[True] / 1e9 == pytest.approx(1014.7, abs=0.05)
    assert muon[False] / 1e9 == pytest.approx(9.37, abs=0.005)


def test_units_tile_their_parameter():
    for optimizer in (Optimizer(), Optimizer(head_units=False, router="muon"), Optimizer(output_head_units=True)):
        for one in parameters(models.TINY_MOE, optimizer):
            if one.unit is not None:
                rows, columns = one.unit
                assert one.shape[-2] % rows == 0
                assert one.shape[-1] % columns == 0
                assert one.num_units * rows * columns == one.numel


def test_units_of_latent_attention_are_heads_and_of_experts_single_matrices():
    of = {one.role: one for one in parameters(models.kimi().model, Optimizer(output_head_units=True))}
    assert of["q_b_proj"].unit == (192, 1536)
    assert of["kv_b_proj"].unit == (256, 512)
    assert of["o_proj"].unit == (7168, 128)
    assert of["experts.gate_up_proj"].unit == (2048, 7168)
    assert of["experts.gate_up_proj"].num_units == 768
    whole = {one.role: one for one in parameters(models.kimi().model, Optimizer(head_units=False))}
    assert whole["q_b_proj"].unit == (12288, 1536)
    assert whole["mlp.gate"].unit is None


def test_a_matrix_of_one_row_goes_to_adamw():
    from dataclasses import replace

    one_head = replace(models.SMOLLM2_135M, num_key_value_heads=1, head_dim=1)
    of = {one.role: one for one in parameters(one_head)}
    assert of["k_proj"].shape == (1, 576)
    assert of["k_proj"].algorithm == "adamw"


def test_the_bill_keeps_every_element_and_every_unit():
    for model in (models.TINY_MOE, models.kimi().model):
        params = parameters(model)
        made = bill(params)
        assert sum(one.numel * count for one, count in made.groups) == total(params)
        assert sum(one.num_units * count for one, count in made.groups) == sum(one.num_units for one in params)
        assert made.ends == 2 * model.vocab_size * model.hidden_size
