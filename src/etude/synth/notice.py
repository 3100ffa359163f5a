"""Which of many small changes do tests notice? As few runs as that needs.

Changes of code that different tests reach share one run: a test that reaches only one of the changed places speaks for that one. What is
not noticed there is asked again alone, with all the tests that reach it.

In: changes, each with a place and the tests that reach it, and a function that runs tests on a set of changes; out: change -> noticed.

Not here: the changes (mutants, stubs), the runs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

MAX_TESTS = 20  # that speak for one change in a shared run


class Change(Protocol):
    @property
    def place(self) -> tuple[str, int, int]:
        """Path, and first and last position of the definition that is changed."""
        ...

    @property
    def tests(self) -> frozenset[str]: ...


C = TypeVar("C", bound=Change)


class Void(Exception):
    """Changed like this it does not even build, which says nothing about tests."""


def notice(
    changes: Sequence[C], failing: Callable[[Sequence[C], frozenset[str]], frozenset[str] | None], *, max_runs: int
) -> tuple[dict[C, bool], int]:
    """Which changes make a test fail, as far as `max_runs` went, those that do not build left out; and the number of runs.

    `failing`: which of these tests fail with these changes together; None: the run did not come to its end, which alone counts as noticed.
    It may raise Void.
    """
    noticed: dict[C, bool] = {change: False for change in changes if not change.tests}
    again: list[C] = []
    runs = 0
    for group in group_apart([change for change in changes if change.tests]):
        if runs >= max_runs:
            break
        runs += 1
        private = {change: frozenset(sorted(tests)[:MAX_TESTS]) for change, tests in own_tests(group).items()}
        try:
            failed = failing(group, frozenset().union(*private.values()))
        except Void:
            again += group if len(group) > 1 else []
            continue
        if failed is None:
            again += group
            continue
        for change in group:
            if private[change] & failed or (len(group) == 1 and private[change] == change.tests):
                noticed[change] = bool(private[change] & failed)
            else:
                again.append(change)
    for change in again:
        if runs >= max_runs:
            break
        runs += 1
        try:
            failed = failing([change], change.tests)
        except Void:
            continue
        noticed[change] = failed is None or bool(failed)
    return noticed, runs


def group_apart(changes: Sequence[C]) -> list[list[C]]:
    """Groups in which every change has tests of its own. Changes of definitions that overlap are never together."""
    groups: list[list[C]] = []
    for change in changes:
        for group in groups:
            trial = [*group, change]
            if not any(_overlap(change.place, other.place) for other in group) and all(own_tests(trial).values()):
                group.append(change)
                break
        else:
            groups.append([change])
    return groups


def own_tests(group: Sequence[C]) -> dict[C, frozenset[str]]:
    """For every change the tests that reach no other of the group."""
    found: dict[C, frozenset[str]] = {}
    for change in group:
        others = frozenset().union(*(other.tests for other in group if other is not change))
        found[change] = change.tests - others
    return found


def _overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]
