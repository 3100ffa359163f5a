"""Inside the sandbox: the same repository at another time, on another machine. Read as text by runner.py, executed by child.py.

A test id may hold the hour, the date, the name of the machine or a temporary folder: it is the same in every run of one build, and another
one when a task is graded. Under `move` such ids differ already while the build lasts. Only what code asks Python for is changed, before
anything of the repository is imported; a clock that C code reads itself stays.

In: nothing; out: a process whose clock, machine and temporary folder are others.

Not here: what is concluded from the ids (synth/workshop.py).
"""

import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, tzinfo
from datetime import datetime as moment
from typing import Any

AHEAD_S = 401 * 86400 + 7 * 3600 + 11 * 60 + 13  # year, month, day, day of the week, hour, minute and second are all others
MACHINE = "elsewhere"
FOLDER = "/tmp/elsewhere"


def move() -> None:
    _move_clock()
    _move_dates(time.time)
    _move_machine()
    os.makedirs(FOLDER, exist_ok=True)
    os.environ.update(TMPDIR=FOLDER, HOME=FOLDER)
    tempfile.tempdir = FOLDER


def _move_clock() -> None:
    real = time.time

    def later(seconds: float | None) -> float:
        return real() + AHEAD_S if seconds is None else seconds

    clock: Any = time
    local, utc, written, shown = time.localtime, time.gmtime, time.strftime, time.ctime
    clock.localtime = lambda seconds=None: local(later(seconds))
    clock.gmtime = lambda seconds=None: utc(later(seconds))
    clock.ctime = lambda seconds=None: shown(later(seconds))
    clock.strftime = lambda form, when=None: written(form, local(later(None)) if when is None else when)
    clock.time = lambda: later(None)
    clock.time_ns = lambda: int(later(None) * 1e9)


def _move_dates(now: Callable[[], float]) -> None:
    """Classes in place of the two that know what time it is; what they make is of the real ones."""

    class OfDates(type):
        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, moment if issubclass(cls, moment) else date)

        def __subclasscheck__(cls, one: type) -> bool:
            return type.__subclasscheck__(moment if type.__subclasscheck__(moment, cls) else date, one)

    class Date(date, metaclass=OfDates):
        def __new__(cls, *parts: Any, **named: Any) -> Any:
            return date(*parts, **named) if cls is Date else date.__new__(cls, *parts, **named)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(now())

    class Moment(moment, metaclass=OfDates):
        def __new__(cls, *parts: Any, **named: Any) -> Any:
            return moment(*parts, **named) if cls is Moment else moment.__new__(cls, *parts, **named)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(now(), UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(now())

    module: Any = sys.modules["datetime"]
    module.date, module.datetime = Date, Moment


def _move_machine() -> None:
    system: Any = os
    real, cores, process = os.uname(), os.cpu_count() or 1, os.getpid()
    system.uname = lambda: os.uname_result((real.sysname, MACHINE, real.release, real.version, real.machine))
    system.cpu_count = lambda: cores + 5
    system.getpid = lambda: process + 1000
    named: Any = socket
    named.gethostname = named.getfqdn = lambda *_: MACHINE
    known: Any = platform
    known.node = lambda: MACHINE
