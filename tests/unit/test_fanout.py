"""Many commands at a time: lines, ends, deadlines, and nobody left when the one who started them dies."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.fanout import Ended, Job, fan_out, fan_out_ray

HAS_RAY = importlib.util.find_spec("ray") is not None
ECHO = "import sys; print(sys.stdin.readline().strip()); print('second')"
# starts a job that says where it is and then sleeps for long
PARENT = """
import sys
from etude.fanout import Job, fan_out
job = Job(argv=(sys.executable, "-c", sys.argv[1]), line=b"", wall_s=60)
for _, line in fan_out([job], 1):
    print(line.decode(), flush=True)
"""
CHILD = "import os, time; from etude.fanout import die_with_parent; die_with_parent(); print(os.getpid(), flush=True); time.sleep(60)"


def job(code, line=b"", wall_s=30.0):
    return Job(argv=(sys.executable, "-c", code), line=line, wall_s=wall_s)


def ends(jobs, workers=2):
    return sorted_out(fan_out(jobs, workers))


def sorted_out(events):
    lines, found = {}, {}
    for number, event in events:
        if isinstance(event, Ended):
            found[number] = event
        else:
            lines.setdefault(number, []).append(event)
    return lines, found


def test_every_job_gets_its_line_and_tells_its_own():
    lines, found = ends([job(ECHO, b"one"), job(ECHO, b"two"), job(ECHO, b"three")])
    assert lines == {0: [b"one", b"second"], 1: [b"two", b"second"], 2: [b"three", b"second"]}
    assert [found[number].code for number in range(3)] == [0, 0, 0]


def test_a_job_that_fails_is_told_and_the_others_go_on():
    _, found = ends(
        [job("import sys; sys.exit('no such thing')"), Job(argv=("/no/such/program",), line=b"", wall_s=5), job(ECHO)], workers=1
    )
    assert found[0].code == 1
    assert "no such thing" in found[0].stderr
    assert found[1].code == 127
    assert "/no/such/program" in found[1].stderr
    assert found[2].code == 0


def test_a_job_that_does_not_end_is_killed_with_all_its_processes(tmp_path):
    code = f"import os, time; os.fork(); open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w'); time.sleep(60)"
    _, found = ends([job(code, wall_s=1.5)])
    assert found[0].code is None
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_no_more_jobs_at_a_time_than_workers(tmp_path):
    code = f"""
import os, time
place = {str(tmp_path)!r} + "/" + str(os.getpid())
open(place, "w").close()
print(len(os.listdir({str(tmp_path)!r})))
time.sleep(0.3)
os.remove(place)
"""
    lines, _ = ends([job(code)] * 5)
    assert max(int(line) for each in lines.values() for line in each) == 2


def test_a_ray_cluster_tells_the_same_or_that_ray_is_missing():
    """With ray in the environment the jobs run on a cluster of this machine; the suite's own has none."""
    jobs = [job(ECHO, b"one"), job("import sys; sys.exit('no such thing')"), Job(argv=("/no/such/program",), line=b"", wall_s=5)]
    if not HAS_RAY:
        with pytest.raises(UserError, match=r"ray is not installed; install it: pip install 'etude\[cluster\]'"):
            next(fan_out_ray(jobs, 2, "local"))
        return
    lines, found = sorted_out(fan_out_ray(jobs, 2, "local"))
    assert lines == {0: [b"one", b"second"]}
    assert [found[number].code for number in range(3)] == [0, 1, 127]
    assert "no such thing" in found[1].stderr
    assert "/no/such/program" in found[2].stderr
    with pytest.raises(UserError, match=r"no Ray cluster at 'ray://127\.0\.0\.1:1'"):
        next(fan_out_ray(jobs, 2, "ray://127.0.0.1:1"))


def test_leaving_the_iterator_ends_what_runs():
    events = fan_out([job("import os, time; print(os.getpid(), flush=True); time.sleep(60)")], 1)
    pid = int(next(events)[1])
    events.close()
    wait_until(lambda: not alive(pid))


def test_jobs_die_with_the_one_who_started_them():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(pid))
    parent.stdout.close()


def alive(pid):
    """Running, not merely unreaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
