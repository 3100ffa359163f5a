"""How Java tests are started: one process that compiles, one that runs the test classes.

In: a Request; out: a Launch. Both processes are our harness (harness/Build.java, Run.java), which lies compiled in the environment.

Not here: the harness.
"""

from collections.abc import Sequence

from etude.languages.protocol import Launch, Request, Step
from etude.sandbox.protocol import ENV

JAVA = f"{ENV}/jdk/bin/java"
SETTINGS = f"{ENV}/etude/settings.json"


def launch(runner: str, request: Request) -> Launch:
    if not request.files:
        return Launch(steps=())
    codes = None if request.codes is None else [list(code) for code in request.codes]
    ids = None if request.ids is None else list(request.ids)
    config = {"files": list(request.files), "ids": ids, "order": request.order, "seed": request.seed, "codes": codes}
    build = Step(argv=(JAVA, f"@{ENV}/etude/build.args", "etude_.Build", SETTINGS), config={"files": config["files"]}, tests=False)
    return Launch(steps=(build, Step(argv=(JAVA, f"@{ENV}/etude/run.args", "etude_.Run", SETTINGS), config=config)))


def import_launch(runner: str, paths: Sequence[str]) -> Launch | None:
    """None: every source is compiled before the tests run."""
    return None
