"""An agent's shell for each runner: variables, links to the environment, functions, and the command that runs tests.

In: the name of a runner; out: a Shell. What the tests themselves are given comes from the adapter's Launch, so both see the same.

Not here: who opens the shell (agent/tools.py), how a grading runs tests (grade/runner.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from etude.languages.choose import by_runner
from etude.languages.protocol import Request
from etude.sandbox.protocol import ENV

SEARCH = "/python/bin:/usr/local/bin:/usr/bin:/bin"  # after the environment's own programs
# the program `pytest` that pip installs names an interpreter of the host
PYTEST = 'pytest() { python3 -m pytest "$@"; }; '
VITEST = 'vitest() { node node_modules/vitest/vitest.mjs "$@"; }; '  # its packages are installed without programs
JUNIT = 'junit() { python3 -I -S -B -c "$ETUDE_JUNIT" "$@"; }; '


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    tests: str  # runs all tests, or those of the files put behind it
    functions: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # path in the workspace -> place inside the sandbox; no part of a patch


@cache
def shell_of(runner: str) -> Shell:
    """UserError for a runner that is not known."""
    if runner == "pytest":
        return Shell(tests="pytest -q", functions=PYTEST)
    launch = by_runner(runner).launch(runner, Request(files=("?",)))
    env, links = dict(launch.env), dict(launch.links)
    if runner == "junit":
        script = Path(__file__).with_name("junit.py").read_text("utf-8")
        steps = [{"argv": step.argv, "config": step.config} for step in launch.steps]
        env |= {"PATH": f"{ENV}/jdk/bin:{SEARCH}", "JAVA_HOME": f"{ENV}/jdk", "ETUDE_JUNIT": script, "ETUDE_STEPS": json.dumps(steps)}
        return Shell(tests="junit", functions=JUNIT, env=env, links=links)
    env["PATH"] = f"{ENV}/bin:{SEARCH}"
    if runner == "vitest":
        return Shell(tests="vitest run", functions=VITEST, env=env, links=links)
    return Shell(tests="node --test", env=env, links=links)
