"""Inside the sandbox: run the steps of a Launch. Read as text by grade/runner.py, started by supervise.py in place of pytest's child.

Standard library only. Each step is a process of its own; it gets its configuration and the nonce on standard input and writes events to
the inherited pipe. This process itself sends ["step", path] before each step with tests, ["error", path, message] for one that could
not begin or whose build failed, and ["exit", code] at its end; the host counts the steps that said ["done"].

In: argv[1] the descriptor of the pipe; standard input JSON {"nonce", "steps", "env", "links"}. Out: events.

Not here: what a step does (the adapters), what events mean (grade/runner.py).
"""

import json
import os
import subprocess
import sys
from typing import Any

KEPT = 4096  # of a build's output


def main() -> None:
    fd = int(sys.argv[1])
    config = json.loads(sys.stdin.buffer.read())
    nonce = config["nonce"]

    def send(event: list[Any]) -> None:
        line = f"{nonce} {json.dumps(event)}\n".encode()
        while line:
            line = line[os.write(fd, line) :]

    for place, target in config["links"].items():
        try:
            os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
            if os.path.islink(place):
                os.unlink(place)
            os.symlink(target, place)
        except OSError as error:
            send(["error", place, f"cannot be linked: {error.strerror}"])
    code = 0
    for step in config["steps"]:
        if step["path"] and not os.path.exists(step["path"]):  # a test file that went with a feature
            continue
        if step["tests"]:
            send(["step", step["path"]])
        status, said = run(step, fd, nonce)
        if status and not step["tests"]:
            send(["error", step["path"] or step["argv"][0], said or f"ended with code {status}"])
            code = 1
            break
        code = code or (1 if status else 0)
    send(["exit", code])
    sys.stdout.flush()
    os._exit(code)


def run(step: dict[str, Any], fd: int, nonce: str) -> tuple[int, str]:
    """Exit code, and the last line that a build printed."""
    text = json.dumps({**step["config"], "nonce": nonce, "fd": fd}).encode()
    output = None if step["tests"] else subprocess.PIPE
    try:
        done = subprocess.run(step["argv"], input=text, stdout=output, stderr=subprocess.STDOUT, pass_fds=(fd,), check=False)
    except OSError as error:
        return 127, f"{step['argv'][0]}: {error.strerror}"
    lines = (done.stdout or b"")[-KEPT:].decode("utf-8", "replace").split("\n")
    errors = [line.strip() for line in lines if "error" in line.lower()] or [line.strip() for line in lines if line.strip()]
    return done.returncode, errors[0] if errors else ""


if __name__ == "__main__":
    main()
