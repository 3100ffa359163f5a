"""A limit counts the seconds that tests need: not those in which other programs have the CPUs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from etude.errors import SandboxError
from etude.grade.runner import PATIENCE, Variant, run_tests, run_variants
from etude.synth.assemble import wall_s_of
from etude.synth.workshop import seconds_of
from etude.types import Limits, Repo

SPIN = "while True: pass"
COMPUTES = "import time\n\n\ndef test_it():\n    end = time.process_time() + {}\n    while time.process_time() < end:\n        pass\n"
SLEEPS = "import time\n\n\ndef test_it():\n    time.sleep({})\n"
ID = "test_it.py::test_it"
REPO = Repo(name="it", digest="", import_roots=(".",), test_paths=("test_it.py",), source="it")


@contextmanager
def busy(per_cpu: int) -> Iterator[None]:
    """Other programs that never stop."""
    num = per_cpu * len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN], start_new_session=True) for _ in range(num)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


@pytest.fixture
def run(tmp_path, backend, environments, runner_environment):
    """Runs one test, alone or as a variant."""

    def run(text, wall_s, *, variant=False):
        folder = tmp_path / "tree"
        folder.mkdir(exist_ok=True)
        (folder / "test_it.py").write_text(text)
        with backend.open(folder, environment=environments / runner_environment.digest, limits=Limits(wall_s=wall_s)) as sandbox:
            if variant:
                return run_variants(sandbox, REPO, [Variant(ids=(ID,), paths=("test_it.py",), wall_s=wall_s)])[0]
            return run_tests(sandbox, REPO, wall_s=wall_s)

    return run


@pytest.mark.parametrize("variant", [False, True])
def test_a_test_among_busy_programs_gets_the_seconds_that_it_needs(run, variant):
    with busy(3):
        found = run(COMPUTES.format(0.4), 2.5, variant=variant)
    assert found.outcomes == {ID: "passed"}, found.result
    assert wall_s_of(seconds_of(found)) == 20.0


FORKS = "import os\n\n\ndef test_it():\n    for _ in range({} // 20):\n        os.fork()\n    while True:\n        pass\n"


@pytest.mark.parametrize("variant", [False, True])
@pytest.mark.parametrize("text", [SLEEPS, COMPUTES, FORKS], ids=["sleeps", "computes", "computes in eight processes"])
def test_a_test_that_sleeps_or_computes_too_long_is_out_of_time(run, text, variant):
    found = run(text.format(60), 1.5, variant=variant)
    assert found.result.status == "timeout"
    assert found.outcomes == {ID: "failed"}


def test_a_test_that_sleeps_has_slept_and_not_waited(run):
    found = run(SLEEPS.format(1.0), 20.0)
    assert found.outcomes == {ID: "passed"}
    assert 1.0 <= seconds_of(found) <= found.result.wall_s


def test_a_machine_without_any_time_for_the_tests_is_no_result(run):
    with busy(2 * int(PATIENCE)), pytest.raises(SandboxError, match="too much else runs on this machine"):
        run(COMPUTES.format(60), 0.7)
