"""What the sandbox's tests share: one backend, and a way to run Python as an ordinary user."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from etude.sandbox.bubblewrap import Bubblewrap


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: needs Docker with an image of Python; left out unless asked for with -m engine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "engine" not in config.getoption("-m"):
        left_out = [item for item in items if item.get_closest_marker("engine")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def backend() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture(scope="session")
def as_ordinary_user() -> Callable[..., "subprocess.Popen[str]"]:
    """Starts `python ARGUMENT...` as a user who is not root: another one where root runs the tests."""

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *arguments]
        if os.geteuid() == 0:
            sources = Path(etude.__file__).parents[1]
            command = [sys.executable, str(Path(__file__).with_name("ordinary.py")), str(sources), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start
