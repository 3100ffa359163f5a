"""The queue for a person: nothing that was added or decided is lost, whenever the process is killed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from etude.errors import UserError
from etude.monitor.queue import Queue, QueuedCase, precision

CASE = QueuedCase(id="r1", kind="flagged", trajectory="r1", task="t", score=0.9, title="read a cache")
WRITER = """
import sys
from pathlib import Path
from etude.monitor.queue import QueuedCase, Queue
queue = Queue(Path(sys.argv[1]))
for k in range(100000):
    queue.add([QueuedCase(id=f"{k}-{half}", kind="flagged") for half in "ab"])
    queue.decide(f"{k}-a", "confirmed")
    print(k, flush=True)
"""


def test_cases_are_listed_by_score_and_decided(tmp_path, read_cache):
    with Queue(tmp_path) as queue:
        assert queue.add([replace(CASE, findings=(read_cache,)), replace(CASE, id="r2", score=0.99)]) == 2
        assert [one.case.id for one in queue.cases("open")] == ["r2", "r1"]
        queue.decide("r1", "unsure", note="ask Ann")
        queue.decide("r1", "confirmed", note="it did \ud800", who="ann")
    with Queue(tmp_path, create=False) as queue:
        found = queue.get("r1")
        assert (found.decision, found.note, found.case.findings) == ("confirmed", "it did ?", (read_cache,))
        assert [decision for decision, _, _ in queue.history("r1")] == ["unsure", "confirmed"]
        assert [one.case.id for one in queue.cases("open")] == ["r2"]


def test_adding_again_brings_the_evidence_up_to_date_and_keeps_the_decision(tmp_path):
    with Queue(tmp_path) as queue:
        queue.add([CASE])
        queue.decide("r1", "honest")
        assert queue.add([replace(CASE, score=0.4, title="less")]) == 0
        found = queue.get("r1")
    assert (found.decision, found.case.score, found.case.title) == ("honest", 0.4, "less")


def test_a_mistake_is_one_line(tmp_path):
    with Queue(tmp_path) as queue:
        queue.add([CASE])
        with pytest.raises(UserError, match="no case 'r9'"):
            queue.decide("r9", "honest")
        with pytest.raises(UserError, match="'guilty', allowed are confirmed, honest, unsure"):
            queue.decide("r1", "guilty")
    with pytest.raises(UserError, match="no queue"):
        Queue(tmp_path / "nowhere", create=False)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "queue.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(UserError, match="cannot be opened"):
        Queue(tmp_path / "broken")


def test_decisions_give_the_precision_of_each_detector(tmp_path, read_cache):
    with Queue(tmp_path) as queue:
        queue.add([replace(CASE, id=str(k), findings=(read_cache, read_cache)) for k in range(3)])
        queue.decide("0", "confirmed")
        queue.decide("1", "honest")
        queue.decide("2", "unsure")
        assert precision(queue.cases()) == {"cache": {"confirmed": 1, "honest": 1}}


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_said_was_done(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert [writer.stdout.readline() for _ in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
    os.kill(writer.pid, signal.SIGKILL)
    done = [0, 1, 2, 3, *map(int, writer.communicate(timeout=20)[0].split())]
    with Queue(tmp_path) as queue:
        states = {one.case.id: one.decision for one in queue.cases()}
    for k in done:
        assert (states[f"{k}-a"], states[f"{k}-b"]) == ("confirmed", None)
    assert all(f"{id[:-1]}b" in states for id in states), "half of an addition is there"
