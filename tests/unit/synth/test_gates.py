"""The gates beyond the proof, on a repository small enough to know what each must say."""

import pytest

from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.docs import clean
from etude.synth.gates import code_hash
from etude.synth.source import parse

FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": (
        "def total(items, rate):\n    '''The sum with tax.'''\n    subtotal = 0\n    for price in items:\n"
        "        if price > 0:\n            subtotal = subtotal + price\n    return subtotal * (1 + rate)\n\n\n"
        "def untested_well(items):\n    if len(items) > 3:\n        return len(items) - 3\n    if len(items) < 2:\n        return 2 + 5\n"
        "    return len(items) * 2 > 1\n\n\n"
        "def label(name, width):\n    text = pad(name, width)\n    return text.upper()\n\n\n"
        "def pad(name, width):\n    return name.ljust(width)\n"
    ),
    "tests/test_prices.py": (
        "from shop.prices import label, total, untested_well\n\n\n"
        "def test_total():\n    assert total([1, 2], 0) == 3\n    assert total([4, -1], 1) == 8\n    assert total([], 1) == 0\n\n\n"
        "def test_untested_well():\n    untested_well([1, 2])\n\n\n"
        "def test_label():\n    assert label('ab', 4) == 'AB  '\n\n\n" + "".join(f"def test_{number}(): pass\n\n\n" for number in range(9))
    ),
    "README.md": "# Shop\n\nIt has `total(items, rate)`,\nthe sum with tax.\n\n- `total`: a sum\n- `label`: a label\n\nThe end.\n",
}


def lay(folder, files):
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gates")
    options = BuildOptions(gates="full", max_candidates=12, max_share=0.4)
    report = build_tasks(str(lay(folder / "shop", FILES)), folder / "tasks", options=options, backend=Bubblewrap())
    return report, TaskStore.open(folder / "tasks")


def of(store, name, mode="remove"):
    return next(task for task in store.tasks() if task.mode == mode and [s.qualname for s in task.symbols] == [name])


def test_a_task_holds_what_every_gate_measured(built):
    task = of(built[1], "total")
    gates = task.evidence["gates"]
    assert gates["pass_to_pass"] == {"runs": 3, "tests": 11}
    assert gates["fail_to_pass"]["tests"] == 1
    assert gates["collect"] == {"tests": 11, "of": 12}
    assert gates["import"] == {"modules": 2}
    assert gates["inverse"] == {"symbols": 1, "matter": 1, "runs": 0}
    assert gates["mutation"]["mutants"] == 6
    assert gates["mutation"]["noticed"] >= 5
    assert gates["residue"] == {"findings": 0}
    assert gates["empty_patch"]["score"] == 0
    assert len(task.evidence["code_hash"]) == 64


def test_another_number_of_threads_gives_the_same_bytes_through_all_gates(built, tmp_path):
    """`built` has a thread per core. A candidate's gates depend on nothing but the candidate, so fewer of them make the same tasks."""
    _, store = built
    options = BuildOptions(gates="full", max_candidates=2, max_share=0.4, jobs=3)
    report = build_tasks(str(lay(tmp_path / "shop", FILES)), tmp_path / "tasks", options=options, backend=Bubblewrap())
    assert len(report.tasks) >= 2
    for id in report.tasks:
        data = (tmp_path / "tasks" / f"{id}.json").read_bytes()
        assert b'"residue"' in data
        assert data == (store.path / f"{id}.json").read_bytes()


def test_tests_that_notice_no_mutant_make_no_task(built):
    report, _ = built
    reasons = [why for name, why in report.rejected.items() if "untested_well" in name]
    assert len(reasons) == 2
    assert all(why.startswith("the hidden tests notice only") for why in reasons)
    assert {gate for name, gate in report.rejected_at.items() if "untested_well" in name} == {"mutation"}


def test_every_symbol_of_a_set_matters(built):
    _, store = built
    both = next(task for task in store.tasks() if {s.qualname for s in task.symbols} == {"label", "pad"})
    assert both.evidence["gates"]["inverse"] == {"symbols": 2, "matter": 2, "not_asked": 0, "runs": 2}


def test_documents_lose_what_names_the_feature_and_come_back_for_grading(built):
    _, store = built
    task = of(store, "total")
    assert (store.workspace(task) / "README.md").read_text() == "# Shop\n\n- `label`: a label\n\nThe end.\n"
    assert "README.md" in task.protected
    assert "README.md" not in task.gold
    stub = of(store, "total", mode="stub")
    assert (store.workspace(stub) / "README.md").read_text() == FILES["README.md"]


def test_the_same_code_in_another_repository_of_the_pool_makes_no_second_task(built, tmp_path):
    _, store = built
    files = {
        path.replace("shop", "store"): text.replace("shop", "store").replace("The sum with tax.", "Adds") for path, text in FILES.items()
    }
    options = BuildOptions(gates="full", modes=("stub",), max_candidates=1, max_share=0.4)
    folder = lay(tmp_path / "other", {**files, "pyproject.toml": "[project]\nname = 'other'\n"})
    report = build_tasks(
        str(folder), store.path, options=BuildOptions(modes=("stub",), max_candidates=3, max_share=0.4), backend=Bubblewrap()
    )
    assert report.tasks  # quick gates do not look
    with pytest.raises(Exception, match="the same code as shop-"):
        build_tasks(
            str(lay(tmp_path / "third", {**files, "pyproject.toml": "[project]\nname = 'third'\n"})),
            store.path,
            options=options,
            backend=Bubblewrap(),
        )


def test_the_hash_of_code_ignores_docstrings_comments_and_layout():
    one = parse("a.py", b"def f(x):\n    '''Doc.'''\n    return x + 1\n").definitions
    two = parse("b.py", b"# hm\ndef f(x):  # here\n    return (x\n            + 1)\n").definitions
    three = parse("c.py", b"def f(x):\n    return x + 2\n").definitions
    assert code_hash(one) == code_hash(two) != code_hash(three)


TEXTS = {
    "a list item": ("- a\n- `gone` is\n  here\n- b\n", "- a\n- b\n"),
    "a fenced block": ("Before.\n\n```python\n\nx = gone()\n\ny = 1\n```\n\nAfter.\n", "Before.\n\nAfter.\n"),
    "a directive with its body": (".. f:: one\n.. f:: gone\n   :x:\n\n   More.\n\n.. f:: two\n", ".. f:: one\n\n.. f:: two\n"),
    "a table row": ("| a | b |\n|---|---|\n| gone | x |\n| c | d |\n", "| a | b |\n|---|---|\n| c | d |\n"),
    "a word that only holds the name": ("It is gone_by.\n", "It is gone_by.\n"),
    "a heading of PKG-INFO": ("Name: x\nSummary: gone\nVersion: 1\n", "Name: x\nVersion: 1\n"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_document_loses_whole_blocks(name):
    text, left = TEXTS[name]
    assert clean(text, frozenset(["gone"])) == left
