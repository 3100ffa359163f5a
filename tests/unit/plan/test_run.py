"""The verb."""

import json
import subprocess
import sys

import pytest

from etude.errors import UserError
from etude.plan.run import run_plan
from tests.unit.plan import models


def test_the_tables_tell_the_answer(capsys):
    run_plan(models.KIMI_TOML, ranks=None, as_json=False)
    printed = capsys.readouterr().out
    for text in ("1.027T parameters", "31.69B active", "48.46", "binds: links between nodes", "breaks below", "ranks for 200 ms"):
        assert text in printed


def test_json_is_one_object_with_the_same_figures(capsys):
    run_plan(models.KIMI_TOML, ranks=1024, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["cluster"]["ranks"] == 1024
    assert told["flops"]["standard"] == pytest.approx(48.46e15, rel=1e-3)
    assert told["best"]["time"]["overlapped_s"] < 0.11
    assert len(told["layouts"]) == 8
    assert told["layouts"][0] == told["best"]


def test_a_small_model_from_a_hugging_face_folder_on_one_rank(tmp_path, capsys):
    config = {
        "model_type": "llama", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    run_plan(tmp_path, ranks=1, as_json=False)
    assert "1 × h100" in capsys.readouterr().out


def test_a_layout_of_ones_own_is_priced_beside_the_best(tmp_path, capsys):
    file = tmp_path / "plan.toml"
    own = "\n[layout.dense]\nreplicate = 64\nshard = 8\nsplit = 8\n[layout.expert]\nreplicate = 1\nefsdp = 64\nep = 8\n"
    file.write_text(models.KIMI_TOML.read_text(encoding="utf-8") + own, encoding="utf-8")
    run_plan(file, ranks=None, as_json=False)
    assert "yours" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"512 ranks \(dense .* = 512\) and the cluster 256"):
        run_plan(file, ranks=256, as_json=False)


def test_no_torch_is_loaded():
    code = "import sys; import etude.plan.run, etude.plan.meta; print('torch' in sys.modules or 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
