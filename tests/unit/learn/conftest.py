"""Tiny models and samples for the learning tests: small enough for fp64, large enough that layers, groups and rows can be mixed up."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from etude.types import HintSpan, Sample

VOCABULARY = 61


def build_model(
    kind: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0, implementation: str = "etude", **fields
) -> PreTrainedModel:
    """A random model whose distributions are far from uniform; heads and key/value heads differ unless asked otherwise."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = CONFIG_MAPPING[kind](**{**sizes, **fields})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    model = model.to(dtype).eval()
    if dtype == torch.float64:
        _widen_norms(model)
    return model


def _widen_norms(model: PreTrainedModel) -> None:
    """transformers' RMSNorm computes in fp32 whatever it is given; torch's own computes in fp64, so that fp64 tests mean it."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ in ("LlamaRMSNorm", "Qwen2RMSNorm", "MistralRMSNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)


def build_samples(model: PreTrainedModel, seed: int = 0, num: int = 4, hints: int = 2, advantage: float | None = None) -> list[Sample]:
    """Rows of a few turns with log-probabilities near the model's own; the first `hints` turns of every other row are hinted."""
    random, samples = Random(seed), []
    for row in range(num):
        ids: list[int] = []
        sampled: list[bool] = []
        places = []
        for _ in range(random.randint(2, 4)):
            context, turn = random.randint(4, 9), random.randint(2, 7)
            start = len(ids) + context
            places.append((start - 3, start, start + turn))
            ids += [random.randrange(VOCABULARY) for _ in range(context + turn)]
            sampled += [False] * context + [True] * turn
        ids += [random.randrange(VOCABULARY) for _ in range(3)]
        sampled += [False] * 3
        with torch.no_grad():
            logp = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
        near = [float(logp[t - 1, ids[t]]) + random.gauss(0, 0.4) if sampled[t] else 0.0 for t in range(len(ids))]
        spans = [
            HintSpan(
                splice=splice,
                start=start,
                stop=stop,
                hint_ids=tuple(random.randrange(VOCABULARY) for _ in range(random.randint(3, 6))),
                turn=index,
                writer="rule",
            )
            for index, (splice, start, stop) in enumerate(places[:hints])
        ]
        samples.append(
            Sample(
                rollout_id=f"r{row}",
                ids=tuple(ids),
                sampled=tuple(sampled),
                logprobs=tuple(near),
                versions=tuple(5 if s else -1 for s in sampled),
                advantage=random.uniform(-1, 1) if advantage is None else advantage,
                hints=tuple(spans) if row % 2 == 0 else (),
            )
        )
    return samples


@pytest.fixture
def make_model() -> Callable[..., PreTrainedModel]:
    return build_model


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    return build_samples


@pytest.fixture
def gradients() -> Callable[[torch.nn.Module], dict[str, torch.Tensor]]:
    """Takes the gradients out of a model: clones by name, then cleared; zeros where there is none."""

    def take(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        model.zero_grad()
        return found

    return take
