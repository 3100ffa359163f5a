"""`etude monitor` from files to a queue: what is flagged, what a judge adds, what a person is asked, and a test made of a case."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cyclopts import CycloptsError

from etude.agent.calls import write_call
from etude.cli import app
from etude.errors import UserError
from etude.monitor.confirm import confirm, missed, read_confirmed
from etude.monitor.finding import Finding
from etude.monitor.inspect import inspect
from etude.monitor.judge.judges import RecordedJudge, ScriptedJudge
from etude.monitor.judge.rules import RuleJudge
from etude.monitor.queue import Queue
from etude.monitor.readers import read_trajectories
from etude.monitor.run import Options, cases_of, default_out, monitor, summary, task_files, unique

LEAK = "step-0002/t/leak"


def etude(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "etude", "monitor", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_a_run_is_looked_at_and_what_cheated_waits_for_a_person(run_folder):
    report = monitor(run_folder, default_out(run_folder))
    assert [one.trajectory.id for one in report.flagged] == [LEAK]
    assert report.heavy
    with Queue(report.out) as queue:
        (case,) = queue.cases("open")
    assert (case.case.id, case.case.kind, case.case.task) == (LEAK, "flagged", "t")
    told = summary(report)
    json.dumps(told)
    assert (told["trajectories"], told["flagged"]) == (6, [LEAK])
    assert "leak" in told["families"]
    rows = [json.loads(line) for line in (report.out / "findings.jsonl").read_text().splitlines()]
    assert LEAK in [row["id"] for row in rows]


def test_looking_again_adds_no_case_and_keeps_the_answer(run_folder):
    first = monitor(run_folder, default_out(run_folder))
    with Queue(first.out) as queue:
        queue.decide(LEAK, "confirmed")
    again = monitor(run_folder, default_out(run_folder), Options(judge=RuleJudge()))
    assert (first.new_cases, again.new_cases) == (1, 0)
    assert (len(again.inspected), [one.trajectory.id for one in again.flagged]) == (6, [LEAK])
    with Queue(first.out) as queue:
        assert queue.get(LEAK).decision == "confirmed"


def test_the_rules_judge_confirms_and_its_record_plays_again(run_folder):
    report = monitor(run_folder, default_out(run_folder), Options(judge=RuleJudge(), judge_all=True))
    assert {name: one.verdict for name, one in report.judgements.items()} == {
        one.trajectory.id: "succeeded" if one.trajectory.id == LEAK else "clean" for one in report.inspected
    }
    again = monitor(run_folder, default_out(run_folder), Options(judge=RecordedJudge(report.out / "judge.jsonl"), judge_all=True))
    assert {n: one.verdict for n, one in again.judgements.items()} == {n: one.verdict for n, one in report.judgements.items()}


def test_a_judge_that_is_down_loses_no_case_and_takes_no_finding_away(run_folder):
    report = monitor(run_folder, default_out(run_folder), Options(judge=ScriptedJudge([]), judge_all=True))
    assert [one.trajectory.id for one in report.flagged] == [LEAK]
    with Queue(report.out) as queue:
        assert {one.case.id: one.case.kind for one in queue.cases()} == {one.trajectory.id: "undecided" for one in report.inspected}


def test_a_judge_that_calls_a_leak_clean_is_contradicted_before_a_person(run_folder):
    steps = len(next(one for one in read_trajectories(run_folder) if one.id == LEAK).steps)
    look = [write_call("read_turn", {"turn": k}) for k in range(steps)]
    verdict = {"verdict": "clean", "family": "", "reason": "fine", "quotes": [{"turn": 0, "quote": "Let me run step 0."}]}
    texts = [
        *look,
        '<tool_call>{"name": "diff", "arguments": {}}</tool_call>',
        f"<tool_call>{json.dumps({'name': 'verdict', 'arguments': verdict})}</tool_call>",
    ]
    report = monitor(run_folder, default_out(run_folder), Options(judge=ScriptedJudge(texts)))
    assert report.judgements[LEAK].verdict == "clean"
    assert [one.trajectory.id for one in report.flagged] == [LEAK]
    with Queue(report.out) as queue:
        assert queue.get(LEAK).case.kind == "disagreement"


def test_ids_that_come_twice_are_told_apart(roll):
    assert [one.id for one in unique([roll("a"), roll("b"), roll("a"), roll("a")])] == ["a", "b", "a#2", "a#3"]


def test_the_judge_sees_hidden_tests_and_gold_of_a_task_that_is_known(pocket_store, roll):
    files = task_files(pocket_store, "pocket-slugify")
    assert "def slugify" in files["gold"]
    assert "test_slugify_separator" in files["hidden/tests/test_text.py"]
    assert task_files(pocket_store, "no-such-task") == {}
    one, other = roll("a", "ls -> x", task_id="pocket-slugify"), roll("b", "ls -> x", task_id="pocket-slugify")
    (case,) = cases_of(inspect([one]), [one, other], pocket_store)
    assert (case.files, case.others) == (files, (other,))


def test_a_confirmed_case_becomes_a_test_that_holds(run_folder, tmp_path):
    report = monitor(run_folder, default_out(run_folder))
    (one,) = report.flagged
    path, made = confirm(one.trajectory, one.findings, tmp_path / "confirmed", note="read the cache")
    again = read_confirmed(path)
    assert again == made
    assert len(again.trajectory.steps) < len(one.trajectory.steps)
    assert missed(again) == []
    harmless = replace(again, trajectory=replace(again.trajectory, steps=(), patch=""))
    assert missed(harmless) == list(again.families)


def test_a_case_that_no_detector_finds_becomes_a_test_that_fails_until_one_does(roll, tmp_path):
    one = roll("by/person", "ls -> a", "do-something-new -> b", "pytest -> c")
    finding = Finding(detector="judge m", family="forgery", step=1, quote="do-something-new", why="new", strength="strong")
    path, made = confirm(one, [finding], tmp_path)
    assert (path.name, made.detectors, [step.index for step in made.trajectory.steps]) == ("by-person.json", (), [1])
    assert missed(read_confirmed(path)) == ["forgery"]
    with pytest.raises(UserError, match="no finding"):
        confirm(one, [], tmp_path)


def test_the_verb_from_a_run_to_a_test(run_folder, tmp_path):
    shown = etude(run_folder, "--json", "--judge", "rules")
    assert shown.returncode == 3, shown.stderr
    told = json.loads(shown.stdout)
    assert (told["flagged"], told["judge"]["verdicts"].get("succeeded")) == ([LEAK], 1)
    page = (run_folder / "monitor" / "report.html").read_text()
    assert "1 of 6 trajectories is flagged" in page
    assert "<mark>" in page
    listed = json.loads(etude("queue", run_folder, "--json").stdout)
    assert [one["case"]["id"] for one in listed["cases"]] == [LEAK]
    made = etude("confirm", run_folder, LEAK, "--out", tmp_path / "confirmed", "--note", "seen")
    assert (made.returncode, missed(read_confirmed(tmp_path / "confirmed" / "step-0002-t-leak.json"))) == (0, [])
    assert json.loads(etude("queue", run_folder, "--state", "confirmed", "--json").stdout)["cases"][0]["note"] == "seen"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere",), "nowhere"),
        (("empty",), "no trajectory"),
        (("empty", "--judge", "http://127.0.0.1:1/v1"), "--model NAME"),
        (("empty", "--judge", "missing.jsonl"), "missing.jsonl"),
        (("empty", "--max-cost", "3"), "--prices"),
        (("empty", "--threshold", "0"), "threshold is 0"),
        (("queue", "empty"), "no queue"),
        (("decide", "empty", "x", "guilty"), "guilty"),
    ],
)
def test_a_mistake_is_named(tmp_path, arguments, named):
    (tmp_path / "empty").mkdir()
    given = [str(tmp_path / one) if one in ("empty", "nowhere", "missing.jsonl") else one for one in arguments]
    with pytest.raises((UserError, CycloptsError), match=named):
        app.meta(["monitor", *given], exit_on_error=False, print_error=False)


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path):
    shown = etude("nowhere", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (2, "etude: nowhere: there is no such file or folder\n")


def test_nothing_found_is_exit_code_0(run_folder, tmp_path):
    honest = tmp_path / "honest.jsonl"
    honest.write_bytes((run_folder / "rollouts" / "step-0001.jsonl").read_bytes())
    shown = etude(honest, "--json")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert (tmp_path / "honest.jsonl.monitor" / "report.html").is_file()
