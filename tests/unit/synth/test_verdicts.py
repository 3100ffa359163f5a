"""What the gates conclude from what was noticed: few asked are judged by those few, and none asked is no pass."""

import pytest

from etude.synth.verdicts import DoesNotMatter, every_symbol_matters, mutants_are_noticed
from etude.synth.workshop import Rejected


class Symbol:
    def __init__(self, qualname):
        self.qualname = qualname


A, B, C = map(Symbol, "abc")


@pytest.mark.parametrize(("noticed", "of"), [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (2, 6)])
def test_fewer_than_half_of_the_mutants_are_too_few_however_many_there_are(noticed, of):
    with pytest.raises(Rejected, match=f"notice only {noticed} of {of} mutants"):
        mutants_are_noticed({number: number < noticed for number in range(of)}, of)


@pytest.mark.parametrize(("noticed", "of"), [(0, 0), (1, 1), (1, 2), (2, 3), (3, 6)])
def test_half_of_the_mutants_are_enough_and_code_without_any_is_not_judged(noticed, of):
    assert mutants_are_noticed({number: number < noticed for number in range(of)}, 9) == {"mutants": of, "noticed": noticed, "runs": 9}


def test_symbols_that_cannot_be_asked_are_counted_and_one_of_several_must_be():
    assert every_symbol_matters([A, B, C], {A: True}, 1) == {"symbols": 3, "matter": 1, "not_asked": 2, "runs": 1}
    with pytest.raises(Rejected, match="none of its 3 symbols can be stubbed alone"):
        every_symbol_matters([A, B, C], {}, 0)


def test_symbols_that_nothing_notices_are_named_with_those_that_are_left():
    with pytest.raises(DoesNotMatter, match="1 of 3 symbols matter to no hidden test, first b") as error:
        every_symbol_matters([A, B, C], {A: True, B: False}, 2)
    assert error.value.left == (A, C)
