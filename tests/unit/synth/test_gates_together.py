"""Runs that share a sandbox and end early give the gates what whole runs in sandboxes of their own give."""

from dataclasses import replace

import pytest

from etude.errors import UserError
from etude.grade.residue import Scanner
from etude.store import TaskStore
from etude.synth import mutate
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.gates import Gates, _Change
from etude.synth.workshop import write_tree

FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": (
        "def total(items, rate):\n    subtotal = 0\n    for price in items:\n        if price > 0:\n"
        "            subtotal = subtotal + price\n    return subtotal * (1 + rate)\n\n\n"
        "def label(name, width):\n    return pad(name, width).upper()\n\n\n"
        "def pad(name, width):\n    if width < 0:\n        return name\n    return name.ljust(width)\n"
    ),
    "tests/test_prices.py": (
        "import pathlib\n\nfrom shop.prices import label, total\n\n\n"
        "def test_loose():\n    pathlib.Path('seen.txt').write_text('x')\n    assert total([1], 0)\n\n\n"
        "def test_exact():\n    assert total([1, -2], 0) == 1\n\n\n"
        "def test_label():\n    assert label('ab', 4) == 'AB  '\n\n\n"
        "def test_seen():\n    assert not pathlib.Path('seen.txt').exists() or total([2], 1) == 4\n"
    ),
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory, backend, lay_down):
    """Of a workshop that is still open."""
    folder = tmp_path_factory.mktemp("together")
    lay_down(folder / "shop", FILES)
    found = []

    def find(workshop, baseline, options, made):
        scratch = tmp_path_factory.mktemp("scratch")
        found.append(Gates(replace(workshop, scratch=scratch, bytecode={}), baseline, store, Scanner()))
        return []

    store = TaskStore.create(folder / "tasks", sources=("shop",))
    with pytest.raises(UserError, match="gives no task"):
        build_tasks(str(folder / "shop"), folder / "tasks", options=BuildOptions(), backend=backend, finders={"feature_deletion": find})
    return found[0]


def test_changes_are_noticed_as_by_whole_runs_alone(gates, tmp_path):
    workshop = gates.workshop
    source = workshop.index.sources["shop/prices.py"]
    changes = [
        _Change(definition, mutation, gates.tests_of(definition))
        for definition in source.definitions
        for mutation in [None, *mutate.mutants(source, definition, limit=2)]
    ]
    noticed, runs = gates.notice(changes)
    slow = {}
    for number, change in enumerate(changes):
        tree = tmp_path / str(number)
        write_tree(workshop.files, gates.changed([change]), tree)
        with workshop.open(tree) as sandbox:
            outcomes = workshop.run_in(sandbox, ids=change.tests).outcomes
        slow[change] = any(outcomes.get(id) != "passed" for id in change.tests)
    assert noticed == slow
    assert len(changes) >= 8
    assert set(noticed.values()) == {True, False}
    assert runs <= 12


def test_orders_together_are_the_orders_alone(gates):
    workshop = gates.workshop
    orders = ("plain", "shuffled", "reversed")
    together = workshop.run_together(workshop.original, [workshop.variant(order=order) for order in orders])
    for order, run in zip(orders, together, strict=True):
        with workshop.open(workshop.original) as sandbox:
            alone = workshop.run_in(sandbox, order=order)
        told = [(each.outcomes, list(each.outcomes), each.collected, each.messages, each.complete) for each in (run, alone)]
        assert told[0] == told[1]
    assert len({run.collected for run in together}) == 3
