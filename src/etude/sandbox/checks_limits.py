"""Conformance: every limit ends a command with the right status, whatever the command does about it.

A limit is far below what the check would use without it, so that a backend without limits fails and does not hang.

Not here: what commands reach (checks_containment.py).
"""

from etude.sandbox.site import Site, expect, output, probe, shell

_FORK_BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
_EAT = "import sys, time\nkept = []\nfor n in range(int(sys.argv[1])):\n  kept.append(bytearray(b'x' * (1 << 20)))\ntime.sleep(5)"


def an_endless_loop_ends_with_its_output_so_far(site: Site) -> None:
    with site.open() as sandbox:
        result = shell(sandbox, "echo before; while :; do :; done", wall_s=1.0)
        expect("result", (result.status, result.code, result.stdout), ("timeout", None, b"before\n"))
        expect("after", output(shell(sandbox, "echo fine")), "fine\n")


def the_limits_of_the_sandbox_hold_without_wall_s(site: Site) -> None:
    with site.open(wall_s=0.3) as sandbox:
        expect("status", shell(sandbox, "sleep 30").status, "timeout")


def a_child_that_ignores_signals_is_ended(site: Site) -> None:
    script = "trap '' TERM INT HUP; (trap '' TERM; setsid sleep 61 & sleep 61) & sleep 62; sleep 63"
    count = "import json, os; print(json.dumps(sum(n.isdecimal() for n in os.listdir('/proc'))))"
    with site.open() as sandbox:
        before = probe(sandbox, count)
        expect("status", shell(sandbox, script, wall_s=0.4).status, "timeout")
        expect("processes left", probe(sandbox, count) - before, 0)


def a_fork_bomb_ends(site: Site) -> None:
    with site.open(processes=20) as sandbox:
        expect("status", sandbox.run(["python3", "-c", _FORK_BOMB], wall_s=10).status, "too_many_processes")
        # The shells stay, the first only waits: a bomb whose shells leave can die out at the hard ceiling between two looks, unseen.
        expect("a bomb of shells", shell(sandbox, "b() { b | b & sleep 9; }; sleep 9 & b & wait", wall_s=10).status, "too_many_processes")
        expect("after", output(shell(sandbox, "echo fine")), "fine\n")


def as_many_processes_as_allowed_may_live(site: Site) -> None:
    with site.open(processes=8) as sandbox:
        expect("eight", shell(sandbox, "for i in 1 2 3 4 5 6 7; do sleep 0.4 & done; wait").status, "exited")
        expect("nine", shell(sandbox, "for i in 1 2 3 4 5 6 7 8; do sleep 9 & done; wait", wall_s=10).status, "too_many_processes")


def threads_are_bounded(site: Site) -> None:
    script = """if True:
        import json, threading, time
        made = 0
        try:
            for made in range(3000):
                threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        except RuntimeError:
            pass
        print(json.dumps(made), flush=True)
        import os; os._exit(0)"""
    with site.open(processes=16) as sandbox:
        made = probe(sandbox, script)
        assert made < 1000, f"{made} threads at 16 processes"


def memory_of_one_process_ends_it(site: Site) -> None:
    with site.open(memory_mb=96) as sandbox:
        expect("status", sandbox.run(["python3", "-c", _EAT, "1000"]).status, "out_of_memory")
        expect("after", output(sandbox.run(["python3", "-c", "x = bytearray(b'x' * (40 << 20)); print('fine')"])), "fine\n")


def memory_is_counted_over_all_processes(site: Site) -> None:
    with site.open(memory_mb=160) as sandbox:
        script = f'for i in 1 2 3 4; do python3 -c "{_EAT}" 60 & done; wait'
        expect("status", shell(sandbox, script).status, "out_of_memory")


def shared_memory_is_counted_once(site: Site) -> None:
    script = """if True:
        import os, time
        kept = b"x" * (60 << 20)
        for _ in range(5):
            if not os.fork():
                time.sleep(0.4)
                os._exit(0)
        for _ in range(5):
            os.wait()"""
    with site.open(memory_mb=160) as sandbox:
        expect("status", sandbox.run(["python3", "-c", script]).status, "exited")


def memory_outside_of_processes_is_bounded(site: Site) -> None:
    script = """if True:
        import ctypes, json, os
        libc, found = ctypes.CDLL(None, use_errno=True), {}
        found["shmget"] = libc.shmget(0, ctypes.c_size_t(1 << 30), 0o1600)
        found["msgget"] = libc.msgget(0, 0o1600)
        try:
            found["memfd"] = os.memfd_create("x")
        except OSError:
            found["memfd"] = -1
        print(json.dumps(found))"""
    with site.open() as sandbox:
        expect("made", probe(sandbox, script), {"shmget": -1, "msgget": -1, "memfd": -1})


def a_filled_disk_ends_the_command_and_can_be_emptied(site: Site) -> None:
    with site.open(disk_mb=8) as sandbox:
        for path in ("/work/big", "/tmp/big", "/dev/shm/big"):
            expect(path, shell(sandbox, f"cat /dev/zero > {path}; sleep 9").status, "disk_full")
            expect("emptied", output(shell(sandbox, f"rm {path}; echo fine > small; cat small")), "fine\n")


def everything_written_counts_as_disk(site: Site) -> None:
    script = "head -c 3M /dev/zero > /work/a; head -c 3M /dev/zero > /tmp/b; head -c 3M /dev/zero > /dev/shm/c; sleep 9"
    with site.open(disk_mb=8) as sandbox:
        expect("status", shell(sandbox, script).status, "disk_full")


def endless_small_files_end_the_command(site: Site) -> None:
    script = "import itertools\nfor n in itertools.count():\n  try: open(f'/tmp/{n}', 'w').close()\n  except OSError: pass"
    with site.open(disk_mb=8) as sandbox:
        expect("status", sandbox.run(["python3", "-c", script]).status, "disk_full")


def output_beyond_the_limit_is_dropped(site: Site) -> None:
    with site.open(output_bytes=1000) as sandbox:
        result = shell(sandbox, "(yes out | head -c 5000000) 2> /dev/null; (yes err 2> /dev/null | head -c 5000000) >&2; exit 4")
        expect("lengths", (len(result.stdout), len(result.stderr), result.truncated), (1000, 1000, True))
        expect("result", (result.stdout[:4], result.stderr[:4], result.status, result.code), (b"out\n", b"err\n", "exited", 4))
        exact = shell(sandbox, "head -c 1000 /dev/zero")
        expect("exactly the limit", (len(exact.stdout), exact.truncated), (1000, False))


def ten_gigabytes_of_output_end_in_time(site: Site) -> None:
    with site.open(output_bytes=1000) as sandbox:
        result = shell(sandbox, "head -c 10G /dev/zero; head -c 10G /dev/zero >&2", wall_s=1.0)
        assert result.status in ("timeout", "exited"), result.status
        expect("kept", (len(result.stdout), result.truncated), (1000, True))


def there_are_no_core_dumps(site: Site) -> None:
    with site.open() as sandbox:
        expect("limit", output(shell(sandbox, "ulimit -c")), "0\n")
        expect("code", shell(sandbox, "kill -ABRT $$").code, 134)
        expect("changes", sandbox.changes(), [])


CHECKS = (
    an_endless_loop_ends_with_its_output_so_far,
    the_limits_of_the_sandbox_hold_without_wall_s,
    a_child_that_ignores_signals_is_ended,
    a_fork_bomb_ends,
    as_many_processes_as_allowed_may_live,
    threads_are_bounded,
    memory_of_one_process_ends_it,
    memory_is_counted_over_all_processes,
    shared_memory_is_counted_once,
    memory_outside_of_processes_is_bounded,
    a_filled_disk_ends_the_command_and_can_be_emptied,
    everything_written_counts_as_disk,
    endless_small_files_end_the_command,
    output_beyond_the_limit_is_dropped,
    ten_gigabytes_of_output_end_in_time,
    there_are_no_core_dumps,
)
