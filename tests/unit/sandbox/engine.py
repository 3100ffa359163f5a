"""A stand-in for `docker`: writes down how it was called, and plays the engine with bubblewrap, as far as files and commands go.

    engine.py FOLDER WORDS...     FOLDER/calls.jsonl gets the words; FOLDER/<container>/ holds its /work, /tmp and /dev/shm

It confines nothing by itself: what a real engine would make of `run`'s words is theirs. FOLDER/fail holds words that shall fail.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TAKES_VALUE = {"--user", "--workdir", "--env"}


def main(folder: Path, words: list[str]) -> int:
    with (folder / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    fails = (folder / "fail").read_text().split() if (folder / "fail").exists() else []
    if words[0] in fails:
        print("Error response from daemon: the engine is not well", file=sys.stderr)
        return 1
    if words[0] == "run":
        name = f"container{len(list(folder.glob('container*')))}"
        for part in ("work", "tmp", "shm"):
            (folder / name / part).mkdir(parents=True)
        (folder / name / "run.json").write_text(json.dumps(words))
        profiles = [Path(word.removeprefix("seccomp=")) for word in words if word.startswith("seccomp=")]
        (folder / name / "seccomp.json").write_text(profiles[0].read_text())  # as the client reads it: it goes when `run` ends
        print(name)
    elif words[0] == "rm":
        for pid in (folder / words[-1] / "pids").read_text().split() if (folder / words[-1] / "pids").exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for part in ("work", "tmp", "shm"):  # folders may be too deep for shutil
            subprocess.run(["rm", "-rf", str(folder / words[-1] / part)], check=False)
    elif words[0] == "exec":
        return execute(folder, words[1:])
    return 0


def execute(folder: Path, words: list[str]) -> int:
    settings: dict[str, list[str]] = {"--user": [], "--workdir": ["/work"], "--env": []}
    while words[0].startswith("--"):
        if words[0] in TAKES_VALUE:
            settings[words[0]].append(words[1])
            words = words[1:]
        words = words[1:]
    place = folder / words[0]
    if not place.is_dir():
        print(f"Error response from daemon: No such container: {words[0]}", file=sys.stderr)
        return 1
    args = [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ]
    args += [
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ]
    args += ["--proc", "/proc", "--dev", "/dev", "--bind", str(place / "shm"), "/dev/shm"]
    args += [
        "--bind",
        str(place / "work"),
        "/work",
        "--bind",
        str(place / "tmp"),
        "/tmp",
        "--setenv",
        "PATH",
        "/usr/local/bin:/usr/bin:/bin",
    ]
    run = json.loads((place / "run.json").read_text())
    if "--mount" in run:
        mount = dict(part.split("=", 1) for part in run[run.index("--mount") + 1].split(",") if "=" in part)
        args += ["--ro-bind", mount["source"], mount["target"]]
    for setting in settings["--env"]:
        args += ["--setenv", *setting.split("=", 1)]
    with (place / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    script = 'cd "$1" || exit 126; shift; unset OLDPWD; exec "$@"'  # sh says 126 and 127
    os.execvp("bwrap", [*args, "--", "sh", "-c", script, "sh", settings["--workdir"][-1], *words[1:]])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
