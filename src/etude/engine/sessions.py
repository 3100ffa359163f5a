"""Which session is in which row, what is computed of it, and which one has to go: the bookkeeping over kv.py's buffers.

A session's `ids` are the tokens whose keys and values its row holds. They are lengthened only after the forward that computed them has
returned, so an interrupt at any moment leaves the bookkeeping true: what lies beyond a session's end is never read.

Not here: when anything is computed (local.py).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from etude.engine.kv import KERNEL_BLOCK, KeyValues


@dataclass(slots=True, eq=False)
class Session:
    row: int
    ids: list[int] = field(default_factory=list)  # whose keys and values are in the row
    aligned: int = 0  # how many of them, from the start, were computed alone in whole chunks (reproducible mode)
    used: int = 0  # tick of its last request


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two sequences of one type, by bisection over slice comparisons."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Sessions:
    """At most `capacity_tokens`, in rows of one length; the length doubles when a context needs it, and rows become fewer.

    `make(rows, row_tokens)` allocates buffers. `dropped` counts sessions that went for lack of room.
    """

    def __init__(self, capacity_tokens: int, make: Callable[[int, int], KeyValues]) -> None:
        self.capacity_tokens, self._make = capacity_tokens, make
        self._named: dict[str, Session] = {}
        self._kv: KeyValues | None = None
        self._tick = 0
        self.dropped = 0

    @property
    def kv(self) -> KeyValues:
        assert self._kv is not None, "reserve() comes first"
        return self._kv

    def tokens(self) -> int:
        """Kept in all."""
        return sum(len(session.ids) for session in self._named.values())

    def holds(self, session: Session) -> bool:
        """Whether the session still has its row."""
        return any(other is session for other in self._named.values())

    def release(self, name: str) -> None:
        self._named.pop(name, None)

    def clear(self, *, buffers: bool = False) -> None:
        """Forget every session; with `buffers` give the memory back, too."""
        self._named.clear()
        if buffers:
            self._kv = None

    def reserve(self, longest: int, in_use: Collection[Session]) -> bool:
        """Make room for one more context of `longest` tokens beside the sessions in use; False if it has to wait for one of them.

        Sessions may change their rows, so spans are made after it.
        """
        if self._kv is not None and self._kv.row_tokens >= longest:
            return len(in_use) < self._kv.rows
        row_tokens = KERNEL_BLOCK
        while row_tokens < longest:
            row_tokens *= 2
        rows = max(1, self.capacity_tokens // row_tokens)
        if len(in_use) >= rows:
            return False
        if self._kv is None:
            self._kv = self._make(rows, row_tokens)
            return True
        while len(kept := self._with_rows(in_use)) > rows:
            self._drop(in_use)
        named, self._named = self._named, {}  # an interrupt while rows move loses sessions rather than mixing them up
        self._kv = self._kv.resized(rows, row_tokens, [(session.row, len(session.ids)) for session in kept])
        for row, session in enumerate(kept):
            session.row = row
        self._named = named
        return True

    def open(self, name: str, ids: Sequence[int], in_use: Collection[Session]) -> Session:
        """The session, with a row, cut back to what it has in common with `ids` (the last of which is always left to compute).

        Sessions in use keep their rows; reserve() has found that one is left.
        """
        self._tick += 1
        session = self._named.get(name)
        if session is None:
            if len(self._with_rows(in_use)) >= self.kv.rows:
                self._drop(in_use)
            taken = {other.row for other in self._with_rows(in_use)}
            session = Session(next(row for row in range(self.kv.rows) if row not in taken))
            self._named[name] = session
        session.used = self._tick
        keep = min(common_prefix(session.ids, list(ids)), len(ids) - 1)
        del session.ids[keep:]
        session.aligned = min(session.aligned, keep)
        return session

    def others(self, session: Session) -> Iterable[Session]:
        return (other for other in self._named.values() if other is not session)

    def copy_prefix(self, source: Session, target: Session, length: int) -> None:
        """Give `target` the first `length` tokens of `source` instead of what it has."""
        self.kv.copy(source.row, target.row, length)
        target.ids[:] = source.ids[:length]
        target.aligned = min(source.aligned, length)

    def _with_rows(self, in_use: Collection[Session]) -> list[Session]:
        """Every session that has a row: the named ones, and those that were forgotten while in use."""
        named = list(self._named.values())
        rows = {session.row for session in named}
        return named + [session for session in in_use if session.row not in rows]

    def _drop(self, in_use: Collection[Session]) -> None:
        """Forget the session that was used longest ago."""
        busy = {session.row for session in in_use}
        idle = [(session.used, name) for name, session in self._named.items() if session.row not in busy]
        del self._named[min(idle)[1]]
        self.dropped += 1
