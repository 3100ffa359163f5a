"""One repository with tests of every kind, and a way to run a repository's tests in the real sandbox."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from etude.grade.runner import TestRun, run_tests
from etude.sandbox.protocol import Backend
from etude.types import Environment, Limits, Repo

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]
RunRepo = Callable[..., TestRun]


@pytest.fixture(scope="session")
def run_repo(
    tmp_path_factory: pytest.TempPathFactory, lay_down: LayDown, backend: Backend, environments: Path, runner_environment: Environment
) -> RunRepo:
    """Runs the tests of a repository given as files, in a fresh sandbox."""

    def run(
        files: Mapping[str, str | bytes], *, roots: tuple[str, ...] = (".",), tests: tuple[str, ...] = ("tests",), **options: Any
    ) -> TestRun:
        folder = lay_down(tmp_path_factory.mktemp("repo"), files)
        repo = Repo(name="made-up", digest="", import_roots=roots, test_paths=tests)
        limits = Limits(wall_s=60.0, memory_mb=512, disk_mb=32)
        with backend.open(folder, environment=environments / runner_environment.digest, limits=limits) as sandbox:
            return run_tests(sandbox, repo, **options)

    return run
