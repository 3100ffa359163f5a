"""A pool on each database that is here: SQLite always, Postgres where its binaries and psycopg are installed."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.config import PoolConfig
from etude.pool.pool import Pool

HAS_POSTGRES = shutil.which("initdb") is not None and shutil.which("pg_ctl") is not None and importlib.util.find_spec("psycopg") is not None
DATABASES = ("sqlite", "postgres") if HAS_POSTGRES else ("sqlite",)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested is said."""
    if not HAS_POSTGRES:
        terminalreporter.write_line("pool: tested on SQLite only; Postgres needs initdb and pg_ctl on the PATH, and psycopg")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a cluster of this session, on a socket, without a port. Postgres refuses root, who lends it to another user."""
    ids: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="etude-pg-", ignore_cleanup_errors=True) as name:  # not pytest's: others may not enter that
        folder = Path(name)
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres" if any(one.pw_name == "postgres" for one in pwd.getpwall()) else "nobody")
            ids = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(folder, user.pw_uid, user.pw_gid)
        data, options = folder / "data", f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"

        def call(*command: str) -> None:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **ids)
            assert done.returncode == 0, done.stdout + done.stderr

        call("initdb", "-D", str(data), "-U", "etude", "-A", "trust", "--no-sync")
        call("pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://etude@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


@pytest.fixture(params=DATABASES)
def url(request, tmp_path) -> Iterator[str]:
    """Of an empty pool."""
    if request.param == "sqlite":
        yield str(tmp_path / "pool.sqlite")
        return
    import psycopg

    base = request.getfixturevalue("postgres")
    name = f"pool_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    yield base.replace("/postgres?", f"/{name}?")


@pytest.fixture
def open_pool(url) -> Iterator[object]:
    opened: list[Pool] = []

    def make(**settings: object) -> Pool:
        opened.append(Pool(url, PoolConfig(**settings)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
