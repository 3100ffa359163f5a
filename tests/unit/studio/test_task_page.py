"""The page of tasks: self-contained, everything of a task on it, no text of others as markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from etude import tree
from etude.errors import UserError
from etude.store import Pool, TaskStore
from etude.studio.task_page import blocks, diff, write_task_page
from etude.synth.show import Gate, show_task, split_evidence

EVIL = "<script>alert(1)</script>\u202e\x1b[31m"
EVIDENCE = {
    "gates": {"parse": True, "mutation_score": {"ok": False, "score": 0.41666, "killed": 5}, "runs": 3},
    "gold_lines": 7,
    "lost": [],
}


class Tags(HTMLParser):
    """Every tag with its attributes, and whether each is closed."""

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def store(pocket_store, tmp_path, environments):
    """Two tasks, the second with unfriendly text wherever text can be."""
    store = TaskStore.create(tmp_path / "tasks", sources=("pocket",))
    store.environments.symlink_to(environments)
    task = pocket_store.get("pocket-slugify")
    store.add_snapshot(pocket_store.snapshot(task.repo))
    store.add(replace(task, evidence=EVIDENCE))
    evil = replace(
        task,
        id="evil",
        instruction=f"{EVIL}\n\n- `{EVIL}`\n\n```python\n{EVIL}\n```\n",
        evidence={EVIL: EVIL, "gates": {EVIL: {"ok": True, EVIL: EVIL}}},
        fail_to_pass=(f"tests/test_a.py::test[{EVIL}]",),
        kind=EVIL,
        origin=(EVIL,),
        cut=task.cut.replace("slugify", EVIL),
        gold=EVIL,
    )
    store.add(evil)
    store.describe(
        Pool(
            evidence={
                "pocket": {
                    "candidates": 9,
                    "tried": {"remove": 4, "stub": 3},
                    "valid": {"remove": 2},
                    "rejected": {"a": "lost 3: x", "b": "lost 4: y"},
                }
            }
        )
    )
    return store


def test_the_page_of_a_task_shows_all_of_it(store, tmp_path):
    page = write_task_page(store, tmp_path / "deep/task.html", task="pocket-slugify").read_text()
    task = store.get("pocket-slugify")
    for text in ("sep=&#39;-&#39;", "pocket/text.py", "_words", *task.fail_to_pass, *task.pass_to_pass[:3], "must come to pass"):
        assert text in page
    numbers = '<span class="ln">13</span><span class="ln"></span>'
    assert f'<div class="del">{numbers}<span class="code">    return sep.join(_words(text))</span></div>' in page
    assert re.search(r'<th scope="row">mutation score</th><td><span class="fails">fails</span></td><td>score: 0.4167; killed: 5</td>', page)
    assert "evil" not in page


def test_the_index_names_every_task_and_how_they_were_built(store, tmp_path):
    page = write_task_page(store, tmp_path / "index.html").read_text()
    for text in ("2 tasks", 'href="#t-evil"', 'id="t-evil"', "2 × lost N"):
        assert text in page
    assert re.search(r'>pocket</th><td class="num">9</td><td class="num">7</td><td class="num">2</td><td class="num">–</td>', page)


def test_pages_are_well_formed_load_nothing_and_run_nothing(store, tmp_path):
    for name, task in (("index", None), ("one", "evil")):
        page = write_task_page(store, tmp_path / f"{name}.html", task=task).read_text()
        tags = Tags(page)
        assert tags.open == []
        assert {tag for tag, _ in tags.found}.isdisjoint({"script", "link", "img", "iframe", "object", "form"})
        assert not any(name.startswith("on") or name in ("src", "style") for _, attributes in tags.found for name in attributes)
        assert all(attributes["href"].startswith("#") for _, attributes in tags.found if "href" in attributes)
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_tasks_beyond_the_room_are_named_and_not_shown(store, tmp_path):
    page = write_task_page(store, tmp_path / "index.html", page_bytes=1).read_text()
    assert page.count('<details class="task"') == 1
    assert "1 more are left out" in page


def test_a_page_is_written_again_to_the_same_bytes(store, tmp_path):
    first = write_task_page(store, tmp_path / "a.html").read_bytes()
    assert write_task_page(store, tmp_path / "a.html").read_bytes() == first
    assert [path.name for path in tmp_path.glob("*.html*")] == ["a.html"]


def test_a_missing_task_and_an_empty_folder_are_one_line(store, tmp_path):
    with pytest.raises(UserError, match="no task 'pocket'"):
        write_task_page(store, tmp_path / "a.html", task="pocket")
    with pytest.raises(UserError, match="holds no task yet"):
        write_task_page(TaskStore.create(tmp_path / "empty"), tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_a_diff_has_line_numbers_on_both_sides(tmp_path, lay_down):
    before = lay_down(tmp_path / "a", {"x.py": "a\nb\nc\n", "gone.py": "x\n", "odd.bin": b"\xff\x00"})
    after = lay_down(tmp_path / "b", {"x.py": "a\nB\nc", "new.py": "y\n", "odd.bin": b"\xfe\x00"})
    by_path = {file.path: file for file in diff(tree.make_patch(before, after))}
    assert {path: (file.change, file.added, file.removed) for path, file in by_path.items()} == {
        "x.py": ("", 2, 2), "gone.py": ("removed", 0, 1), "new.py": ("new file", 1, 0), "odd.bin": ("", 0, 0)
    }  # fmt: skip
    lines = [(line.kind, line.old, line.new, line.text) for line in by_path["x.py"].lines[1:]]
    assert lines == [
        ("same", "1", "1", "a"), ("del", "2", "", "b"), ("del", "3", "", "c"), ("add", "", "2", "B"), ("add", "", "3", "c"),
        ("note", "", "", "No newline at end of file"),
    ]  # fmt: skip


def test_a_patch_that_cannot_be_read_is_a_note():
    assert [line.text for file in diff("nonsense") for line in file.lines] == [
        "this is no patch: it has neither a 'diff --git' line nor '---' and '+++' lines"
    ]


def test_an_instruction_is_split_into_code_lists_and_text():
    assert blocks("Do `a b`:\n- x\n- `y`\n\n```python\ndef f():\n\n    ...\n```\nend\n") == [
        ("text", [(False, "Do "), (True, "a b"), (False, ":")]),
        ("list", [[(False, "x")], [(True, "y")]]),
        ("code", "def f():\n\n    ..."),
        ("text", [(False, "end")]),
    ]


def test_gates_are_read_from_a_mapping_or_a_list():
    by_name, rest = split_evidence(EVIDENCE)
    assert [(gate.name, gate.verdict, gate.detail) for gate in by_name] == [
        ("parse", "holds", ""), ("mutation score", "fails", "score: 0.4167; killed: 5"), ("runs", "", "3")
    ]  # fmt: skip
    assert rest == [("gold lines", "7")]
    listed, _ = split_evidence({"gates": [{"gate": "collect_equality", "passed": True, "tests": [1, 2]}]})
    assert listed == [Gate(name="collect equality", verdict="holds", detail="tests: 1, 2")]


def test_the_terminal_shows_gates_too(store):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(show_task(store.get("pocket-slugify"), store))
    shown = console.export_text()
    assert re.search(r"mutation score +fails +score: 0\.4167; killed: 5", shown)
    assert "level A: signatures and docstrings" in shown
