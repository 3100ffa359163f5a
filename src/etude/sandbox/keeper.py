"""The keeper: one small process per `Bubblewrap`, from which sandboxes are forked, so that opening one costs no start of Python.

In: packets over a seqpacket socket, a marshalled (Room, Config) with the sandbox's end of its socket attached. Out: a
packet with a descriptor of the process whose end is the sandbox's end, or one line of text. The keeper ends with its
caller, whose process it watches; every sandbox ends with the keeper.

Not here: what a sandbox's first process does (mounts.py, then holder.py).
"""

import itertools
import marshal
import os
import select
import socket

from etude.sandbox import cgroup, holder, linux, mounts, wire

_SLACK_BYTES = 32 << 20  # above memory and disk in a control group: for the kernel's own pages, and so that the watch comes first
_AGAIN_MS = 100


def main(control: socket.socket, caller: int) -> None:
    """Serve until the caller (a pid descriptor) or its end of the socket is gone."""
    parents = cgroup.find_parents()
    cgroup.sweep(parents)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(caller, select.POLLIN)
    children: dict[int, tuple[int, list[str]]] = {}  # pid descriptor -> pid, control group
    emptying: list[list[str]] = []
    for number in itertools.count():
        for fd, _ in poll.poll(_AGAIN_MS if emptying else None):
            if fd in children:
                poll.unregister(fd)
                os.close(fd)
                pid, group = children.pop(fd)
                os.waitpid(pid, 0)
                emptying.append(group)
            elif fd == caller or not _serve_one(control, parents, number, children, poll):
                return
        emptying = [group for group in emptying if not cgroup.remove(group)]


def _serve_one(
    control: socket.socket, parents: cgroup.Parents, number: int, children: dict[int, tuple[int, list[str]]], poll: "select.poll"
) -> bool:
    """Start one sandbox. False when the caller is gone."""
    packet, channel = wire.receive_fd(control)
    if channel is None:
        return False
    room_values, config_values = marshal.loads(packet)
    room, config = mounts.Room(*room_values), holder.Config(*config_values)
    group = cgroup.make(parents, str(number), config.memory_bytes + room.disk_bytes + _SLACK_BYTES, holder.max_tasks(config.processes))
    keeper = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(channel)
        cgroup.remove(group)
        control.send(str(error).encode())
        return True
    if pid == 0:
        _sandbox(keeper, channel, group, room, config)
    os.close(channel)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = (pid, group)
    poll.register(pidfd, select.POLLIN)
    socket.send_fds(control, [b"."], [pidfd])
    return True


def _sandbox(keeper: int, fd: int, group: list[str], room: mounts.Room, config: holder.Config) -> None:
    """The life of one sandbox's two processes; never returns."""
    try:
        os.closerange(3, fd)
        os.closerange(fd + 1, 1 << 20)
        channel = socket.socket(fileno=fd)
        try:
            linux.die_with_parent()
            if os.getppid() != keeper:
                os._exit(0)
            doors = cgroup.doors(group)
            mounts.enter(room)
            linux.die_with_parent()  # changing the user id has cleared it
            first = os.fork()
            if first == 0:
                linux.die_with_parent()
                holder.serve(channel, config, group, doors)
                os._exit(0)
        except Exception as error:  # boundary: it is the caller who can tell the user
            channel.sendall(wire.pack(wire.failure(error)))
            os._exit(1)
        channel.close()
        os.waitpid(first, 0)
    finally:
        os._exit(0)
