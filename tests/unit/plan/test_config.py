"""What a plan may be told, and what it says to a mistake."""

import json
import tomllib
from dataclasses import fields

import pytest

from etude.errors import UserError
from etude.plan.config import Cluster, Optimizer, PlanConfig, Report, Search, Training, load_plan_config
from tests.unit.plan import models

TOML = models.KIMI_TOML.read_text(encoding="utf-8")


def written(tmp_path, text):
    file = tmp_path / "plan.toml"
    file.write_text(text, encoding="utf-8")
    return file


def complaint(path, ranks=None):
    with pytest.raises(UserError) as caught:
        load_plan_config(path, ranks=ranks)
    return str(caught.value)


def test_every_knob_is_listed_here():
    names = {cls.__name__: [one.name for one in fields(cls)] for cls in (PlanConfig, Cluster, Optimizer, Training, Search, Report)}
    assert names == {
        "PlanConfig": ["model", "cluster", "optimizer", "training", "layout", "search", "report", "chips"],
        "Cluster": [
            "ranks", "gpus_per_node", "chip", "intra_bytes_per_s", "inter_bytes_per_s", "collective_latency_s", "message_latency_s",
            "efficiency", "usable_hbm",
        ],
        "Optimizer": [
            "newton_schulz", "steps", "head_units", "output_head_units", "router", "wire_bytes", "momentum_bytes", "bucket_bytes",
            "max_inflight", "batch", "target_s",
        ],
        "Training": ["tokens_per_rank", "weight_bytes", "master_bytes", "gradient_bytes", "checkpointing", "logit_chunk_tokens"],
        "Search": ["cp", "ep", "max_replicate", "shown"],
        "Report": ["chips", "ranks", "efficiencies"],
    }  # fmt: skip


def test_ranks_from_the_command_line_win():
    assert load_plan_config(models.KIMI_TOML, ranks=None).cluster.ranks == 512
    assert load_plan_config(models.KIMI_TOML, ranks=96).cluster.ranks == 96


DIMENSIONS = [name for name in tomllib.loads(TOML)["model"] if name not in ("name", "vision")]


@pytest.mark.parametrize("name", DIMENSIONS)
def test_a_missing_dimension_is_named(tmp_path, name):
    lines = [line for line in TOML.splitlines() if not line.startswith(f"{name} =")]
    if name == "hidden_size":  # the vision tower has one too
        lines = TOML.replace("hidden_size = 7168\n", "").splitlines()
    said = complaint(written(tmp_path, "\n".join(lines)))
    assert f"`{name}`" in said
    assert "add it" in said


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("efficiency = 0.6", "eficiency = 0.6", "did you mean `efficiency`?"),
        ("[training]", "[trainig]", "did you mean `training`?"),
        ("efficiency = 0.6", "efficiency = 60", "cluster.efficiency is 60.0"),
        ("efficiency = 0.6", 'efficiency = "most"', "`cluster.efficiency` is 'most', expected float"),
        ("ranks = 512", "ranks = 512.5", "`cluster.ranks` is 512.5, expected int"),
        ("ranks = 512", "ranks = 0", "cluster.ranks is 0"),
        ('chip = "h100"', 'chip = "abacus"', "no chip 'abacus'"),
        ('newton_schulz = "standard"', 'newton_schulz = "quick"', "allowed are 'standard', 'symmetric', 'gram', 'gram-symmetric'"),
        ('model_type = "kimi_k25"', 'model_type = "gpt9"', "known are llama"),
        ("kv_lora_rank = 512", "kv_lora_rank = -1", "model.kv_lora_rank is -1"),
        ("num_experts_per_tok = 8", "num_experts_per_tok = 999", "more than the 384 experts"),
        ("first_k_dense_replace = 1", "first_k_dense_replace = 62", "more than the 61 layers"),
        ("merge_kernel_size = [2, 2]", "merge_kernel_size = 2", "expected a list"),
        ("[model]", "chips = 3\n[model]", "`chips` is 3, expected a table"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(tmp_path, old, new, says):
    assert old in TOML
    assert says in complaint(written(tmp_path, TOML.replace(old, new, 1)))


def test_dimensions_that_the_family_has_not_are_refused(tmp_path):
    llama = "[model]\nmodel_type = 'llama'\nvocab_size = 8\nhidden_size = 8\nnum_hidden_layers = 1\nintermediate_size = 8\n"
    llama += "num_attention_heads = 2\nnum_key_value_heads = 2\nhead_dim = 4\ntie_word_embeddings = false\nn_routed_experts = 4\n"
    assert "llama has no n_routed_experts" in complaint(written(tmp_path, llama + "[cluster]\nranks = 8\n"))


def test_a_chip_may_be_described(tmp_path):
    own = TOML.replace('chip = "h100"', 'chip = "mine"') + "\n[chips.mine]\npeak_flops = 1e15\nhbm_bytes = 1e11\nhbm_bytes_per_s = 4e12\n"
    config = load_plan_config(written(tmp_path, own), ranks=None)
    assert config.chip().peak_flops == 1e15
    assert config.chip("gb200").peak_flops == 2500e12


def test_no_file_no_toml_no_ranks(tmp_path):
    assert "no file" in complaint(tmp_path / "none.toml")
    assert "is no TOML file" in complaint(written(tmp_path, "[model\n"))
    assert "--ranks" in complaint(tmp_path)
    assert "config.json" in complaint(tmp_path, ranks=8)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "is not JSON" in complaint(tmp_path, ranks=8)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert "lacks `vocab_size`" in complaint(tmp_path, ranks=8)


def hf(tmp_path, **values):
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return load_plan_config(tmp_path, ranks=8).model


LLAMA = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True, "rope_theta": 100000, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_hugging_face_folder_is_a_model(tmp_path):
    model = hf(tmp_path, **LLAMA)
    assert model.head_dim == 64  # as transformers derives it
    assert model.name == tmp_path.name


def test_a_hugging_face_folder_inside_a_toml(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    file = written(tmp_path, '[model]\npath = "weights"\n[cluster]\nranks = 4\n')
    assert load_plan_config(file, ranks=None).model.vocab_size == 49152
    file = written(tmp_path, '[model]\npath = "weights"\nvocab_size = 1\n[cluster]\nranks = 4\n')
    assert "keep one" in complaint(file)


def test_a_nested_text_config_is_read(tmp_path):
    table = tomllib.loads(TOML)["model"]
    vision, model_type, _ = table.pop("vision"), table.pop("model_type"), table.pop("name")
    text = table | {"model_type": "kimi_k2", "num_key_value_heads": 64}
    model = hf(tmp_path, model_type=model_type, text_config=text, vision_config=vision, tie_word_embeddings=False)
    expected = models.kimi().model
    for one in fields(expected):
        if one.name not in ("name", "num_key_value_heads"):
            assert getattr(model, one.name) == getattr(expected, one.name), one.name


def test_layers_that_differ_by_a_pattern_are_refused(tmp_path):
    with pytest.raises(UserError, match="decoder_sparse_step"):
        hf(tmp_path, **LLAMA | {"model_type": "qwen3_moe", "decoder_sparse_step": 2})


def test_a_layout_must_match_the_model(tmp_path):
    text = TOML + "\n[layout.dense]\nreplicate = 64\nshard = 8\n"
    assert "[layout.expert]" in complaint(written(tmp_path, text))
