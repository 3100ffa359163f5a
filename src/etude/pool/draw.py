"""Which tasks a step trains on. A pure function of a PoolView, the seed and the step.

The weight of a task is, with E = E[p(1-p)] and staleness = versions since its last group (PLR, arXiv 2010.03934),

    w = (1 - rho) (E + EPSILON)^s / sum + rho staleness / sum      rho = stale_share, s = SHARPNESS, 1 where a task is drawn once only

so that a share rho of the weight re-measures what was not seen for long. It is multiplied by the score of the task's arm (arms.py). (Taking
the best arm first and a task of it then, as a plain bandit would, draws whatever the arm has left: fewer informative groups in the
simulation.) The posteriors of a policy that learns stay wide, so the E of the best tasks is hardly above that of one nobody has tried; the
power brings the best to the front. Where no task comes twice nothing is known of one but its arm: there the power gains nothing by the
simulation, and an arm that had bad luck would never be tried again.

Before that, a share of the groups goes to the stock of unsolved tasks, longest untried first. No task comes twice in a step.
With `oversample` above 1 more tasks follow, until as many groups can be expected to be informative as were asked for, or the factor
is reached.

Each task has its own random number u, from (seed, step, id), and the lowest -ln(u) / (w score) wins, which is a draw in proportion: it does
not depend on the order of rows, and a task that joins changes nothing about the others' numbers.

Where nothing is left that may be drawn, unsolved and retired tasks fill up: unsolved first.

Not here: what makes tasks (grow.py).
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from etude.pool.arms import scores
from etude.pool.entry import Arm
from etude.pool.view import PoolView, TaskView

SHARPNESS = 8.0  # 1 is in proportion; by the simulation, ten seeds: 4 lies between 1 and 8
EPSILON = 0.01  # what even a task of which all is known may hope for


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    step: int
    tasks: tuple[str, ...]  # ids, in the order drawn
    expected: float  # informative groups among them


def choose(view: PoolView, n: int, *, seed: int, step: int) -> Draw:
    """`n` tasks, or as many as there are; up to n x oversample if they promise too few informative groups."""
    settings = view.settings
    weights = _weights(view)

    def luck(one: TaskView) -> float:
        return -math.log(_uniform(seed, step, one.entry.id)) / max(weights.get(one.entry.id, 0.0), 1e-12)

    stock = [one for one in view.tasks.values() if one.state == "unsolved" and one.entry.admitted is not None and _left(view, one)]
    stock.sort(key=lambda one: (one.last or 0, one.entry.id))
    wanted = settings.unsolved_share * n
    slots = int(wanted) + (_uniform(seed, step, "stock") < wanted - int(wanted))
    chosen = stock[:slots]
    queues: dict[Arm, list[TaskView]] = defaultdict(list)
    for one in view.tasks.values():
        if view.drawable(one):
            queues[one.entry.arm].append(one)
    for queue in queues.values():
        queue.sort(key=luck, reverse=True)  # the best at the end
    played: dict[Arm, int] = defaultdict(int)
    limit = max(n, round(n * settings.oversample))
    while queues and (len(chosen) < n or (len(chosen) < limit and _expected(chosen) < n)):
        arm = _best(view, queues, played, luck)
        chosen.append(queues[arm].pop())
        played[arm] += 1
        if not queues[arm]:
            del queues[arm]
    if len(chosen) < n:
        retired = sorted((one for one in view.tasks.values() if one.state == "retired" and _left(view, one)), key=luck)
        chosen += (stock[slots:] + retired)[: n - len(chosen)]
    return Draw(step=step, tasks=tuple(one.entry.id for one in chosen), expected=_expected(chosen))


def uniform(ids: list[str], n: int, *, seed: int, step: int) -> Draw:
    """Every task alike: the baseline."""
    order = sorted(ids, key=lambda name: (_uniform(seed, step, name), name))
    return Draw(step=step, tasks=tuple(order[:n]), expected=math.nan)


def _best(view: PoolView, queues: dict[Arm, list[TaskView]], played: dict[Arm, int], luck: Callable[[TaskView], float]) -> Arm:
    """Of the task that comes first where the arm's score multiplies its weight."""
    found = scores(view.arms, queues, played, view.settings.exploration)
    return min(queues, key=lambda arm: (luck(queues[arm][-1]) / max(found[arm], 1e-12), arm))


def _weights(view: PoolView) -> dict[str, float]:
    """Probability of each task that may be drawn."""
    able = [one for one in view.tasks.values() if view.drawable(one)]
    rho = view.settings.stale_share
    sharpness = SHARPNESS if view.settings.max_draws != 1 else 1.0
    hope = {one.entry.id: (one.learnability + EPSILON) ** sharpness for one in able}
    stale = {one.entry.id: float(view.version - one.last) if one.last is not None else 0.0 for one in able}
    all_hope, all_stale = sum(hope.values()), sum(stale.values())
    if not all_stale:
        rho = 0.0
    return {name: (1 - rho) * hope[name] / all_hope + (rho * stale[name] / all_stale if rho else 0.0) for name in hope}


def _left(view: PoolView, one: TaskView) -> bool:
    return one.entry.admitted is not None and (not view.settings.max_draws or one.draws < view.settings.max_draws)


def _expected(chosen: list[TaskView]) -> float:
    return sum(one.informative for one in chosen)


def _uniform(*parts: object) -> float:
    """In (0, 1), the same on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogateescape")).digest()
    return (int.from_bytes(digest[:7], "big") + 0.5) / 2**56
