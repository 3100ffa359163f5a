"""Which tasks to train on and which to hold out.

`difficulty_key` orders tasks from easy to hard by what is known before anyone tried. `split_by_file` divides them so that no source file
is touched by tasks of both sides: a model that remembers a file from training gains nothing on the held-out ones.

Not here: drawing by measured pass rates (a pool that keeps tasks hard).
"""

from collections import Counter
from collections.abc import Sequence

from etude.tree import patch_paths
from etude.types import Task


def difficulty_key(task: Task) -> tuple[int, int, int, str]:
    """Stubs first, fewer definitions first, then fewer characters to write; the id makes the order total."""
    added = sum(len(line.strip("+ ")) for line in task.gold.splitlines() if line.startswith("+") and not line.startswith("+++"))
    return (task.mode != "stub", len(task.symbols), added, task.id)


def source_files(task: Task) -> frozenset[str]:
    """The files that solving the task touches."""
    return frozenset(patch_paths(task.gold)) | frozenset(symbol.path for symbol in task.symbols)


def split_by_file(tasks: Sequence[Task], *, held_out_share: float) -> tuple[list[Task], list[Task]]:
    """(train, held out), each from easy to hard, without a source file in common.

    Files that occur together in one task stay together. The held-out side takes whole clusters of files, the largest that still fits into
    `held_out_share` of the tasks first (so few files as can be, and room for a comparison); the largest cluster of all always trains. Where
    none fits, the smallest is taken.
    """
    clusters: list[set[str]] = []
    for task in tasks:
        files = set(source_files(task))
        touching = [c for c in clusters if c & files]
        clusters = [c for c in clusters if not c & files] + [files.union(*touching)]
    counts = Counter(min(c) for task in tasks for c in clusters if c & source_files(task))
    order = sorted(clusters, key=lambda c: (-counts[min(c)], min(c)))[1:]
    held: set[str] = set()
    room = int(held_out_share * len(tasks))
    for cluster in order:
        if counts[min(cluster)] <= room:
            held |= cluster
            room -= counts[min(cluster)]
    if not held and order and held_out_share > 0:
        held = order[-1]
    ordered = sorted(tasks, key=difficulty_key)
    return [t for t in ordered if not source_files(t) & held], [t for t in ordered if source_files(t) & held]
