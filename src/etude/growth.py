"""Makes what a training run's pool wishes for: from the tasks that are there and were not chosen, else by writing the instruction of one
again at another level or with other tests shown, else by building more of the repository.

    FOLDER/          the run's tasks: those that it neither trains on nor holds out are a reserve
    run/grown/       a tasks folder with the same repositories and environments (links), for what is made during the run

In: a Wish; out: one Task that fits, or none. Nothing that touches a file of a held-out task is given. Another process that builds into
FOLDER meanwhile (`etude tasks build`) adds to the reserve. A wish for a version that the pool has already fails.

Not here: what is wished for (pool/evolve.py), the thread (pool/grow.py), the build and the writer (synth/).
"""

import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from etude import tree
from etude.errors import EtudeError
from etude.grade.residue import Scanner
from etude.pool.entry import Change, Wish
from etude.records import decode
from etude.sandbox.protocol import Backend
from etude.split import difficulty_key, source_files
from etude.store import TaskStore
from etude.synth.options import Level
from etude.synth.relevel import Reading, read_repository, relevel
from etude.synth.rescrub import Rescrubbed, rescrub
from etude.synth.workshop import Rejected
from etude.types import Repo, Task

Build = Callable[[Repo], None]
Rescrub = Callable[[Task, Sequence[str]], Rescrubbed]  # a task, and what monitors quote of its rollouts
Relevel = Callable[[Task, Level, float], Task]  # the task with its instruction at that level, with that share of its tests shown
WRITTEN: tuple[Change, ...] = ("lower_level", "raise_level", "hide_tests", "show_tests")  # changes of the instruction alone
SHARED = ("repos", "env")


class Growth:
    """`make` is what a Grower calls."""

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        taken: Callable[[], Iterable[str]],
        held_out: Iterable[Task],
        build: Build | None = None,
        relevel: Relevel | None = None,
    ) -> None:
        """`taken`: ids that the pool has already; `build`: more tasks of a repository into one of `folders`, once each; `relevel`: keeps
        what it makes in one of them as well."""
        self._folders, self._taken, self._build, self._relevel = folders, taken, build, relevel
        held = list(held_out)
        self._held_ids = {task.id for task in held}
        self._held_files = {(task.repo.name, path) for task in held for path in source_files(task)}
        self._read: dict[Path, Task] = {}
        self._built: set[str] = set()
        self._lock = threading.Lock()  # a build that was given up may still come back

    def make(self, wish: Wish) -> list[Task]:
        """ValueError where the pool has it already; what `relevel` and `build` raise."""
        with self._lock:
            found, old = self._match(wish), self._task(wish.task)
            writes = self._relevel is not None and wish.change in WRITTEN and old is not None
            repo = self._to_build(wish) if found is None and not writes else None
        if found is None and writes:
            assert old is not None
            return [self._written(old, wish)]
        if repo is not None and self._build is not None:
            self._build(repo)
            with self._lock:
                found = self._match(wish)
        return [] if found is None else [self._as_hard(found, old, wish)]

    def _written(self, old: Task, wish: Wish) -> Task:
        assert self._relevel is not None
        with self._lock:
            taken = set(self._taken())
            there = next((task.id for task in self._tasks() if task.id in taken and fits(task, wish, old)), None)
        if there is not None:
            raise ValueError(f"the pool has it: {there}")
        if self._touches_held_out(old):
            raise ValueError(f"{old.id} touches a file of a held-out task")
        level, share = old.level, old.visible_share
        if wish.change in ("lower_level", "raise_level"):
            return self._relevel(old, msgspec.convert(wish.to, Level), share)
        return self._relevel(old, level, float(wish.to))

    def _as_hard(self, found: Task, old: Task | None, wish: Wish) -> Task:
        """A joined task at the level of its parts, where it can be written so: builds write all of one level."""
        if self._relevel is None or old is None or wish.change != "join" or found.level == old.level:
            return found
        try:
            return self._relevel(found, old.level, found.visible_share)
        except (EtudeError, Rejected):
            return found

    def _to_build(self, wish: Wish) -> Repo | None:
        """The wish's repository, the first time."""
        repo = next((task.repo for task in self._tasks() if task.repo.name == wish.arm[1]), None)
        if repo is None or self._build is None or repo.digest in self._built:
            return None
        self._built.add(repo.digest)
        return repo

    def _match(self, wish: Wish) -> Task | None:
        tasks = {task.id: task for task in self._tasks()}
        out = {*self._taken(), *self._held_ids}
        free = [task for task in tasks.values() if task.id not in out and not self._touches_held_out(task)]
        fitting = [task for task in free if fits(task, wish, tasks.get(wish.task), lambda name: roots(name, tasks))]
        return min(fitting, key=difficulty_key, default=None)

    def _task(self, name: str) -> Task | None:
        return next((task for task in self._tasks() if task.id == name), None)

    def _touches_held_out(self, task: Task) -> bool:
        return any((task.repo.name, path) in self._held_files for path in source_files(task))

    def _tasks(self) -> list[Task]:
        """Those of all folders; a file is read once. One that cannot be read is not there."""
        for folder in self._folders:
            for file in sorted(folder.glob("*.json")):
                if file.name != "pool.json" and file not in self._read:
                    try:
                        self._read[file] = decode(file.read_bytes(), Task)
                    except (OSError, ValueError):
                        continue
        return list(self._read.values())


def roots(name: str, tasks: Mapping[str, Task]) -> frozenset[str]:
    """The built tasks that one was made from by joining and by writing it again; itself where it was built."""
    task = tasks.get(name)
    if task is None or not task.origin:
        return frozenset([name])
    return frozenset().union(*(roots(one, tasks) for one in task.origin))


def fits(task: Task, wish: Wish, old: Task | None, roots_of: Callable[[str], frozenset[str]] = lambda name: frozenset([name])) -> bool:
    """Is this task what was wished for? `old`: the one to begin with."""
    if wish.change == "new":
        return (task.kind, task.repo.name, task.band) == wish.arm
    if old is None or task.repo.digest != old.repo.digest:
        return False
    if wish.change == "join":
        wanted = frozenset().union(*(roots_of(name) for name in (wish.task, *wish.partners)))
        return task.kind == "joined_features" and task.mode == old.mode and wanted <= set(task.origin)
    if wish.change == "split":
        return task.kind != old.kind and not roots_of(task.id).isdisjoint(old.origin) and roots_of(task.id) != roots_of(old.id)
    same = _feature(task) == _feature(old) and task.kind == old.kind
    if wish.change == "remove":
        return same and task.mode == "remove" and task.level == old.level
    if not same or task.mode != old.mode:
        return False
    if wish.change in ("lower_level", "raise_level"):
        return task.level == wish.to and task.visible_share == old.visible_share
    more = task.visible_share > old.visible_share if wish.change == "show_tests" else task.visible_share == 0 < old.visible_share
    return task.level == old.level and more


def _feature(task: Task) -> frozenset[tuple[str, int]]:
    return frozenset((symbol.path, symbol.line) for symbol in task.symbols)


def grown_folder(run: Path, store: TaskStore) -> Path:
    """The run's own tasks folder, on the repositories and environments of `store`."""
    folder = run / "grown"
    TaskStore.create(folder)
    for name in SHARED:
        (store.path / name).mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).symlink_to((store.path / name).resolve(), target_is_directory=True)
    return folder


def releveler(store: TaskStore, out: Path, backend: Backend) -> Relevel:
    """Writes tasks of `store` and `out` again, into `out`; a repository is parsed once."""
    readings: dict[str, Reading] = {}

    def write(task: Task, level: Level, visible_share: float) -> Task:
        if task.repo.digest not in readings:
            readings[task.repo.digest] = read_repository(task, store, backend)
        made = relevel(task, store, backend, level=level, visible_share=visible_share, known=readings[task.repo.digest])
        TaskStore.open(out).add(made)
        return made

    return write


def scrubber(store: TaskStore, out: Callable[[], Path], backend: Backend) -> Rescrub:
    """Scrubs tasks of `store` again, into the folder that `out` makes; what they share is read once."""
    scanner = Scanner(cache=store.environments)

    def again(task: Task, quotes: Sequence[str]) -> Rescrubbed:
        done = rescrub(task, store, backend, quotes=quotes, scanner=scanner)
        if done.made is not None:
            TaskStore.open(out()).add(done.made)
        return done

    return again


def builder(store: TaskStore, out: Path, backend: Backend, *, most: int = 60) -> Build:
    """Builds a repository of `store` from its snapshot, `most` candidates of every kind, in both modes, through all gates.

    One sandbox at a time: training needs the other cores.
    """

    def build(repo: Repo) -> None:
        from etude.synth.foreign.build import build_any
        from etude.synth.kinds import FINDERS
        from etude.synth.options import BuildOptions

        with tempfile.TemporaryDirectory(prefix="etude-grow-") as scratch:
            folder = Path(scratch, repo.name)  # a task's id begins with the folder's name
            tree.copy_tree(store.snapshot(repo), folder)
            options = BuildOptions(kinds=tuple(FINDERS), max_candidates=most, jobs=1, gates="full")
            build_any(str(folder), out, options=options, backend=backend, lenient=True)

    return build
