"""What hints cost a training step: forward and backward of one rollout of 4,096 tokens, 4 and 16 hinted turns, three teachers.

    ratio_packed    step with hints, teacher branches share the rollout's prefix    / the same step without hints
    ratio_naive     step with hints, one full-context teacher forward per hint      / the same step without hints

Everything is counted: teacher's trunk forward (EMA, frozen), branches, gate, both projections to the vocabulary, the KL and its gradient.
The naive side runs nothing but the separate forwards (no comparison without the hint, which would cost other weights one more), so it is
the same for every teacher. A Llama of 8 layers, width 256, 8 heads over 4, 8,192 tokens of vocabulary, fp32. The rollout samples 16
turns of 60 tokens, spread evenly from 800 to 3,900, and 4 or all of them get a hint of 40 tokens. Every hint counts: the gate's
comparison is made, but no turn is dropped by it.

    python -m benchmarks.feedback_cost [--quick] [--threads 2] [--repeats 5]

Not here: memory (feedback_memory.py), whether hints help (feedback_ablation.py).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common import alternate, report
from etude.config import FeedbackConfig, LossConfig, TeacherKind
from etude.learn.step import accumulate, denominators
from etude.learn.teacher import Teacher
from etude.types import HintSpan, Sample

HINT, HEADER, TURN = 40, 4, 60
TEACHERS: tuple[TeacherKind, ...] = ("live", "ema", "frozen")


def build_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=16384,
        attn_implementation="etude",
    )
    return LlamaForCausalLM(config)


def rollout(tokens: int, num_hints: int, seed: int = 0) -> Sample:
    """One rollout with 16 turns, of which some, spread over it, are hinted."""
    random = Random(seed)
    first = tokens * 800 // 4096
    starts = [first + i * (tokens * 3900 // 4096 - first) // 15 for i in range(16)]
    sampled = [False] * tokens
    for start in starts:
        sampled[start : start + TURN] = [True] * TURN
    chosen = [starts[i * 15 // (num_hints - 1)] for i in range(num_hints)]
    spans = [
        HintSpan(splice=s - HEADER, start=s, stop=s + TURN, hint_ids=tuple(random.randrange(8192) for _ in range(HINT))) for s in chosen
    ]
    return Sample(
        rollout_id="r",
        ids=tuple(random.randrange(8192) for _ in range(tokens)),
        sampled=tuple(sampled),
        logprobs=tuple(-9.0 if s else 0.0 for s in sampled),
        advantage=0.5,
        hints=tuple(spans),
    )


def step(model: LlamaForCausalLM, sample: Sample, teacher: Teacher | None) -> Callable[[], None]:
    loss = LossConfig()
    feedback = None if teacher is None else FeedbackConfig(teacher=teacher.kind, gate=False)

    def run() -> None:
        divisors = denominators([sample], loss, feedback)
        stats = accumulate(model, [sample], loss=loss, denominators=divisors, feedback=feedback, teacher=teacher)
        assert stats.counts.get("hinted_turns", 0) == (0 if teacher is None else len(sample.hints))
        model.zero_grad(set_to_none=True)

    return run


def measure(model: LlamaForCausalLM, tokens: int, num_hints: int, repeats: int) -> list[dict[str, Any]]:
    sample = rollout(tokens, num_hints)
    naive = Teacher(model, "live")
    naive.route = "separate forwards: the benchmark asks for them"
    teachers = {kind: Teacher(model, kind) for kind in TEACHERS}
    sides = {"none": step(model, replace(sample, hints=()), None), "naive": step(model, sample, naive)}
    sides.update({kind: step(model, sample, teachers[kind]) for kind in TEACHERS})
    seconds = alternate(sides, repeats)
    return [
        {
            "teacher": kind,
            "hints": num_hints,
            "tokens": tokens,
            "step_s": seconds["none"],
            "ratio_packed": seconds[kind] / seconds["none"],
            "ratio_naive": seconds["naive"] / seconds["none"],
        }
        for kind in TEACHERS
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,048 tokens, one repeat: checks that it runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = build_model()
    tokens, repeats = (2048, 1) if options.quick else (4096, options.repeats)
    rows = [row for num_hints in (4, 16) for row in measure(model, tokens, num_hints, repeats)]
    report("feedback_cost", rows, {"cases": rows, "threads": options.threads, "quick": cast(bool, options.quick)})


if __name__ == "__main__":
    main()
