"""A tiny JavaScript repository whose tests know little, and what the gates of a full build make of it."""

import re
import threading

import pytest

from etude.errors import UserError
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.foreign.build import build_any
from etude.synth.foreign.turns import TimedOut, Turns
from etude.synth.notice import Void, notice

SHAPES = """\
export function area (width, height) {
  if (width < 0) {
    return 0
  }
  return width * height
}

export function grow (size) {
  try { track(size) } catch {}
  return size + 1
}

function track (size) {
  let last = size
  last += 1
  return last
}

export function vague (size) {
  let out = 1
  if (size > 3 && size < 9) {
    out = out + 2
  }
  if (size === 5) {
    out = 7
  }
  return out
}

export const zero = () => 0
"""
TESTS = """\
import { test } from 'node:test'
import assert from 'node:assert'
import { area, grow, vague, zero } from '../shapes.js'

test('area', () => {
  assert.equal(area(2, 3), 6)
  assert.equal(area(-1, 3), 0)
  assert.equal(area(0, 3), 0)
})

test('grow', () => { assert.equal(grow(1), 2) })

test('vague', () => { assert.ok(vague(1) > 0) })

test('zero', () => { assert.equal(zero(), 0) })

test('one', () => { assert.equal(1, 1) })
"""
FILES = {
    "package.json": '{"name": "shapes", "version": "1.0.0", "type": "module", "scripts": {"test": "node --test"}}',
    "shapes.js": SHAPES,
    "test/shapes.test.js": TESTS,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down, backend):
    folder = tmp_path_factory.mktemp("gates")
    options = BuildOptions(modes=("stub",), gates="full", max_share=0.3, jobs=2)
    report = build_any(str(lay_down(folder / "shapes", FILES)), folder / "tasks", options=options, backend=backend)
    return report, TaskStore.open(folder / "tasks")


def test_tests_that_notice_no_wrong_version_make_no_task(built):
    report, _ = built
    why = next(reason for name, reason in report.rejected.items() if "vague" in name)
    assert re.fullmatch(r"the hidden tests notice only [0-2] of [456] mutants", why)


def test_symbols_that_no_test_needs_are_left_alone(built):
    """`track` runs in the test of `grow`, but what it does shows nowhere."""
    report, store = built
    (task,) = [task for task in store.tasks() if "grow" in task.evidence["stubbed"]]
    assert (task.evidence["candidate"], task.evidence["stubbed"]) == ("set", ["grow"])
    assert report.rejected["stub function shapes.js:8 grow"] == f"same cut as {task.id}"
    assert report.rejected["stub function shapes.js:13 track"] == "no test fails without it"
    gates = {name.split()[-1]: gate for name, gate in report.rejected_at.items() if name.startswith("stub function")}
    assert (gates["grow"], gates["track"]) == ("duplicate", "fail_to_pass")


def test_what_the_gates_measured_stands_in_the_task(built):
    _, store = built
    task = next(task for task in store.tasks() if task.evidence["stubbed"] == ["area"])
    gates = task.evidence["gates"]
    assert gates["mutation"]["noticed"] > gates["mutation"]["mutants"] / 2 >= 2
    assert gates["inverse"] == {"symbols": 1, "matter": 1, "runs": 0}
    assert gates["pass_to_pass"] == {"runs": 3, "tests": 4}
    assert (gates["duplicate"], gates["residue"]) == ({"in_the_pool": 0}, {"findings": 0})
    assert len(task.evidence["code_hash"]) == 64


def test_another_repository_with_the_same_code_in_other_clothes_is_refused(built, tmp_path, lay_down, backend):
    _, store = built
    name = f'{{"name": "copied", {FILES["package.json"].partition(",")[2]}'
    spaced = (
        SHAPES[: SHAPES.index("export function grow")].replace("area (width, ", "area(width,\n  ").replace("return 0", "return 0 // no")
    )
    only = TESTS.replace("area, grow, vague, zero", "area")
    only = "\n".join(line for line in only.split("\n") if not line.startswith(("test('grow", "test('vague", "test('zero")))
    lay_down(tmp_path / "copied", {**FILES, "package.json": name, "shapes.js": spaced, "test/shapes.test.js": only})
    options = BuildOptions(modes=("stub",), gates="full", max_share=0.5, jobs=1)
    with pytest.raises(UserError, match=r"gives no task: 1 candidates, first .* area: duplicate: the same code as shapes-stub-area-"):
        build_any(str(tmp_path / "copied"), store.path, options=options, backend=backend)


class Change:
    def __init__(self, name, tests):
        self.name, self.tests, self.place = name, frozenset(tests), (name, 0, 9)


def test_changes_share_runs_and_what_does_not_build_counts_for_nothing():
    seen, unseen, broken, endless = Change("a", "12"), Change("b", "34"), Change("c", "5"), Change("d", "6")
    asked = []

    def failing(group, ids):
        asked.append("".join(change.name for change in group))
        if broken in group:
            raise Void
        return None if endless in group else frozenset("1") & ids

    noticed, runs = notice([seen, unseen, broken, endless], failing, max_runs=9)
    assert noticed == {seen: True, unseen: False, endless: True}
    assert asked == ["abcd", "a", "b", "c", "d"]
    assert runs == 5


def test_a_try_that_is_out_of_time_has_another_alone_with_twice_the_time():
    turns, inside, seen = Turns(), [], []
    both = threading.Barrier(2, timeout=30)

    def attempt(name, factor):
        inside.append(name)
        seen.append((name, factor, len(inside)))
        if factor == 1.0:
            both.wait()
        inside.remove(name)
        if factor == 1.0:
            raise TimedOut("too slow")
        return name

    results = []
    threads = [threading.Thread(target=lambda name=name: results.append(turns.take(lambda f: attempt(name, f)))) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == ["a", "b"]
    assert sorted(factor for _, factor, _ in seen) == [1.0, 1.0, 2.0, 2.0]
    assert all(count == 1 for _, factor, count in seen if factor == 2.0)


def test_out_of_time_alone_too_is_told():
    def never(factor):
        raise TimedOut(f"not in {factor}")

    with pytest.raises(TimedOut, match=r"not in 2\.0"):
        Turns().take(never)
