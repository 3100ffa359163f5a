"""Control groups: the kernel's own ceilings on memory and tasks of one sandbox, where this machine lets us make a group.

Version 2 wants a parent that hands both controllers down and that we may write to: an ancestor of our own group. In
version 1 memory and pids are two hierarchies, and a group may be made below our own.

In: the files of /proc and /sys. Out: the folders of a group; none where there is no such parent, and then the watch of
the holder (watch.py) stands alone. The ceilings lie above its limits, so it is the watch that names a limit first.

Not here: limits of single processes (holder.py).
"""

import contextlib
import os

Parents = dict[str, str]  # controller ("memory", "pids"; version 2: "unified") -> folder
_PREFIX = "etude"


def find_parents() -> Parents:
    """Where groups can be made; empty where they cannot."""
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = _hierarchies(file.read())
        with open("/proc/self/cgroup") as file:
            own = dict(line.rstrip("\n").split(":", 2)[1:] for line in file)
    except (OSError, ValueError):
        return {}
    version1: Parents = {name: _below(mounts[name], own[name]) for name in ("memory", "pids") if name in mounts and name in own}
    if len(version1) == 2:
        return version1 if all(os.access(path, os.W_OK) for path in version1.values()) else {}
    if "unified" not in mounts or "" not in own:
        return {}
    root, mounted = mounts["unified"]
    path = _below((root, mounted), own[""])
    while path.startswith(mounted):
        if {"memory", "pids"} <= set(_text(f"{path}/cgroup.subtree_control").split()) and _may_move_here(path):
            return {"unified": path}
        path = os.path.dirname(path)
    return {}


def _hierarchies(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Controller -> (root inside the hierarchy, mount point)."""
    found = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found["unified"] = (root, mounted)
        elif kind == "cgroup":
            found.update({name: (root, mounted) for name in options.split(",") if name in ("memory", "pids")})
    return found


def _below(mount: tuple[str, str], own: str) -> str:
    root, mounted = mount
    relative = own.removeprefix(root.rstrip("/")).strip("/")
    return f"{mounted}/{relative}".rstrip("/")


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _may_move_here(path: str) -> bool:
    return os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)


def make(parents: Parents, name: str, memory_bytes: int, tasks: int) -> list[str]:
    """The folders of a new group with these ceilings; empty where the kernel refuses."""
    folders: list[str] = []
    try:
        for controller, parent in parents.items():
            folder = f"{parent}/{_PREFIX}-{os.getpid()}-{name}"
            os.mkdir(folder)
            folders.append(folder)
            if controller == "unified":
                _write(f"{folder}/memory.max", memory_bytes)
                with contextlib.suppress(OSError):  # no swap here
                    _write(f"{folder}/memory.swap.max", 0)
            if controller == "memory":
                _write(f"{folder}/memory.limit_in_bytes", memory_bytes)
            if controller in ("unified", "pids"):
                _write(f"{folder}/pids.max", tasks)
    except OSError:
        remove(folders)
        return []
    return folders


def doors(folders: list[str]) -> list[int]:
    """Descriptors through which a process enters the group, also one that may not open them itself."""
    return [os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in folders]


def enter(fds: list[int]) -> None:
    """Move this process into the group, if the kernel lets it (before Linux 5.16 some go by the caller, not by the descriptor)."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.write(fd, b"0")


def remove(folders: list[str]) -> bool:
    """False while something lives in it."""
    done = True
    for folder in folders:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            pass
        except OSError:
            done = False
    return done


def sweep(parents: Parents) -> None:
    """Remove empty groups that a killed keeper left."""
    for parent in parents.values():
        for name in os.listdir(parent):
            prefix, _, rest = name.partition("-")
            if prefix == _PREFIX and not os.path.exists(f"/proc/{rest.partition('-')[0]}"):
                remove([f"{parent}/{name}"])


def num_kills(folders: list[str]) -> int:
    """How often the kernel ended a process of the group because of its memory."""
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            for line in _text(f"{folder}/{name}").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _write(path: str, value: int) -> None:
    with open(path, "w") as file:
        file.write(str(value))
