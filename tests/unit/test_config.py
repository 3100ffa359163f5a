"""Settings: wrong values are refused with the value, what is allowed and what to do."""

from typing import Any

import pytest

from etude.config import FeedbackConfig, LossConfig

WRONG: list[tuple[type, dict[str, Any], str]] = [
    (LossConfig, {"tokens_per_rollout": 0.0}, "tokens_per_rollout is 0.0, allowed is a number above 0"),
    (LossConfig, {"tokens_per_rollout": float("nan")}, "tokens_per_rollout is nan"),
    (LossConfig, {"ratio_cap": 0.5}, "ratio_cap is 0.5, allowed is 1 or more"),
    (LossConfig, {"reference": "first"}, "reference is 'first', allowed is 'none' or 'frozen' or 'sampler'"),
    (LossConfig, {"reference_coefficient": -1.0, "reference": "frozen"}, "reference_coefficient is -1.0"),
    (LossConfig, {"reference_coefficient": 0.1}, "reference is 'none', allowed is 'frozen' or 'sampler' with a coefficient"),
    (LossConfig, {"micro_batch_tokens": 0}, "micro_batch_tokens is 0"),
    (LossConfig, {"chunk_tokens": 0}, "chunk_tokens is 0"),
    (FeedbackConfig, {"divergence": "kl"}, "divergence is 'kl', allowed is 'forward' or 'reverse' or 'jsd'"),
    (FeedbackConfig, {"mix": 1.0}, "mix is 1.0, allowed is strictly between 0 and 1"),
    (FeedbackConfig, {"teacher": "student"}, "teacher is 'student', allowed is 'ema' or 'live' or 'frozen'"),
    (FeedbackConfig, {"ema_rate": 0.0}, "ema_rate is 0.0"),
    (FeedbackConfig, {"weight": -0.1}, "weight is -0.1, allowed is 0 or more"),
    (FeedbackConfig, {"weight": float("inf")}, "weight is inf"),
    (FeedbackConfig, {"decay": -1.0}, "decay is -1.0"),
    (FeedbackConfig, {"gate_margin": -1.0}, "gate_margin is -1.0"),
    (FeedbackConfig, {"token_cap": -1.0}, "token_cap is -1.0"),
    (FeedbackConfig, {"warmup_steps": -1}, "warmup_steps is -1"),
    (FeedbackConfig, {"turn_ratio": "token"}, "turn_ratio is 'token', allowed is 'none' or 'prefix'"),
    (FeedbackConfig, {"turn_ratio_cap": 0.9}, "turn_ratio_cap is 0.9"),
    (FeedbackConfig, {"max_staleness": -1}, "max_staleness is -1"),
]


@pytest.mark.parametrize(("settings", "fields", "message"), WRONG)
def test_a_wrong_value_is_refused_with_what_is_allowed_and_what_to_do(settings: type, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        settings(**fields)
    assert ": " in str(refused.value)


def test_the_defaults_are_valid() -> None:
    assert LossConfig().reference == "none"
    assert FeedbackConfig().teacher == "ema"
