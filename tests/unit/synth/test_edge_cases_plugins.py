"""Tests that draw at random: hypothesis in the environment draws the same in every run and remembers nothing."""

import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest

from etude.grade.runner import run_tests
from etude.types import Limits, Repo

FILES = {
    "pkg.py": "def one():\n    return 1\n",
    "tests/test_drawn.py": (
        "from hypothesis import given, strategies\n\nSEEN = []\n\n\n@given(strategies.lists(strategies.integers()))\ndef test_draws(x):\n"
        "    SEEN.append(tuple(x))\n\n\ndef test_tells():\n    raise AssertionError(f'{len(SEEN)} drawn: {hash(tuple(SEEN))}')\n"
    ),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory, environments, runner_environment) -> Path:
    """That of the runner, with hypothesis as it is installed here."""
    folder = tmp_path_factory.mktemp("hypothesis") / "env"
    shutil.copytree(environments / runner_environment.digest, folder)
    for name in ("hypothesis", "sortedcontainers"):
        for file in distribution(name).files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / file)
    folder.chmod(0o755)
    return folder


def test_hypothesis_draws_the_same_in_every_run_and_keeps_no_examples(environment, tmp_path, lay_down, backend):
    folder = lay_down(tmp_path / "repository", FILES)
    folder.chmod(0o755)
    repo = Repo(name="drawn", digest="0" * 64, import_roots=(".",), test_paths=("tests/test_drawn.py",))
    told = []
    for _ in range(2):
        with backend.open(folder, environment=environment, limits=Limits(wall_s=300.0)) as sandbox:
            run = run_tests(sandbox, repo, wall_s=300.0)
            assert run.outcomes == {"tests/test_drawn.py::test_draws": "passed", "tests/test_drawn.py::test_tells": "failed"}, run.result
            told.append(run.messages["tests/test_drawn.py::test_tells"])
            assert not [change.path for change in sandbox.changes() if ".hypothesis/examples" in change.path]
    assert told[0] == told[1]
    assert int(told[0].removeprefix("AssertionError: ").split()[0]) > 10
