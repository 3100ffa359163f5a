"""The monitor's page: what a rollout wrote is shown as text, quotes are marked, and it loads nothing."""

import re
from dataclasses import replace

import pytest

from etude.monitor.cluster import Cluster
from etude.monitor.finding import Finding
from etude.monitor.inspect import Inspected
from etude.monitor.judge.protocol import Judgement
from etude.monitor.queue import Decided, QueuedCase
from etude.monitor.run import Report
from etude.monitor.trajectory import Act, Step, Trajectory
from etude.studio.monitor_page import MAX_LISTED, MAX_SHOWN, marked, sentence, write_monitor_page

EVIL = "<script>alert(1)</script>\x1b[2J\u202e"
ONE = Trajectory(
    id=f"r {EVIL}",
    source="etude",
    task_id="t",
    solved=True,
    patch=f"+{EVIL}\n",
    steps=(Step(index=0, text=EVIL, acts=(Act(name="run", command=f"cat x {EVIL}", result=EVIL),)),),
)
FOUND = Finding(detector="d", family="leak", step=0, quote=f"cat x {EVIL}", why=f"why {EVIL}", strength="proof")


def report(tmp_path, *inspected: Inspected, **more) -> Report:
    return Report(source="runs/x", out=tmp_path, inspected=list(inspected), **more)


def page(tmp_path, found: Report, cases=()) -> str:
    return write_monitor_page(found, tmp_path / "report.html", cases=list(cases), command="runs/x").read_text()


def test_text_of_models_never_becomes_markup(tmp_path):
    judgement = Judgement(trajectory=ONE.id, judge=EVIL, verdict="succeeded", family="leak", reason=EVIL)
    undecided = Judgement(trajectory="u", judge="m", verdict=None, problem="down", detail=EVIL)
    kind = Cluster(
        id="kind-1",
        members=(ONE.id,),
        tasks=1,
        solved=1,
        graded=1,
        rest_solved=0.1,
        p=0.001,
        explained=0,
        growth=0.2,
        features=((EVIL, 1.0, 0.0),),
    )
    case = QueuedCase(id=ONE.id, kind="flagged", findings=(FOUND,))
    text = page(
        tmp_path,
        report(
            tmp_path,
            Inspected(trajectory=ONE, findings=(FOUND,), score=0.97),
            judgements={ONE.id: judgement, "u": undecided},
            kinds=[kind],
            damaged=[f"file: {EVIL}"],
        ),
        [Decided(case=case, decision="confirmed", note=EVIL)],
    )
    assert "<script" not in text
    assert not set(text) & {"\x1b", "\u202e"}
    assert "&lt;script&gt;" in text
    assert re.search(r"<mark>cat x ", text)
    for there in ("1 of 1 trajectories is flagged, 1 of them counted as solved", "kind-1", "succeeded", "confirmed", "p = 0.001"):
        assert there in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)


def test_a_report_without_anything_has_a_page(tmp_path):
    text = page(tmp_path, report(tmp_path))
    assert "None of 0 trajectories is flagged." in text
    assert "0 cases wait for an answer" in text


def test_thoughts_alone_are_below_the_threshold_and_said_to_be_thoughts(tmp_path):
    thought = replace(FOUND, in_reasoning=True, why="it thought of it")
    text = page(tmp_path, report(tmp_path, Inspected(trajectory=replace(ONE, id="r"), findings=(thought,), score=0.0)))
    assert "in thoughts only: it thought of it" in text
    assert "None of 1 trajectories is flagged." in text


def test_a_large_report_stays_small_and_says_what_is_left_out(tmp_path):
    bad = [Inspected(trajectory=replace(ONE, id=f"b{k}"), findings=(FOUND,), score=0.97) for k in range(MAX_SHOWN + 3)]
    weak = [
        Inspected(trajectory=replace(ONE, id=f"w{k}"), findings=(replace(FOUND, strength="weak"),), score=0.15)
        for k in range(MAX_LISTED + 4)
    ]
    text = page(tmp_path, report(tmp_path, *bad, *weak))
    assert "3 more are in findings.jsonl" in text
    assert "4 more are in findings.jsonl" in text
    assert (
        sentence(report(tmp_path, *bad))
        == f"{MAX_SHOWN + 3} of {MAX_SHOWN + 3} trajectories are flagged, {MAX_SHOWN + 3} of them counted as solved."
    )


@pytest.mark.parametrize("text", ["abc", "x" * 9000 + "quote" + "y" * 9000, "quote quote", "", "a quote", "quote"])
def test_marking_loses_no_text_around_the_quote(text):
    pieces = marked(text, ["quote", "not there"])
    assert [piece for is_quote, piece in pieces if is_quote] == (["quote"] if "quote" in text else [])
    if len(text) < 1000:
        assert "".join(piece for _, piece in pieces) == text
