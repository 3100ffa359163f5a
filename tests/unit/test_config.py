"""Configuration: every knob is listed here, so that a new one is a visible change; TOML goes round; mistakes are named."""

from dataclasses import fields, replace

import pytest

from etude.config import (
    AgentConfig,
    Config,
    EvaluateConfig,
    ModelConfig,
    MonitorConfig,
    PoolConfig,
    RLConfig,
    TasksConfig,
    WarmupConfig,
    from_toml,
    to_toml,
)

KNOBS = {
    "tasks": "source candidates mode held_out_share easiest",
    "pool": ("draw url max_draws decay stale_share unsolved_share exploration oversample grow frontier deadline_s wait"),
    "model": "path dtype threads",
    "agent": "turns context_tokens turn_tokens observation_chars instruction_chars temperature shaping",
    "warmup": "steps batch per_task checkpoint_every lr hinted_share bad_call_rate",
    "rl": "steps tasks_per_step group_size lr warmup_steps schedule max_grad_norm weight_decay max_hints slots keep_checkpoints",
    "loss": "tokens_per_rollout ratio_cap reference reference_coefficient micro_batch_tokens chunk_tokens",
    "feedback": (
        "divergence mix teacher ema_rate weight warmup_steps decay gate gate_margin token_cap turn_ratio turn_ratio_cap max_staleness"
    ),
    "monitor": "enabled consequence threshold",
    "evaluate": "tasks rollouts_per_task",
}


def test_these_are_all_knobs_and_each_has_a_line_of_help():
    sections = {section.name: getattr(Config(), section.name) for section in fields(Config) if section.name != "seed"}
    assert {name: " ".join(knob.name for knob in fields(values)) for name, values in sections.items()} == KNOBS


def test_toml_goes_round():
    config = replace(Config(seed=4), model=ModelConfig(path='a "b"\\c', dtype="float32"), rl=RLConfig(lr=3e-7, max_grad_norm=float("inf")))
    assert from_toml(to_toml(config)) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sed = 1", "'sed'"),
        ("rl = 3", "rl is 3, but it is a section"),
        ("[rll]\nsteps = 1", "'rll'"),
        ("[rl]\nstep = 1", "'step'"),
        ('[rl]\nsteps = "one"', "int"),
        ("[rl]\nsteps = -1", "rl.steps is -1"),
    ],
)
def test_a_wrong_key_or_value_in_toml_is_named(text, named):
    with pytest.raises(ValueError, match=named):
        from_toml(text)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: TasksConfig(held_out_share=1.0), "tasks.held_out_share"),
        (lambda: PoolConfig(draw="random"), "pool.draw"),
        (lambda: PoolConfig(decay=0.0), "pool.decay"),
        (lambda: PoolConfig(unsolved_share=0.6), "pool.unsolved_share"),
        (lambda: PoolConfig(draw="uniform", grow=True), "pool.grow"),
        (lambda: ModelConfig(dtype="float16"), "model.dtype"),
        (lambda: AgentConfig(turns=0), "agent.turns"),
        (lambda: WarmupConfig(lr=0.0), "warmup.lr"),
        (lambda: RLConfig(group_size=1), "rl.group_size"),
        (lambda: RLConfig(schedule="step"), "rl.schedule"),
        (lambda: MonitorConfig(consequence="shame"), "monitor.consequence"),
        (lambda: MonitorConfig(threshold=0.0), "monitor.threshold"),
        (lambda: EvaluateConfig(rollouts_per_task=0), "evaluate.rollouts_per_task"),
        (lambda: Config(agent=AgentConfig(turn_tokens=64, context_tokens=64)), "agent.turn_tokens"),
    ],
)
def test_a_value_out_of_range_says_what_is_allowed(make, named):
    with pytest.raises(ValueError, match=rf"{named} is .*, allowed is .*: ."):
        make()
