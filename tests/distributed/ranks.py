"""Many ranks without a cluster: as threads of this process, or as gloo processes.

    run_threads(worker, 4, *arguments)    worker() on 4 threads with a process group each; bit-exact collectives, no start-up cost
    run_ranks(worker, 4, *arguments)      worker() on 4 processes over gloo; `worker` is a function at the top of a file

`worker` asks torch.distributed for its rank. Both return the workers' results by rank and raise `RankError` with the first failing rank's
traceback, or after `timeout_s`. Processes are forked from one server that has loaded torch already. Not here: GPUs.
"""

import importlib.util
import inspect
import multiprocessing
import os
import pickle
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PRELOADED = ("torch", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")


class RankError(AssertionError):
    """A rank failed; the message is its traceback."""


def run_threads(worker: Callable[..., Any], world_size: int, *arguments: Any, timeout_s: float = 120) -> list[Any]:
    """Each rank is a thread with torch's threaded process group, which copies between the ranks' tensors."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    results: list[Any] = [None] * world_size
    failures: queue.Queue[tuple[int, str]] = queue.Queue()
    isolate(True)
    threaded.ProcessLocalGroup.reset()
    threaded._install_threaded_pg()
    store = dist.HashStore()

    def run(rank: int) -> None:
        dist.init_process_group(backend="threaded", rank=rank, world_size=world_size, store=store)
        try:
            results[rank] = worker(*arguments)
        except BaseException as error:  # SystemExit: another rank failed and this one was told to end
            if not isinstance(error, SystemExit):
                failures.put((rank, traceback.format_exc()))
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            dist.destroy_process_group()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    deadline = time.monotonic() + timeout_s
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        if stuck:
            threaded.ProcessLocalGroup.exception_handle(TimeoutError())
            for thread in threads:
                thread.join(5)
    finally:
        threaded._uninstall_threaded_pg()
        isolate(False)
    if not failures.empty():
        rank, text = failures.get()
        raise RankError(f"rank {rank} of {world_size}:\n{text}")
    if stuck:
        raise RankError(f"ranks {stuck} of {world_size} did not end within {timeout_s} s")
    return results


def run_ranks(
    worker: Callable[..., Any], world_size: int, *arguments: Any, timeout_s: float = 120, may_die: tuple[int, ...] = ()
) -> list[Any]:
    """Each rank is a process with one thread and a gloo group that meets in a file. One in `may_die` may be killed: its result is None."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    results: list[Any] = [None] * world_size
    with tempfile.TemporaryDirectory() as folder:
        channels = [context.Pipe(duplex=False) for _ in range(world_size)]
        packed = pickle.dumps(arguments)
        source = (str(Path(inspect.getfile(worker)).resolve()), worker.__qualname__)
        processes = [
            context.Process(target=_process, args=(source, rank, world_size, folder, timeout_s, sender, packed), daemon=True)
            for rank, (_, sender) in enumerate(channels)
        ]
        for process, (_, sender) in zip(processes, channels, strict=True):
            process.start()
            sender.close()
        deadline = time.monotonic() + timeout_s
        try:
            for rank, (receiver, _) in enumerate(channels):
                results[rank] = _result(receiver, rank, deadline, rank in may_die)
        finally:
            for process in processes:
                process.kill()
                process.join()
    failed = [(when, rank, text) for rank, (ok, text, when) in enumerate(results) if not ok]
    if failed:
        _, rank, text = min(failed)
        raise RankError(f"rank {rank} of {world_size}:\n{text}")
    return [value for _, value, _ in results]


def _result(receiver: Any, rank: int, deadline: float, may_die: bool) -> tuple[bool, Any, float]:
    if not receiver.poll(max(0.0, deadline - time.monotonic())):
        return False, f"rank {rank} did not end in time", time.time()
    try:
        found: tuple[bool, Any, float] = pickle.loads(receiver.recv_bytes())
    except EOFError:
        return may_die, None if may_die else "the process ended without a result", time.time()
    return found


def _process(source: tuple[str, str], rank: int, world_size: int, folder: str, timeout_s: float, sender: Any, packed: bytes) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
        )
        value = _load(*source)(*pickle.loads(packed))
        # plain pickle: multiprocessing's own would hand tensors over by reference to a process that is about to end
        sender.send_bytes(pickle.dumps((True, value, time.time())))
        dist.destroy_process_group()
    except BaseException:
        sender.send_bytes(pickle.dumps((False, traceback.format_exc(), time.time())))
        sys.exit(1)


def _load(file: str, name: str) -> Callable[..., Any]:
    """A function of a test file, whatever name pytest gave the module."""
    spec = importlib.util.spec_from_file_location("rank_worker", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rank_worker"] = module
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found
