"""The live view of a run: which stage, how far, how long still, the current numbers, the last events.

    with Live("etude demo · toolz 1.0.0", ["build tasks", "warm start", "step 1 of 2", "step 2 of 2"]) as live:
        live.stage("build tasks", total=40)
        live.advance(1)
        live.numbers(solved=0.25, tokens_per_s=310.0)
        live.note("task toolz-second: kept")

On a terminal it redraws a few lines in place; elsewhere (a CI log, a pipe) it prints at most one plain line every few seconds.
Any thread may call it. Leaving the `with` block, also by Ctrl-C, gives the terminal back and leaves the last state on it.

Not here: the end table (summary.py), the page (report.py).
"""

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from etude.errors import printable

PLAIN_EVERY_S = 5.0  # between two lines where there is no terminal
PLAIN_NOTES = 2  # of those since the last line
REDRAWS_PER_S = 4.0
EVENTS = 5  # last notes on show
TRUST = 0.1  # the expected seconds count as much as this share of the run's own
SPARK_POINTS = 24  # values a sparkline remembers
BARS = "▁▂▃▄▅▆▇█"
NUMBERED = re.compile(r"(\w+) \d+ of \d+")  # "step 3 of 8": such stages share one line

# How a number is called and printed. A name that is not here is shown as it is.
LABELS = {
    "tokens_per_s": "tokens/s",
    "solved": "solved",
    "fail_to_pass_share": "tests passed",
    "invalid_call_rate": "invalid calls",
    "reward_mean": "reward",
    "feedback_kl": "feedback KL",
    "logprob_gap": "logprob gap",
    "loss": "loss",
}
SHARES = ("solved", "fail_to_pass_share", "invalid_call_rate", "gate_share")


@dataclass(slots=True)
class _Stage:
    name: str
    expected_s: float
    total: int | None = None
    done: int = 0
    started: float | None = None
    ended: float | None = None

    def share(self) -> float:
        if self.ended is not None:
            return 1.0
        return min(self.done / self.total, 1.0) if self.total else 0.0


class Live:
    """One view of one run. `expected_s` gives rough seconds per stage, which weigh the overall bar and the time left."""

    def __init__(
        self,
        title: str,
        stages: Sequence[str],
        *,
        expected_s: Mapping[str, float] | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self._stages = [_Stage(name, (expected_s or {}).get(name, 1.0)) for name in stages]
        self._weighted = expected_s is not None
        self._current: _Stage | None = None
        self._console = console or Console(file=sys.stderr)
        self._clock = clock
        self._begin = clock()
        self._numbers: dict[str, deque[float | str]] = {}
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self._pending: list[str] = []
        self._printed = -PLAIN_EVERY_S
        self._lock = threading.RLock()
        self._spinner = Spinner("dots", style="cyan")
        self._end: str | None = None
        self._live: RichLive | None = None

    def __enter__(self) -> Self:
        self._begin = self._clock()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = RichLive(
                _View(self), console=self._console, refresh_per_second=REDRAWS_PER_S, transient=False, vertical_overflow="crop"
            )
            self._live.start()
        else:
            self._plain(self.title)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._end = "done" if kind is None else "interrupted" if kind in (KeyboardInterrupt, SystemExit) else "failed"
            if kind is None:
                self._finish()
        if self._live is not None:
            self._live.stop()  # shows the cursor again
            self._live = None
        else:
            self._plain(f"{self._end} after {clock_time(self._clock() - self._begin)}", at_once=True)

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin the named stage, one of `stages`; the one before is done. Its bar counts to `total`; without it there is none.

        Calling it again with the name of the current stage sets a new total and counts from 0.
        """
        with self._lock:
            stage = next((s for s in self._stages if s.name == name), None)
            if stage is None:
                raise ValueError(f"stage {name!r} was not announced; the stages are {', '.join(s.name for s in self._stages)}")
            now, before = self._clock(), self._current
            if stage is not before:
                self._finish()
                for skipped in self._stages[: self._stages.index(stage)]:
                    skipped.ended = now if skipped.ended is None else skipped.ended
                stage.started = now
                self._current = stage
            stage.total, stage.done, stage.ended = total, 0, None
            ended = "" if before is None or before is stage else f"{before.name} took {clock_time(now - (before.started or now))}, now "
            self._plain(ended + self._progress_line(), at_once=True)

    def advance(self, n: int = 1) -> None:
        with self._lock:
            if self._current is not None:
                self._current.done += n
            self._plain(self._progress_line())

    def note(self, text: str) -> None:
        """One event, one line."""
        with self._lock:
            line = " ".join(printable(text).split())
            self._events.append((self._clock() - self._begin, line))
            if self._live is None:
                self._pending.append(line)
                self._plain(self._progress_line())

    def numbers(self, **values: float | str | None) -> None:
        """Current values; each keeps its last ones for a sparkline. None says nothing."""
        with self._lock:
            for name, value in values.items():
                if value is not None:
                    self._numbers.setdefault(name, deque(maxlen=SPARK_POINTS)).append(value)

    def _finish(self) -> None:
        if self._current is not None and self._current.ended is None:
            self._current.ended = self._clock()

    def _plain(self, line: str, at_once: bool = False) -> None:
        """One line, unless one was printed just now; what was noted meanwhile comes with the next one."""
        now = self._clock()
        if self._live is not None or (not at_once and now - self._printed < PLAIN_EVERY_S):
            return
        notes = self._pending[-PLAIN_NOTES:]
        more = [f"{len(self._pending) - len(notes)} notes before"] if len(self._pending) > len(notes) else []
        self._pending = []
        self._printed = now
        text = " | ".join([line, *more, *notes])
        self._console.print(f"[{clock_time(now - self._begin)}] {text}", markup=False, highlight=False, soft_wrap=True)

    def _progress_line(self) -> str:
        stage = self._current
        if stage is None:
            return "starting"
        count = f" {stage.done}/{stage.total}" if stage.total else f" {stage.done}" if stage.done else ""
        numbers = ", ".join(f"{LABELS.get(name, name)} {show(name, values[-1])}" for name, values in self._numbers.items())
        left = self.left_s()
        parts = [
            f"{stage.name}{count}",
            f"{100 * self.share():.0f}% of all" + ("" if left is None else f", about {rough_time(left)} left"),
            numbers,
        ]
        return " · ".join(part for part in parts if part)

    def share(self) -> float:
        """How much of the whole is done, 0 to 1, stages weighted by the seconds they are expected to take."""
        whole = sum(stage.expected_s for stage in self._stages)
        return sum(stage.expected_s * stage.share() for stage in self._stages) / whole if whole else 0.0

    def left_s(self) -> float | None:
        """Seconds still to go: what is left of the expected seconds, times how much slower than expected it went so far.

        Stages that were skipped tell nothing. None before there is anything to tell from.
        """
        left = sum(stage.expected_s * (1 - stage.share()) for stage in self._stages)
        done = sum(stage.expected_s * stage.share() for stage in self._stages if stage.started is not None)
        trust = TRUST * sum(stage.expected_s for stage in self._stages) if self._weighted else 0.0
        if done + trust == 0 or (not self._weighted and done < TRUST * (done + left)):
            return None
        return left * (self._clock() - self._begin + trust) / (done + trust)


class _View:
    """Draws the state of a Live at the moment it is asked to."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.live._lock:
            yield draw(self.live)


def draw(live: Live) -> RenderableType:
    now = live._clock()
    left = live.left_s()
    head = Table.grid(expand=True)
    head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    head.add_column(justify="right", no_wrap=True)
    rest = f"  {live._end}" if live._end else "" if left is None else f"  about {rough_time(left)} left"
    head.add_row(Text(live.title, style="bold"), Text(f"{clock_time(now - live._begin)}{rest}", style="dim"))
    bar = ProgressBar(total=1.0, completed=live.share(), width=None, complete_style="cyan", finished_style="cyan", style="bright_black")
    bar_row = Table.grid(expand=True)  # a bar alone would not end its line
    bar_row.add_row(bar)
    blocks: list[RenderableType] = [head, bar_row, Text(""), _stage_table(live, now)]
    if live._numbers:
        blocks += [Text(""), _number_table(live)]
    if live._events:
        blocks += [Text(""), *(_event(at, text) for at, text in live._events)]
    return Group(*blocks)


def _stage_table(live: Live, now: float) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(width=24)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for stage in visible_stages(live._stages, live._current):
        count = f"{stage.done}/{stage.total}" if stage.total else str(stage.done) if stage.done else ""
        running = stage is live._current and live._end is None
        seconds = "" if stage.started is None else clock_time((stage.ended or now) - stage.started)
        if running:
            bar: RenderableType = (
                ProgressBar(total=stage.total or 1, completed=stage.done, width=24, pulse=stage.total is None) if stage.total else ""
            )
            table.add_row(live._spinner, Text(stage.name, style="bold"), bar, count, Text(seconds, style="dim"))
        elif stage.ended is not None:
            skipped = stage.started is None
            table.add_row(
                Text("–" if skipped else "✓", style="green"), stage.name, "", "", Text("skipped" if skipped else seconds, style="dim")
            )
        elif stage is live._current:
            table.add_row(Text("✗", style="red"), Text(stage.name, style="bold"), live._end or "", count, Text(seconds, style="dim"))
        else:
            table.add_row(Text("·", style="dim"), Text(stage.name, style="dim"), "", "", "")
    return table


def visible_stages(stages: Sequence[_Stage], current: _Stage | None) -> list[_Stage]:
    """All, but of a numbered series ("step 3 of 8") only the current one, else the first that has not begun, else the last."""
    shown: list[_Stage] = []
    series: dict[str, list[_Stage]] = {}
    for stage in stages:
        match = NUMBERED.fullmatch(stage.name)
        if match is None:
            shown.append(stage)
            continue
        group = series.setdefault(match.group(1), [])
        if not group:
            shown.append(stage)  # holds the place of the series
        group.append(stage)
    for group in series.values():
        waiting = [s for s in group if s.ended is None]
        chosen = current if current in group else waiting[0] if waiting else group[-1]
        shown[next(i for i, s in enumerate(shown) if s is group[0])] = chosen or group[0]
    return shown


def _number_table(live: Live) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    for name, values in live._numbers.items():
        points = [v for v in values if isinstance(v, int | float)]
        spark = sparkline(points) if len(points) > 1 else ""
        table.add_row(Text(LABELS.get(name, name), style="dim"), Text(show(name, values[-1]), justify="right"), Text(spark, style="cyan"))
    return table


def _event(at: float, text: str) -> Text:
    return Text.assemble((f"{clock_time(at)}  ", "dim"), text, no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    if high == low:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)


def show(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return printable(value)
    if name in SHARES:
        return f"{100 * value:.0f}%"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def rough_time(seconds: float) -> str:
    """The precision that an estimate deserves."""
    if seconds < 90:
        return f"{max(10, 10 * round(seconds / 10))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
