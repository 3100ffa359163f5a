"""Inside the sandbox: start the tests in a process of their own, gather what they report, sign it. Read as text by runner.py.

Standard library only, run as `python -I -S -B -c <this text>` with the request as JSON on standard input. No code of the
repository runs in this process, and no other process can read its memory (it is not dumpable), so the key that signs the
report stays secret: a report that the code under test writes itself has no valid signature.

In: {"key", "result", "child", "config", "env", "wall_s", "max_events_bytes", "max_output_bytes"}.
Out: the file `result` in the working directory: 64 hex digits of keyed blake2b, a line end, and zlib of (JSON head, line end, events).

Not here: what a test is (child.py), what the events mean (runner.py).
"""

import contextlib
import ctypes
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import zlib
from typing import Any

PR_SET_DUMPABLE = 4  # linux/prctl.h


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    request = json.loads(sys.stdin.buffer.read())
    for name in os.listdir("."):
        if name.startswith(".etude-result-") and not os.path.isdir(name):
            os.unlink(name)  # of an earlier run on the same files
    head, events = watch(request)
    body = zlib.compress(json.dumps(head).encode() + b"\n" + events, 6)
    signature = hashlib.blake2b(body, key=bytes.fromhex(request["key"]), digest_size=32).hexdigest()
    fd = os.open(request["result"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(signature.encode() + b"\n" + body)


def watch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the child to its end or its limit; what happened, and the bytes of its events."""
    started = time.monotonic()
    child, read_fd = start(request)
    assert child.stdout is not None
    output_fd = child.stdout.fileno()
    streams = {read_fd: bytearray(), output_fd: bytearray()}
    selector = selectors.DefaultSelector()
    for fd in streams:
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ)
    status, dead = "exited", False
    while selector.get_map():
        ready = selector.select(0 if dead else 0.05)
        for key, _ in ready:
            data = os.read(key.fd, 1 << 20)
            streams[key.fd] += data
            if not data:
                selector.unregister(key.fd)
        del streams[output_fd][: -request["max_output_bytes"]]  # the end of the output says what failed
        if dead and not ready:
            break  # something that the child started still holds a pipe
        dead = dead or child.poll() is not None
        if time.monotonic() - started > request["wall_s"]:
            status = "timeout"
            break
        if len(streams[read_fd]) > request["max_events_bytes"]:
            status = "overflow"
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    output = streams[output_fd].decode("utf-8", "replace")
    wall_s = time.monotonic() - started
    return {"status": status, "code": code if code >= 0 else 128 - code, "output": output, "wall_s": wall_s}, bytes(streams[read_fd])


def start(request: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """The child, with its configuration on standard input, and the end of the pipe that its events come out of."""
    config_fd = os.memfd_create("config")
    with os.fdopen(os.dup(config_fd), "wb") as file:
        file.write(json.dumps(request["config"]).encode())
    os.lseek(config_fd, 0, os.SEEK_SET)
    read_fd, write_fd = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-S", "-P", "-s", "-B", "-c", request["child"], str(write_fd), request["config"]["env"]],
        stdin=config_fd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(write_fd,),
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", os.defpath), **request["env"]},
    )
    os.close(write_fd)
    os.close(config_fd)
    return child, read_fd


if __name__ == "__main__":
    main()
