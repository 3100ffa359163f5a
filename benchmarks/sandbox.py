"""How long a sandbox takes to start, and how many a core can serve.

    start       open a sandbox over 200 files and run `true` in it         run     another `true` in an open one
    close       until its last process is gone                             bare    bubblewrap alone with the same flags, for `true`
    start_32    start, while 31 other sandboxes are open

per_core_minute is the number of whole lives (open, run `true`, close) that all cores together, kept busy by two threads each, finish in
a minute, divided by the number of cores.

    python -m benchmarks.sandbox [--quick]

Not here: what runs in a sandbox (tests, an agent), limits.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import report
from etude.sandbox.bubblewrap import Bubblewrap
from etude.sandbox.protocol import Sandbox

NUM_FILES = 200
NUM_OPEN = 31
BARE = (
    "bwrap --unshare-all --unshare-user --disable-userns --uid 1000 --gid 1000 --new-session --die-with-parent --ro-bind / / "
    "--proc /proc --dev /dev true"
)


def make_workspace(folder: Path) -> Path:
    for number in range(NUM_FILES):
        path = folder / f"package{number % 10}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 100)
    return folder


def timed_ms(use: Callable[[], object]) -> float:
    start = time.perf_counter()
    use()
    return (time.perf_counter() - start) * 1000


def one_life(backend: Bubblewrap, workspace: Path) -> dict[str, float]:
    """Milliseconds of each part of one sandbox's life."""
    with ExitStack() as stack:
        opened: list[Sandbox] = []

        def start() -> None:
            opened.append(stack.enter_context(backend.open(workspace)))
            opened[0].run(["true"])

        times = {"start": timed_ms(start), "run": timed_ms(lambda: opened[0].run(["true"])), "close": timed_ms(opened[0].close)}
    return times


def lives_per_core_minute(backend: Bubblewrap, workspace: Path, seconds: float) -> float:
    cores = os.cpu_count() or 1
    end = time.perf_counter() + seconds

    def work(_: int) -> int:
        done = 0
        while time.perf_counter() < end:
            with backend.open(workspace) as sandbox:
                sandbox.run(["true"])
            done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(2 * cores) as pool:
        done = sum(pool.map(work, range(2 * cores)))
    return done / (time.perf_counter() - start) * 60 / cores


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; figures for nobody to quote")
    quick = parser.parse_args().quick
    rounds, seconds = (20, 2.0) if quick else (200, 20.0)
    backend = Bubblewrap()
    backend.check()
    parts: dict[str, list[float]] = {name: [] for name in ("start", "run", "close", "bare", "start_32")}
    with tempfile.TemporaryDirectory() as folder:
        workspace = make_workspace(Path(folder))
        for _ in range(rounds):
            for name, value in one_life(backend, workspace).items():
                parts[name].append(value)
            parts["bare"].append(timed_ms(lambda: subprocess.run(BARE.split(), check=True)))
        with ExitStack() as stack:
            for _ in range(NUM_OPEN):
                stack.enter_context(backend.open(workspace))
            parts["start_32"] = [one_life(backend, workspace)["start"] for _ in range(rounds)]
        per_core_minute = lives_per_core_minute(backend, workspace, seconds)
    rows = [{"ms": name, "p50": percentile(values, 50), "p99": percentile(values, 99)} for name, values in parts.items()]
    result = {
        "start_ms_p50": percentile(parts["start"], 50),
        "start_ms_p99": percentile(parts["start"], 99),
        "run_ms_p50": percentile(parts["run"], 50),
        "bare_ms_p50": percentile(parts["bare"], 50),
        "start_32_ms_p50": percentile(parts["start_32"], 50),
        "per_core_minute": per_core_minute,
        "cores": os.cpu_count(),
    }
    report("sandbox", rows, result)


if __name__ == "__main__":
    main()
