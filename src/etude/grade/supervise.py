"""Inside the sandbox: start the tests in a process of their own, gather what they report, sign it. Read as text by runner.py.

Standard library only, run as `python -I -S -B -c <this text>` with the request as JSON on standard input. No code of the
repository runs in this process, and no other process can read its memory (it is not dumpable). Standard input, output and the
file system may be open to the code under test (through /proc/1/fd, say), so nothing secret passes them: before any foreign code
runs, this process prints the public half of a one-time signature (Lamport 1979), and only it can sign the report that follows.

In: {"child", "clock", "config", "env", "wall_s", "patience", "max_events_bytes", "max_output_bytes"}. The tests may take wall_s seconds as
clock.py counts them; if the machine is so busy that these take `patience` times as long, they are ended as "starved".
Out: the commitment on standard output; the file `.etude-result` in the working directory: 256 pairs of 32 bytes of signature,
then zlib of (JSON head, line end, events).

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
import types
import zlib
from typing import Any

PR_SET_DUMPABLE = 4  # linux/prctl.h
RESULT = ".etude-result"
KEPT_ENV = ("PATH", "LD_LIBRARY_PATH")  # without the second the interpreter may load another Python's library


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    request = json.loads(sys.stdin.buffer.read())
    secrets = [os.urandom(32) for _ in range(512)]
    print(digest(b"".join(map(digest, secrets))).hex(), flush=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(RESULT)  # of an earlier run on the same files
    head, events = watch(request)
    body = zlib.compress(json.dumps(head).encode() + b"\n" + events, 6)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(RESULT)
    fd = os.open(RESULT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(sign(body, secrets) + body)


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def sign(body: bytes, secrets: list[bytes]) -> bytes:
    """For each bit of the digest the secret of its value, then the public half of the other value."""
    number = int.from_bytes(digest(body), "little")
    out = b""
    for bit in range(256):
        pair = secrets[2 * bit : 2 * bit + 2]
        value = number >> bit & 1
        out += pair[value] + digest(pair[1 - value])
    return out


def watch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the child to its end or its limit; what happened, and the bytes of its events."""
    started = time.monotonic()
    nonce = os.urandom(16).hex()
    scope = types.ModuleType("clock")
    exec(request["clock"], scope.__dict__)
    clock = scope.Clock({os.getpid()})
    child, read_fd = start(request, nonce)
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
        if clock.seconds() > request["wall_s"]:
            status = "timeout"
            break
        if time.monotonic() - started > request["patience"] * request["wall_s"]:
            status = "starved"
            break
        if len(streams[read_fd]) > request["max_events_bytes"]:
            status = "overflow"
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    output = streams[output_fd].decode("utf-8", "replace")
    code = code if code >= 0 else 128 - code
    seconds = {"wall_s": time.monotonic() - started, "waited_s": clock.waited}
    head = {"status": status, "code": code, "output": output, "nonce": nonce, **seconds}
    return head, bytes(streams[read_fd])


def start(request: dict[str, Any], nonce: str) -> tuple[subprocess.Popen[bytes], int]:
    """The child, with its configuration on standard input, and the end of the pipe that its events come out of."""
    read_fd, write_fd = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-S", "-P", "-s", "-B", "-c", request["child"], str(write_fd), request["config"]["env"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(write_fd,),
        start_new_session=True,
        env={"PATH": os.defpath, **{name: os.environ[name] for name in KEPT_ENV if name in os.environ}, **request["env"]},
    )
    os.close(write_fd)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # the child reads all of it before it writes anything
        child.stdin.write(json.dumps({**request["config"], "nonce": nonce}).encode())
    return child, read_fd


if __name__ == "__main__":
    main()
