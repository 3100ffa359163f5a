"""The pool in its database: what is recorded stays, draws are repeated, a run is rewound, processes and kills do no harm.

Each test runs on SQLite, and on a Postgres of its own where one can be started.
"""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etude.config import PoolConfig
from etude.errors import UserError
from etude.pool.database import SCHEMA, open_database
from etude.pool.entry import CHANGES, Entry
from etude.pool.pool import LEASE_S, Pool, runs


def entry(name: str, **traits: object) -> Entry:
    return Entry(**{"id": name, "kind": "feature_deletion", "repo": "toolz", "band": "S", **traits})


NAMES = [f"t{k}" for k in range(12)]
ENTRIES = [entry(name, origin=("x", "y"), files=("a b.py", "ü.py")) for name in NAMES]
EVEN, ALL, NONE = [True, False] * 4, [True] * 8, [False] * 8


def test_what_was_put_in_comes_out_also_after_closing(url):
    with Pool(url) as pool:
        assert pool.register(ENTRIES) == len(NAMES)
        assert pool.register(ENTRIES) == 0
        recorded = pool.record("t3", 5, EVEN, [0.1 * k for k in range(8)], cost=12.5)
    with Pool(url) as pool:
        assert pool.entries() == sorted(ENTRIES, key=lambda one: one.id)
        assert pool.outcomes() == [recorded]
        assert (recorded.samples, recorded.solved, recorded.cost, recorded.deviation) == (8, 4, 12.5, pytest.approx(0.2))
        assert pool.version() == 6
        assert pool.view().tasks["t3"].rate == 0.5


def test_the_same_key_replaces_and_no_key_adds(open_pool):
    pool = open_pool()
    pool.register(ENTRIES)
    for solved in (EVEN, ALL):
        pool.record("t0", 1, solved, key="step-1/t0")
    assert [one.solved for one in pool.outcomes()] == [8]
    for _ in range(2):
        pool.record("t1", 1, NONE)
    assert len(pool.outcomes()) == 3


def test_what_cannot_be_recorded_is_named(open_pool):
    pool = open_pool()
    pool.register(ENTRIES)
    with pytest.raises(UserError, match=r"no task 'nobody'.*register it"):
        pool.record("nobody", 0, ALL)
    with pytest.raises(ValueError, match="no outcome of t0"):
        pool.record("t0", 0, [])
    for mark in (lambda: pool.hold("nobody", "why"), lambda: pool.clear("nobody", 1)):
        with pytest.raises(UserError, match="'nobody'"):
            mark()
    with pytest.raises(UserError, match="say why"):
        pool.hold("t0", "")
    assert pool.outcomes() == []


def test_a_draw_is_repeated_whatever_was_recorded_since_and_uses_only_what_was_before(open_pool):
    pool, other = open_pool(), open_pool()
    pool.register(ENTRIES)
    first = pool.draw(4, seed=0, step=0)
    for name in first.tasks:
        pool.record(name, 0, ALL)
    assert other.draw(4, seed=0, step=0).tasks == first.tasks
    assert not set(pool.draw(4, seed=0, step=1).tasks) & set(first.tasks)  # each once


def test_an_exhausted_pool_says_so(open_pool):
    pool = open_pool()
    pool.register(ENTRIES[:2])
    for name in pool.draw(4, seed=0, step=0).tasks:
        pool.record(name, 0, EVEN)
    with pytest.raises(UserError, match=r"no task left to draw at step 2 \(2 active; each may be drawn 1 times\): build more"):
        pool.draw(4, seed=0, step=1)


def play(pool: Pool, steps: range, *, stop: int | None = None) -> list[tuple[str, ...]]:
    """Steps of a policy that solves what its name says; with wishes, made between two steps. `stop`: die before that step's checkpoint."""
    drawn = []
    for step in steps:
        pool.admit(step=step)
        drawn.append(pool.draw(3, seed=7, step=step).tasks)
        for name in drawn[-1]:
            pool.record(name, step, [(k + step + len(name)) % 8 > 0 for k in range(8)], key=f"{step}/{name}")
        pool.wish(step=step, can=CHANGES, target=12)
        if stop == step:
            return drawn
        while (claim := pool.take(now=0.0)) is not None:
            pool.fulfil(claim, [entry(f"made-{claim.wish.id}", wish=claim.wish.id, admitted=None)])
    return drawn


def state(pool: Pool) -> tuple[object, ...]:
    return (pool.entries(), sorted(pool.outcomes(), key=lambda one: one.key), pool.wishes())


def test_a_run_that_dies_in_any_step_and_is_rewound_draws_what_it_would_have_drawn(tmp_path):
    settings = PoolConfig(max_draws=0)
    with Pool(str(tmp_path / "whole"), settings) as pool:
        pool.register(ENTRIES)
        expected, end = play(pool, range(6)), state(pool)
    assert len({name for drawn in expected for name in drawn if name.startswith("made")}) > 1
    for stop in range(6):
        with Pool(str(tmp_path / f"dies-{stop}"), settings) as pool:
            pool.register(ENTRIES)
            play(pool, range(6), stop=stop)
            pool.rewind(stop)
            pool.register(ENTRIES)
            assert play(pool, range(stop, 6)) == expected[stop:]
            assert state(pool) == end


def test_rewinding_to_an_older_checkpoint_forgets_later_draws(tmp_path):
    with Pool(str(tmp_path / "pool"), PoolConfig(max_draws=0)) as pool:
        pool.register(ENTRIES)
        expected, end = play(pool, range(5)), state(pool)
        pool.rewind(2)
        assert pool.version() == 2
        assert play(pool, range(2, 5)) == expected[2:]
        assert state(pool) == end


def test_runs_of_one_database_know_nothing_of_each_other(url):
    with Pool(url, run="a") as a, Pool(url, run="b") as b:
        a.register(ENTRIES)
        b.register(ENTRIES[:1])
        a.record("t0", 0, ALL)
        assert (b.outcomes(), len(b.entries())) == ([], 1)
        b.rewind(0)
        assert (len(a.entries()), b.entries()) == (len(NAMES), [])
    assert runs(url) == ["a"]


def test_a_wish_is_taken_by_one_and_fulfilled_by_whom_it_belongs_to(open_pool):
    pool = open_pool()
    pool.register(ENTRIES)
    pool.record("t0", 0, ALL)
    (wish,) = pool.wish(step=0, can=("lower_level",), target=100)
    assert pool.wish(step=0, can=("lower_level",), target=100) == []
    claim = pool.take(now=10.0)
    assert claim is not None
    assert claim.wish == wish
    assert pool.take(now=10.0) is None
    later = pool.take(now=11.0 + LEASE_S)  # the first maker is taken for dead
    assert later is not None
    assert not pool.fulfil(claim, [entry("late", admitted=None)])
    assert not pool.fail(claim, "late")
    assert pool.fulfil(later, [entry("made", wish=wish.id, admitted=None)])
    assert pool.view().tasks["made"].entry.admitted is None
    assert "made" not in pool.draw(20, seed=0, step=1).tasks
    assert pool.admit(step=2, upto=-1) == []
    assert pool.admit(step=2) == ["made"]
    assert "made" in pool.draw(20, seed=0, step=2).tasks
    assert [(state, note) for _, state, note in pool.wishes()] == [("made", "")]


def test_nothing_is_wished_for_while_the_frontier_is_wide_enough(open_pool):
    pool = open_pool(max_draws=0)
    pool.register(ENTRIES)
    for name in NAMES:
        pool.record(name, 0, ALL if name in NAMES[:3] else EVEN)
    assert pool.wish(step=0, can=("lower_level",), target=1) == []
    assert len(pool.wish(step=0, can=("lower_level",), target=len(pool.view().frontier) + 2)) == 2


RECORD = """
import sys
from etude.pool.pool import Pool
from etude.pool.entry import Entry
url, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("up", flush=True)
with Pool(url) as pool:
    pool.register([Entry(id=f"t{k}", kind="k", repo="r", band="S") for k in range(12)])
    drawn = pool.draw(4, seed=0, step=1000).tasks
    for number in range(count):
        pool.record(f"t{number % 12}", number, [True, False], key=f"{me}/{number}")
        print(number, flush=True)
    print(",".join(drawn))
"""


def start(url: str, me: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", RECORD, url, me, str(count)], stdout=subprocess.PIPE, text=True)


def test_processes_that_open_an_empty_pool_at_once_share_it_and_draw_the_same(url):
    processes = [start(url, str(k), 40) for k in range(3)]
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert len({output[-1] for output in outputs}) == 1
    with Pool(url) as pool:
        assert len(pool.outcomes()) == 120


def test_a_kill_loses_nothing_that_was_recorded(url):
    process = start(url, "x", 100_000)
    assert process.stdout is not None
    done = 0
    while done < 25:
        line = process.stdout.readline().strip()
        assert line
        done = int(line) if line.isdigit() else 0
    process.send_signal(signal.SIGKILL)
    told = [int(line) for line in process.stdout.read().split() if line.isdigit()]
    process.wait()
    with Pool(url) as pool:
        keys = {one.key for one in pool.outcomes()}
        assert {f"x/{number}" for number in range(max([done, *told]) + 1)} <= keys
        pool.record("t0", 0, ALL)


def test_threads_with_a_connection_each_record_side_by_side(url):
    with Pool(url) as pool:
        pool.register(ENTRIES)

        def work(number: int) -> None:
            with pool.again() as mine:
                for _ in range(10):
                    mine.record(NAMES[number], 1, EVEN)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert len(pool.outcomes()) == 40


def test_half_a_transaction_is_none(url):
    database = open_database(url)

    def half() -> None:
        with database.transaction():
            database.execute("insert into draws (run, step, tasks) values ('r', 1, '[]')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert database.query("select count(*) from draws") == [(0,)]
    database.close()


def test_a_pool_of_a_newer_etude_is_refused(url):
    database = open_database(url)
    database.execute("update pool_schema set version = ?", SCHEMA + 1)
    database.close()
    with pytest.raises(UserError, match="newer etude"):
        Pool(url)


def test_what_is_no_pool_is_named(tmp_path):
    (tmp_path / "text").write_text("no database " * 100)
    for where, problem in (
        (str(tmp_path / "text"), "is no pool|cannot be opened"),
        (str(tmp_path), "cannot be opened"),
        ("mysql://host/name", "give a file, or postgresql"),
    ):
        with pytest.raises(UserError, match=problem):
            Pool(where)
    with pytest.raises(UserError, match=r"no pool at .*/missing"):
        Pool(str(tmp_path / "missing"), create=False)
    assert not Path(tmp_path / "missing").exists()


def test_sqlite_is_in_wal_mode_so_readers_do_not_wait_for_a_writer(tmp_path):
    with Pool(str(tmp_path / "pool")) as pool, Pool(str(tmp_path / "pool")) as reader:
        pool.register(ENTRIES)
        with pool._database.transaction():
            pool.record("t0", 0, ALL)
            begun = time.monotonic()
            assert reader.outcomes() == []
            assert time.monotonic() - begun < 30  # SQLite would wait a minute for a lock
        assert len(reader.outcomes()) == 1
