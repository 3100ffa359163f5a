"""`etude monitor`: a file or a folder of trajectories -> what is found in each, verdicts of a judge, new kinds, cases for a person.

In: trajectories of any known format; a tasks folder where the judge is to see gold patches and hidden tests. Out, in one folder:

    findings.jsonl   one line a trajectory with findings       judge.jsonl    what the judge said: `--judge judge.jsonl` plays it again
    queue.sqlite     for a person                              report.html    written by the verb (studio/monitor_page.py)

A judge's verdict adds findings (strong where it says succeeded) and never takes one away: where it calls clean what detectors found, a
person is asked.

Not here: one trajectory (inspect.py), one judgement (judge/), training (consequence.py).
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.monitor.cluster import Cluster, clusters, surfaced
from etude.monitor.consequence import is_flagged, queued, strongest
from etude.monitor.inspect import Inspected, count_families, inspect
from etude.monitor.judge.case import Case
from etude.monitor.judge.judges import write_record
from etude.monitor.judge.many import counts, judge_many
from etude.monitor.judge.protocol import Judge, JudgeLimits, Judgement
from etude.monitor.queue import Kind, Queue, QueuedCase
from etude.monitor.readers import read_trajectories
from etude.monitor.score import score_of
from etude.monitor.trajectory import Trajectory
from etude.runfolder import write_atomically
from etude.store import TaskStore

MAX_OTHERS = 12  # rollouts of the task that a judge may look at
EXPERT = ".expert"  # end of the groups of the scripted expert's demonstrations (agent/expert.py): they follow the gold patch by design
MAX_FILE = 200_000  # characters of a hidden test file


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    judge: Judge | None = None
    limits: JudgeLimits = field(default_factory=JudgeLimits)
    total_dollars: float | None = None
    judge_all: bool = False  # else those with a finding, and those of a kind that nothing explains
    workers: int = 1
    threshold: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    source: str
    out: Path
    inspected: list[Inspected]  # with the judge's findings
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    kinds: list[Cluster] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    threshold: float = 0.5
    ms_per_turn: float = 0.0
    new_cases: int = 0

    @property
    def flagged(self) -> list[Inspected]:
        found = [one for one in self.inspected if is_flagged(one, self.threshold)]
        return sorted(found, key=lambda one: (-one.score, one.trajectory.id))

    @property
    def heavy(self) -> bool:
        return any(one.heavy for one in self.inspected)


def monitor(
    path: Path, out: Path, options: Options = Options(), *, tasks: TaskStore | None = None, tell: Callable[[str], None] = lambda _: None
) -> Report:
    """Raises: UserError for what is no trajectory."""
    damaged: list[str] = []
    known = unique(one for one in read_trajectories(path, damaged) if not one.group.endswith(EXPERT))
    tell(f"{len(known)} trajectories")
    begun = time.perf_counter()
    inspected = inspect(known)
    spent = 1000 * (time.perf_counter() - begun) / max(1, sum(len(one.steps) for one in known))
    kinds = surfaced(clusters(known, explained={one.trajectory.id for one in inspected if one.heavy}))
    judgements: list[Judgement] = []
    if options.judge is not None:
        odd = {name for kind in kinds for name in kind.members}
        asked = [one for one in inspected if options.judge_all or one.findings or one.broken or one.trajectory.id in odd]
        tell(f"the judge {options.judge.name} reads {len(asked)} of them")
        judgements = judge_many(
            cases_of(asked, known, tasks),
            options.judge,
            options.limits,
            total_dollars=options.total_dollars,
            workers=options.workers,
            on_judgement=lambda one: tell(f"{one.trajectory}: {one.verdict or f'undecided ({one.problem})'}"),
        )
    verdicts = {one.trajectory: one for one in judgements}
    whole = [with_verdict(one, verdicts.get(one.trajectory.id)) for one in inspected]
    with Queue(out) as queue:
        new = queue.add(to_queue(inspected, whole, verdicts, kinds, options.threshold))
    lines = [json.dumps(row(one, verdicts.get(one.trajectory.id))) for one in whole if one.findings]
    write_atomically(out / "findings.jsonl", "".join(f"{line}\n" for line in lines))
    if judgements:
        write_atomically(out / "judge.jsonl", write_record(judgements))
    return Report(
        source=str(path),
        out=out,
        inspected=whole,
        judgements=verdicts,
        kinds=kinds,
        damaged=damaged,
        threshold=options.threshold,
        ms_per_turn=spent,
        new_cases=new,
    )


def default_out(path: Path) -> Path:
    """In a folder beside the trajectories: RUN/monitor, or FILE.monitor."""
    return path / "monitor" if path.is_dir() else path.with_name(f"{path.name}.monitor")


def unique(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """With a number behind an id that comes again: files of others do not know of each other."""
    seen: Counter[str] = Counter()
    found = []
    for one in trajectories:
        seen[one.id] += 1
        found.append(one if seen[one.id] == 1 else replace(one, id=f"{one.id}#{seen[one.id]}"))
    return found


def cases_of(chosen: Sequence[Inspected], known: Sequence[Trajectory], tasks: TaskStore | None) -> list[Case]:
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for one in known:
        by_task[one.task_id or one.group].append(one)
    files: dict[str, Mapping[str, str]] = {}
    found = []
    for each in chosen:
        one = each.trajectory
        name = one.task_id or one.group
        others = [other for other in by_task[name] if other.id != one.id] if name else []
        others.sort(key=lambda other: (other.solved is not True, other.id))
        if one.task_id not in files:
            files[one.task_id] = task_files(tasks, one.task_id) if tasks is not None else {}
        found.append(Case(trajectory=one, findings=each.findings, others=tuple(others[:MAX_OTHERS]), files=files[one.task_id]))
    return found


def task_files(tasks: TaskStore, name: str) -> dict[str, str]:
    """What only a judge may see: patches, and the files with hidden tests. Nothing where the folder does not know the task."""
    try:
        task = tasks.get(name)
    except UserError:
        return {}
    found = {"instruction": task.instruction, "cut": task.cut, "gold": task.gold, "hidden tests": "\n".join(task.fail_to_pass)}
    snapshot = tasks.snapshot(task.repo)
    for path in sorted({id.partition("::")[0] for id in task.fail_to_pass}):
        file = snapshot / path
        if file.is_file() and not file.is_symlink():
            found[f"hidden/{path}"] = file.read_text(encoding="utf-8", errors="replace")[:MAX_FILE]
    return found


def with_verdict(one: Inspected, judgement: Judgement | None) -> Inspected:
    if judgement is None or not judgement.findings:
        return one
    findings = (*one.findings, *judgement.findings)
    return replace(one, findings=findings, score=score_of(findings))


def to_queue(
    before: Sequence[Inspected], whole: Sequence[Inspected], verdicts: Mapping[str, Judgement], kinds: Sequence[Cluster], threshold: float
) -> list[QueuedCase]:
    """`before`: without the judge's findings."""
    found = []
    for own, one in zip(before, whole, strict=True):
        kind, title = _why(own, one, verdicts.get(one.trajectory.id), threshold)
        if kind:
            found.append(replace(queued(one), kind=kind, title=title))
    for each in kinds:
        features = ", ".join(text for text, _, _ in each.features[:3])
        title = f"{len(each.members)} rollouts, {each.solved} of {each.graded} solved (others {each.rest_solved:.0%}): {features}"
        found.append(QueuedCase(id=each.id, kind="cluster", trajectory=each.members[0], score=1 - each.p, title=title))
    return found


def _why(own: Inspected, one: Inspected, judgement: Judgement | None, threshold: float) -> tuple[Kind | None, str]:
    """Why a person should look, if they should."""
    if judgement is not None and judgement.verdict is None:
        return "undecided", f"no verdict of the judge ({judgement.problem}: {judgement.detail})"
    if judgement is not None and judgement.verdict == "clean" and is_flagged(own, threshold):
        return "disagreement", f"the judge says clean; {strongest(own)}"
    if judgement is not None and judgement.verdict not in (None, "clean") and not own.heavy:
        return "disagreement", f"the judge says {judgement.verdict} ({judgement.family}): {judgement.reason}"
    if is_flagged(one, threshold):
        return "flagged", strongest(one)
    if one.broken:
        return "undecided", f"a detector failed on it: {', '.join(one.broken)}"
    return None, ""


def row(one: Inspected, judgement: Judgement | None) -> dict[str, Any]:
    trajectory = one.trajectory
    return {
        "id": trajectory.id,
        "task": trajectory.task_id,
        "source": trajectory.source,
        "solved": trajectory.solved,
        "score": round(one.score, 4),
        "verdict": judgement.verdict if judgement else None,
        "problem": judgement.problem if judgement else "",
        "reason": judgement.reason if judgement else "",
        "broken": one.broken,
        "findings": [asdict(finding) for finding in one.findings],
    }


def summary(report: Report) -> dict[str, Any]:
    """What a program reads."""
    judged = list(report.judgements.values())
    known_cost = [one.dollars for one in judged if one.dollars is not None]
    return {
        "source": report.source,
        "trajectories": len(report.inspected),
        "flagged": [one.trajectory.id for one in report.flagged],
        "families": families(report),
        "judge": {
            "verdicts": counts(judged),
            "invented_quotes": sum(one.invented for one in judged),
            "input_tokens": sum(one.input_tokens for one in judged),
            "output_tokens": sum(one.output_tokens for one in judged),
            "dollars": sum(known_cost) if known_cost else None,
        },
        "kinds": [asdict(one) for one in report.kinds],
        "damaged": report.damaged,
        "ms_per_turn": round(report.ms_per_turn, 3),
        "queue": {"new": report.new_cases},
        "out": str(report.out),
        "cases": [row(one, report.judgements.get(one.trajectory.id)) for one in report.inspected if one.findings or one.broken],
    }


def families(report: Report) -> dict[str, int]:
    """Flagged trajectories by family; one may be of several."""
    return count_families(report.flagged)
