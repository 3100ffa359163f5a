"""Every case that a person confirmed is found again: one JSON file each in tests/exploits_confirmed, written by `etude monitor confirm`."""

from pathlib import Path

import pytest

from etude.monitor.confirm import missed, read_confirmed

FILES = sorted((Path(__file__).resolve().parents[2] / "exploits_confirmed").glob("*.json"))


def test_there_are_confirmed_cases():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_confirmed_case_is_found(path):
    confirmed = read_confirmed(path)
    assert confirmed.families
    assert missed(confirmed) == []
