"""Time-outs: a try that ran out of time has another, alone and with twice the time, before that counts.

Other work on the machine, the build's own threads included, must not decide what a task is. In: what a try does, given a factor of its
time; out: what it gives. While a try runs alone no other of the same build does.

Not here: the limits themselves (build.py).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from etude.synth.workshop import Rejected

AGAIN = 2.0  # times the limit, for the try alone
T = TypeVar("T")


class TimedOut(Rejected):
    """A run did not end within its limit: no verdict on the candidate, so a resumed build tries it again."""


class Turns:
    """Many threads at a time, or one alone."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._inside = 0
        self._is_alone = False

    def take(self, attempt: Callable[[float], T]) -> T:
        """Raises TimedOut where it was out of time alone, too."""
        try:
            with self._among_others():
                return attempt(1.0)
        except TimedOut:
            pass
        with self._alone():
            return attempt(AGAIN)

    @contextmanager
    def _among_others(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._is_alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._free:
                self._inside -= 1
                self._free.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._is_alone)
            self._is_alone = True
            self._free.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._free:
                self._is_alone = False
                self._free.notify_all()
