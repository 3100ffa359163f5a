"""A tiny project in JavaScript, and runs of its tests in the real sandbox."""

from pathlib import Path

import pytest

from etude.grade.runner import run_tests
from etude.languages.javascript.environment import make_environment
from etude.languages.javascript.project import discover
from etude.types import Limits, Repo

MANIFEST = '{"name": "tiny", "version": "1.0.0"}'


@pytest.fixture(scope="session")
def run_node(tmp_path_factory: pytest.TempPathFactory, lay_down, backend, environments: Path):
    """Lay down a project of these files and run its tests; the rest of the arguments are run_tests'."""

    def run(files, **options):
        folder = lay_down(tmp_path_factory.mktemp("node"), {"package.json": MANIFEST, "index.js": "module.exports = {}\n", **files})
        project = discover(folder, "")
        assert project is not None
        environment = make_environment(project, folder, environments)
        repo = Repo(name=project.name, digest="0" * 64, import_roots=(".",), test_paths=project.tests)
        with backend.open(folder, environment=environments / environment.digest, limits=Limits(memory_mb=2048)) as sandbox:
            return run_tests(sandbox, repo, runner=project.runner, **{"wall_s": 30.0, **options})

    return run
