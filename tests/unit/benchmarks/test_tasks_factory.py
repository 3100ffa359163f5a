"""What a build costs is what the kernel counted, sandboxes included; SWE-smith's bugs are judged by its rule and by ours."""

import subprocess
import sys

import pytest

from benchmarks.tasks_against_swesmith import Bug, Theirs, finder, generate, judge_all, rows_of_theirs, size
from benchmarks.tasks_factory import STEPS, Meter, build, in_process
from benchmarks.tasks_yield import figures, row, step_rows
from etude.errors import UserError
from etude.synth.build import BuildOptions

BURN = "import time\nwhile time.process_time() < 0.4: pass"
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": (
        "def total(items):\n    subtotal = 0\n    for price in items:\n        subtotal = subtotal + price\n    return subtotal\n\n\n"
        "def unused(items):\n    return len(items)\n"
    ),
    "tests/test_prices.py": "from shop.prices import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\n"
    + "".join(f"def test_{number}(): pass\n\n\n" for number in range(5)),
}
HEAD = "--- a/shop/prices.py\n+++ b/shop/prices.py\n"
LOOP = "-    for price in items:\n-        subtotal = subtotal + price\n"
WRONG = f"{HEAD}@@ -1,5 +1,3 @@\n def total(items):\n     subtotal = 0\n{LOOP}     return subtotal\n"
UNSEEN = (
    "--- a/shop/prices.py\n+++ b/shop/prices.py\n@@ -8,2 +8,2 @@\n def unused(items):\n-    return len(items)\n+    return 1 + len(items)\n"
)
STALE = UNSEEN.replace("def unused", "def used")


def burn(folder):
    with Meter({burn: "burnt"}) as meter:
        for _ in range(2):
            with meter.open(folder) as sandbox:
                assert sandbox.run(["python3", "-c", BURN]).ok
    return meter.steps


def bugs_of_theirs(folder, paths, count):
    assert sorted(paths) == ["shop/__init__.py", "shop/prices.py"]
    made = [("loop", 1, "total", WRONG), ("op", 8, "unused", UNSEEN), ("stale", 8, "unused", STALE)]
    return [Bug(modifier=m, path="shop/prices.py", line=at, name=name, patch=patch) for m, at, name, patch in made][:count], 7


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "shop"
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return str(folder)


@pytest.fixture(scope="module")
def theirs(shop):
    found = Theirs()
    options = BuildOptions(kinds=("swesmith",), gates="full", jobs=1, max_candidates=None)
    steps = {**STEPS, judge_all: "its rule"}
    return build(shop, options, finders={"swesmith": finder(bugs_of_theirs, 3, found)}, steps=steps), found


def test_cpu_of_sandboxes_is_counted_by_the_kernel_and_charged_to_their_step(tmp_path):
    steps, cost = in_process(burn, tmp_path)
    assert steps["burnt"].sandboxes == 2
    assert cost.cpu_s >= steps["burnt"].cpu_s >= 0.78  # the kernel counts in hundredths


def test_what_a_process_raises_is_raised_here():
    with pytest.raises(UserError, match="no folder or file"):
        in_process(build, "no-such-folder", BuildOptions())


def test_a_build_is_divided_among_its_steps(theirs):
    built, _ = theirs
    assert built.suite_s > 0
    assert built.report.valid == {"swesmith": 1}
    assert built.steps["baseline"].sandboxes == 6  # five runs, and one that only collects, elsewhere
    assert built.steps["its rule"].sandboxes == 3  # the original and two bugs: the third is no patch
    assert {"pass_to_pass", "fail_to_pass", "mutation"} <= built.steps.keys()
    assert built.once_cpu_s < built.cpu_s
    cost = type("Cost", (), {"cpu_s": built.cpu_s})
    found = figures(built, cost)
    assert found["tasks_per_core_hour"] == pytest.approx(3600 / built.cpu_s)
    assert row("shop", found)["valid of tried"] == "swesmith 1/3"
    lines = {line["step"]: line for line in step_rows({"shop": found})}
    assert lines["baseline"]["a candidate"] is None
    assert lines["mutation"]["a candidate"] == pytest.approx(built.steps["mutation"].cpu_s / 3)


def test_bugs_are_judged_by_swesmiths_rule_and_by_our_gates(theirs):
    built, found = theirs
    loop, op, stale = found.verdicts.values()
    assert (loop.fail_to_pass, loop.pass_to_pass, loop.valid) == (1, 5, True)
    assert (op.fail_to_pass, op.pass_to_pass, op.valid) == (0, 6, False)
    assert "does not apply" in stale.problem
    assert not stale.valid
    assert [task.symbols[0].qualname for task in built.tasks] == ["total"]
    assert built.tasks[0].evidence["modifier"] == "loop"
    rows, more = rows_of_theirs("shop", built, found)
    assert [(each["candidates"], each["valid"], each["lines"], each["files"]) for each in rows] == [(3, 1, 2, 1), (3, 1, 2, 1)]
    assert (more["pairs_tried"], more["valid_by_its_rule"], more["of_them_pass_our_gates"]) == (7, 1, 1)
    assert more["why_not"] == {}


def test_a_build_without_a_task_says_why_and_what_it_cost(shop):
    built = build(shop, BuildOptions(kinds=("x",), jobs=1), finders={"x": finder(lambda *_: ([], 0), 1, Theirs())})
    assert "gives no task" in built.problem
    assert row("shop", figures(built, built))["valid of tried"] == built.problem


def test_an_interpreter_without_swesmith_is_told_what_to_install(tmp_path):
    with pytest.raises(UserError, match=r"-m pip install --no-deps swesmith==0\.0\.9"):
        generate(sys.executable, tmp_path, [], 1)
    command = [sys.executable, "-m", "benchmarks.tasks_against_swesmith", "--swesmith", str(tmp_path / "python")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be started" in done.stderr


def test_size_counts_lines_and_files():
    assert size(WRONG) == (2, 1)
    assert size(WRONG + UNSEEN) == (4, 2)
    assert size("") == (0, 0)
