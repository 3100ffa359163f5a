"""What the sandbox's tests share: one backend, and a way to run Python as an ordinary user."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from etude.sandbox.bubblewrap import Bubblewrap


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
