"""Run Python as an ordinary user, from tests that root runs: the interpreter and our sources bound where that user can read them.

    python ordinary.py SOURCES ARGUMENT...      becomes      python ARGUMENT...   as user 12345, with SOURCES on its path

The mounts are made in a namespace of this process alone.
"""

import os
import sys

USER = 12345
ROOM = "/tmp"


def main() -> None:
    sources, *arguments = sys.argv[1:]
    sys.path.insert(0, sources)
    from etude.sandbox import linux

    linux.unshare(linux.CLONE_NEWNS)
    linux.follow_mounts()
    base, executable = os.path.realpath(sys.base_prefix), os.path.realpath(sys.executable)
    folders = {"sources": sources} if base.startswith("/usr") else {"sources": sources, "python": base}
    mounts = {name: linux.clone_mount(path) for name, path in folders.items()}
    linux.mount("room", ROOM, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64m,mode=1777")
    for name, fd in mounts.items():
        os.mkdir(f"{ROOM}/{name}")
        linux.attach_mount(fd, f"{ROOM}/{name}")
    if "python" in folders:
        executable = f"{ROOM}/python/{os.path.relpath(executable, base)}"
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.chdir("/")
    os.execve(executable, [executable, *arguments], {"PATH": os.environ["PATH"], "HOME": ROOM, "PYTHONPATH": f"{ROOM}/sources"})


if __name__ == "__main__":
    main()
