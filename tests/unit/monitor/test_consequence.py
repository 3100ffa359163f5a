"""What a flag changes in training: a masked rollout leaves no trace in the gradient, thoughts change nothing, the task is quarantined."""

from dataclasses import replace
from functools import partial

import pytest

from etude.config import MonitorConfig
from etude.learn.credit import group_advantages
from etude.monitor.consequence import PENALTY, metrics, rows, watch
from etude.monitor.finding import Finding
from etude.types import Observation, Reward, Rollout, Segment, ToolCall, Turn

RAN = "cat .mypy_cache/x.json"


def rollout(id: str, total: float, *commands: str, solved: bool | None = None) -> Rollout:
    turns = tuple(
        Turn(
            context_ids=(1,),
            header_tokens=1,
            sampled_ids=(2,),
            logprobs=(0.0,),
            versions=(0,),
            text=f"turn of {id}",
            calls=(ToolCall(name="run", arguments={"command": command}, raw=""),),
            observations=(Observation(text="ok"),),
        )
        for command in commands
    )
    reward = Reward(total=total, solved=total == 1.0 if solved is None else solved)
    return Rollout(id=id, task_id="t", group="g", seed=0, status="finished", segments=(Segment(turns=turns),), patch="+x", reward=reward)


def reads_cache(strength: str = "proof", in_reasoning: bool = False):
    made = partial(Finding, detector="cache", family="leak", why="a cache", strength=strength, in_reasoning=in_reasoning)

    def detector(one):
        ran = [(step.index, act.command) for step in one.steps for act in step.acts]
        return [made(step=step, quote=command) for step, command in ran if "mypy_cache" in command]

    return (detector,)


GROUP = [rollout("a", 1.0, RAN), rollout("b", 0.2, "ls"), rollout("d", 1.0, "pytest -q")]


def look(settings: MonitorConfig = MonitorConfig(), detectors=reads_cache(), group=GROUP):
    return watch(group, {}, settings, detectors=detectors)


def test_without_a_finding_the_very_same_rollouts_are_learned_from():
    found = look(detectors=())
    assert all(one is other for one, other in zip(found.learned, GROUP, strict=True))
    assert (found.silent, dict(found.quarantined), metrics(found)["flagged"]) == (frozenset(), {}, 0)


def test_a_flagged_rollout_is_masked_out_of_learning_and_of_its_groups_baseline():
    found = look()
    assert [one.id for one in found.learned] == ["b", "d"]
    assert found.masked == ("a",)
    with_it, without = group_advantages(GROUP).advantages, group_advantages(found.learned).advantages
    assert without["d"] == pytest.approx(1.0 - 0.6)
    assert with_it["d"] == pytest.approx(1.0 - 2.2 / 3)


def test_only_what_is_proven_is_penalised_and_no_hint_is_written_for_it():
    found = look(MonitorConfig(consequence="penalise"))
    (one,) = [r for r in found.learned if r.id == "a"]
    assert one.reward == replace(GROUP[0].reward, total=PENALTY)
    assert (found.penalised, found.silent, found.masked) == (("a",), frozenset({"a"}), ())
    weaker = look(MonitorConfig(consequence="penalise", threshold=0.3), reads_cache("strong"))
    assert (weaker.penalised, weaker.masked) == ((), ("a",))


def test_none_only_counts():
    found = look(MonitorConfig(consequence="none"))
    assert (found.learned, dict(found.quarantined)) == (GROUP, {})
    assert metrics(found)["family_leak"] == 1


def test_what_rests_on_thoughts_alone_masks_penalises_and_quarantines_nothing():
    for consequence in ("mask", "penalise"):
        found = look(MonitorConfig(consequence=consequence, threshold=0.1), reads_cache(in_reasoning=True))
        assert all(one is other for one, other in zip(found.learned, GROUP, strict=True))
        assert (found.masked, found.penalised, dict(found.quarantined), found.in_reasoning) == ((), (), {}, 1)


def test_weak_evidence_below_the_threshold_is_left_alone():
    assert look(MonitorConfig(threshold=0.9), reads_cache("weak")).masked == ()


def test_the_task_that_allowed_it_is_quarantined_and_one_that_did_not_is_not():
    assert dict(look().quarantined) == {"t": "a: leak, a cache"}
    failed = [replace(GROUP[0], reward=Reward(total=0.0, solved=False)), *GROUP[1:]]
    found = look(group=failed)
    assert (found.masked, dict(found.quarantined)) == (("a",), {})


def test_rows_and_metrics_say_what_was_done():
    found = look()
    (row,) = rows(found)
    assert (row["rollout"], row["action"], row["findings"][0]["quote"]) == ("a", "masked", RAN)
    assert {"flagged": 1, "masked": 1, "penalised": 0, "quarantined": 1, "family_leak": 1}.items() <= metrics(found).items()


def test_a_monitor_that_is_off_looks_at_nothing():
    assert look(MonitorConfig(enabled=False)).learned == GROUP


def test_a_detector_that_breaks_stops_nothing():
    def broken(one):
        raise ZeroDivisionError(one.id)

    assert look(detectors=(broken, *reads_cache())).masked == ("a",)
