"""One repository of a build of many, in its own process: what it tells is one JSON object a line on standard output.

    in    {"source": "toolz==1.0.0", "out": "tasks", "options": {...}}
    out   {"stage": "tasks", "done": 3, "total": 40, "note": "..."}   ...   then {"status": "built", "report": {...}}

Not here: which repositories (many.py), the build (build.py).
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from etude.errors import SandboxError, UserError
from etude.fanout import die_with_parent
from etude.sandbox.bubblewrap import Bubblewrap
from etude.synth.build import BuildOptions, Progress
from etude.synth.foreign.build import build_any


def main() -> None:
    job = json.loads(die_with_parent())
    options = msgspec.convert(job["options"], BuildOptions)
    _say(outcome(job["source"], Path(job["out"]), options))


def outcome(source: str, out: Path, options: BuildOptions) -> dict[str, Any]:
    """What came of it; a fault of the repository or of the sandbox is an outcome, one of ours is a traceback."""
    try:
        report = build_any(source, out, options=options, backend=Bubblewrap(), progress=_tell)
    except UserError as error:
        return {"status": "refused", "message": str(error)}
    except SandboxError as error:
        return {"status": "sandbox_failed", "message": str(error)}
    return {"status": "built", "report": msgspec.to_builtins(report)}


def _tell(progress: Progress) -> None:
    _say(asdict(progress))


def _say(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
