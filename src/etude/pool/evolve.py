"""Which tasks the pool would like to have: harder ones of what is solved, easier ones of what nobody solves, new ones of what pays.

In: a PoolView, the wishes so far, what the maker can do. Out: Wishes, so many as the frontier lacks, in the order of

    harder   pass rate above HARDER_ABOVE in at least HARDER_AFTER rollouts: level A -> B -> C, hide the visible tests, join with another
             solved feature of the same files (up to MOST_JOINED), remove instead of stub
    easier   below EASIER_BELOW after EASIER_AFTER: level C -> B -> A, show half of the tests, then all, split a joined task
    new      another task of the arm that scores best

One change a task at a time: the first of the list that the maker can do and that has not failed. Once it is made, the new task is measured
and changed further, not the old one. Joining is the strongest of the cheap changes (SWE-smith's raters give combined tasks 5.7 of 9, single
ones 3.6).

Not here: making them (grow.py).
"""

from collections.abc import Collection, Iterator, Mapping

from etude.pool.arms import scores
from etude.pool.entry import Arm, Change, Entry, Want, Wish
from etude.pool.view import EASIER_AFTER, EASIER_BELOW, HARDER_ABOVE, HARDER_AFTER, PoolView, TaskView

MOST_JOINED = 4
LEVELS = ("A", "B", "C")  # from easy to hard
FAILED = ("failed", "late")  # states of a wish after which the next change is tried


def solved_too_often(one: TaskView) -> bool:
    return one.rollouts >= HARDER_AFTER and (one.rate or 0.0) > HARDER_ABOVE and not _out(one)


def hardly_solved(one: TaskView) -> bool:
    return one.rollouts >= EASIER_AFTER and (one.rate or 0.0) < EASIER_BELOW and not one.shaped and not _out(one)


def _out(one: TaskView) -> bool:
    return bool(one.entry.held or one.alarms)


def wishes(view: PoolView, known: Mapping[str, str], can: Collection[Change], *, limit: int, step: int) -> list[Wish]:
    """At most `limit` that are not `known` yet (id -> state)."""
    found: list[Wish] = []
    solved = sorted(filter(solved_too_often, view.tasks.values()), key=lambda one: (-(one.last or 0), one.rate, one.entry.id))
    unsolved = sorted(filter(hardly_solved, view.tasks.values()), key=lambda one: (-(one.last or 0), one.entry.id))
    busy: set[str] = set()  # features that a wish of this call joins already
    known_as = {name: task.entry for name, task in view.tasks.items()}
    for one in solved:
        if len(found) < limit and one.entry.id not in busy:
            others = [other.entry for other in solved if other.entry.id not in busy]
            wish = _first(harder(one.entry, others, step, known_as), known, can)
            if wish is not None:
                found.append(wish)
                busy |= {wish.task, *wish.partners}
    for one in unsolved:
        if len(found) < limit and (wish := _first(easier(one.entry, step), known, can)) is not None:
            found.append(wish)
    if "new" in can and len(found) < limit:
        found += _new(view, known, limit - len(found), step)
    return found


def harder(entry: Entry, others: Collection[Entry], step: int = 0, known_as: Mapping[str, Entry] | None = None) -> Iterator[Wish]:
    """Every way, the first choice first. `known_as`: every task by id."""
    if entry.level in LEVELS[:-1]:
        yield _change(entry, "lower_level", step, to=LEVELS[LEVELS.index(entry.level) + 1])
    if entry.visible_share > 0:
        yield _change(entry, "hide_tests", step, to="0")
    for other in sorted(others, key=lambda other: (-len(set(other.files) & set(entry.files)), other.id)):
        if _joinable(entry, other, known_as or {}):
            yield _change(entry, "join", step, partners=(other.id,))
    if entry.mode == "stub":
        yield _change(entry, "remove", step)


def easier(entry: Entry, step: int = 0) -> Iterator[Wish]:
    if entry.level in LEVELS[1:]:
        yield _change(entry, "raise_level", step, to=LEVELS[LEVELS.index(entry.level) - 1])
    if entry.visible_share < 1:
        yield _change(entry, "show_tests", step, to="0.5" if entry.visible_share < 0.5 else "1")
    if entry.kind == "joined_features":
        yield _change(entry, "split", step)


def _change(entry: Entry, change: Change, step: int, *, to: str = "", partners: tuple[str, ...] = ()) -> Wish:
    kind: Want = "easier" if change in ("raise_level", "show_tests", "split") else "harder"
    return Wish(kind=kind, change=change, task=entry.id, to=to, partners=partners, arm=entry.arm, step=step)


def _joinable(entry: Entry, other: Entry, known_as: Mapping[str, Entry]) -> bool:
    mine, its = features(entry, known_as), features(other, known_as)
    same = entry.repo == other.repo and entry.mode == other.mode and bool(set(entry.files) & set(other.files))
    whole = all(one.kind in ("feature_deletion", "joined_features") for one in (entry, other))
    return same and whole and mine.isdisjoint(its) and len(mine | its) <= MOST_JOINED


def features(entry: Entry, known_as: Mapping[str, Entry]) -> frozenset[str]:
    """Ids of the single tasks behind one: of a joined task its parts, of one at another level what it was before."""
    found: set[str] = set()
    waiting, seen = [entry.id], set()
    while waiting:
        name = waiting.pop()
        one = entry if name == entry.id else known_as.get(name)
        joined = one is not None and one.kind == "joined_features"
        before = [each for each in one.origin if joined or each not in known_as or known_as[each].kind == one.kind] if one else []
        if name in seen:
            continue
        seen.add(name)
        waiting += before
        found |= set() if before else {name}
    return frozenset(found)


def _first(ways: Iterator[Wish], known: Mapping[str, str], can: Collection[Change]) -> Wish | None:
    """The first that can be made and has not failed; None as well where one is under way or made."""
    for wish in ways:
        if wish.change not in can or known.get(wish.id) in FAILED:
            continue
        return None if wish.id in known else wish
    return None


def _new(view: PoolView, known: Mapping[str, str], limit: int, step: int) -> list[Wish]:
    arms = {one.entry.arm for one in view.tasks.values() if one.entry.admitted is not None}
    played: dict[Arm, int] = {}
    found: list[Wish] = []
    while arms and len(found) < limit:
        score = scores(view.arms, arms, played, view.settings.exploration)
        arm = min(arms, key=lambda arm: (-score[arm], arm))
        arms.discard(arm)
        wish = Wish(kind="more", change="new", arm=arm, step=step)
        if wish.id not in known:
            found.append(wish)
    return found
