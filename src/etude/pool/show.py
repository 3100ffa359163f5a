"""The pool for people: states, pass rates, frontier, arms, wishes, alarms.

Not here: what the words mean (view.py).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from etude.config import PoolConfig, RLConfig, from_toml
from etude.errors import UserError, printable
from etude.pool.arms import scores
from etude.pool.database import is_postgres
from etude.pool.entry import Wish
from etude.pool.pool import Pool, runs
from etude.pool.view import STATES, PoolView, TaskView

BINS = ((0.0, "none solved"), (1 / 16, "to 1/16"), (0.25, "to 1/4"), (0.75, "to 3/4"), (0.9, "to 9/10"), (1.0, "to all"))  # upper ends
BANDS = ("S", "M", "L", "XL")
MOST_ARMS = 20


def pool_summary(view: PoolView, wishes: Sequence[tuple[Wish, str, str]]) -> dict[str, Any]:
    """The same as the tables, for programs."""
    return {
        "version": view.version,
        "states": {state: sum(one.state == state for one in view.tasks.values()) for state in STATES},
        "frontier": [one.entry.id for one in view.frontier],
        "groups": sum(one.draws for one in view.tasks.values()),
        "made": sum(bool(one.entry.wish) for one in view.tasks.values()),
        "wishes": dict(sorted(Counter(state for _, state, _ in wishes).items())),
        "alarms": [
            {"task": a.task, "version": a.version, "before": a.before, "after": a.after, "probability": a.probability}
            for one in view.tasks.values()
            for a in one.alarms
        ],
        "held": {one.entry.id: one.entry.held for one in view.tasks.values() if one.entry.held},
    }


def pool_page(view: PoolView, wishes: Sequence[tuple[Wish, str, str]], *, title: str = "pool") -> Group:
    parts: list[Table | Text] = [_states(view, title), _rates(view), _arms(view)]
    if wishes:
        parts.append(_wishes(wishes))
    alarms = _alarms(view)
    parts.append(alarms if alarms is not None else Text("no alarm"))
    return Group(*parts)


def _states(view: PoolView, title: str) -> Table:
    table = Table(*STATES, "frontier", title=f"{title}, before step {view.version + 1}: {len(view.tasks)} tasks")
    counts = Counter(one.state for one in view.tasks.values())
    table.add_row(*(str(counts[state]) for state in STATES), str(len(view.frontier)))
    return table


def _rates(view: PoolView) -> Table:
    """Tasks by measured pass rate, one row a band of size."""
    table = Table("band", "not tried", *(name for _, name in BINS), title="tasks by pass rate")
    bands: dict[str, list[TaskView]] = defaultdict(list)
    for one in view.tasks.values():
        bands[one.entry.band].append(one)
    for band in sorted(bands, key=lambda band: (BANDS.index(band) if band in BANDS else len(BANDS), band)):
        found = bands[band]
        rates = [one.rate for one in found if one.rate is not None]
        table.add_row(Text(printable(band)), str(len(found) - len(rates)), *map(str, _binned(rates)))
    return table


def _binned(rates: Iterable[float]) -> list[int]:
    counts = [0] * len(BINS)
    for rate in rates:
        counts[next(i for i, (end, _) in enumerate(BINS) if rate <= end + 1e-9)] += 1
    return counts


def _arms(view: PoolView) -> Table:
    names = {one.entry.arm for one in view.tasks.values()}
    found = scores(view.arms, names, {}, view.settings.exploration)
    able = Counter(one.entry.arm for one in view.tasks.values() if view.drawable(one))
    table = Table("kind", "repository", "band", "score", "groups, decayed", "solved", "may be drawn", title="arms, best first")
    for name in sorted(names, key=lambda name: (-found[name], name))[:MOST_ARMS]:
        arm = view.arms.get(name)
        solved = f"{arm.solved / arm.groups:.0%}" if arm is not None else "-"
        groups = f"{arm.groups:.1f}" if arm is not None else "0"
        table.add_row(*(Text(printable(part)) for part in name), f"{found[name]:.3f}", groups, solved, str(able[name]))
    if len(names) > MOST_ARMS:
        table.caption = f"{len(names) - MOST_ARMS} more"
    return table


def _wishes(wishes: Sequence[tuple[Wish, str, str]]) -> Table:
    table = Table("wish", "number", "state", "of them, last reason", title="wishes")
    grouped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for wish, state, note in wishes:
        grouped[wish.kind, wish.change, state].append(note)
    for (kind, change, state), notes in sorted(grouped.items()):
        table.add_row(f"{kind}: {change}", str(len(notes)), state, Text(printable(notes[-1])))
    return table


def _alarms(view: PoolView) -> Table | None:
    rows = [(one, alarm) for one in view.tasks.values() for alarm in one.alarms]
    held = [one for one in view.tasks.values() if one.entry.held]
    if not rows and not held:
        return None
    table = Table("task", "step", "why it is out", title="alarms and held tasks")
    for one, alarm in rows:
        why = f"solved {alarm.before:.0%}, then {alarm.after:.0%}: probability {alarm.probability:.1g}"
        table.add_row(Text(printable(one.entry.id)), str(alarm.version + 1), why)
    for one in held:
        table.add_row(Text(printable(one.entry.id)), "", Text(printable(one.entry.held)))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    run: str
    view: PoolView
    wishes: list[tuple[Wish, str, str]]


def look_at(where: str) -> list[Shown]:
    """Every run of a pool. `where`: a run folder (that run, with its settings), a file, or a URL. Raises: UserError."""
    settings, url, names, size = PoolConfig(), where, None, RLConfig().group_size
    if not is_postgres(where) and (Path(where) / "config.toml").is_file():
        try:
            config = from_toml((Path(where) / "config.toml").read_text(encoding="utf-8"))
            names = [str(json.loads((Path(where) / "pool.json").read_bytes())["run"])]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{where} holds no pool that can be read ({error}): it has one as soon as `etude train` has begun to draw"
            ) from None
        settings, size = config.pool, config.rl.group_size
        url = config.pool.url or str(Path(where) / "pool.sqlite")
    elif not is_postgres(where) and Path(where).is_dir():
        raise UserError(
            f"{where} is no run folder: it has no config.toml; name a folder that etude train has made, a pool.sqlite, or a URL"
        )
    found = []
    for name in runs(url) if names is None else names:
        with Pool(url, settings, group_size=size, run=name, create=False) as pool:
            found.append(Shown(run=name, view=pool.view(), wishes=pool.wishes()))
    return found


def show_pool(where: str, *, as_json: bool = False) -> str | Group:
    """What `etude tasks pool WHERE` prints. Raises: UserError."""
    found = look_at(where)
    if as_json:
        return json.dumps({one.run: pool_summary(one.view, one.wishes) for one in found}, sort_keys=True)
    if not found:
        return f"{where}: no run has used this pool yet"
    return Group(*(pool_page(one.view, one.wishes, title=printable(one.run)) for one in found))
