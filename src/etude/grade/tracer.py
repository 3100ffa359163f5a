"""Inside the sandbox: which code objects of the repository ran in which test. Read as text by runner.py, executed by child.py.

By `sys.monitoring` from Python 3.12 on, before it by a profiler in C. Processes that a test starts are told of by subtrace.py.

In: the repository; out: events ["code", number, path, line] and ["reach", test, numbers].

Not here: the tests (child.py), what reach is good for (synth/candidates.py).
"""

import contextlib
import cProfile
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

BESIDE = ("__annotate__", "<generic parameters of ")  # code of newer Pythons that stands where a function does, and runs without it
TOOL = 4  # of sys.monitoring; debuggers, coverage, profilers and optimisers have 0, 1, 2 and 5
Send = Callable[[list[Any]], None]


class Tracer:
    """Which code objects of the repository ran in which test, by (path, first line): a name may be there twice."""

    def __init__(self, root: str, send: Send, subtrace: str) -> None:
        self.root, self.send, self.subtrace = root + os.sep, send, subtrace
        self.folder = tempfile.mkdtemp()  # where processes that tests start leave what ran in them
        self.set_profile = sys.setprofile
        self.current: dict[int, CodeType] = {}  # by id, as comparing code objects compares what they hold
        self.profiler = cProfile.Profile()
        self.owner = "<collect>"
        self.known: dict[int, int | None] = {}  # id of a code object -> number of its place; None outside the repository
        self.alive: list[CodeType] = []  # so that no id is used twice
        self.places: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        if sys.version_info >= (3, 12):
            events = sys.monitoring.events
            sys.monitoring.use_tool_id(TOOL, "etude")
            for event, callback in ((events.PY_START, self.started), (events.PY_RESUME, self.started), (events.PY_THROW, self.thrown)):
                sys.monitoring.register_callback(TOOL, event, callback)
            sys.monitoring.set_events(TOOL, events.PY_START | events.PY_RESUME | events.PY_THROW)
        else:  # a profile function in Python is told of every call of C too; cProfile's is told in C
            threading.setprofile(self.profile)
            sys.setprofile = self.keep
            self.profiler.enable(subcalls=False, builtins=False)
        os.mkdir(f"{self.folder}/site")
        with open(f"{self.folder}/site/sitecustomize.py", "w", encoding="utf-8") as file:
            file.write(f"{self.subtrace}\n\nbegin({self.root!r}, {self.folder!r})\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([f"{self.folder}/site", os.environ["PYTHONPATH"]])

    def stop(self) -> None:
        self.switch("")
        if sys.version_info >= (3, 12):
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.setprofile = self.set_profile
            self.profiler.disable()
            threading.setprofile(None)

    def keep(self, function: Any) -> None:
        """For `sys.setprofile`: benchmarks take the profiler away while they measure, and cannot put one of C back."""
        if function in (None, self.profiler) and threading.current_thread() is threading.main_thread():
            self.profiler.enable(subcalls=False, builtins=False)
        else:
            self.set_profile(function)

    def started(self, code: CodeType, offset: int) -> object:
        """Told once for each code object and test: after that it costs nothing until the next switch."""
        self.current[id(code)] = code
        if sys.version_info >= (3, 12):
            return sys.monitoring.DISABLE
        return None

    def thrown(self, code: CodeType, offset: int, exception: BaseException) -> None:
        """A generator that goes on with an exception. Told of each: this event cannot be disabled."""
        self.current[id(code)] = code

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            self.current[id(code)] = code

    def switch(self, owner: str) -> None:
        """Send what ran since the last switch; what runs from now on is the owner's."""
        seen, self.current = self.current, {}
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()
        else:
            seen |= {id(entry.code): entry.code for entry in self.profiler.getstats() if not isinstance(entry.code, str)}
            self.profiler.clear()
            profiler: Any = sys.getprofile()
            if profiler is not self.profiler:  # a test put one of its own there
                self.profiler.enable(subcalls=False, builtins=False)
        numbers = {self.number(code) for code in list(seen.values())} - {None}
        numbers |= {self.number_of(path, line) for path, line in self.others()}
        if numbers:
            self.send(["reach", self.owner, sorted(number for number in numbers if number is not None)])
        self.owner = owner

    def number(self, code: CodeType) -> int | None:
        if id(code) in self.known:
            return self.known[id(code)]
        self.alive.append(code)
        number = None
        if code.co_filename.startswith(self.root) and not code.co_name.startswith(BESIDE):
            number = self.number_of(code.co_filename[len(self.root) :], code.co_firstlineno)
        self.known[id(code)] = number
        return number

    def number_of(self, path: str, line: int) -> int:
        number = self.places.setdefault((path, line), len(self.places))
        if number == len(self.places) - 1:
            self.send(["code", number, path, line])
        return number

    def others(self) -> Iterable[tuple[str, int]]:
        """What ran in processes that have ended since the last switch."""
        for entry in list(os.scandir(self.folder)):
            with contextlib.suppress(OSError, ValueError):
                if entry.is_file():
                    with open(entry.path, encoding="utf-8") as file:
                        lines = [line.rstrip("\n").partition("\t") for line in file]
                    os.unlink(entry.path)
                    yield from [(path, int(number)) for number, _, path in lines]
