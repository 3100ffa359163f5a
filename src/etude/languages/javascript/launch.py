"""How JavaScript tests are started: one node process per test file, or vitest, whose workers it starts itself.

In: a Request; out: a Launch. The harness travels in the command line, as data: modules, so nothing of it lies where tests can write.

Not here: the harness (node.mjs, vitest.mjs, vitest-runner.mjs, imports.mjs).
"""

import base64
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from etude.languages.protocol import Launch, Request, Step
from etude.sandbox.protocol import ENV

NODE = f"{ENV}/bin/node"
FLAGS = ("--no-warnings", "--max-old-space-size=700")
TEST_MS = 20_000  # of one test: what waits for something that never comes fails, and does not take the run along
LINKS = {"node_modules": f"{ENV}/node_modules"}
VARIABLES = {"CI": "1", "NO_COLOR": "1", "NODE_ENV": "test", "FORCE_COLOR": "0"}


def launch(runner: str, request: Request) -> Launch:
    codes = None if request.codes is None else [list(code) for code in request.codes]
    ids = None if request.ids is None else list(request.ids)
    if runner == "vitest":
        config = {"files": list(request.files), "ids": ids, "order": request.order, "seed": request.seed, "codes": codes}
        steps = [Step(argv=(NODE, *FLAGS, "--input-type=module", "--eval", _text("vitest.mjs")), config=config)] if request.files else []
    else:
        module = _module("node.mjs")
        argv = (NODE, *FLAGS, "--import", module, "--test-reporter", module, "--test-force-exit", f"--test-timeout={TEST_MS}")
        steps = []
        for path in _ordered(request):
            mine = None if ids is None else [id for id in ids if id.startswith(f"{path}::")]
            steps.append(Step(argv=(*argv, f"./{path}"), config={"path": path, "ids": mine, "codes": codes}, path=path))
    return Launch(steps=tuple(steps), env=VARIABLES, links=LINKS)


def import_launch(runner: str, paths: Sequence[str]) -> Launch | None:
    if runner == "vitest":  # its transforms make modules of what node alone cannot load
        return None
    step = Step(argv=(NODE, *FLAGS, "--input-type=module", "--eval", _text("imports.mjs")), config={"paths": list(paths)})
    return Launch(steps=(step,), env=VARIABLES, links=LINKS)


def _ordered(request: Request) -> list[str]:
    """node runs the tests of a file in the order in which they stand; files have processes of their own, so only they change places."""
    if request.order == "plain":
        return list(request.files)
    found = list(reversed(request.files))
    if request.order == "shuffled" and found:
        at = request.seed % len(found)
        found = found[at:] + found[:at]
    return found


@cache
def _module(name: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(_text(name).encode()).decode()


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
