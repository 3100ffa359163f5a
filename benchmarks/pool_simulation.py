"""How many groups teach something, with the pool and without: a synthetic learner on synthetic tasks, the real Pool in between.

A task has a difficulty d; a rollout solves it with probability sigmoid(skill - d). Every informative group (rewards not all equal) raises
the skill by GAIN x 4 p(1-p), in full for its own kind of task and by TRANSFER for the others. At the start many tasks are trivial and many
out of reach. With the pool, wishes are fulfilled between two steps, and as factories do: YIELD of them work out, a harder task is about one
logit harder.

    uniform            every task alike, with replacement across steps: what a fixed set of tasks gives
    pool, no growing   posterior, bandit, retirement, stock; no new tasks
    pool               with evolution
    pool, one epoch    the same, no task drawn twice

informative        share of groups, over the whole run
last_quarter       the same over the last quarter of the steps: where a fixed set is used up
worst_window       the least of every WINDOW steps in turn, of the mean over seeds; worst_single: of one seed
skill              of the learner at the end (logits), start 0

    python -m benchmarks.pool_simulation [--quick] [--seeds N] [--steps N] [--plot FILE.svg]

Not here: real learners; how difficulty relates to real changes of a task is assumed, not measured.
"""

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import report
from etude.config import PoolConfig
from etude.pool.draw import uniform
from etude.pool.entry import CHANGES, Entry, Wish
from etude.pool.pool import Pool

KINDS = {"feature_deletion": 0.0, "joined_features": 1.5, "bug_injection": -1.0}  # mean difficulty, logits
REPOS = {"toolz": -0.5, "attrs": 0.0, "httpx": 0.5}
BANDS = {"S": -1.0, "M": 0.5, "L": 2.0}
SPREAD = 2.5  # of difficulties within an arm
TASKS = 240
GAIN, TRANSFER = 0.025, 0.5
YIELD = 0.6  # of wishes that a factory can fulfil
STEPS, PER_STEP, GROUP = 160, 8, 8
FRONTIER, FRONTIER_ONCE = 2, 4  # steps' worth of promising tasks that the pool keeps; where none is drawn twice
WINDOW = 20  # steps, of which the least share is told
WAYS = ("uniform", "pool, no growing", "pool", "pool, one epoch")


@dataclass
class World:
    """Tasks and the learner. All random numbers come from its own generator."""

    rng: random.Random
    gain: float = GAIN
    difficulty: dict[str, float] = field(default_factory=dict)
    skill: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))

    def entries(self, count: int) -> list[Entry]:
        arms = [(kind, repo, band) for kind in KINDS for repo in REPOS for band in BANDS]
        return [self.entry(f"task-{number:04d}", arms[number % len(arms)], number) for number in range(count)]

    def entry(self, name: str, arm: tuple[str, str, str], number: int, *, level: str = "A", wish: str = "") -> Entry:
        kind, repo, band = arm
        self.difficulty.setdefault(name, self.rng.gauss(KINDS[kind] + REPOS[repo] + BANDS[band], SPREAD))
        files = (f"{repo}/file{number % 7}.py",)
        return Entry(
            id=name, kind=kind, repo=repo, band=band, level=level, files=files, wish=wish, admitted=None if wish else 0, mode="stub"
        )

    def play(self, entry: Entry) -> list[bool]:
        """A group of rollouts; the learner learns from it."""
        p = 1 / (1 + math.exp(self.difficulty[entry.id] - self.skill[entry.kind]))
        solved = [self.rng.random() < p for _ in range(GROUP)]
        if any(solved) and not all(solved):
            share = sum(solved) / GROUP
            for kind in self.skill:
                self.skill[kind] += self.gain * 4 * share * (1 - share) * (1.0 if kind == entry.kind else TRANSFER)
        return solved

    def make(self, wish: Wish, known: dict[str, Entry]) -> list[Entry]:
        """A new task, or none: not everything works out."""
        if self.rng.random() > YIELD:
            return []
        name = f"made-{len(self.difficulty):05d}"
        if wish.change == "new":
            return [self.entry(name, wish.arm, len(self.difficulty), wish=wish.id)]
        old = known[wish.task]
        base = max(self.difficulty[one] for one in (wish.task, *wish.partners))
        self.difficulty[name] = base + (1.0 if wish.kind == "harder" else -1.0) * self.rng.uniform(0.5, 1.5)
        return [
            Entry(
                id=name, kind=old.kind, repo=old.repo, band=old.band, files=old.files, origin=(wish.task, *wish.partners), wish=wish.id,
                level=wish.to if wish.change in ("lower_level", "raise_level") else old.level, admitted=None,
                mode="remove" if wish.change == "remove" else old.mode,
            )
        ]  # fmt: skip


@dataclass(frozen=True)
class Run:
    informative: list[float]  # share of the groups of each step
    skill: float  # mean over kinds, at the end
    tasks: int
    alarms: int

    def share(self, begin: float = 0.0) -> float:
        return statistics.fmean(self.informative[int(begin * len(self.informative)) :])


def simulate(
    way: str, seed: int, folder: Path, *, steps: int = STEPS, per_step: int = PER_STEP, count: int = TASKS, gain: float = GAIN
) -> Run:
    """One learner. The pool's file goes into `folder`."""
    world = World(random.Random(seed), gain)
    entries = world.entries(count)
    settings = PoolConfig(max_draws=1 if way == "pool, one epoch" else 0)
    shares: list[float] = []
    with Pool(str(folder / f"{way.replace(' ', '_')}-{seed}.sqlite"), settings, group_size=GROUP) as pool:
        pool.register(entries)
        known = {entry.id: entry for entry in entries}
        for step in range(steps):
            if way == "uniform":
                drawn = uniform(sorted(known), per_step, seed=seed, step=step)
            else:
                drawn = pool.draw(per_step, seed=seed, step=step)
            played = {name: world.play(known[name]) for name in drawn.tasks}
            for name, solved in played.items():
                pool.record(name, step, solved, key=f"{step}/{name}")
            shares.append(statistics.fmean(float(len(set(solved)) > 1) for solved in played.values()))
            if way in ("pool", "pool, one epoch"):
                pool.wish(step=step, can=CHANGES, target=(FRONTIER_ONCE if settings.max_draws == 1 else FRONTIER) * per_step)
                _grow(pool, world, known)
                pool.admit(step=step + 1)
        alarms = sum(len(one.alarms) for one in pool.view().tasks.values())
    return Run(shares, statistics.fmean(world.skill.values()), len(known), alarms)


def _grow(pool: Pool, world: World, known: dict[str, Entry]) -> None:
    while (claim := pool.take()) is not None:
        made = world.make(claim.wish, known)
        if made:
            pool.fulfil(claim, made)
            known |= {entry.id: entry for entry in made}
        else:
            pool.fail(claim, "did not work out")


def _windows(shares: Sequence[float]) -> list[float]:
    return [statistics.fmean(shares[k : k + WINDOW]) for k in range(0, max(1, len(shares) - WINDOW + 1), WINDOW)]


def rows_of(runs: dict[str, list[Run]]) -> list[dict[str, object]]:
    return [
        {
            "way": way,
            "informative": statistics.fmean(run.share() for run in found),
            "last_quarter": statistics.fmean(run.share(0.75) for run in found),
            "worst_window": min(_windows([statistics.fmean(one) for one in zip(*(run.informative for run in found), strict=True)])),
            "worst_single": min(min(_windows(run.informative)) for run in found),
            "worst_seed": min(run.share(0.75) for run in found),
            "best_seed": max(run.share(0.75) for run in found),
            "skill": statistics.fmean(run.skill for run in found),
            "tasks": statistics.fmean(run.tasks for run in found),
            "alarms": statistics.fmean(run.alarms for run in found),
        }
        for way, found in runs.items()
    ]


def plot(runs: dict[str, list[Run]], width: int = 760, height: int = 360, window: int = 10) -> str:
    """Share of informative groups by step, mean over seeds, smoothed over `window` steps; an SVG."""
    colours = ("#888888", "#c08000", "#1060c0", "#208040")
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    left, top, right, bottom = 50, 20, width - 150, height - 40
    for percent in range(0, 101, 20):
        y = bottom - (bottom - top) * percent / 100
        parts.append(
            f'<path d="M{left} {y:.0f}H{right}" stroke="#ddd"/><text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{percent}%</text>'
        )
    for number, (way, found) in enumerate(runs.items()):
        means = [statistics.fmean(values) for values in zip(*(run.informative for run in found), strict=True)]
        smooth = [statistics.fmean(means[max(0, k - window + 1) : k + 1]) for k in range(len(means))]
        points = " ".join(
            f"{left + (right - left) * k / max(1, len(smooth) - 1):.1f},{bottom - (bottom - top) * value:.1f}"
            for k, value in enumerate(smooth)
        )
        colour = colours[number % len(colours)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 10}" y="{top + 20 * number + 10}" fill="{colour}">{way}</text>')
    parts.append(
        f'<text x="{(left + right) / 2:.0f}" y="{height - 10}" text-anchor="middle">step (share of informative groups)</text></svg>'
    )
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plot", type=Path, help="write the curves as an SVG")
    options = parser.parse_args(arguments)
    seeds, steps = (1, 60) if options.quick else (options.seeds, options.steps)
    with tempfile.TemporaryDirectory(prefix="etude-pool-") as folder:
        runs = {way: [simulate(way, seed, Path(folder), steps=steps) for seed in range(seeds)] for way in WAYS}
    if options.plot:
        options.plot.write_text(plot(runs), encoding="utf-8")
    rows = rows_of(runs)
    report("pool_simulation", rows, {"seeds": seeds, "steps": steps, "ways": rows})


if __name__ == "__main__":
    main()
