"""What the inside of a sandbox looks like: the arguments of bubblewrap.

Read-only /usr, an /etc of six files, the interpreter at /python, the environment at /env, the overlay at /work, one sized
tmpfs behind /tmp and /dev/shm, no network, nothing of the host's /home, /root, /etc or /proc/sys.

Not here: who mounts the sources (mounts.py), the system-call filter (seccomp.py).
"""

import glob
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.sandbox import wire
from etude.sandbox.mounts import HONEYPOTS, MERGED, ROOM
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
_SHELVES = (  # of the system: packages of other projects, among them perhaps the one that a task is cut from
    "/usr/share/python-wheels",
    "/usr/share/java",
    "/usr/share/maven-repo",
    "/usr/share/nodejs",
    "/usr/lib/node_modules",
    "/usr/local/lib/node_modules",
)
_BASE = "/python/base"  # the interpreter's prefix, inside; /python/bin has links to it


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python below any virtual environment."""

    prefix: str | None  # on the host; None below /usr, which is inside anyway
    executable: str  # inside
    library: str | None  # file name of the libpython that the loader finds only by a search path


def interpreter() -> Interpreter:
    """The interpreter that runs this process."""
    base = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if not executable.startswith(f"{base}/"):
        executable = f"{base}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if _is_below(base, "/usr"):
        return Interpreter(None, executable, None)
    library = sysconfig.get_config_var("INSTSONAME") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    return Interpreter(base, f"{_BASE}/{os.path.relpath(executable, base)}", library)


def fixed(python: Interpreter, *, honeypots: bool = False) -> list[str]:
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
    args += [*_python(python), "--ro-bind", f"{ROOM}/env", ENV, "--bind", MERGED, WORK, "--bind", f"{ROOM}/disk/tmp", "/tmp"]
    for name, value in DEFAULT_ENV.items():
        args += ["--setenv", name, value]
    for folder in sorted({path.split("/")[1] for path in HONEYPOTS}) if honeypots else ():
        args += ["--ro-bind", f"{ROOM}/honey/{folder}", f"/{folder}"]
    return [*args, "--remount-ro", "/dev", "--remount-ro", "/"]


def _python(python: Interpreter) -> list[str]:
    args = ["--perms", "0755", "--dir", "/python", "--perms", "0755", "--dir", "/python/bin"]
    for name in sorted({"python", "python3", os.path.basename(python.executable)}):
        args += ["--symlink", python.executable, f"/python/bin/{name}"]
    if python.prefix is not None:
        args += ["--ro-bind", f"{ROOM}/python", _BASE]
    for path in _packages(python.prefix, sys.prefix if sys.prefix != sys.base_prefix else None):
        args += ["--ro-bind", f"{ROOM}/empty", path]
    if python.library is not None:  # a folder with nothing else, so that no other program takes a library from the prefix
        args += [
            "--symlink",
            f"{_BASE}/lib/{python.library}",
            f"/python/lib/{python.library}",
            "--setenv",
            "LD_LIBRARY_PATH",
            "/python/lib",
        ]
    return args


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _packages(prefix: str | None, virtual: str | None) -> list[str]:
    """Folders of installed packages, inside: hidden, so that a run sees its environment and not the host's."""
    found = [path for root in ("/usr", "/usr/local") for path in _package_folders(root)]
    found += filter(os.path.isdir, _SHELVES)
    if virtual is not None and _is_below(virtual, "/usr"):
        found.append(virtual)
    if prefix is not None:
        below = [*_package_folders(prefix), *([virtual] if virtual is not None and _is_below(virtual, prefix) else [])]
        found += [f"{_BASE}/{os.path.relpath(path, prefix)}" for path in below]
    return sorted(set(found))


def _package_folders(root: str) -> list[str]:
    kinds = ("site-packages", "dist-packages", "ensurepip/_bundled")
    return [path for kind in kinds for path in glob.glob(f"{glob.escape(root)}/lib*/python3*/{kind}")]


def for_command(fixed_args: Sequence[str], env: Mapping[str, str], cwd: str) -> bytes:
    """The contents of bubblewrap's --args descriptor."""
    args = list(fixed_args)
    for name, value in sorted(env.items()):
        args += ["--setenv", name, value]
    args += ["--chdir", cwd]
    return b"".join(wire.text(arg) + b"\0" for arg in args)
