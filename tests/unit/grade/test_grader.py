"""Gold scores 1, the cut scores 0, and nothing but the source of a diff has any influence on that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec
import pytest

from etude import tree
from etude.errors import SandboxError
from etude.grade.grader import Verdict, grade
from etude.records import decode, encode
from etude.sandbox.protocol import Backend, Change, ExecResult, Sandbox
from etude.store import TaskStore
from etude.types import Limits, Reward, Task

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]
Score = Callable[..., Verdict]
RIGHT = {
    "pocket/__init__.py": "from pocket.stack import Stack\nfrom pocket.stats import mean, median\nfrom pocket.text import shout, slugify\n",
    "pocket/text.py": (
        "def shout(text):\n    return text.upper() + '!'\n\n\n"
        "def slugify(text, sep='-'):\n    return sep.join(''.join(c if c.isalnum() else ' ' for c in text.lower()).split())\n"
    ),
}
HALF = {**RIGHT, "pocket/text.py": RIGHT["pocket/text.py"].replace("sep.join", "'-'.join")}
BROKEN_ELSEWHERE = {**RIGHT, "pocket/stats.py": "def mean(numbers):\n    return 3\n\n\ndef median(numbers):\n    return 2\n"}
HOOK = """\
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""


@pytest.fixture
def task(pocket_store: TaskStore) -> Task:
    return pocket_store.get("pocket-slugify")


@pytest.fixture
def score(pocket_store: TaskStore, task: Task, backend: Backend, tmp_path: Path, lay_down: LayDown) -> Score:
    """The verdict on the agent's tree with these files written and those removed."""

    def run(files: Mapping[str, str | bytes] = {}, *, removed: Sequence[str] = (), limits: Limits | None = None) -> Verdict:
        start = pocket_store.workspace(task)
        tree.copy_tree(start, tmp_path / "after")
        for name in removed:
            (tmp_path / "after" / name).unlink()
        lay_down(tmp_path / "after", files)
        graded = replace(task, limits=limits or task.limits)
        return grade(graded, tree.make_patch(start, tmp_path / "after"), store=pocket_store, backend=backend)

    return run


def test_gold_scores_one(pocket_store: TaskStore, task: Task, backend: Backend) -> None:
    verdict = grade(task, task.gold, store=pocket_store, backend=backend)
    assert verdict == Verdict(
        task_id="pocket-slugify",
        verdict="graded",
        solved=True,
        reward=Reward(total=1.0, solved=True, parts={"solved": 1.0, "fail_to_pass_share": 1.0, "pass_to_pass_share": 1.0}),
        reason="all 8 tests pass",
        fail_to_pass=dict.fromkeys(task.fail_to_pass, "passed"),
        pass_to_pass=dict.fromkeys(task.pass_to_pass, "passed"),
        evidence=verdict.evidence,
    )
    assert verdict.evidence.keys() == {"files", "canaries", "imported", "generated"}


def test_no_change_scores_zero_and_says_which_tests_fail(score: Score, task: Task) -> None:
    verdict = score()
    assert (verdict.verdict, verdict.solved, verdict.refused) == ("graded", False, ())
    assert verdict.reward == Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.0, "pass_to_pass_share": 1.0})
    assert verdict.fail_to_pass == dict.fromkeys(task.fail_to_pass, "failed")
    assert verdict.reason == "2 of 2 fail_to_pass tests do not pass, 0 of 6 pass_to_pass tests do not pass"
    assert verdict.messages.keys() == set(task.fail_to_pass)
    assert all("has no attribute 'slugify'" in message for message in verdict.messages.values())


def test_another_solution_than_gold_scores_one(score: Score) -> None:
    assert score(RIGHT).solved


def test_half_a_solution_has_half_the_share_and_no_reward(score: Score, task: Task) -> None:
    verdict = score(HALF)
    assert verdict.reward == Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.5, "pass_to_pass_share": 1.0})
    assert list(verdict.fail_to_pass.values()) == ["passed", "failed"]


def test_a_feature_that_does_not_compile_is_told_with_its_line_and_starts_no_test(score: Score, task: Task) -> None:
    path = task.symbols[0].path
    verdict = score({path: "def fine():\n    pass\n\nbroken(\n"})
    assert verdict.reason == f"it does not compile: {path}, line 4: '(' was never closed"
    assert verdict.reward == Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.0, "pass_to_pass_share": 0.0})
    assert set(verdict.fail_to_pass.values()) == {"missing"}


def test_breaking_something_else_is_not_solved(score: Score) -> None:
    verdict = score(BROKEN_ELSEWHERE)
    assert not verdict.solved
    assert verdict.reward is not None
    assert verdict.reward.parts["fail_to_pass_share"] == 1.0
    assert verdict.reason == "0 of 2 fail_to_pass tests do not pass, 1 of 6 pass_to_pass tests do not pass"


STEERING: dict[str, dict[str, str | bytes]] = {
    "a hook that makes every report pass": {"conftest.py": HOOK, "tests/conftest.py": HOOK, "pocket/conftest.py": HOOK},
    "tests that ask nothing": {"tests/test_text.py": "def test_slugify():\n    pass\n\n\ndef test_slugify_separator():\n    pass\n"},
    "configuration": {
        "pytest.ini": "[pytest]\naddopts = -p evil\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p evil'\n",
        "tox.ini": "[pytest]\naddopts = -p evil\n",
        "evil.pth": "import os; os._exit(0)\n",
        "sitecustomize.py": "import os; os._exit(0)\n",
        "pytest.py": "raise SystemExit(0)\n",
        "unittest/__init__.py": "raise SystemExit(0)\n",
        "pocket.egg-info/entry_points.txt": "[pytest11]\nevil = evil\n",
    },
    "a folder where a test file belongs": {"tests/test_text.py/x.py": ""},
}


@pytest.mark.parametrize("trick", STEERING)
def test_what_steers_the_tests_is_refused_and_named_and_the_rest_counts(score: Score, trick: str) -> None:
    removed = ["tests/test_text.py"] if "tests/test_text.py/x.py" in STEERING[trick] else []
    verdict = score({**STEERING[trick], **HALF}, removed=removed)
    assert sorted(path for path, _ in verdict.refused) == sorted([*STEERING[trick], *removed])
    assert list(verdict.fail_to_pass.values()) == ["passed", "failed"]
    assert set(verdict.pass_to_pass.values()) == {"passed"}


def test_deleted_tests_come_back(score: Score) -> None:
    verdict = score(HALF, removed=["tests/test_text.py", "tests/test_stats.py", "tests/conftest.py"])
    assert [why for _, why in verdict.refused] == ["conftest.py steers the tests", "test", "test"]
    assert list(verdict.fail_to_pass.values()) == ["passed", "failed"]
    assert set(verdict.pass_to_pass.values()) == {"passed"}


def test_binary_content_is_refused_after_a_look_into_it_and_the_rest_counts(score: Score) -> None:
    verdict = score({**RIGHT, "pocket/blob.json": b"\xff\0", "pocket/late.py": b"x = 1\0"})
    assert verdict.refused == (("pocket/blob.json", "binary"), ("pocket/late.py", "binary"))
    assert verdict.solved


def test_sources_in_other_encodings_count(score: Score) -> None:
    text = "# -*- coding: latin-1 -*-\r\n# \xe9\r\n" + RIGHT["pocket/text.py"].replace("\n", "\r\n")
    assert score({**RIGHT, "pocket/text.py": text.encode("latin-1")}).solved


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\nos._exit(0)\n", "pytest did not come to its end"),
        ("import unittest\nraise unittest.SkipTest\n", "2 of 2 fail_to_pass tests do not pass, 6 of 6 pass_to_pass tests do not pass"),
        ("import time\ntime.sleep(100)\n", "the tests ran out of time (3 s)"),
        ("memory = bytearray(10**10)\n", "the tests ran out of memory (512 MB)"),
    ],
)
def test_code_that_avoids_the_tests_scores_zero(score: Score, code: str, reason: str) -> None:
    verdict = score({"pocket/__init__.py": code}, limits=Limits(wall_s=3.0 if "sleep" in code else 30.0, memory_mb=512, disk_mb=32))
    assert verdict.verdict == "graded"
    assert verdict.reward == Reward(total=0.0, solved=False, parts={"solved": 0.0, "fail_to_pass_share": 0.0, "pass_to_pass_share": 0.0})
    assert verdict.reason.startswith(reason)


def test_a_task_with_a_test_that_does_not_exist_cannot_be_solved(pocket_store: TaskStore, task: Task, backend: Backend) -> None:
    odd = replace(task, pass_to_pass=(*task.pass_to_pass, "tests/test_text.py::test_gone"))
    verdict = grade(odd, task.gold, store=pocket_store, backend=backend)
    assert not verdict.solved
    assert verdict.pass_to_pass["tests/test_text.py::test_gone"] == "missing"


def test_anyones_diff_is_accepted(pocket_store: TaskStore, task: Task, backend: Backend) -> None:
    plain = "\n".join(
        line.replace("--- a/", "--- ").replace("+++ b/", "+++ ")
        for line in task.gold.split("\n")
        if not line.startswith(("diff --git", "index "))
    )
    assert grade(task, plain.replace("\n", "\r\n"), store=pocket_store, backend=backend).solved


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("I think it is fixed now.", "this is no patch: "),
        ("--- a/pocket/text.py\n+++ b/pocket/text.py\n@@ -1,5 +1 @@\n-x\n", "the patch is malformed: the hunk at line 3"),
        ("--- a/pocket/text.py\n+++ b/pocket/text.py\n@@ -1 +1 @@\n-nothing like it\n+x\n", "the patch does not apply: "),
        ("--- a/pocket/text.py\n+++ b/pocket/text.py\n@@ -1 +1 @@\n-x\n+\ud800\n", "the patch holds '\\ud800', which is no character"),
        (" " * (4 * 2**20) + "x", "the patch is larger than 4 million characters"),
    ],
)
def test_a_diff_that_cannot_be_used_is_graded_with_zero(
    pocket_store: TaskStore, task: Task, backend: Backend, patch: str, reason: str
) -> None:
    verdict = grade(task, patch, store=pocket_store, backend=backend)
    assert (verdict.verdict, verdict.solved) == ("graded", False)
    assert verdict.reason.startswith(reason)
    assert "\n" not in verdict.reason
    assert set(verdict.fail_to_pass.values()) == {"missing"}


class LostSandbox:
    """A sandbox that fails when something is run in it."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/work",
        wall_s: float | None = None,
    ) -> ExecResult:
        raise SandboxError("the machine went away")

    def read(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def write(self, path: str, data: bytes) -> None:
        raise OSError(path)

    def changes(self) -> list[Change]:
        return []

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class LosingBackend:
    def __init__(self, when: str) -> None:
        self.when = when

    def check(self) -> None:
        pass

    def open(self, workspace: Path, *, environment: Path | None = None, limits: Limits = Limits()) -> Sandbox:
        if self.when == "open":
            raise SandboxError("no room for another sandbox")
        return LostSandbox()


@pytest.mark.parametrize("when", ["open", "run"])
def test_a_sandbox_that_fails_is_no_verdict_and_no_zero(pocket_store: TaskStore, task: Task, when: str) -> None:
    verdict = grade(task, task.gold, store=pocket_store, backend=LosingBackend(when))
    assert (verdict.verdict, verdict.solved, verdict.reward) == ("no_verdict", False, None)
    assert verdict.reason.startswith("no verdict, the sandbox failed: ")


def test_a_verdict_becomes_json_and_comes_back(score: Score) -> None:
    verdict = score({**HALF, "conftest.py": HOOK})
    fields = msgspec.json.decode(encode(verdict))
    assert fields["refused"] == [["conftest.py", "conftest.py steers the tests"]]
    assert fields["reward"]["parts"]["fail_to_pass_share"] == 0.5
    assert decode(encode(verdict), Verdict) == verdict


def test_grading_leaves_the_store_as_it_was(pocket_store: TaskStore, task: Task, score: Score) -> None:
    before = [tree.digest(folder) for folder in (pocket_store.snapshot(task.repo), pocket_store.workspace(task))]
    score(RIGHT)
    assert before == [tree.digest(folder) for folder in (pocket_store.snapshot(task.repo), pocket_store.workspace(task))]
