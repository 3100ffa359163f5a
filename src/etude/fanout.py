"""Many commands on many processes, here or on a Ray cluster: what each prints, line by line, and how it ended.

In: `Job`s; out: pairs (number of the job, a line that it printed) and, last of each job, (number, `Ended`). A job gets its first line of
input and then an open pipe: the pipe ends when this process dies, however it dies, and `die_with_parent` in the job acts on that. Every job
has a deadline. A job that fails is reported, the others go on.

Not here: what the jobs do.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etude.errors import UserError

STDERR_BYTES = 4000  # kept of what a job says at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    argv: tuple[str, ...]
    line: bytes  # the first line of its input, without the newline
    wall_s: float  # seconds until it is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int | None  # exit code, negative for a signal; None: killed at its deadline
    stderr: str  # the end of it
    seconds: float


Event = tuple[int, bytes | Ended]
NO_JOB: tuple[int, None] = (-1, None)


def fan_out(jobs: Sequence[Job], workers: int) -> Iterator[Event]:
    """At most `workers` jobs at a time on this machine, begun in their order. Leaving the iterator kills what still runs."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    waiting = iter(enumerate(jobs))
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with lock:
                number, job = next(waiting, NO_JOB)
            if job is None:
                return
            try:
                for event in run_job(job, stop):
                    events.put((number, event))
            except OSError as error:  # it could not be started
                events.put((number, Ended(code=127, stderr=str(error), seconds=0.0)))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        left = len(jobs)
        while left:
            event = events.get()
            left -= isinstance(event[1], Ended)
            yield event
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=10)


def fan_out_ray(jobs: Sequence[Job], workers: int, address: str) -> Iterator[Event]:
    """The same on a Ray cluster, one core a job; the nodes share the file system. `address`: "auto", "local", or ray://HOST:PORT.

    UserError where ray is not installed or the cluster is not there.
    """
    try:
        import ray
    except ImportError:
        raise UserError("ray is not installed; install it: pip install 'etude[cluster]'") from None
    try:
        ray.init(address=None if address == "local" else address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster at {address!r}: {str(error).splitlines()[0]}; start one with `ray start --head`") from None
    remote: Any = ray.remote(num_cpus=1, max_retries=0)(run_job).options(num_returns="streaming")
    waiting = iter(enumerate(jobs))
    running: dict[Any, int] = {}

    def begin() -> None:
        for number, job in waiting:
            running[remote.remote(job)] = number
            return

    try:
        for _ in range(workers):
            begin()
        while running:
            for stream in ray.wait(list(running), num_returns=1, fetch_local=False)[0]:
                try:
                    event = ray.get(next(stream))
                except StopIteration:
                    del running[stream]
                    begin()
                    continue
                except ray.exceptions.RayError as error:  # also where the node or its worker is gone
                    reason = str(getattr(error, "cause", None) or error).splitlines()[0]  # cause: it could not be started
                    yield running.pop(stream), Ended(code=127, stderr=reason, seconds=0.0)
                    begin()
                    continue
                yield running[stream], event
    finally:
        for stream in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(stream, force=True)
        ray.shutdown()


def run_job(job: Job, stop: threading.Event | None = None) -> Iterator[bytes | Ended]:
    """One job's lines, then its end. OSError where it cannot be started."""
    start = time.monotonic()
    expired = threading.Event()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(job.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        assert process.stdin is not None
        assert process.stdout is not None
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                late = time.monotonic() - start > job.wall_s
                if late or (stop is not None and stop.is_set()):
                    if late:
                        expired.set()
                    _kill(process)
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(job.line + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                yield line.rstrip(b"\n")
            code = process.wait()
        finally:
            done.set()
            _kill(process)
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - STDERR_BYTES))
        text = errors.read().decode(errors="replace")
    yield Ended(code=None if expired.is_set() else code, stderr=text, seconds=time.monotonic() - start)


def die_with_parent() -> bytes:
    """For a job: its line of input. From then on this process group ends as soon as the one who started it does."""
    line = sys.stdin.buffer.readline().rstrip(b"\n")

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
    return line


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
