"""The ablation measures what it says: the sampler is the model, hints stand where they should, no training is lost or repeated."""

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.feedback_ablation import (
    ARMS,
    Arm,
    HintTokens,
    Settings,
    Training,
    finished,
    rl_step,
    run_one,
    summary,
    to_rollout,
    write_hints,
)
from benchmarks.tiny_agent import (
    BAD_ARGUMENT,
    END,
    HEADER,
    HINTS,
    ID,
    UNKNOWN_TOOL,
    Episode,
    Habits,
    Play,
    build_model,
    demonstration,
    encode,
    pad,
    play,
)
from etude.learn.sample import to_samples

TINY = Settings(warm_steps=2, steps=1, groups=2, group_size=2, curve_every=1, curve_episodes=4, episodes=4)


@pytest.fixture(scope="module")
def plays() -> list[Play]:
    rng = random.Random(0)
    return play(build_model(0), [Episode(rng.getrandbits(32)) for _ in range(24)], torch.Generator().manual_seed(0))


def test_the_sampler_gives_the_models_own_logprobs(plays: list[Play]) -> None:
    logprobs_BTV = torch.log_softmax(build_model(0)(pad([p.ids for p in plays])).logits.detach(), -1)
    gaps = [
        abs(float(logprobs_BTV[row, t - 1, token]) - logprob)
        for row, p in enumerate(plays)
        for t, (token, sampled, logprob) in enumerate(zip(p.ids, p.sampled, p.logprobs, strict=True))
        if sampled
    ]
    assert len(gaps) > 100
    assert max(gaps) < 1e-5


def test_best_play_is_search_read_answer() -> None:
    episode = Episode(3)
    found, error = episode.step("S", "G", episode.key, "<e>")
    assert (found, error) == (encode("T", episode.file, "<e>"), None)
    assert episode.step("S", "R", episode.file, "<e>")[0] == encode("T", episode.key, episode.answer, "<e>")
    episode.step("S", "A", episode.answer, "<e>")
    assert (episode.done, episode.reward, episode.turns) == (True, 1.0, 3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("X", "R", "a", "<e>"), UNKNOWN_TOOL),
        (("S", "3", "a", "<e>"), UNKNOWN_TOOL),
        (("S", "R", "a", "+"), BAD_ARGUMENT),
        (("S", "R", "3", "<e>"), BAD_ARGUMENT),
    ],
)
def test_a_bad_call_is_an_error_and_the_episode_goes_on(call: tuple[str, str, str, str], error: str) -> None:
    episode = Episode(0)
    assert episode.step(*call) == (encode("T", "!", "<e>"), error)
    assert not episode.done


def test_a_hint_in_a_demonstration_removes_its_kind_of_bad_call() -> None:
    rng = random.Random(0)
    kept = {(kind, mark): 0 for kind in HINTS for mark in ("X", "+")}
    for _ in range(300):
        ids, _ = demonstration(rng, Habits())
        for kind, hint in HINTS.items():
            for t in range(len(ids) - len(hint)):
                if tuple(ids[t : t + len(hint)]) == hint:
                    turn = ids[t + len(hint) + 1 : t + len(hint) + 5]
                    kept[kind, "X"] += turn[0] == ID["X"]
                    kept[kind, "+"] += turn[3] == ID["+"]
    assert kept[UNKNOWN_TOOL, "X"] == kept[BAD_ARGUMENT, "+"] == 0
    assert kept[UNKNOWN_TOOL, "+"] > 5
    assert kept[BAD_ARGUMENT, "X"] > 5


@pytest.mark.parametrize("shuffled", [False, True])
def test_hints_are_spliced_before_the_header_of_exactly_the_bad_turns(plays: list[Play], shuffled: bool) -> None:
    rollouts = [to_rollout(p, "group", i, 0) for i, p in enumerate(plays)]
    hints = [h for p, r in zip(plays, rollouts, strict=True) for h in write_hints(p, r, shuffled)]
    samples = to_samples(rollouts, hints, HintTokens())
    for p, sample in zip(plays, samples, strict=True):
        assert [span.start for span in sample.hints] == [start for start, _ in p.bad_turns]
        for span, (_, kind) in zip(sample.hints, p.bad_turns, strict=True):
            assert sample.ids[span.splice : span.start] == (HEADER,)
            assert (span.hint_ids == HINTS[kind]) is not shuffled
            assert span.hint_ids[-1] == END
    assert sum(len(sample.hints) for sample in samples) > 20


def test_the_hint_only_arm_moves_the_model_and_a_reward_without_variance_does_not() -> None:
    for arm, moves in ((Arm(hints="true", reward=False), True), (Arm(), False)):
        run = Training(build_model(0, attention="etude"), arm, Settings(groups=3, group_size=2), seed=0)
        before = [p.detach().clone() for p in run.model.parameters()]
        rl_step(run)
        moved = any(not torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
        assert moved is moves


def test_a_finished_training_is_on_disk_and_a_torn_line_is_not(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    record = run_one((ARMS[1], 0, TINY, results, tmp_path / "starts"))
    with results.open("a") as file:
        file.write(json.dumps({**record, "seed": 1})[:40])
    assert [(r["arm"], r["seed"]) for r in finished(results, TINY)] == [("hint/ema", 0)]
    assert finished(results, Settings()) == []


def test_the_summary_counts_collapsed_and_runaway_seeds() -> None:
    start = {"accuracy": 0.4, "invalid_rate": 0.3, "turns": 3.0}

    def record(arm: str, seed: int, invalid_rate: float, collapsed: bool) -> dict[str, object]:
        return {
            "arm": arm,
            "seed": seed,
            "accuracy": 0.9,
            "invalid_rate": invalid_rate,
            "turns": 3.0,
            "collapsed": collapsed,
            "start": start,
        }

    records = [record("reward", seed, 0.1, False) for seed in (0, 1)]
    records += [record("hint/ema", 0, 0.05, False), record("hint/ema", 1, 0.2, True)]
    _, found = summary(records, ARMS)
    assert found["hint/ema"] == {"accuracy": 0.9, "invalid_rate": 0.125, "turns": 3.0, "seeds": 2, "collapsed": 1, "runaway": 1}
    assert found["reward"]["runaway"] == 0
