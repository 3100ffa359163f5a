"""bubblewrap passes the conformance suite: started by whoever runs the tests and, where that is root, by an ordinary user too."""

import json
import subprocess
from collections.abc import Callable

import pytest

from etude.errors import UserError
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.conformance import CHECKS, Check, run_check, run_conformance
from etude.sandbox.site import Site, expect, output, shell

StartPython = Callable[..., "subprocess.Popen[str]"]
NAMES = [check.__name__ for check in CHECKS]


@pytest.fixture(scope="module", autouse=True)
def run_of_an_ordinary_user(as_ordinary_user: StartPython) -> "subprocess.Popen[str]":
    """The whole suite in another process, beside the tests of this one."""
    return as_ordinary_user("-m", "etude.sandbox.conformance")


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_bubblewrap_conforms(check: Check, backend: Bubblewrap) -> None:
    result = run_check(check, backend)
    assert result.ok, result.detail


@pytest.fixture(scope="module")
def found_by_an_ordinary_user(run_of_an_ordinary_user: "subprocess.Popen[str]") -> dict[str, str]:
    """Name of each check, and what was wrong."""
    out, err = run_of_an_ordinary_user.communicate(timeout=240)
    assert out, err
    return {result["name"]: result["detail"] for result in map(json.loads, out.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_bubblewrap_conforms_for_an_ordinary_user(name: str, found_by_an_ordinary_user: dict[str, str]) -> None:
    assert found_by_an_ordinary_user[name] == ""


def test_a_check_that_does_not_hold_is_a_result_with_its_reason(backend: Bubblewrap) -> None:
    def holds(site: Site) -> None:
        with site.open() as sandbox:
            expect("word", output(shell(sandbox, "echo word")), "word\n")

    def does_not_hold(site: Site) -> None:
        with site.open() as sandbox:
            expect("word", output(shell(sandbox, "echo other")), "word\n")

    first, second = run_conformance(backend, [holds, does_not_hold])
    assert (first.name, first.ok, first.detail) == ("holds", True, "")
    assert (second.name, second.ok, second.detail) == ("does_not_hold", False, "AssertionError: word: 'other\\n' instead of 'word\\n'")


def test_a_backend_that_cannot_work_is_an_error_and_no_result() -> None:
    with pytest.raises(UserError, match="not installed"):
        run_conformance(Bubblewrap("no-such-bubblewrap"))


def test_no_two_checks_share_a_name() -> None:
    assert len(set(NAMES)) == len(NAMES) > 50
