"""What a person is to look at, and what they said: queue.sqlite beside the run's other files.

    add(cases)     the same case again brings its evidence up to date; a decision that was made stays
    cases(state)   open | confirmed | honest | unsure, the highest score first
    decide(...)    every decision is kept, the latest counts; they are data for the precision of each detector (precision())

SQLite with full synchronisation: a kill at any moment leaves whole transactions, and what `add` or `decide` returned from is on disk.

Not here: who is put into it (run.py), what follows from a decision (confirm.py).
"""

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from etude.errors import UserError
from etude.monitor.finding import Finding

FILE = "queue.sqlite"
WAIT_S = 30.0  # for another process's transaction

Kind = Literal[
    "flagged",  # its score is above the threshold
    "undecided",  # a judge was asked and gave no verdict
    "disagreement",  # a judge says clean, detectors found a proof or something strong; or the other way round
    "cluster",  # a kind of rollout that nothing explains
]
Decision = Literal["confirmed", "honest", "unsure"]
TABLES = """
create table if not exists cases (id text primary key, kind text not null, trajectory text not null, task text not null,
    score real not null, title text not null, findings text not null, added real not null);
create table if not exists decisions (number integer primary key autoincrement, id text not null, decision text not null,
    note text not null, who text not null, at real not null);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCase:
    id: str  # of the trajectory, or of the cluster: what it is called on the command line
    kind: Kind
    trajectory: str = ""  # id of the one to read; of a cluster its first member
    task: str = ""
    score: float = 0.0
    title: str = ""  # one line
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    case: QueuedCase
    decision: Decision | None  # None: open
    note: str = ""


class Queue:
    def __init__(self, folder: Path, *, create: bool = True) -> None:
        """Raises: UserError."""
        path = folder / FILE
        if not create and not path.is_file():
            raise UserError(f"{folder} has no queue: run etude monitor on it first")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
            self._connection.execute("pragma synchronous = full")
            for statement in TABLES.split(";"):
                self._connection.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{path} cannot be opened as a queue ({error}): move it away") from None

    def add(self, cases: Iterable[QueuedCase]) -> int:
        """How many were new."""
        before = self._count()
        self._connection.execute("begin immediate")
        try:
            for case in cases:
                findings = json.dumps([asdict(one) for one in case.findings])
                self._connection.execute(
                    "insert into cases values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do update set kind = excluded.kind, "
                    "trajectory = excluded.trajectory, task = excluded.task, score = excluded.score, title = excluded.title, "
                    "findings = excluded.findings",
                    tuple(map(_text, (case.id, case.kind, case.trajectory, case.task, case.score, case.title, findings, time.time()))),
                )
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")
        return self._count() - before

    def decide(self, id: str, decision: str, *, note: str = "", who: str = "") -> None:
        """Raises: UserError for an unknown case or decision."""
        if decision not in get_args(Decision):
            raise UserError(f"decision is {decision!r}, allowed are {', '.join(get_args(Decision))}")
        self.get(id)
        self._connection.execute(
            "insert into decisions (id, decision, note, who, at) values (?, ?, ?, ?, ?)",
            (id, decision, _text(note), _text(who), time.time()),
        )

    def cases(self, state: str = "") -> list[Decided]:
        """All, or those that are "open", "confirmed", "honest" or "unsure"; the highest score first."""
        rows = self._connection.execute(
            "select c.id, kind, trajectory, task, score, title, findings, d.decision, d.note from cases c left join decisions d "
            "on d.number = (select max(number) from decisions where id = c.id) order by score desc, c.id"
        ).fetchall()
        found = [_decided(row) for row in rows]
        return [one for one in found if not state or (one.decision or "open") == state]

    def get(self, id: str) -> Decided:
        """Raises: UserError."""
        found = [one for one in self.cases() if one.case.id == id]
        if not found:
            raise UserError(f"no case {id!r} in the queue; etude monitor queue lists them")
        return found[0]

    def history(self, id: str) -> list[tuple[str, str, str]]:
        """(decision, note, who), oldest first."""
        return self._connection.execute("select decision, note, who from decisions where id = ? order by number", (id,)).fetchall()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _count(self) -> int:
        return int(self._connection.execute("select count(*) from cases").fetchone()[0])


def precision(cases: Sequence[Decided]) -> dict[str, dict[str, int]]:
    """Of each detector: cases with a finding of it that a person confirmed, and that they called honest."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"confirmed": 0, "honest": 0})
    for one in cases:
        if one.decision in ("confirmed", "honest"):
            for detector in {finding.detector for finding in one.case.findings}:
                found[detector][one.decision] += 1
    return {name: found[name] for name in sorted(found)}


def _decided(row: Sequence[Any]) -> Decided:
    case = QueuedCase(
        id=row[0],
        kind=row[1],
        trajectory=row[2],
        task=row[3],
        score=row[4],
        title=row[5],
        findings=tuple(Finding(**one) for one in json.loads(row[6])),
    )
    return Decided(case=case, decision=row[7], note=row[8] or "")


def _text(value: Any) -> Any:
    """SQLite takes no half characters."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
