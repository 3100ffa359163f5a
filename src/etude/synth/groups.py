"""What finders of candidates share, whatever the language: sets of definitions, and the order of trying.

In: definitions with the tests that reach them; out: groups. `K` is a definition's key, `C` a candidate.

Not here: which definitions are free (candidates.py, foreign/candidates.py).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")


def exclusive_sets(
    reached: Mapping[K, frozenset[str]], near: Callable[[K, K], bool], *, max_size: int
) -> list[tuple[list[K], frozenset[str]]]:
    """For the tests of each definition: what only they reach and what hangs together, if these tests are all that reach it."""
    found: list[tuple[list[K], frozenset[str]]] = []
    for tests in dict.fromkeys(reached.values()):
        left = [key for key, owners in reached.items() if owners <= tests]
        while left:
            group = [left.pop(0)]
            for member in group:  # grows while it is read
                close = [other for other in left if near(member, other)]
                left = [other for other in left if other not in close]
                group += close
            if 2 <= len(group) <= max_size and frozenset().union(*(reached[key] for key in group)) == tests:
                found.append((group, tests))
    return found


def in_turns(
    found: Iterable[C], *, rank: Callable[[C], Any], lane: Callable[[C], tuple[int, str]], same: Callable[[C], Hashable]
) -> list[C]:
    """Lanes taking turns, by rank within each; of what is the same only the first by rank."""
    lanes: dict[tuple[int, str], list[C]] = defaultdict(list)
    seen: set[Hashable] = set()
    for each in sorted(found, key=rank):
        if same(each) not in seen:
            seen.add(same(each))
            lanes[lane(each)].append(each)
    return round_robin([lanes[key] for key in sorted(lanes)])


def round_robin(lanes: Sequence[Sequence[C]]) -> list[C]:
    """The first of each lane, then the second of each, and so on."""
    return [lane[turn] for turn in range(max(map(len, lanes), default=0)) for lane in lanes if turn < len(lane)]
