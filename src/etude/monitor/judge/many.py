"""The judgements of a run: several at a time, one purse, and a judge that is down is not asked again for every trajectory.

Not here: one judgement (protocol.py), what follows (monitor/run.py).
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from etude.agent.meter import Purse
from etude.monitor.judge.case import Case
from etude.monitor.judge.protocol import Judge, JudgeLimits, Judgement, judge_case

MAX_DOWN = 3  # judgements in a row


def judge_many(
    cases: Sequence[Case],
    judge: Judge,
    limits: JudgeLimits = JudgeLimits(),
    *,
    total_dollars: float | None = None,
    workers: int = 1,
    on_judgement: Callable[[Judgement], None] = lambda _: None,
) -> list[Judgement]:
    """In the order of the cases; one each, whatever the judge does."""
    purse, lock = Purse(total_dollars), threading.Lock()
    down = 0

    def one(case: Case) -> Judgement:
        nonlocal down
        with lock:
            is_down = down >= MAX_DOWN
        if is_down:
            detail = f"the judge gave no answer {MAX_DOWN} times in a row"
            found = Judgement(trajectory=case.trajectory.id, judge=judge.name, verdict=None, problem="not asked", detail=detail)
        else:
            found = judge_case(case, judge, limits, purse=purse)
        with lock:
            if found.problem != "not asked":
                down = down + 1 if found.problem == "down" else 0
            on_judgement(found)
        return found

    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="judge") as pool:
        return list(pool.map(one, cases))


def counts(judgements: Sequence[Judgement]) -> dict[str, int]:
    """How many of each verdict, and of each reason for none."""
    return dict(sorted(Counter(one.verdict or f"undecided: {one.problem}" for one in judgements).items()))
