"""A task is written at another level without a build: the change and its proof stay, the instruction tells less or more."""

from dataclasses import replace

import pytest

from etude import tree
from etude.grade.grader import grade
from etude.synth.relevel import new_id, read_repository, relevel
from etude.synth.workshop import Rejected
from etude.types import Symbol, Task

HINT = "sep='-'"


@pytest.fixture
def task(pocket_store) -> Task:
    """As the writer would have it, at level A."""
    old = pocket_store.get("pocket-slugify")
    return replace(old, evidence={"gates": {"gold": {"runs": 5}}, "gold_lines": 9})


@pytest.fixture
def again(pocket_store, backend):
    known = read_repository(pocket_store.get("pocket-slugify"), pocket_store, backend)
    return lambda task, **to: relevel(task, pocket_store, backend, known=known, **to)


def test_the_instruction_tells_less_at_each_level_and_nothing_else_changes(task, again):
    b = again(task, level="B")
    c = again(b, level="C")
    assert "`slugify`" in b.instruction
    assert "text.py" in b.instruction
    assert HINT not in b.instruction
    assert "text.py" not in c.instruction.split("The hidden tests")[0]
    assert [one.level for one in (b, c)] == ["B", "C"]
    assert (b.origin, c.origin) == ((task.id,), (task.id, b.id))
    assert len({task.id, b.id, c.id}) == 3
    gates = {"gold": {"runs": 5}, "identifiers": {"missing": 0}}
    assert b.evidence == {"gates": gates, "gold_lines": 9, "releveled": {"from": "A", "visible_share": 0.0}}
    same = {"id": "", "level": "A", "instruction": "", "origin": (), "evidence": {}}
    assert replace(c, **same) == replace(b, **same) == replace(task, **same)


def test_a_share_of_the_tests_is_shown_and_hidden_again(task, again):
    shown = again(task, visible_share=1.0)
    quoted = {line for line in shown.instruction.splitlines() if line.startswith("def test_")}
    assert len(quoted) == len({id.partition("::")[2].partition("[")[0] for id in task.fail_to_pass})
    assert shown.visible_share == 1.0
    part = again(shown, visible_share=0.5)
    assert 0 < sum(line in quoted for line in part.instruction.splitlines()) < len(quoted)


def test_its_id_is_that_of_a_build_at_the_level_so_it_does_not_come_back_as_another_task(task, again):
    b = again(task, level="B")
    assert b.id == new_id(task, "B", 0.0) == new_id(again(task, level="C"), "B", 0.0)
    built = replace(task, id=new_id(task, "A", 0.0))
    with pytest.raises(Rejected, match=f"was made from {built.id}"):
        again(again(built, level="B"), level="A")
    with pytest.raises(Rejected, match="is at level A with 0 of its tests shown already"):
        again(task, level="A")


def test_the_grader_takes_the_same_gold(task, again, pocket_store, backend):
    hard = again(task, level="C")
    assert grade(hard, hard.gold, store=pocket_store, backend=backend).solved
    assert not grade(hard, "", store=pocket_store, backend=backend).solved


def test_a_bug_is_reported_with_its_symptoms_at_every_level(task, again, pocket_store, tmp_path):
    original = pocket_store.snapshot(task.repo)
    bug = tmp_path / "bug"
    tree.copy_tree(original, bug)
    text = (bug / "pocket/text.py").read_text()
    assert ".lower()" in text
    (bug / "pocket/text.py").write_text(text.replace(".lower()", ".upper()"))
    wrong = replace(
        task,
        id="pocket-bug-slugify-00000000",
        kind="bug_injection",
        mode="stub",
        cut=tree.make_patch(original, bug),
        gold=tree.make_patch(bug, original),
    )
    told = {level: again(replace(wrong, level="A" if level != "A" else "C"), level=level).instruction for level in "ABC"}
    assert "in `pocket/text.py`" in told["A"]
    assert "pocket/text.py" not in told["B"]
    assert "Something is wrong in" in told["B"]
    assert "Something that worked does so no longer" in told["C"]
    assert all("What was seen" in text for text in told.values())


def test_a_task_that_is_not_what_its_repository_says_is_refused(task, again):
    (first, *_) = task.symbols
    moved = replace(task, symbols=(Symbol(path=first.path, qualname=first.qualname, line=first.line + 1, num_lines=1),))
    with pytest.raises(Rejected, match=f"{first.qualname} is not in line"):
        again(moved, level="B")
    with pytest.raises(Rejected, match="is in java: only Python"):
        relevel(replace(task, language="java"), None, None, level="B")
