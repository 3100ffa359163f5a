"""The pool of a run: which tasks there are, what their groups did, what each step drew, what is wished for. All of it in a database.

    pool = Pool("runs/train/pool.sqlite", settings, group_size=8)      or Pool("postgresql://...", ..., run="train-7")
    pool.register(entries)
    drawn = pool.draw(4, seed=0, step=12)
    pool.record(task, version=12, solved=[True, False, ...], rewards=[1.0, 0.1, ...], cost=tokens)
    pool.wish(step=12, can=("join",), target=16)       a Grower (grow.py) fulfils them
    pool.admit(step=13)                                what was made may be drawn from here on

A draw depends on the seed, the step, the tasks admitted up to it and the outcomes of versions before it, and is written down: asked again,
the answer is the same, also in another process. Everything carries its step, so `rewind` takes back what a killed run did after its
checkpoint. Recording the same key again replaces the group. Processes may share a pool; each thread opens its own Pool.

Not here: the tables (database.py), what the numbers mean (view.py).
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import msgspec

from etude.config import PoolConfig
from etude.errors import UserError
from etude.pool.database import Database, Row, open_database
from etude.pool.draw import Draw, choose
from etude.pool.entry import Change, Entry, Outcome, Wish, outcome_of
from etude.pool.evolve import wishes
from etude.pool.view import PoolView, look

LEASE_S = 3600.0  # after which a wish that somebody took is open again: its maker is dead
ENTRY_COLUMNS = "id, kind, repo, band, mode, level, visible_share, origin, files, wish, admitted, held, cleared"
OUTCOME_COLUMNS = "key, task, version, samples, solved, deviation, shaped, cost"
WISH_COLUMNS = "kind, change, task, target, partners, arm, step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A wish that this worker is to fulfil."""

    wish: Wish
    token: str


class Pool:
    def __init__(
        self, url: str, settings: PoolConfig = PoolConfig(), *, group_size: int = 8, run: str = "main", create: bool = True
    ) -> None:
        """Raises: UserError."""
        self.url, self.settings, self.group_size, self.run = url, settings, group_size, run
        self._database: Database = open_database(url, create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def again(self) -> "Pool":
        """Another connection, for another thread."""
        return Pool(self.url, self.settings, group_size=self.group_size, run=self.run)

    # tasks

    def register(self, entries: Iterable[Entry]) -> int:
        """Tasks that the pool does not know yet; returns how many. One that it knows stays as it is."""
        with self._database.transaction():
            return sum(self._insert(entry) for entry in entries)

    def _insert(self, entry: Entry) -> int:
        return self._database.execute(
            f"insert into tasks (run, {ENTRY_COLUMNS}) values ({', '.join('?' * 14)}) on conflict (run, id) do nothing",
            self.run, entry.id, entry.kind, entry.repo, entry.band, entry.mode, entry.level, entry.visible_share,
            json.dumps(entry.origin), json.dumps(entry.files), entry.wish, entry.admitted, entry.held, entry.cleared,
        )  # fmt: skip

    def entries(self) -> list[Entry]:
        """Sorted by id."""
        rows = self._database.query(f"select {ENTRY_COLUMNS} from tasks where run = ?", self.run)
        return sorted(map(_entry, rows), key=lambda entry: entry.id)

    def hold(self, task: str, why: str) -> None:
        """Take a task out, until `release`. Raises: UserError for an unknown one, and for no reason."""
        if not why:
            raise UserError(f"{task} is to be held: say why")
        self._mark(task, "held = ?", why)

    def release(self, task: str) -> None:
        self._mark(task, "held = ?", "")

    def clear(self, task: str, version: int) -> None:
        """The alarms of a task, up to that policy version, were looked into and are void."""
        self._mark(task, "cleared = ?", version)

    def _mark(self, task: str, what: str, value: str | int) -> None:
        if not self._database.execute(f"update tasks set {what} where run = ? and id = ?", value, self.run, task):
            raise UserError(f"no task {task!r} in the pool {self._database.name}, run {self.run!r}")

    # outcomes

    def record(
        self, task: str, version: int, solved: Sequence[bool], rewards: Sequence[float] | None = None, *, cost: float = 1.0, key: str = ""
    ) -> Outcome:
        """What one group of rollouts with a verdict did, under the policy of that version. `rewards`: where they are not 0 and 1.

        `key` names the group: the same key again replaces it; without one each call is another group. Raises: UserError for an unknown
        task, ValueError for lists of different lengths or no rollout.
        """
        if not solved:
            raise ValueError(f"no outcome of {task}: leave out a group without a verdict")
        values = [float(one) for one in solved] if rewards is None else rewards
        with self._database.transaction():
            if not self._database.query("select 1 from tasks where run = ? and id = ?", self.run, task):
                raise UserError(f"no task {task!r} in the pool {self._database.name}, run {self.run!r}: register it first")
            one = outcome_of(key or self._next_key(task, version), task, version, solved, values, cost)
            self._database.execute("delete from outcomes where run = ? and key = ?", self.run, one.key)
            self._database.execute(
                f"insert into outcomes (run, {OUTCOME_COLUMNS}) values ({', '.join('?' * 9)})",
                self.run, one.key, one.task, one.version, one.samples, one.solved, one.deviation, one.shaped, one.cost,
            )  # fmt: skip
        return one

    def _next_key(self, task: str, version: int) -> str:
        found = self._database.query("select count(*) from outcomes where run = ? and task = ? and version = ?", self.run, task, version)
        return f"{version:08d}/{task}/{found[0][0]:04d}"

    def outcomes(self, *, before: int | None = None) -> list[Outcome]:
        """Of the policy versions before that one, or all."""
        where, values = ("", ()) if before is None else (" and version < ?", (before,))
        rows = self._database.query(f"select {OUTCOME_COLUMNS} from outcomes where run = ?{where}", self.run, *values)
        return [Outcome(key=r[0], task=r[1], version=r[2], samples=r[3], solved=r[4], deviation=r[5], shaped=r[6], cost=r[7]) for r in rows]

    def version(self) -> int:
        """The latest that an outcome is of, plus one: the step that comes next."""
        (found,) = self._database.query("select max(version) from outcomes where run = ?", self.run)
        return 0 if found[0] is None else int(found[0]) + 1

    def view(self, step: int | None = None) -> PoolView:
        """All that is known before that step, or now."""
        step = self.version() if step is None else step
        return look(self.entries(), self.outcomes(before=step), version=step, group_size=self.group_size, settings=self.settings)

    # draws

    def draw(self, n: int, *, seed: int, step: int) -> Draw:
        """The tasks of a step, at least one and at most n x oversample. Raises: UserError where none is left."""
        with self._database.transaction():
            view = self.view(step)
            known = self._database.query("select tasks from draws where run = ? and step = ?", self.run, step)
            if known:
                ids = tuple(msgspec.json.decode(known[0][0]))
                return Draw(step=step, tasks=ids, expected=sum(view.tasks[name].informative for name in ids if name in view.tasks))
            drawn = choose(view, n, seed=seed, step=step)
            if not drawn.tasks:
                raise UserError(
                    f"the pool has no task left to draw at step {step + 1} ({_states(view)}; each may be drawn "
                    f"{self.settings.max_draws or 'any number of'} times): build more tasks, raise pool.max_draws, or set pool.grow"
                )
            self._database.execute("insert into draws (run, step, tasks) values (?, ?, ?)", self.run, step, json.dumps(drawn.tasks))
        return drawn

    # wishes

    def wish(self, *, step: int, can: Collection[Change], target: int) -> list[Wish]:
        """After the outcomes of a step: ask for as many tasks as the frontier, with what is under way, lacks to `target`. Returns them."""
        with self._database.transaction():
            view = self.view(step + 1)
            states: dict[str, str] = dict(self._database.query("select id, state from wishes where run = ?", self.run))
            waiting = sum(state in ("open", "taken") for state in states.values())
            waiting += sum(entry.admitted is None for entry in self.entries())
            lacking = target - len(view.frontier) - waiting
            found = wishes(view, states, can, limit=lacking, step=step) if lacking > 0 else []
            for wish in found:
                self._database.execute(
                    f"insert into wishes (run, id, {WISH_COLUMNS}, state, claim, since, note) values ({', '.join('?' * 13)})",
                    self.run, wish.id, wish.kind, wish.change, wish.task, wish.to, json.dumps(wish.partners), json.dumps(wish.arm),
                    wish.step, "open", "", 0.0, "",
                )  # fmt: skip
        return found

    def wishes(self, *states: str) -> list[tuple[Wish, str, str]]:
        """(wish, state, note), oldest first; all, or those in one of `states`: open, taken, made, failed, late."""
        rows = self._database.query(f"select {WISH_COLUMNS}, state, note from wishes where run = ? order by step, id", self.run)
        return [(_wish(row), row[7], row[8]) for row in rows if not states or row[7] in states]

    def take(self, *, now: float | None = None) -> Claim | None:
        """The oldest open wish, for this worker alone; one whose maker has died counts as open."""
        now = time.time() if now is None else now
        with self._database.transaction():
            rows = self._database.query(
                f"select {WISH_COLUMNS}, id from wishes where run = ? and (state = 'open' or (state = 'taken' and since < ?)) "
                "order by step, id limit 1",
                self.run, now - LEASE_S,
            )  # fmt: skip
            if not rows:
                return None
            token = uuid.uuid4().hex
            self._database.execute(
                "update wishes set state = 'taken', claim = ?, since = ? where run = ? and id = ?", token, now, self.run, rows[0][7]
            )
        return Claim(wish=_wish(rows[0]), token=token)

    def fulfil(self, claim: Claim, entries: Iterable[Entry]) -> bool:
        """What was made waits to be admitted. False, and nothing happens, where the wish is not this worker's any more."""
        with self._database.transaction():
            if not self._close(claim, "made", ""):
                return False
            for entry in entries:
                self._insert(entry)
        return True

    def fail(self, claim: Claim, why: str, *, state: str = "failed") -> bool:
        return self._close(claim, state, why)

    def _close(self, claim: Claim, state: str, note: str) -> bool:
        changed = self._database.execute(
            "update wishes set state = ?, note = ? where run = ? and id = ? and claim = ? and state = 'taken'",
            state, note, self.run, claim.wish.id, claim.token,
        )  # fmt: skip
        return changed == 1

    def admit(self, *, step: int, upto: int | None = None) -> list[str]:
        """Tasks that were made since may be drawn from this step on, those of wishes up to step `upto` only; their ids, sorted."""
        with self._database.transaction():
            steps: dict[str, int] = dict(self._database.query("select id, step from wishes where run = ?", self.run))
            ready = [one.id for one in self.entries() if one.admitted is None and (upto is None or steps.get(one.wish, 0) <= upto)]
            for name in ready:
                self._database.execute("update tasks set admitted = ? where run = ? and id = ?", step, self.run, name)
        return ready

    def stand_in(self, entry: Entry, *, step: int) -> None:
        """Takes in a task that stands for one that is held; it may be drawn from this step on, again so after a rewind."""
        with self._database.transaction():
            self._insert(replace(entry, admitted=step))
            self._database.execute("update tasks set admitted = ? where run = ? and id = ? and admitted is null", step, self.run, entry.id)

    def pending(self, *, upto: int) -> int:
        """Wishes up to that step that nobody has answered."""
        return sum(wish.step <= upto for wish, _, _ in self.wishes("open", "taken"))

    def rewind(self, step: int) -> None:
        """The run goes on from the checkpoint before `step`: what came of that step and later ones is forgotten, its draw is not.

        Before step 0 there is nothing to go on from: everything is forgotten, the tasks too.
        """
        with self._database.transaction():
            if step == 0:
                for table in ("tasks", "outcomes", "draws", "wishes"):
                    self._database.execute(f"delete from {table} where run = ?", self.run)
                return
            later = [row[0] for row in self._database.query("select id from wishes where run = ? and step >= ?", self.run, step)]
            for wish in later:
                self._database.execute("delete from tasks where run = ? and wish = ?", self.run, wish)
            for statement in (
                "delete from wishes where run = ? and step >= ?",
                "delete from outcomes where run = ? and version >= ?",
                "delete from draws where run = ? and step > ?",
                "update tasks set admitted = null where run = ? and admitted > ?",
            ):
                self._database.execute(statement, self.run, step)
            self._database.execute("update wishes set state = 'open', claim = '' where run = ? and state = 'taken'", self.run)


def runs(url: str) -> list[str]:
    """The names of what a database holds. Raises: UserError."""
    database = open_database(url, create=False)
    try:
        return sorted(row[0] for row in database.query("select distinct run from tasks"))
    finally:
        database.close()


def _entry(row: Row) -> Entry:
    return Entry(
        id=row[0],
        kind=row[1],
        repo=row[2],
        band=row[3],
        mode=row[4],
        level=row[5],
        visible_share=row[6],
        origin=tuple(msgspec.json.decode(row[7])),
        files=tuple(msgspec.json.decode(row[8])),
        wish=row[9],
        admitted=row[10],
        held=row[11],
        cleared=row[12],
    )


def _wish(row: Row) -> Wish:
    kind, group, size = msgspec.json.decode(row[5])
    return Wish(
        kind=row[0],
        change=row[1],
        task=row[2],
        to=row[3],
        partners=tuple(msgspec.json.decode(row[4])),
        arm=(kind, group, size),
        step=row[6],
    )


def _states(view: PoolView) -> str:
    counts = Counter(one.state for one in view.tasks.values())
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "it is empty"
