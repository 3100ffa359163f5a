"""The conformance suite: what every sandbox backend must do, as checks that run against the real thing.

    for result in run_conformance(Bubblewrap()):
        print(result.name, "ok" if result.ok else result.detail)

`python -m etude.sandbox.conformance` does that for bubblewrap, prints one JSON line a check, and ends with code 1 if one fails.
A check is a plain function of a `Site`; its name says what must hold, and an exception, with its text, is a failure.

Not here: the checks (checks_commands.py, checks_files.py, checks_limits.py, checks_containment.py), and what only one
backend promises (its own tests).
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from etude.sandbox import checks_commands, checks_containment, checks_files, checks_limits
from etude.sandbox.protocol import Backend
from etude.sandbox.site import Site

Check = Callable[[Site], None]
CHECKS: tuple[Check, ...] = (*checks_commands.CHECKS, *checks_files.CHECKS, *checks_limits.CHECKS, *checks_containment.CHECKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    name: str
    ok: bool
    detail: str  # one line; "" for a check that holds
    wall_s: float


@contextmanager
def temporary_site(backend: Backend) -> Iterator[Site]:
    """A site with the sample workspace, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        yield Site.make(backend, Path(folder))


def run_check(check: Check, backend: Backend) -> CheckResult:
    begin = time.monotonic()
    detail = ""
    try:
        with temporary_site(backend) as site:
            check(site)
    except Exception as error:  # boundary: a check fails by any exception
        detail = " ".join(f"{type(error).__name__}: {error}".split())
    return CheckResult(name=check.__name__, ok=not detail, detail=detail, wall_s=time.monotonic() - begin)


def run_conformance(backend: Backend, checks: Sequence[Check] = CHECKS) -> list[CheckResult]:
    """Every check, one after the other. Raises UserError where the backend does not work on this machine."""
    backend.check()
    return [run_check(check, backend) for check in checks]


def main() -> int:
    from etude.sandbox.bubblewrap import Bubblewrap

    results = run_conformance(Bubblewrap())
    for result in results:
        print(json.dumps(asdict(result)))
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    os.environ.setdefault("CONFORMANCE_SECRET", "secret-of-the-caller")
    sys.exit(main())
