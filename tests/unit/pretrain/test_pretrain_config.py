"""The configuration of a pretraining run: every wrong value and key says what to do; written and read, it is the same."""

import pytest

from etude.errors import UserError
from etude.pretrain.config import Init, load_pretrain_config, parse_init, pretrain_config, resumable, to_toml

SMALL = {"model": {"path": "m"}, "phases": [{"sources": [{"path": "src"}]}]}


def small(**more):
    return {**SMALL, **more}


def phase(**more):
    return small(phases=[{"sources": [{"path": "src"}], **more}])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (small(optimiser={}), "unknown key optimiser; did you mean optimizer"),
        (phase(seqlen=3), "unknown key phases.seqlen; did you mean seq_len"),
        (small(phases=[{"sources": [{"path": "x", "wieght": 2.0}]}]), "unknown key phases.sources.wieght; did you mean weight"),
        (small(phases=[]), r"phases is \[\], allowed is one or more: add a \[\[phases\]\] table"),
        (small(phases=[{}]), r"phase 'bulk': sources is \[\]"),
        (phase(steps=0), "phase 'bulk': steps is 0, allowed is 1 or more"),
        (phase(schedule="step"), "phases.schedule is 'step', allowed is constant, linear, cosine, wsd: choose one of them"),
        (phase(schedule="wsd", steps=5, warmup_steps=3, decay_steps=3), "together at most steps = 5"),
        (phase(schedule="cosine", decay_steps=3), "allowed is 0 unless schedule is wsd"),
        (phase(floor=2.0), "floor is 2.0"),
        (phase(lr="fast"), "configuration: Expected `float`, got `str`"),
        (small(optimizer={"name": "sgd"}), "optimizer.name is 'sgd', allowed is adamw, muon"),
        (small(init={"kind": "gpt9"}), "init.kind is 'gpt9', allowed is llama, qwen3_moe, deepseek_v3"),
        (small(init={"num_attention_heads": 3}), "num_key_value_heads is 2, allowed is a divisor"),
        (small(seed={}), "configuration: Expected `int`"),
        (small(model=3), "configuration: model is 3; it must be a table"),
    ],
)
def test_a_wrong_value_says_what_it_is_and_what_is_allowed(values, message):
    with pytest.raises(UserError, match=message):
        pretrain_config(values)


def test_what_is_written_is_read_again(tmp_path):
    config = pretrain_config(
        small(
            seed=3,
            init={"more": {"kv_lora_rank": 4}},
            phases=[
                {"name": "a", "sources": [{"path": 'q"\\', "suffixes": [".py"]}, {"path": "y", "weight": 0.1}]},
                {"name": "b", "rope": {"rope_type": "yarn", "factor": 4.0}, "sources": [{"path": "z"}], "supervised": True},
            ],
        )
    )
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load_pretrain_config(tmp_path / "c.toml") == config


def test_settings_on_the_command_line_win_over_the_file(tmp_path):
    (tmp_path / "c.toml").write_text(to_toml(pretrain_config(SMALL)))
    config = load_pretrain_config(tmp_path / "c.toml", ["phases.0.steps=7", "--mesh.ep=2", "model.path=other/folder"])
    assert (config.phases[0].steps, config.mesh.ep, config.model.path) == (7, 2, "other/folder")
    for wrong, message in (("steps", "no setting"), ("phases.1.steps=3", "no entry of a list of 1"), ("seed.x=3", "is no table")):
        with pytest.raises(UserError, match=message):
            load_pretrain_config(tmp_path / "c.toml", [wrong])
    with pytest.raises(UserError, match="cannot read"):
        load_pretrain_config(tmp_path / "none.toml")


def test_init_on_the_command_line():
    assert parse_init("qwen3_moe:hidden_size=64,num_experts=4") == Init(kind="qwen3_moe", hidden_size=64, num_experts=4)
    assert parse_init("deepseek_v3:kv_lora_rank=16").more == {"kv_lora_rank": 16}
    with pytest.raises(UserError, match="'hidden_size' has no value"):
        parse_init("llama:hidden_size")


def test_only_what_the_result_does_not_depend_on_may_change_when_a_run_goes_on():
    config = pretrain_config(SMALL)
    resumable(config, pretrain_config(small(mesh={"ep": 2}, checkpoints={"every": 3})))
    with pytest.raises(UserError, match="begun with another 'seed'"):
        resumable(config, pretrain_config(small(seed=1)))
