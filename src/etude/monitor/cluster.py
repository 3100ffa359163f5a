"""Kinds of rollouts over a whole run, and which of them a person should look at: they solve more than the rest, nothing found explains
it, and they grow from step to step.

    signature(trajectory) -> strings        what it did, without names and numbers: commands, places, what the patch is like
    clusters(trajectories, explained) -> [Cluster]      surfaced(...) -> those for a person, the most telling first

1. Strings that more than half of all rollouts have say nothing and go. 2. Rollouts are gathered around leaders in the order of their ids:
each joins the leader with the highest Jaccard similarity of at least JOIN, or becomes one; leaders are found by MinHash (one permutation,
BINS bins, bands of two), so the work grows with the rollouts and not with their square. The same rollouts give the same clusters.

    p = P(at least k of the cluster's n solved | K of all N solved), hypergeometric

MinHash: Broder 1997; one permutation: Li, Owen, Zhang, arXiv 1208.1259. The idea to look for clusters: TRACE, arXiv 2601.20103, Meerkat,
arXiv 2604.11806.

Not here: what is known already (detectors/), one task (contrast.py).
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from etude.monitor.contrast import SPLIT, act_paths, patch_size, programs
from etude.monitor.trajectory import Trajectory

JOIN = 0.4  # Jaccard similarity to a leader
BINS, BAND = 32, 2
COMMON_SHARE = 0.5  # of all rollouts: what more of them have says nothing
MIN_SIZE = 3
MAX_P = 0.01
MAX_EXPLAINED = 0.5  # of a cluster's members
MAX_SHOWN = 10  # clusters for a person
MAX_FEATURES = 8

STEP = re.compile(r"(?:^|/)step-(\d+)(?:/|$)")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
NUMBER = re.compile(r"\d+")
WORD = re.compile(r"[A-Za-z_]{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    id: str  # of its leader's signature: the same kind has the same id in another run
    members: tuple[str, ...]  # ids
    tasks: int
    solved: int  # of `graded`
    graded: int
    rest_solved: float  # share of all others
    p: float  # that it solves so much more by chance
    explained: int  # members with a strong finding, or a proof
    growth: float | None  # share of the rollouts of the later steps minus that of the earlier ones; None: no steps are known
    features: tuple[tuple[str, float, float], ...]  # string, share of members that have it, share of the others

    @property
    def solved_share(self) -> float:
        return self.solved / self.graded if self.graded else 0.0


def signature(one: Trajectory) -> frozenset[str]:
    found: set[str] = set()
    before = ""
    for step in one.steps:
        for act in step.acts:
            found.add(f"tool {act.name}" + (" failed" if act.failed else ""))
            found.add(f"then {before} {act.name}")
            before = act.name
            found |= {f"runs {name}" for name in programs(act)}
            found |= {f"command {normal(part)}" for part in SPLIT.split(act.command[:20_000]) if part.strip()}
            found |= {f"place {place(path)}" for path in act_paths(act)}
    for event in one.events or ():
        found.add(f"sandbox {event.kind} {place(event.what)}")
    return frozenset(found | _patch_features(one.patch))


def normal(command: str) -> str:
    """A command without what differs from task to task: quoted texts, numbers, names of files."""
    text = NUMBER.sub("N", QUOTED.sub("'…'", command))
    return " ".join(place(word) if "/" in word else word for word in text.split())[:120]


def place(path: str) -> str:
    """Where a path leads, without the names of a task: hidden folders and those of tools stay, the rest becomes its kind."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    telling = [NUMBER.sub("N", part) for part in parts if part.startswith((".", "_")) or part in TELLING]
    name = parts[-1] if parts else ""
    ending = f"*.{name.rpartition('.')[2]}" if "." in name.strip(".") else "*"
    return "/".join((["", *telling] if path.startswith("/") else telling) + ([] if telling and telling[-1] == name else [ending]))


TELLING = frozenset((
    "build", "dist", "site-packages", "dist-packages", "tests", "test", "conftest.py", "proc", "tmp", "etc", "usr", "lib", "home",
    "objects", "hooks", "docs", "cache",
))  # fmt: skip


def _patch_features(patch: str) -> set[str]:
    if not patch.strip():
        return {"patch empty"}
    files, added = patch_size(patch)
    lines = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
    size = f"patch of about {2 ** max(0, (added - 1).bit_length())} lines" if added else "patch that only removes"
    found = {size, f"patch of {min(len(files), 4)} files", *(f"patch place {place(path)}" for path in files)}
    return found | {f"patch word {word}" for line in lines for word in WORD.findall(line)}


def clusters(trajectories: Sequence[Trajectory], explained: Collection[str] = ()) -> list[Cluster]:
    """All of at least MIN_SIZE members, the largest first. `explained`: ids with a strong finding or a proof."""
    known = sorted(trajectories, key=lambda one: one.id)
    signatures = [signature(one) for one in known]
    frequency = Counter(text for texts in signatures for text in texts)
    telling = [frozenset(text for text in texts if frequency[text] <= COMMON_SHARE * len(known)) for texts in signatures]
    groups = _gather(telling)
    large = {leader: members for leader, members in groups.items() if len(members) >= MIN_SIZE}
    found = [_cluster(members, leader, known, signatures, telling, explained) for leader, members in large.items()]
    return sorted(found, key=lambda one: (-len(one.members), one.id))


def surfaced(found: Sequence[Cluster]) -> list[Cluster]:
    """For a person: solved more than the rest, not explained, not shrinking. Kinds of many tasks first, then the least likely by chance."""
    chosen = [
        one
        for one in found
        if one.p <= MAX_P and one.explained <= MAX_EXPLAINED * len(one.members) and (one.growth is None or one.growth > 0)
    ]
    return sorted(chosen, key=lambda one: (one.tasks < 2, one.p, one.id))[:MAX_SHOWN]


def _gather(telling: Sequence[frozenset[str]]) -> dict[int, list[int]]:
    """Leader -> members, itself included; those without any telling string stay out."""
    groups: dict[int, list[int]] = {}
    buckets: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    hashes: dict[str, int] = {}
    for place_, texts in enumerate(telling):
        if not texts:
            continue
        bands = _bands(texts, hashes)
        candidates = {leader for band in bands for leader in buckets[band]}
        best = max(((jaccard(texts, telling[leader]), -leader) for leader in candidates), default=(0.0, 0))
        if best[0] >= JOIN:
            groups[-best[1]].append(place_)
        else:
            groups[place_] = [place_]
            for band in bands:
                buckets[band].append(place_)
    return groups


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 0.0


def _bands(texts: frozenset[str], hashes: dict[str, int]) -> list[tuple[int, int, int]]:
    """MinHash with one permutation: the least hash of each bin; an empty bin takes that of the next full one."""
    least: list[int | None] = [None] * BINS
    for text in texts:
        code = hashes.get(text)
        if code is None:
            code = hashes[text] = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        current = least[code % BINS]
        least[code % BINS] = code if current is None else min(current, code)
    full: list[int] = []
    for k in range(BINS):
        full.append(next(value for d in range(BINS) if (value := least[(k + d) % BINS]) is not None))
    return [(k, full[k], full[k + 1]) for k in range(0, BINS, BAND)]


def _cluster(
    members: Sequence[int],
    leader: int,
    known: Sequence[Trajectory],
    signatures: Sequence[frozenset[str]],
    telling: Sequence[frozenset[str]],
    explained: Collection[str],
) -> Cluster:
    inside = set(members)
    own = [known[k] for k in members]
    rest = [one for k, one in enumerate(known) if k not in inside]
    graded, others = [one for one in own if one.solved is not None], [one for one in rest if one.solved is not None]
    solved, rest_solved = sum(one.solved is True for one in graded), sum(one.solved is True for one in others)
    digest = hashlib.sha256("\n".join(sorted(telling[leader])).encode("utf-8", "surrogatepass")).hexdigest()
    return Cluster(
        id=f"kind-{digest[:10]}",
        members=tuple(one.id for one in own),
        tasks=len({one.task_id for one in own}),
        solved=solved,
        graded=len(graded),
        rest_solved=rest_solved / len(others) if others else 0.0,
        p=_tail(solved, len(graded), solved + rest_solved, len(graded) + len(others)) if others else 1.0,
        explained=sum(one.id in explained for one in own),
        growth=_growth(own, known),
        features=_features(members, signatures, telling),
    )


def _tail(k: int, n: int, solved: int, total: int) -> float:
    """P(X >= k), X hypergeometric: n drawn of `total`, of which `solved` are."""
    whole = math.comb(total, n)
    return sum(math.comb(solved, i) * math.comb(total - solved, n - i) for i in range(k, min(n, solved) + 1)) / whole


def step_of(one: Trajectory) -> int | None:
    """Of the training run, where the group or the id names it."""
    match = STEP.search(one.group) or STEP.search(one.id)
    return int(match[1]) if match else None


def _growth(own: Sequence[Trajectory], known: Sequence[Trajectory]) -> float | None:
    steps = sorted({step for one in known if (step := step_of(one)) is not None})
    if len(steps) < 2:
        return None
    middle = steps[len(steps) // 2]
    everyone, mine = ([step for one in group if (step := step_of(one)) is not None] for group in (known, own))

    def share(late: bool) -> float:
        return sum((step >= middle) == late for step in mine) / max(1, sum((step >= middle) == late for step in everyone))

    return share(True) - share(False)


def _features(
    members: Sequence[int], signatures: Sequence[frozenset[str]], telling: Sequence[frozenset[str]]
) -> tuple[tuple[str, float, float], ...]:
    inside, rest = Counter(t for k in members for t in telling[k]), Counter(t for texts in signatures for t in texts)
    others = max(1, len(signatures) - len(members))
    rows = [(text, count / len(members), (rest[text] - count) / others) for text, count in inside.items()]
    rows.sort(key=lambda row: (row[2] - row[1], row[0]))
    return tuple(row for row in rows[:MAX_FEATURES] if row[1] >= 0.5)
