"""Messages between `Bubblewrap` and its holder process, over a stream socket: a length, then marshalled plain values.

Both ends run the same interpreter, and what runs inside a sandbox never reaches the socket; marshal carries bytes
without copies and costs no import.

Not here: what the messages mean (bubblewrap.py sends, holder.py answers).
"""

import array
import marshal
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
