"""Numbers that mean nothing for a plan are refused by name, wherever they stand, and so is a config.json that is none."""

import json

import pytest

from etude.errors import UserError
from etude.plan.config import load_plan_config
from tests.unit.plan import models

TOML = models.KIMI_TOML.read_text(encoding="utf-8")
CHIP = "\n[chips.mine]\npeak_flops = {}\nhbm_bytes = {}\nhbm_bytes_per_s = {}\n"


def complaint(path, ranks=None):
    with pytest.raises(UserError) as caught:
        load_plan_config(path, ranks=ranks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus_per_node = 8", "gpus_per_node = 0", "cluster.gpus_per_node is 0"),
        ("intra_bytes_per_s = 450e9", "intra_bytes_per_s = -450e9", "cluster.intra_bytes_per_s is -450000000000.0"),
        ("inter_bytes_per_s = 50e9", "inter_bytes_per_s = nan", "cluster.inter_bytes_per_s is nan"),
        ("inter_bytes_per_s = 50e9", "inter_bytes_per_s = 1e-300", "cluster.inter_bytes_per_s is 1e-300"),
        ('chip = "h100"', 'chip = "h100"\ncollective_latency_s = -1.0', "cluster.collective_latency_s is -1.0"),
        ('chip = "h100"', 'chip = "h100"\nmessage_latency_s = nan', "cluster.message_latency_s is nan"),
        ("shown = 8", "shown = 0", "search.shown is 0"),
        ("shown = 8", "max_replicate = -3", "search.max_replicate is -3"),
        ("ranks = [256, 512, 1024, 2048]", "ranks = [256, 0]", "report.ranks is 0"),
        (
            "efficiencies = [0.4, 0.5, 0.6, 0.7]",
            "efficiencies = [nan]",
            "report.efficiencies is nan, allowed is a number above 0 and up to 1",
        ),
        ("efficiencies = [0.4, 0.5, 0.6, 0.7]", "efficiencies = [2.0]", "report.efficiencies is 2.0"),
        ("hidden_size = 1152", "hidden_size = 0", "model.vision.hidden_size is 0"),
        ("merge_kernel_size = [2, 2]", "merge_kernel_size = []", "model.vision.merge_kernel_size is 0"),
        ("num_hidden_layers = 61", "num_hidden_layers = 100000000", "model.num_hidden_layers is 100000000, allowed is 10000 at most"),
        ("ranks = 512", "ranks = 1000000000000", "cluster.ranks is 1000000000000, allowed is 16777216 at most"),
        ("tokens_per_rank = 4096", "tokens_per_rank = true", "`training.tokens_per_rank` is True, expected int"),
    ],
)
def test_a_number_that_means_nothing_is_named(tmp_path, old, new, says):
    assert old in TOML
    (tmp_path / "plan.toml").write_text(TOML.replace(old, new, 1), encoding="utf-8")
    assert says in complaint(tmp_path / "plan.toml")


@pytest.mark.parametrize("values", [("0.0", "1e9", "1e9"), ("1e12", "-1e9", "1e9"), ("1e12", "1e9", "inf")])
def test_a_chip_that_cannot_be_is_named(tmp_path, values):
    (tmp_path / "plan.toml").write_text(TOML + CHIP.format(*values), encoding="utf-8")
    assert "chips.mine." in complaint(tmp_path / "plan.toml")


@pytest.mark.parametrize("value", [[], 3, None, {"text_config": []}, {"vision_config": 3}, {"text_config": "x", "model_type": "llama"}])
def test_a_config_json_of_another_shape_is_one_line(tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps(value), encoding="utf-8")
    assert "is no model's config.json" in complaint(tmp_path, ranks=8)


def test_a_dimension_of_another_type_is_one_line(tmp_path):
    about = {"model_type": "llama", "vocab_size": 8, "hidden_size": "x", "num_hidden_layers": 1, "intermediate_size": 8}
    about |= {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(about), encoding="utf-8")
    assert "`model.hidden_size` is 'x', expected int" in complaint(tmp_path, ranks=8)
