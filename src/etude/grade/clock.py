"""Inside the sandbox: the seconds that its processes needed, whatever else the machine does. Read as text by runner.py.

    seconds = wall clock - those in which a process could have run, but no CPU was free for it

A test that sleeps for a second needs a second, and so does one that computes for a second, on an idle machine and on a crowded one.
Linux tells how long each thread waited for a CPU (/proc/PID/task/TID/schedstat, in nanoseconds: ran, waited). Where it does not, and for
threads that come and go between two looks, all of the wall clock counts. While one of the processes runs, none of them is kept waiting
by others: a program that starts more processes than there are CPUs wins nothing.

Not here: limits (supervise.py, child.py).
"""

import contextlib
import os
import time
from collections.abc import Collection

PERIOD_S = 0.05  # between two looks
MAX_SLACK_S = 1.0  # so late may a wait be told


class Clock:
    """Of all processes but these."""

    def __init__(self, but: Collection[int]) -> None:
        self.but = frozenset(but)
        self.started = self.looked = time.monotonic()
        self.waited = self.slack = 0.0
        self.threads = self.read()
        self.ahead: dict[tuple[str, str], float] = {}  # of waits that are not over

    def seconds(self) -> float:
        """Needed so far."""
        now = time.monotonic()
        if now - self.looked >= PERIOD_S:
            self.look(now)
        return now - self.started - self.waited

    def look(self, now: float) -> None:
        elapsed = now - self.looked
        before, self.threads = self.threads, self.read()
        ran = waited = 0.0
        for thread, (all_ran, all_waited) in self.threads.items():
            was_ran, was_waited = before.get(thread, (0.0, 0.0))
            if (all_ran, all_waited) == (was_ran, was_waited):
                if is_runnable(*thread):  # for longer than since the last look: how long is told when it is over
                    self.ahead[thread] = self.ahead.get(thread, 0.0) + elapsed
                    waited = max(waited, elapsed)
                continue
            ran += max(0.0, all_ran - was_ran)
            waited = max(waited, all_waited - was_waited - self.ahead.pop(thread, 0.0))
        self.slack = min(max(MAX_SLACK_S, elapsed), self.slack + max(0.0, elapsed - ran))
        starved = min(waited, self.slack)
        self.slack -= starved
        self.waited += starved
        self.looked = now

    def read(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(process, thread) -> the seconds that it ran and that it waited for a CPU."""
        found: dict[tuple[str, str], tuple[float, float]] = {}
        for process in os.listdir("/proc"):
            if process.isdigit() and int(process) not in self.but:
                with contextlib.suppress(OSError, ValueError):
                    for thread in os.listdir(f"/proc/{process}/task"):
                        with open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
                            ran, waited, _ = file.read().split()
                        found[process, thread] = int(ran) / 1e9, int(waited) / 1e9
        return found


def is_runnable(process: str, thread: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"R"
    return False
