"""The keeper: one small process per `Bubblewrap`, from which sandboxes are forked, so that opening one costs no start of Python.

In: packets over a seqpacket socket, a marshalled (Room, Config) with the sandbox's end of its socket attached. Out: a
packet with a descriptor of the process whose end is the sandbox's end, or one line of text. The keeper ends with its
caller, whose process it watches; every sandbox ends with the keeper.

Not here: what a sandbox's first process does (mounts.py, then holder.py).
"""

import marshal
import os
import select
import socket
import sys

from etude.sandbox import holder, linux, mounts, wire


def main(control: socket.socket, caller: int) -> None:
    """Serve until the caller (a pid descriptor) or its end of the socket is gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(caller, select.POLLIN)
    children: dict[int, int] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == caller:
                return
            if fd in children:
                poll.unregister(fd)
                os.waitpid(children.pop(fd), 0)
                os.close(fd)
                continue
            packet, channel = wire.receive_fd(control)
            if channel is None:
                return
            try:
                pid = os.fork()
            except OSError as error:
                control.send(str(error).encode())
                os.close(channel)
                continue
            if pid == 0:
                _sandbox(packet, channel)
            os.close(channel)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            socket.send_fds(control, [b"."], [pidfd])


def _sandbox(packet: bytes, fd: int) -> None:
    """The life of one sandbox's two processes; never returns."""
    try:
        os.closerange(3, fd)
        os.closerange(fd + 1, 1 << 20)
        channel = socket.socket(fileno=fd)
        try:
            room, config = marshal.loads(packet)
            mounts.enter(mounts.Room(*room))
            linux.die_with_parent()
            first = os.fork()
            if first == 0:
                linux.die_with_parent()
                holder.serve(channel, holder.Config(*config))
                os._exit(0)
        except Exception as error:  # boundary: it is the caller who can tell the user
            channel.sendall(wire.pack({"error": type(error).__name__, "errno": getattr(error, "errno", 0) or 0, "text": str(error)}))
            os._exit(1)
        channel.close()
        os.waitpid(first, 0)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
