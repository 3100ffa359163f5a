"""Messages between `Bubblewrap` and its processes, over a stream socket: a length, then marshalled plain values.

Both ends run the same interpreter, and what runs inside a sandbox never reaches the socket; marshal carries bytes
without copies and costs no import.

Not here: what the messages mean (bubblewrap.py sends, keeper.py and holder.py answer).
"""

import array
import errno
import marshal
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!Q")


def pack(message: Any) -> bytes:
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


def unpack(read: Callable[[int], bytes]) -> Any:
    """The next message; `read(n)` gives up to n bytes, b"" at the end. Raises EOFError."""
    (length,) = _LENGTH.unpack(_exactly(read, _LENGTH.size))
    return marshal.loads(_exactly(read, length))


def text(value: str) -> bytes:
    """A path, an argument or a variable as the system takes it. Raises OSError for what cannot be passed to it."""
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, f"{value!r:.80}: not valid text") from None
    if b"\0" in encoded:
        raise OSError(errno.EINVAL, f"{value!r:.80}: contains a zero byte")
    return encoded


def failure(error: Exception) -> dict[str, Any]:
    """An answer that says what went wrong; errno 0 where it was no error of the operating system."""
    if isinstance(error, OSError) and error.errno:
        what = f"{error.filename}: " if error.filename is not None else ""
        return {"errno": error.errno, "error": f"{what}{error.strerror}"}
    return {"errno": 0, "error": f"{type(error).__name__}: {error}"}


def receive_fd(channel: socket.socket) -> tuple[bytes, int | None]:
    """One packet and the descriptor that came with it, closed on exec (`socket.recv_fds` of Python 3.11 forgets its flags)."""
    item = array.array("i")
    packet, extra, _, _ = channel.recvmsg(1 << 17, socket.CMSG_LEN(item.itemsize), socket.MSG_CMSG_CLOEXEC)
    for _, kind, data in extra:
        if kind == socket.SCM_RIGHTS:
            item.frombytes(data)
    return packet, item[0] if item else None


def _exactly(read: Callable[[int], bytes], num_bytes: int) -> bytes:
    parts: list[bytes] = []
    while num_bytes:
        part = read(min(num_bytes, 1 << 20))
        if not part:
            raise EOFError("the other end is gone")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
