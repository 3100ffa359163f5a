"""studio/report.py: one run as one self-contained page that says what happened."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from etude.metrics import Metrics
from etude.records import append_jsonl, read_jsonl
from etude.render import Renderer
from etude.studio.disk import read_run
from etude.studio.report import pick_turn, write_report
from etude.types import Hint, Observation, Rollout

VOID = {"meta", "link", "br", "img", "hr", "input", "base", "source", "wbr"}
EVIL = '</pre></title></style><script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="alert(3)\x1b[31m\u202egpj.exe\x07'


class Page(HTMLParser):
    """Elements and attributes as a browser would see them; raises on tags that do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data

    def words(self) -> str:
        return " ".join(self.text.split())


def page(run: Path, renderer: Renderer | None, **options: int) -> Page:
    return Page(write_report(run, renderer, **options).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shown(run_once: Path, renderer: Renderer) -> Page:
    """The page of a whole run."""
    return page(run_once, renderer)


def copy(source: Path, target: Path) -> Path:
    for path in source.rglob("*"):
        if path.is_file() and path.name != "report.html":
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    return target


def test_the_page_loads_nothing_and_runs_nothing(run_once: Path, shown: Page) -> None:
    assert {tag for tag, _ in shown.elements} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"} == set()
    for _, attributes in shown.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    html = (run_once / "report.html").read_text()
    assert "url(" not in html
    assert "@import" not in html
    policy = next(a["content"] for tag, a in shown.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_links_lead_to_sections_that_are_there_once(shown: Page) -> None:
    ids = [a["id"] for _, a in shown.elements if "id" in a]
    links = {(a["href"] or "")[1:] for tag, a in shown.elements if tag == "a"}
    assert len(ids) == len(set(ids))
    assert {"result", "training", "turn", "tasks", "rollouts", "settings"} == links == set(ids)


def test_a_whole_run_shows_result_curves_tasks_transcript_and_settings(shown: Page) -> None:
    words = shown.words()
    for expected in (
        "Held-out tasks, before and after training",
        "16 rollouts on 8 tasks before training, 16 on 8 after",
        "invalid calls",
        "Informative groups",
        "Log-probability gap",
        "Warm start",
        "Where the time went",
        "hint spliced in here for the teacher",
        "KL of a token, nats:",
        "toolz-second-00",
        "evaluation after training",
        "tokens_per_rollout",
    ):
        assert expected in words


def test_every_token_of_the_shown_turn_has_its_value_in_words_and_a_level_that_is_not_only_a_colour(
    run_once: Path, renderer: Renderer
) -> None:
    shown = page(run_once, renderer)
    tokens = [a for tag, a in shown.elements if tag == "span" and (a.get("class") or "").startswith("t k") and "title" in a]
    assert len(tokens) > 50
    assert all(re.fullmatch(r"tokens? \d+( to \d+)?: [\d.e−]+ nats", a["title"] or "") for a in tokens)
    styles = (run_once / "report.html").read_text()
    for level, line in ((1, "dotted"), (2, "dashed"), (3, "solid"), (4, "double")):
        assert re.search(rf"\.k{level}\.t {{[^}}]*border-bottom: \dpx {line}", styles)


@pytest.mark.parametrize("with_renderer", [True, False])
def test_text_of_models_tools_tasks_and_settings_never_becomes_markup(
    tmp_path: Path, renderer: Renderer, rollout: Callable[..., Rollout], with_renderer: bool
) -> None:
    made = rollout(EVIL, EVIL, error=EVIL)
    second = replace(made.segments[0].turns[1], observations=(Observation(text=EVIL, error="tool_failed"),))
    call = replace(second.calls[0], name=EVIL, arguments={EVIL: EVIL, "old": EVIL}, raw=EVIL)
    made = replace(
        made,
        id=EVIL,
        task_id=EVIL,
        segments=(replace(made.segments[0], turns=(made.segments[0].turns[0], replace(second, calls=(call,)))),),
    )
    for name in ("before", "step-0001", "after"):
        append_jsonl(tmp_path / "rollouts" / f"{name}.jsonl", replace(made, id=f"{name}{EVIL}"))
    append_jsonl(tmp_path / "hints" / "step-0001.jsonl", Hint(rollout_id=f"step-0001{EVIL}", segment=0, turn=0, writer=EVIL, text=EVIL))
    kl = [1.0] * len(made.segments[0].turns[0].sampled_ids)
    row = {"rollout_id": f"step-0001{EVIL}", "segment": 0, "turn": 0, "writer": EVIL, "gate": 1, "token_kl": kl}
    (tmp_path / "feedback").mkdir()
    (tmp_path / "feedback" / "step-0001.jsonl").write_text(json.dumps(row) + "\n")
    task = {"id": EVIL, "instruction": EVIL, "band": EVIL, "mode": EVIL, "symbols": [{"qualname": EVIL, "path": EVIL, "num_lines": 1}]}
    (tmp_path / "tasks.json").write_text(json.dumps({"train": [task], EVIL: [EVIL]}))
    (tmp_path / "config.toml").write_text(f"[tasks]\nsource = {json.dumps(EVIL)}\n[model]\npath = {json.dumps(EVIL)}\n")
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        metrics.log("stage", name=EVIL, seconds=1.0)
        metrics.log("step", step=1, reward_mean=0.1, **{EVIL: 2.0})
    shown = page(tmp_path, renderer if with_renderer else None)
    assert {tag for tag, _ in shown.elements} & {"script", "img"} == set()
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    assert shown.text.count("<script>alert(1)</script>") > 15
    assert "␛[31m" in shown.text


def test_without_a_renderer_hinted_turns_have_bars_and_everything_else_is_there(run_once: Path) -> None:
    words = page(run_once, None).words()
    assert "bars instead of coloured text: no tokenizer was at hand" in words
    assert "Reminder: the available tools are" in words
    assert "The function `second`" in words


def rewrite(run: Path, change: Callable[[Rollout], Rollout]) -> Path:
    """Let `after` be `before`, changed."""
    (run / "rollouts" / "after.jsonl").unlink()
    for rollout in read_jsonl(run / "rollouts" / "before.jsonl", Rollout):
        append_jsonl(run / "rollouts" / "after.jsonl", change(rollout))
    return run


def test_a_run_that_changed_nothing_says_that_nothing_improved(tmp_path: Path, run_once: Path) -> None:
    words = page(rewrite(copy(run_once, tmp_path), lambda rollout: rollout), None).words()
    for name in ("Solved rollouts", "Hidden tests passed", "Invalid calls"):
        assert f"{name} did not improve:" in words
    assert "rose from" not in words


def test_a_run_that_made_things_worse_says_so(tmp_path: Path, run_once: Path) -> None:
    def worse(rollout: Rollout) -> Rollout:
        return replace(rollout, usage=replace(rollout.usage, invalid_calls=rollout.usage.calls))

    assert re.search(
        r"Invalid calls rose from \d+% to 100%: worse than before training\.", page(rewrite(copy(run_once, tmp_path), worse), None).words()
    )


def test_a_clear_improvement_is_stated_with_its_numbers(tmp_path: Path, run_once: Path) -> None:
    def better(rollout: Rollout) -> Rollout:
        return replace(rollout, usage=replace(rollout.usage, invalid_calls=0))

    assert re.search(r"Invalid calls fell from \d+% to 0%\.", page(rewrite(copy(run_once, tmp_path), better), None).words())


def test_a_run_that_was_stopped_during_training_still_has_a_page(tmp_path: Path, run_once: Path, renderer: Renderer) -> None:
    run = copy(run_once, tmp_path)
    (run / "rollouts" / "after.jsonl").unlink()
    (run / "rollouts" / "step-0002.jsonl").write_bytes((run / "rollouts" / "step-0002.jsonl").read_bytes()[:-30])
    words = page(run, renderer).words()
    assert "Nothing to compare yet: the evaluation after training is not there." in words
    assert "step 2" in words


def test_an_empty_folder_has_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    words = page(tmp_path, None).words()
    assert "Nothing to compare yet" in words
    assert "holds no config.toml" in words


def test_transcripts_beyond_the_size_of_the_page_are_named_not_dropped(
    run_once: Path, tmp_path: Path, renderer: Renderer, shown: Page
) -> None:
    run = copy(run_once, tmp_path)
    small = page(run, renderer, page_bytes=40_000)
    assert "left out to keep the page small: line 1 of rollouts/step-0001.jsonl" in small.words()
    assert "left out to keep" not in shown.words()
    total = sum(len(read_jsonl(path, Rollout)) for path in (run / "rollouts").glob("*.jsonl"))
    for one in (shown, small):
        assert sum("rollout line" in (a.get("class") or "") for _, a in one.elements) == total


def test_the_rollout_in_full_is_the_one_whose_accepted_hint_moved_its_turn_most(run_once: Path) -> None:
    run = read_run(run_once)
    means = {(key[0], sum(f.token_kl) / len(f.token_kl), bool(f.gate)) for key, rows in run.feedback.items() for f in rows}
    accepted = [(mean, rollout_id) for rollout_id, mean, gate in means if gate]
    assert 0 < len(accepted) < len(means)
    chosen = pick_turn(run)
    assert chosen is not None
    assert chosen.id == max(accepted)[1]


def test_an_evaluation_alone_shows_its_numbers_without_a_comparison(tmp_path: Path, run_once: Path) -> None:
    run = copy(run_once, tmp_path)
    (run / "rollouts" / "after.jsonl").rename(run / "rollouts" / "evaluate.jsonl")
    for name in ("before", "step-0001", "step-0002"):
        (run / "rollouts" / f"{name}.jsonl").unlink()
    words = page(run, None).words()
    assert "16 rollouts on 8 tasks" in words
    assert re.search(r"invalid calls \d+% \d+% to \d+%", words)
    assert "Nothing to compare" not in words


def test_what_a_run_remembers_of_a_task_is_enough_for_its_row(tmp_path: Path) -> None:
    row = {"id": "toolz-nth-01", "symbols": ["toolz/itertoolz.py:nth"], "mode": "stub", "band": "S", "fail_to_pass": 3, "pass_to_pass": 170}
    (tmp_path / "tasks.json").write_text(json.dumps({"held_out": [row]}))
    assert "toolz-nth-01 nth toolz/itertoolz.py S, stubbed 3 170" in page(tmp_path, None).words()


def test_demonstrations_of_the_expert_are_listed_but_count_as_no_attempt_of_the_model(tmp_path: Path, run_once: Path) -> None:
    run = copy(run_once, tmp_path)
    rollouts = read_jsonl(run / "rollouts" / "before.jsonl", Rollout)
    for name in ("before", "after", "step-0001", "step-0002"):
        (run / "rollouts" / f"{name}.jsonl").unlink()
    for rollout in rollouts:
        append_jsonl(run / "rollouts" / "demonstrations.jsonl", rollout)
    words = page(run, None).words()
    assert "the expert's demonstrations 16 rollouts" in words
    assert "solved in training" not in words
    assert pick_turn(read_run(run)) is None


def test_an_older_page_is_replaced_whole(run_once: Path, tmp_path: Path) -> None:
    run = copy(run_once, tmp_path)
    (run / "report.html").write_text("old")
    assert write_report(run, None) == run / "report.html"
    assert [path.name for path in run.iterdir() if "partial" in path.name] == []
    assert (run / "report.html").read_text() != "old"
