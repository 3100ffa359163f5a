"""The training step against its oracle, and the properties that keep the two streams apart.

1. Every setting equals the oracle (full logits, autograd, one forward per hint), value and gradient.
2. No hint is exactly nothing; hints leave the reward's part of the gradient untouched to the bit.
3. Unhinted rollouts leave the hints' part untouched.
4. Micro-batches, padding and order do not matter; the same inputs give the same bits.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from etude.config import FeedbackConfig, LossConfig
from etude.learn.oracle import oracle_step
from etude.learn.stats import metrics
from etude.learn.step import Denominators, accumulate, accumulate_sft, denominators
from etude.learn.teacher import Teacher
from etude.types import HintSpan

LOSS = LossConfig(tokens_per_rollout=10.0, chunk_tokens=7, micro_batch_tokens=120)


def drift(model, seed: int = 9, size: float = 0.05) -> None:
    """As an optimizer step would: the student moves away from an EMA or frozen teacher."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=g, dtype=torch.float64).to(parameter.dtype)


def step(model, samples, feedback=None, teacher=None, loss=LOSS, **options):
    divisors = options.pop("denominators", None) or denominators(samples, loss, feedback)
    return accumulate(model, samples, loss=loss, denominators=divisors, feedback=feedback, teacher=teacher, **options)


def largest_difference(a: dict, b: dict) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def same_bits(a: dict, b: dict) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


FEEDBACKS = [
    FeedbackConfig(),
    FeedbackConfig(gate=False),
    FeedbackConfig(teacher="live"),
    FeedbackConfig(teacher="frozen", divergence="reverse", weight=0.3),
    FeedbackConfig(teacher="live", divergence="jsd", mix=0.2, gate=False),
    FeedbackConfig(gate=False, token_cap=0.5),
    FeedbackConfig(gate=False, turn_ratio="prefix", turn_ratio_cap=1.3),
    FeedbackConfig(gate=False, turn_ratio="none"),
    FeedbackConfig(gate=False, turn_ratio="teacher", teacher="live"),
    FeedbackConfig(gate_margin=0.02),
]


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_every_setting_equals_the_oracle(make_model, make_samples, gradients, kind: str, feedback: FeedbackConfig) -> None:
    model = make_model(kind)
    samples = make_samples(model, num=6)
    teacher = Teacher(model, feedback.teacher)
    drift(model)
    stats = step(model, samples, feedback, teacher)
    found = gradients(model)
    oracle_step(model, samples, LOSS, feedback, teacher.module).backward()
    assert largest_difference(found, gradients(model)) < 1e-12
    assert stats.counts["hinted_turns"] == 6
    assert stats.sums["feedback_loss"] > 0


@pytest.mark.parametrize("reference", ["sampler", "frozen"])
def test_the_reference_cost_equals_the_oracle_and_lets_nothing_be_skipped(make_model, make_samples, gradients, reference: str) -> None:
    model = make_model()
    samples = make_samples(model, num=3, hints=0, advantage=0.0)
    frozen = Teacher(model, "frozen").module if reference == "frozen" else None
    drift(model)
    loss = replace(LOSS, reference=reference, reference_coefficient=0.5)
    stats = step(model, samples, loss=loss, reference=frozen)
    found = gradients(model)
    oracle_step(model, samples, loss, None, None, frozen).backward()
    assert largest_difference(found, gradients(model)) < 1e-12
    assert stats.counts["skipped"] == 0
    assert "policy/reference_k1" in metrics(stats)


def test_models_without_branches_give_the_same_gradient_by_separate_forwards(make_model, make_samples, gradients) -> None:
    found = []
    for implementation in ("etude", "sdpa"):
        model = make_model(implementation=implementation)
        samples, teacher = make_samples(model), Teacher(model, "ema")
        drift(model)
        step(model, samples, FeedbackConfig(), teacher)
        found.append(gradients(model))
    assert largest_difference(*found) < 1e-12


@pytest.mark.parametrize("kind", ["live", "ema"])
def test_a_sliding_window_model_trains_through_separate_forwards(make_model, make_samples, gradients, kind: str) -> None:
    model = make_model("mistral", implementation="sdpa", sliding_window=4)
    samples, feedback = make_samples(model), FeedbackConfig(teacher=kind, gate=False)
    teacher = Teacher(model, kind)
    assert teacher.route == "separate forwards: its attention is not plain causal"
    drift(model)
    step(model, samples, feedback, teacher)
    found = gradients(model)
    oracle_step(model, samples, LOSS, feedback, teacher.module).backward()
    assert largest_difference(found, gradients(model)) < 1e-12


def test_without_hints_the_feedback_loss_and_its_gradient_are_exactly_zero(make_model, make_samples, gradients) -> None:
    model = make_model()
    samples = make_samples(model, hints=0)
    teacher = Teacher(model, "ema")
    drift(model)
    stats = step(model, samples, FeedbackConfig(), teacher)
    with_feedback = gradients(model)
    step(model, samples)
    assert same_bits(with_feedback, gradients(model))
    assert stats.sums.get("feedback_loss", 0.0) == 0.0
    assert denominators(samples, LOSS, FeedbackConfig()).feedback == 0.0
    assert stats.hinted == ()


def test_an_empty_hint_makes_no_branch(make_model, make_samples, gradients) -> None:
    model = make_model()
    samples = [replace(s, hints=tuple(replace(h, hint_ids=()) for h in s.hints)) for s in make_samples(model)]
    assert samples[0].hints
    stats = step(model, samples, FeedbackConfig(gate=False), Teacher(model, "ema"))
    with_empty = gradients(model)
    step(model, samples)
    assert same_bits(with_empty, gradients(model))
    assert stats.counts.get("hinted_turns", 0) == 0
    assert denominators(samples, LOSS, FeedbackConfig()).feedback == 0.0


@pytest.mark.parametrize("kind", ["ema", "live"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_at_unhinted_turns_are_those_of_a_reward_only_step_to_the_bit(make_model, make_samples, kind: str, dtype) -> None:
    """With respect to the hidden states that the losses read, at every place that predicts no hinted token."""
    model = make_model(dtype=dtype)
    samples, teacher = make_samples(model, num=1), Teacher(model, kind)
    drift(model)
    kept = []

    def keep(_module, _inputs, output) -> None:
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.retain_grad()
            kept.append(output.last_hidden_state)

    hook = model.model.register_forward_hook(keep)
    step(model, samples, FeedbackConfig(teacher=kind, gate=False), teacher)
    step(model, samples)
    hook.remove()
    hinted, reward_only = (hidden.grad[0] for hidden in kept)
    places = {t - 1 for span in samples[0].hints for t in range(span.start, span.stop)}
    unhinted = [t for t in range(len(hinted)) if t not in places]
    assert torch.equal(hinted[unhinted], reward_only[unhinted])
    assert reward_only[unhinted].any()
    assert all((hinted[t] - reward_only[t]).any() for t in places)


def test_measured_hints_of_weight_zero_leave_every_gradient_to_the_bit(make_model, make_samples, gradients) -> None:
    model = make_model(dtype=torch.float32)
    samples = make_samples(model, num=5)
    samples[2] = replace(samples[2], advantage=0.0)
    teacher = Teacher(model, "live")
    stats = step(model, samples, FeedbackConfig(teacher="live"), teacher, feedback_weight=0.0)
    measured = gradients(model)
    step(model, samples)
    assert same_bits(measured, gradients(model))
    assert stats.counts["hinted_turns"] == 6


def test_a_closed_gate_leaves_every_gradient_to_the_bit(make_model, make_samples, gradients) -> None:
    model = make_model(dtype=torch.float32)
    samples, teacher = make_samples(model), Teacher(model, "ema")
    stats = step(model, samples, FeedbackConfig(gate_margin=1e3), teacher)
    closed = gradients(model)
    step(model, samples)
    assert same_bits(closed, gradients(model))
    assert metrics(stats)["feedback/gate_share"] == 0.0
    assert not any(turn.gate for turn in stats.hinted)


def test_more_unhinted_rollouts_leave_the_hints_gradient_unchanged(make_model, make_samples, gradients) -> None:
    model = make_model()
    feedback, teacher = FeedbackConfig(gate=False), Teacher(model, "ema")
    drift(model)
    hinted = [replace(s, advantage=0.0) for s in make_samples(model, num=4) if s.hints]
    others = [replace(s, rollout_id=f"u{i}") for i, s in enumerate(make_samples(model, seed=8, num=6, hints=0))]
    step(model, hinted, feedback, teacher)
    alone = gradients(model)
    step(model, hinted + others, feedback, teacher)
    together = gradients(model)
    step(model, others, denominators=denominators(hinted + others, LOSS))
    reward = gradients(model)
    assert largest_difference({n: together[n] - reward[n] for n in reward}, alone) < 1e-13
    silent = [replace(s, advantage=0.0) for s in others]
    step(model, hinted + silent, feedback, teacher)
    assert same_bits(gradients(model), alone)


def test_hints_add_to_the_reward_and_their_denominator_is_their_own(make_model, make_samples, gradients) -> None:
    model = make_model()
    samples, feedback, teacher = make_samples(model), FeedbackConfig(gate=False, weight=1.0), Teacher(model, "ema")
    own = denominators(samples, LOSS, feedback)
    assert own == Denominators(rl=4 * 10.0, feedback=sum(s.stop - s.start for x in samples for s in x.hints))
    grads = []
    for divisors in (own, Denominators(own.rl, 2 * own.feedback), Denominators(2 * own.rl, own.feedback)):
        step(model, samples, feedback, teacher, denominators=divisors)
        grads.append(gradients(model))
    step(model, samples)
    reward = gradients(model)
    hints = {n: grads[0][n] - reward[n] for n in reward}
    assert largest_difference({n: grads[1][n] - reward[n] for n in reward}, {n: hints[n] / 2 for n in hints}) < 1e-13
    assert largest_difference({n: grads[2][n] - hints[n] for n in reward}, {n: reward[n] / 2 for n in hints}) < 1e-13


def test_nothing_flows_into_the_teacher(make_model, make_samples, gradients) -> None:
    """Neither a gradient into other weights, nor, for a live teacher, a gradient through its own reading of the hint."""
    for kind in ("ema", "frozen"):
        model = make_model()
        samples, teacher = make_samples(model), Teacher(model, kind)
        before = [p.clone() for p in teacher.module.parameters()]
        step(model, samples, FeedbackConfig(teacher=kind, gate=False), teacher)
        assert all(p.grad is None for p in teacher.module.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, teacher.module.parameters(), strict=True))
    model = make_model()
    samples = make_samples(model)
    grads = []
    for kind in ("live", "frozen"):
        step(model, samples, FeedbackConfig(teacher=kind, gate=False), Teacher(model, kind))
        grads.append(gradients(model))
    assert largest_difference(*grads) < 1e-12


def test_micro_batches_padding_and_order_do_not_matter(make_model, make_samples, gradients) -> None:
    model = make_model()
    samples, feedback, teacher = make_samples(model, num=7), FeedbackConfig(), Teacher(model, "ema")
    drift(model)
    found, stats = [], []
    for tokens, chunk, order in ((1, 1, 1), (60, 3, -1), (200, 256, 1), (10_000, 11, -1)):
        loss = replace(LOSS, micro_batch_tokens=tokens, chunk_tokens=chunk)
        stats.append(step(model, samples[::order], feedback, teacher, loss))
        found.append(gradients(model))
    assert stats[0].counts["micro_batches"] == 7
    assert stats[-1].counts["micro_batches"] == 1
    assert all(largest_difference(a, b) < 1e-12 for a, b in pairwise(found))
    assert all(metrics(s)["feedback/token_kl"] == pytest.approx(metrics(stats[0])["feedback/token_kl"], rel=1e-12) for s in stats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_inputs_give_the_same_bits(make_model, make_samples, gradients, dtype) -> None:
    found = []
    for _ in range(2):
        model = make_model(dtype=dtype)
        samples, teacher = make_samples(model), Teacher(model, "ema")
        drift(model)
        stats = step(model, samples, FeedbackConfig(), teacher)
        found.append((gradients(model), stats))
    assert same_bits(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_a_bf16_step_stays_near_the_fp64_oracle_of_the_same_weights(make_model, make_samples, gradients) -> None:
    model = make_model(dtype=torch.bfloat16)
    exact = make_model(dtype=torch.float64)
    samples = make_samples(exact, num=6)
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    feedback = FeedbackConfig(teacher="live", gate=False)
    step(model, samples, feedback, Teacher(model, "live"))
    found = gradients(model)
    oracle_step(exact, samples, LOSS, feedback, exact).backward()
    wanted = gradients(exact)
    error = sum(float((found[n].double() - wanted[n]).norm() ** 2) for n in wanted) ** 0.5
    assert error < 0.05 * sum(float(wanted[n].norm() ** 2) for n in wanted) ** 0.5


def test_samples_that_say_nothing_are_skipped_and_counted(make_model, make_samples, gradients) -> None:
    model = make_model()
    samples = make_samples(model, num=4, advantage=0.0)
    stats = step(model, samples, FeedbackConfig(), Teacher(model, "ema"))
    assert stats.counts["skipped"] == 2
    assert stats.counts.get("sampled_tokens", 0) == 0
    gradients(model)
    silent = step(model, samples)
    assert (silent.counts["skipped"], silent.counts.get("micro_batches", 0)) == (4, 0)
    assert all(p.grad is None for p in model.parameters())


def test_the_gate_opens_only_for_hints_that_make_the_turn_less_likely(make_model, make_samples) -> None:
    """Same weights with the hint against without it, also where the student has drifted far from the teacher."""
    model = make_model()
    samples, teacher = make_samples(model, num=12), Teacher(model, "ema")
    drift(model, size=0.5)
    open_all = step(model, samples, FeedbackConfig(gate=False), teacher)
    gated = step(model, samples, FeedbackConfig(), teacher)
    assert all(turn.gate for turn in open_all.hinted)
    assert [turn.gate for turn in gated.hinted] == [turn.effect <= 0 for turn in gated.hinted]
    assert 0 < sum(turn.gate for turn in gated.hinted) < len(gated.hinted)
    sample, span = samples[0], samples[0].hints[0]
    with torch.no_grad():
        logp = [
            teacher.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)[-1 - len(turn) : -1]
            for turn in [sample.ids[span.start : span.stop]]
            for ids in (
                sample.ids[: span.splice] + span.hint_ids + sample.ids[span.splice : span.stop],
                sample.ids[: span.stop],
            )
        ]
    taken = [x[torch.arange(len(x)), list(sample.ids[span.start : span.stop])].mean() for x in logp]
    assert gated.hinted[0].effect == pytest.approx(float(taken[0] - taken[1]), abs=1e-12)


def test_turns_older_than_the_bound_are_dropped_from_sum_and_denominator(make_model, make_samples) -> None:
    model = make_model()
    samples, teacher = make_samples(model), Teacher(model, "ema")
    feedback = FeedbackConfig(max_staleness=2)
    fresh, stale = (denominators(samples, LOSS, feedback, version=v) for v in (7, 8))
    assert fresh.feedback > 0
    assert stale.feedback == 0
    assert step(model, samples, feedback, teacher, version=7).counts["hinted_turns"] == 4
    dropped = step(model, samples, feedback, teacher, version=8)
    assert (dropped.counts.get("hinted_turns", 0), dropped.counts["stale_hints"]) == (0, 4)


def test_every_hinted_turn_is_reported_with_the_kl_of_each_token(make_model, make_samples) -> None:
    model = make_model()
    samples = make_samples(model)
    stats = step(model, samples, FeedbackConfig(), Teacher(model, "ema"))
    wanted = [(s.rollout_id, h.turn, h.writer, h.stop - h.start) for s in samples for h in s.hints]
    assert [(t.rollout_id, t.turn, t.writer, len(t.token_kl)) for t in stats.hinted] == wanted
    assert sum(sum(t.token_kl) for t in stats.hinted) == pytest.approx(stats.sums["feedback_kl"])
    assert all(kl >= 0 for t in stats.hinted for kl in t.token_kl)


def test_one_hint_lowers_what_it_speaks_against(make_model, make_samples) -> None:
    """A step along the feedback gradient moves the student toward the hinted teacher, and makes the bad turn less likely."""
    model = make_model()
    samples = make_samples(model, num=1, hints=1, advantage=0.0)
    teacher, feedback = Teacher(model, "frozen"), FeedbackConfig(teacher="frozen", gate=False)
    kls = []
    for _ in range(30):
        stats = step(model, samples, feedback, teacher)
        kls.append(metrics(stats)["feedback/token_kl"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.02 * parameter.grad
        model.zero_grad()
    assert kls[-1] < 0.5 * kls[0]


def test_two_writers_at_one_turn_both_count(make_model, make_samples, gradients) -> None:
    model = make_model()
    sample = make_samples(model, num=1, hints=1)[0]
    other = HintSpan(
        splice=sample.hints[0].splice, start=sample.hints[0].start, stop=sample.hints[0].stop, hint_ids=(5, 6), writer="second"
    )
    both = replace(sample, hints=(sample.hints[0], other))
    feedback = FeedbackConfig(gate=False)
    teacher = Teacher(model, "ema")
    step(model, [both], feedback, teacher)
    found = gradients(model)
    oracle_step(model, [both], LOSS, feedback, teacher.module).backward()
    assert largest_difference(found, gradients(model)) < 1e-12


def test_progress_counts_samples_up_to_all(make_model, make_samples) -> None:
    model, seen = make_model(), []
    samples = make_samples(model, num=5)
    samples[1] = replace(samples[1], advantage=0.0)
    step(model, samples, loss=replace(LOSS, micro_batch_tokens=1), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 5), (3, 5), (4, 5), (5, 5)]


def test_settings_that_do_not_fit_are_refused(make_model, make_samples) -> None:
    model = make_model()
    samples = make_samples(model)
    with pytest.raises(ValueError, match="without a teacher"):
        step(model, samples, FeedbackConfig())
    with pytest.raises(ValueError, match="ask for a 'ema' teacher, the one given is 'live'"):
        step(model, samples, FeedbackConfig(), Teacher(model, "live"))
    with pytest.raises(ValueError, match="no reference model"):
        step(model, samples, loss=LossConfig(reference="frozen", reference_coefficient=0.1))


def test_the_supervised_step_is_the_mean_cross_entropy_over_sampled_tokens(make_model, make_samples, gradients) -> None:
    model = make_model(tie_word_embeddings=True)
    samples = make_samples(model, num=5)
    stats = accumulate_sft(model, samples, loss=LOSS)
    found = gradients(model)
    losses = []
    for sample in samples:
        logits = model(input_ids=torch.tensor([sample.ids]), use_cache=False).logits[0, :-1]
        keep = torch.tensor(sample.sampled[1:])
        losses.append(torch.nn.functional.cross_entropy(logits[keep], torch.tensor(sample.ids[1:])[keep], reduction="none"))
    wanted = torch.cat(losses).mean()
    wanted.backward()
    assert largest_difference(found, gradients(model)) < 1e-12
    assert metrics(stats)["loss/sft"] == pytest.approx(float(wanted.detach()), abs=1e-12)
    assert stats.counts["micro_batches"] > 1


def test_gradient_checkpointing_changes_nothing(make_model, make_samples, gradients) -> None:
    found = []
    for checkpointing in (False, True):
        model = make_model()
        samples, teacher = make_samples(model), Teacher(model, "live")
        if checkpointing:
            model.gradient_checkpointing_enable()
            model.train()
        step(model, samples, FeedbackConfig(teacher="live", gate=False), teacher)
        found.append(gradients(model))
    assert largest_difference(*found) < 1e-13
