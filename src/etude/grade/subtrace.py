"""Inside the sandbox, in Python processes that a traced test starts: which code objects of the repository ran there.

Read as text by runner.py; child.py puts it before everything else on PYTHONPATH as `sitecustomize.py`, with a call of `begin` under it.

In: the repository and a folder; out: a file in the folder for each process that came to its end, one "line<tab>path" for each code object.

Not here: whose these are (child.py: the test's that is running).
"""

import atexit
import contextlib
import os
from typing import Any

BESIDE = ("__annotate__", "<generic parameters of ")  # as in child.py


def begin(root: str, folder: str) -> None:
    here = os.getcwd()
    profiler: Any = __import__("_lsprof").Profiler(subcalls=False, builtins=False)

    def end() -> None:
        profiler.disable()
        codes = [entry.code for entry in profiler.getstats() if not isinstance(entry.code, str)]
        codes = [code for code in codes if not code.co_name.startswith(BESIDE)]
        places = {(os.path.join(here, code.co_filename), code.co_firstlineno) for code in codes}
        lines = [f"{line}\t{path[len(root) :]}\n" for path, line in sorted(places) if path.startswith(root)]
        with contextlib.suppress(OSError, UnicodeError), open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as file:
            file.write("".join(lines))

    atexit.register(end)
    profiler.enable()
