"""Every parameter of the usual model families goes where it should, and what has no rule is an error that names it."""

import pytest
import torch
import transformers
from torch import nn

from etude.optim import muon_param_groups
from etude.optim.routing import Audit, AuditRow
from etude.optim.units import row_heads


def audit_of(config: transformers.PreTrainedConfig, **options: object) -> dict[str, AuditRow]:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    _, audit = muon_param_groups(model, **options)  # type: ignore[arg-type]
    return {row.name: row for row in audit.rows}


def qwen3_moe() -> transformers.PreTrainedConfig:
    return transformers.Qwen3MoeConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_experts=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=100,
    )  # fmt: skip


def deepseek_v3() -> transformers.PreTrainedConfig:
    return transformers.DeepseekV3Config(
        num_hidden_layers=2, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, n_routed_experts=8, num_attention_heads=4,
        num_key_value_heads=4, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, q_lora_rank=24, kv_lora_rank=16, vocab_size=100,
        first_k_dense_replace=1,
    )  # fmt: skip


def units(row: AuditRow) -> tuple[int, tuple[tuple[int, int], ...]]:
    return row.num_units, row.unit_shapes


def test_grouped_query_attention_goes_by_head_and_stacked_experts_by_matrix() -> None:
    rows = audit_of(qwen3_moe())
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    assert units(rows[attention + "q_proj.weight"]) == (4, ((16, 64),))
    assert units(rows[attention + "k_proj.weight"]) == units(rows[attention + "v_proj.weight"]) == (2, ((16, 64),))
    assert units(rows[attention + "o_proj.weight"]) == (1, ((64, 64),))
    assert units(rows[mlp + "experts.gate_up_proj"]) == (16, ((32, 64),))
    assert units(rows[mlp + "experts.down_proj"]) == (8, ((64, 32),))
    adamw = {name.removeprefix("model.") for name, row in rows.items() if row.algorithm == "adamw"}
    assert {"embed_tokens.weight", "lm_head.weight", "norm.weight", "layers.0.self_attn.q_norm.weight", "layers.0.mlp.gate.weight"} <= adamw


def test_latent_attention_goes_by_head_of_its_own_sizes() -> None:
    rows = audit_of(deepseek_v3(), output_by_head=True)
    attention = "model.layers.0.self_attn."
    assert units(rows[attention + "q_a_proj.weight"]) == (1, ((24, 64),))
    assert units(rows[attention + "q_b_proj.weight"]) == (4, ((24, 24),))
    assert units(rows[attention + "kv_a_proj_with_mqa.weight"]) == (1, ((24, 64),))
    assert units(rows[attention + "kv_b_proj.weight"]) == (4, ((32, 16),))
    assert units(rows[attention + "o_proj.weight"]) == (4, ((64, 16),))
    assert rows["model.layers.1.mlp.shared_experts.up_proj.weight"].algorithm == "muon"


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (transformers.Phi3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, num_hidden_layers=1,
                                 vocab_size=100, pad_token_id=0), "model.layers.0.self_attn.qkv_proj.weight", (8, ((16, 64),))),
        (transformers.Phi3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, num_hidden_layers=1,
                                 vocab_size=100, pad_token_id=0), "model.layers.0.mlp.gate_up_proj.weight", (2, ((48, 64),))),
        (transformers.GPTNeoXConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=100, intermediate_size=96),
         "gpt_neox.layers.0.attention.query_key_value.weight", (12, ((16, 64),))),
        (transformers.GPT2Config(n_embd=64, n_head=4, n_layer=1, vocab_size=100), "transformer.h.0.attn.c_attn.weight", (12, ((64, 16),))),
        (transformers.FalconConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=100),
         "transformer.h.0.self_attention.query_key_value.weight", (6, ((16, 64),))),
        (transformers.GptOssConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=1,
                                   vocab_size=100, num_local_experts=4, intermediate_size=24), "model.layers.0.mlp.experts.gate_up_proj",
         (4, ((64, 48),))),
    ],
    ids=["phi3 qkv", "phi3 gate and up", "neox interleaved", "gpt2 columns", "falcon one key head", "gpt-oss interleaved experts"],
)  # fmt: skip
def test_fused_projections_are_taken_apart(config: transformers.PreTrainedConfig, name: str, expected: tuple[int, object]) -> None:
    assert units(audit_of(config)[name]) == expected


def test_heads_can_share_a_unit_and_the_router_can_go_to_muon() -> None:
    rows = audit_of(qwen3_moe(), heads_per_group=2, router="muon")
    assert units(rows["model.layers.0.self_attn.q_proj.weight"]) == (2, ((32, 64),))
    assert rows["model.layers.0.mlp.gate.weight"].algorithm == "muon"


class Odd(nn.Module):
    """A model that no family knows."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = nn.Linear(8, 16, bias=False)
        self.up_proj = nn.Linear(8, 12)
        self.bank = nn.Parameter(torch.zeros(3, 4, 8))
        self.frozen = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
        self.single = nn.Linear(8, 1, bias=False)


def test_a_matrix_without_a_rule_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"no routing rule for bank \(3, 4, 8\), mixer.weight \(16, 8\): pass rules="):
        muon_param_groups(Odd())


def test_the_callers_rules_come_first_and_fill_the_groups() -> None:
    model = Odd()
    groups, audit = muon_param_groups(model, rules={"mixer.*": row_heads(4, 4), "bank": "adamw"})
    muon, adamw, no_decay = groups
    assert [name for name, _ in muon["params"]] == ["mixer.weight", "up_proj.weight"]
    assert muon["units"]["mixer.weight"] == row_heads(4, 4)
    assert [name for name, _ in adamw["params"]] == ["bank"]
    assert {name for name, _ in no_decay["params"]} == {"up_proj.bias", "single.weight"}
    assert no_decay["weight_decay"] == 0.0
    assert {row.name: row.algorithm for row in audit.rows}["frozen"] == "frozen"


def test_a_rule_that_matches_nothing_and_units_that_do_not_tile_are_named() -> None:
    rules = {"mixer.*": "muon", "bank": "muon"}
    with pytest.raises(ValueError, match="rule 'layers' matches no trainable parameter"):
        muon_param_groups(Odd(), rules={**rules, "layers": "muon"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"mixer.weight \(16, 8\): rows blocks \[5, 5, 5\] add up to 15"):
        muon_param_groups(Odd(), rules={**rules, "mixer.*": row_heads(5, 3)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="rule 'bank': 'lion'; allowed are units, 'muon' and 'adamw'"):
        muon_param_groups(Odd(), rules={**rules, "bank": "lion"})  # type: ignore[dict-item]


def test_a_muon_group_without_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="the muon group has no parameters"):
        muon_param_groups(nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4)))


def test_the_table_shows_equal_layers_on_one_line() -> None:
    row = AuditRow("model.layers.0.up.weight", (4, 6), "muon", "whole", 1, ((4, 6),), (0.49,), "projection")
    table = str(Audit((row, AuditRow("model.layers.1.up.weight", *list(_fields(row))[1:]))))  # type: ignore[arg-type]
    assert table.splitlines()[1].split() == ["model.layers.*.up.weight", "2", "4x6", "muon", "whole", "4x6", "0.49", "projection"]
    assert len(table.splitlines()) == 2


def _fields(row: AuditRow) -> list[object]:
    return [getattr(row, name) for name in AuditRow.__dataclass_fields__]
