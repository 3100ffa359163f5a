"""The configuration of a pretraining run: every wrong value and key says what to do; written and read, it is the same."""

from datetime import date

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
        (small(optimiser={}), "the top level has no key `optimiser`; did you mean `optimizer`"),
        (phase(seqlen=3), r"\[phases.0\] has no key `seqlen`; did you mean `seq_len`"),
        (small(phases=[{"sources": [{"path": "x", "wieght": 2.0}]}]), r"\[phases.0.sources.0\] has no key `wieght`; did you mean `weight`"),
        (small(phases=[{"sources": [{}]}]), r"\[phases.0.sources.0\] lacks `path`; add it"),
        (small(phases=[]), r"phases is \[\], allowed is one or more: add a \[\[phases\]\] table"),
        (small(phases={}), "`phases` is {}, expected a list"),
        (small(phases=[{}]), r"phase 'bulk': sources is \[\]"),
        (phase(steps=0), "phase 'bulk': steps is 0, allowed is 1 or more"),
        (phase(seq_len=1), "phase 'bulk': seq_len is 1, allowed is 2 or more"),
        (phase(schedule="step"), "`phases.0.schedule` is 'step', allowed are 'constant', 'linear', 'cosine', 'wsd'"),
        (phase(schedule="wsd", steps=5, warmup_steps=3, decay_steps=3), "together at most steps = 5"),
        (phase(schedule="cosine", decay_steps=3), "allowed is 0 unless schedule is wsd"),
        (phase(floor=2.0), "floor is 2.0"),
        (phase(lr="fast"), "`phases.0.lr` is 'fast', expected float"),
        (phase(lr=float("inf")), "lr is inf, allowed is a number above 0"),
        (phase(steps=1 << 70), "`phases.0.steps` is 1180591620717411303424, expected a number of 64 bits"),
        (phase(rope={"factor": "x"}), "rope.factor is 'x', allowed is a number above 0: 2 doubles the context"),
        (phase(rope={"x": date(2020, 1, 1)}), "`phases.0.rope.x` is datetime.date"),
        (small(optimizer={"name": "sgd"}), "`optimizer.name` is 'sgd', allowed are 'adamw', 'muon'"),
        (small(optimizer={"betas": [0.9]}), r"`optimizer.betas` is \[0.9\], expected a list of 2"),
        (small(optimizer={"betas": [2.0, 0.9]}), "optimizer.betas is"),
        (small(optimizer={"momentum": float("nan")}), "optimizer.momentum is nan"),
        (small(optimizer={"eps": -1.0}), "optimizer.eps is -1.0"),
        (small(optimizer={"weight_decay": float("inf")}), "optimizer.weight_decay is inf"),
        (small(init={"kind": "gpt9"}), "`init.kind` is 'gpt9', allowed are 'llama', 'qwen3_moe', 'deepseek_v3'"),
        (small(init={"num_attention_heads": 3}), "num_key_value_heads is 2, allowed is a divisor"),
        (small(init={"head_dim": 7}), "init.head_dim is 7, allowed is an even number"),
        (small(init={"rope_theta": 0}), "init.rope_theta is 0.0"),
        (small(init={"initializer_range": -1.0}), "init.initializer_range is -1.0"),
        (small(init={"kind": "qwen3_moe", "num_experts_per_tok": 9}), "num_experts_per_tok is 9, allowed is up to num_experts = 8"),
        (small(init={"kind": "qwen3_moe", "num_experts": 0}), "init.num_experts is 0, allowed is 1 or more"),
        (small(init={"more": {"hidden_size": 4}}), r"init.more is \['hidden_size'\]"),
        (small(mesh={"ep": -1}), "mesh.ep is -1, allowed is 1 or more"),
        (small(threads=-1), "threads is -1"),
        (small(peak_flops=-1), "peak_flops is -1.0"),
        (small(seed={}), "`seed` is {}, expected int"),
        (small(seed=True), "`seed` is True, expected int"),
        (small(model=3), r"`model` is 3, expected a table \[model\]"),
    ],
)
def test_a_wrong_value_says_what_it_is_and_what_is_allowed(values, message):
    with pytest.raises(UserError, match=message) as caught:
        pretrain_config(values, "c.toml")
    assert "\n" not in str(caught.value)


def test_what_is_written_is_read_again(tmp_path):
    config = pretrain_config(
        small(
            seed=3,
            init={"more": {"kv_lora_rank": 4, "list": [1, {"a b": True}], "deep": {"x": [[1], []]}}},
            phases=[
                {"name": "a 😀 \x7f\x1b ü", "sources": [{"path": 'q"\\', "suffixes": [".py"]}, {"path": "y", "weight": 0.1}]},
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
    for wrong, message in (
        ("steps", "no setting"),
        ("phases.1.steps=3", "no entry of a list of 1"),
        ("seed.x=3", "is no table"),
        ("model.path.x.y=3", "model.path is no table"),
        ("=3", "no setting"),
        ("phases=3", "expected a list"),
        ("model.path=\udcff", "is not UTF-8"),
        ("seed=" + "[" * 5000, "expected int"),
    ):
        with pytest.raises(UserError, match=message):
            load_pretrain_config(tmp_path / "c.toml", [wrong])
    with pytest.raises(UserError, match="cannot read"):
        load_pretrain_config(tmp_path / "none.toml")


def test_init_on_the_command_line():
    assert parse_init("qwen3_moe:hidden_size=64,num_experts=4") == Init(kind="qwen3_moe", hidden_size=64, num_experts=4)
    assert parse_init("deepseek_v3:kv_lora_rank=16").more == {"kv_lora_rank": 16}
    for wrong, message in (
        ("llama:hidden_size", "'hidden_size' has no value"), ("default", "to continue a model, set model.path=FOLDER"),
        ("llama:hidden_size=x", "`init.hidden_size` is 'x', expected int"), ("llama:more=3,x=4", r"init.more is \['more'\]"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            parse_init(wrong)


def test_only_what_the_result_does_not_depend_on_may_change_when_a_run_goes_on():
    config = pretrain_config(SMALL)
    resumable(config, pretrain_config(small(mesh={"ep": 2}, checkpoints={"every": 3}, data={"cache": "c"})))
    with pytest.raises(UserError, match=r"begun with another seed \(0 then, 1 now\)"):
        resumable(config, pretrain_config(small(seed=1)))
    with pytest.raises(UserError, match=r"begun with another phases.0.sources.0.path \(src then, lib now\)"):
        resumable(config, pretrain_config(small(phases=[{"sources": [{"path": "lib"}]}])))
