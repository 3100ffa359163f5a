"""The tables of a pool, on SQLite (a file) or Postgres (a URL), with the same statements for both.

    tasks      traits of every task that may be drawn        outcomes   one row a group of rollouts
    draws      what each step drew, so that it draws it again wishes    requests for new tasks, and what became of them

Every row belongs to a `run`, the name of one policy's history. A statement is written with `?`; what differs between the two is in
`_Dialect`: how to connect, the placeholder, how to be the only writer. SQLite is in WAL mode with full synchronisation: several processes
may use one file of a local disk (WAL does not work over a network: take Postgres there), and a kill at any moment leaves whole
transactions. Postgres needs the extra `pool` (psycopg).

Not here: what the rows mean (pool.py).
"""

import importlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError

SCHEMA = 1  # a change of the tables raises it, and adds a step to UPGRADES
WAIT_S = 60.0  # for another process's transaction
LOCK = 0x657475646570  # of Postgres's advisory locks: only one writer of a pool at a time

TABLES = (
    """create table if not exists tasks (
        run text not null, id text not null, kind text not null, repo text not null, band text not null, mode text not null,
        level text not null, visible_share double precision not null, origin text not null, files text not null,
        wish text not null, admitted bigint, held text not null, cleared bigint not null, primary key (run, id))""",
    """create table if not exists outcomes (
        run text not null, key text not null, task text not null, version bigint not null, samples bigint not null,
        solved bigint not null, deviation double precision not null, shaped double precision not null,
        cost double precision not null, primary key (run, key))""",
    "create table if not exists draws (run text not null, step bigint not null, tasks text not null, primary key (run, step))",
    """create table if not exists wishes (
        run text not null, id text not null, kind text not null, change text not null, task text not null, target text not null,
        partners text not null, arm text not null, step bigint not null, state text not null, claim text not null,
        since double precision not null, note text not null, primary key (run, id))""",
)
UPGRADES: dict[int, Callable[["Database"], None]] = {}  # schema -> what makes it the next one

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Dialect:
    mark: str  # placeholder of a parameter
    begin: tuple[str, ...]  # a transaction that no other writer is in at the same time


SQLITE = _Dialect("?", ("begin immediate",))
POSTGRES = _Dialect("%s", ("begin", f"select pg_advisory_xact_lock({LOCK})"))


class Database:
    """One connection; used by one thread at a time."""

    def __init__(self, connection: Any, dialect: _Dialect, name: str) -> None:
        self._connection, self._dialect, self.name = connection, dialect, name
        self._inside = False

    def query(self, sql: str, *values: Any) -> list[Row]:
        cursor = self._connection.execute(sql.replace("?", self._dialect.mark), values)
        return [tuple(row) for row in cursor.fetchall()]

    def execute(self, sql: str, *values: Any) -> int:
        """Rows that it changed."""
        return int(self._connection.execute(sql.replace("?", self._dialect.mark), values).rowcount)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing, and no other writer meanwhile; inside another one, a part of it."""
        if self._inside:
            yield
            return
        for statement in self._dialect.begin:
            self._connection.execute(statement)
        self._inside = True
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            raise
        else:
            self._connection.execute("commit")
        finally:
            self._inside = False

    def close(self) -> None:
        self._connection.close()


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def open_database(url: str, *, create: bool = True) -> Database:
    """Connect and see to the tables. `url`: a path, or postgresql://USER@HOST/NAME. Raises: UserError."""
    if is_postgres(url):
        database = _open_postgres(url)
    elif "://" in url:
        raise UserError(f"{url} is no pool: give a file, or postgresql://USER@HOST/NAME")
    else:
        database = _open_sqlite(Path(url), create)
    try:
        _see_to_tables(database)
    except BaseException:
        database.close()
        raise
    return database


def _open_sqlite(path: Path, create: bool) -> Database:
    if not create and not path.is_file():
        raise UserError(f"no pool at {path}: `etude train` writes pool.sqlite into its run folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        _wal(connection)
        connection.execute("pragma synchronous = full")
        connection.execute("pragma foreign_keys = off")
    except (OSError, sqlite3.Error) as error:
        raise UserError(f"{path} cannot be opened as a pool ({error}): name another file, or move this one away") from None
    return Database(connection, SQLITE, str(path))


def _wal(connection: sqlite3.Connection) -> None:
    """Two processes that turn it on at once: the later is told that the file is locked, without waiting."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _open_postgres(url: str) -> Database:
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError:
        raise UserError("a pool on Postgres needs psycopg: pip install 'etude[postgres]', or use a file") from None
    try:
        connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"no pool at {_without_password(url)}: {first}") from None
    return Database(connection, POSTGRES, _without_password(url))


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}{at}{tail}" if at else url


def _see_to_tables(database: Database) -> None:
    """UserError for tables of a newer etude. Older ones are brought up to date, all in one transaction."""
    try:
        with database.transaction():
            database.execute("create table if not exists pool_schema (version bigint not null)")
            found = database.query("select version from pool_schema")
            version = found[0][0] if found else None
            if version is None:
                for statement in TABLES:
                    database.execute(statement)
                database.execute("insert into pool_schema values (?)", SCHEMA)
                return
            if version > SCHEMA:
                raise UserError(f"{database.name} was made by a newer etude (tables of version {version}, here {SCHEMA}): upgrade etude")
            for old in range(version, SCHEMA):
                UPGRADES[old](database)
            database.execute("update pool_schema set version = ?", SCHEMA)
    except sqlite3.DatabaseError as error:
        raise UserError(f"{database.name} is no pool ({error}): name another file, or move this one away") from None


def placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" for _ in values)
