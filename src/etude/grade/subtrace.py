"""Inside the sandbox, in Python processes that a traced test starts: which code objects of the repository ran there.

Read as text by runner.py; tracer.py puts it before everything else on PYTHONPATH as `sitecustomize.py`, with a call of `begin` under it.

In: the repository and a folder; out: a file in the folder for each process that came to its end, one "line<tab>path" for each code object.

Not here: whose these are (tracer.py: the test's that is running).
"""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

TOOL = 4
BESIDE = ("__annotate__", "<generic parameters of ")  # both as in tracer.py


def begin(root: str, folder: str) -> None:
    here = os.getcwd()
    codes: Callable[[], Iterable[CodeType]]
    if sys.version_info >= (3, 12):  # there a process has only one profiler, which is the program's
        seen: dict[int, CodeType] = {}
        events = sys.monitoring.events

        def started(code: CodeType, offset: int) -> object:
            seen[id(code)] = code
            return sys.monitoring.DISABLE

        sys.monitoring.use_tool_id(TOOL, "etude")
        sys.monitoring.register_callback(TOOL, events.PY_START, started)
        sys.monitoring.set_events(TOOL, events.PY_START)
        codes = seen.values
    else:
        profiler: Any = __import__("_lsprof").Profiler(subcalls=False, builtins=False)
        profiler.enable()

        def codes() -> list[CodeType]:
            profiler.disable()
            return [entry.code for entry in profiler.getstats() if not isinstance(entry.code, str)]

    def end() -> None:
        own = [code for code in list(codes()) if not code.co_name.startswith(BESIDE)]
        places = {(os.path.join(here, code.co_filename), code.co_firstlineno) for code in own}
        lines = [f"{line}\t{path[len(root) :]}\n" for path, line in sorted(places) if path.startswith(root)]
        with contextlib.suppress(OSError, UnicodeError), open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
            file.write("".join(lines))

    atexit.register(end)
