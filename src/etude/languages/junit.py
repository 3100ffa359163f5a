"""Inside the sandbox, for an agent: compile, run the tests of the files given (default: all), and say what failed.

Standard library only. Read as text by shell.py and run as the command `junit`: the same two processes as a grading starts, but what they
say is printed. Nothing depends on it.

In: argv the files; ETUDE_STEPS the processes as JSON; the environment's settings. Out: lines; exit code 1 if anything failed.

Not here: what counts (grade/runner.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SETTINGS = "/env/etude/settings.json"
NONCE = "-"


def main() -> int:
    settings = json.loads(Path(SETTINGS).read_text("utf-8"))
    found = [str(file) for root in settings["tests"] for file in sorted(Path(root).rglob("*.java")) if file.is_file()]
    files = [os.path.normpath(path) for path in sys.argv[1:]] or [path for path in found if path not in settings["left_out"]]
    missing = [path for path in files if not os.path.isfile(path)]
    if missing:
        print(f"no such file: {missing[0]}")
        return 1
    failed: dict[str, str] = {}
    started: set[str] = set()
    skipped: set[str] = set()
    for step in json.loads(os.environ["ETUDE_STEPS"]):
        code, events = run(step["argv"], {**step["config"], "files": files})
        for kind, *rest in events:
            if kind == "error":
                failed[rest[0]] = rest[1]
            elif kind == "start":
                started.add(rest[0])
            elif kind == "report" and rest[2] == "failed":
                failed.setdefault(rest[0], rest[5])
            elif kind == "report" and rest[2] == "skipped":
                skipped.add(rest[0])
        if code:
            return code
    for place, message in sorted(failed.items()):
        print(f"FAILED {place}: {message}")
    passed = len(started - failed.keys() - skipped)
    parts = [f"{len(failed)} failed"] * bool(failed) + [f"{passed} passed"] + [f"{len(skipped)} skipped"] * bool(skipped)
    print(", ".join(parts))
    return 1 if failed else 0


def run(argv: list[str], config: dict[str, Any]) -> tuple[int, list[list[Any]]]:
    reading, writing = os.pipe()
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=(writing,))
    os.close(writing)
    assert process.stdin is not None
    process.stdin.write(json.dumps({**config, "nonce": NONCE, "fd": writing}).encode())
    process.stdin.close()
    with open(reading, encoding="utf-8", errors="replace") as lines:
        events = [json.loads(line[len(NONCE) + 1 :]) for line in lines if line.startswith(NONCE + " ") and line.endswith("\n")]
    return process.wait(), events


if __name__ == "__main__":
    sys.exit(main())
