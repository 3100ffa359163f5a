"""What the inside of a sandbox looks like: the arguments of bubblewrap.

Read-only /usr, an /etc of six files, the interpreter at /python, the environment at /env, the overlay at /work, one sized
tmpfs behind /tmp and /dev/shm, no network, nothing of the host's /home, /root, /etc or /proc/sys.

Not here: who mounts the sources (mounts.py), the system-call filter (seccomp.py).
"""

import glob
import os
import sys
from collections.abc import Mapping, Sequence

from etude.sandbox import wire
from etude.sandbox.mounts import MERGED, ROOM
from etude.sandbox.protocol import ENV, WORK

UID = 1000  # inside
DEFAULT_ENV = {
    "PATH": "/python/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",  # else bytecode is among the changes
}
_TOP_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")


def interpreter() -> tuple[str | None, str]:
    """Prefix of the interpreter below any virtual environment (None below /usr), and its executable inside."""
    base = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if base == "/usr" or base.startswith("/usr/"):
        return None, executable
    return base, "/python/base/" + os.path.relpath(executable, base)


def fixed(prefix: str | None, executable: str) -> list[str]:
    """Arguments that are the same for every command of a sandbox."""
    args = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    args += ["--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    args += ["--ro-bind", "/usr", "/usr"]
    for path in _TOP_LINKS:
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    args += ["--ro-bind", f"{ROOM}/etc", "/etc", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    args += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--bind", f"{ROOM}/disk/shm", "/dev/shm"]
    args += ["--perms", "0755", "--dir", "/python", "--perms", "0755", "--dir", "/python/bin"]
    for name in sorted({"python", "python3", os.path.basename(executable)}):
        args += ["--symlink", executable, f"/python/bin/{name}"]
    if prefix is not None:
        args += ["--ro-bind", f"{ROOM}/python", "/python/base"]
    for path in _packages(prefix):
        args += ["--ro-bind", f"{ROOM}/empty", path]
    args += ["--ro-bind", f"{ROOM}/env", ENV, "--bind", MERGED, WORK, "--bind", f"{ROOM}/disk/tmp", "/tmp"]
    return [*args, "--remount-ro", "/dev", "--remount-ro", "/"]


def _packages(prefix: str | None) -> list[str]:
    """Folders of installed packages, inside: hidden, so that a run sees its environment and not the host's."""
    found = [path for root in ("/usr", "/usr/local") for path in _package_folders(root)]
    if prefix is not None:
        found += ["/python/base/" + os.path.relpath(path, prefix) for path in _package_folders(prefix)]
    return sorted(set(found))


def _package_folders(root: str) -> list[str]:
    return [path for kind in ("site", "dist") for path in glob.glob(f"{glob.escape(root)}/lib*/python3*/{kind}-packages")]


def for_command(fixed_args: Sequence[str], env: Mapping[str, str], cwd: str) -> bytes:
    """The contents of bubblewrap's --args descriptor."""
    args = list(fixed_args)
    for name, value in sorted({**DEFAULT_ENV, **env}.items()):
        args += ["--setenv", name, value]
    args += ["--chdir", cwd]
    return b"".join(wire.text(arg) + b"\0" for arg in args)
