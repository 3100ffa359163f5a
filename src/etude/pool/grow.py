"""Fulfils wishes in the background, so that training never waits.

    with Grower(pool, make, keep=store.add, deadline_s=600) as grower: ...train...

`make(wish)` returns the tasks that it made, or raises; it runs on a thread of its own. One that is not back by the deadline is given up:
its wish is `late`, what it brings later is thrown away, and the next wish begins. (A thread cannot be stopped: what is slow in making is
the sandbox, which has limits of its own.) A task is kept before the pool hears of it, so the pool names none that is not there. To the
pool its origin are the tasks that the wish began with: it borrows their pass rates until it is measured. Wishes lie in the database:
another process, or another machine with the same Postgres, may run `grow_once` in a loop as well.

Not here: what is wished for (evolve.py), how a task is made (a callable).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from etude.errors import EtudeError
from etude.pool.entry import Wish, entry_of
from etude.pool.pool import Claim, Pool
from etude.types import Task

log = logging.getLogger(__name__)
Make = Callable[[Wish], Sequence[Task]]
Keep = Callable[[Task], None]

IDLE_S = 0.5  # between two looks for a wish


class Grower:
    """A thread with its own connection. What goes wrong in making is a failed wish, never an error of the run."""

    def __init__(self, pool: Pool, make: Make, *, keep: Keep, deadline_s: float = 600.0) -> None:
        self._pool, self._make, self._keep, self._deadline_s = pool, make, keep, deadline_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="grower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self, *, wait_s: float = 5.0) -> None:
        """No wish is begun any more; one under way gets `wait_s`, then is left to its thread and is open again after a restart."""
        self._stop.set()
        self._thread.join(wait_s)

    def _work(self) -> None:
        with self._pool.again() as pool:
            while not self._stop.is_set():
                try:
                    busy = grow_once(pool, self._make, keep=self._keep, deadline_s=self._deadline_s)
                except Exception:  # the boundary: a database that is away for a moment must not end the growing
                    log.exception("the grower could not reach the pool")
                    busy = False
                if not busy:
                    self._stop.wait(IDLE_S)


def grow_once(pool: Pool, make: Make, *, keep: Keep, deadline_s: float) -> bool:
    """Fulfil one wish; False where there is none."""
    claim = pool.take()
    if claim is None:
        return False
    made: list[Task] = []
    why: list[str] = []

    def work() -> None:
        try:
            made.extend(make(claim.wish))
        except Exception as error:  # the boundary to what makes tasks: a failure is an answer
            why.append(_line(error))

    thread = threading.Thread(target=work, name=f"make-{claim.wish.id}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        pool.fail(claim, f"not made within {deadline_s:g} s", state="late")
    elif why:
        pool.fail(claim, why[0])
    elif not made:
        pool.fail(claim, "no task came of it")
    else:
        _deliver(pool, claim, made, keep)
    return True


def _deliver(pool: Pool, claim: Claim, made: Sequence[Task], keep: Keep) -> None:
    try:
        for task in made:
            keep(task)
    except (EtudeError, OSError) as error:
        pool.fail(claim, _line(error))
        return
    wish = claim.wish
    entries = [entry_of(task, wish=wish.id, admitted=None) for task in made]
    parents = tuple(filter(None, (wish.task, *wish.partners)))
    pool.fulfil(claim, [replace(entry, origin=parents or entry.origin) for entry in entries])


def _line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]
