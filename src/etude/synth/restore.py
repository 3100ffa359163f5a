"""Environments whose folder is gone, made again from their locks.

In: a TaskStore whose `env/<digest>/` folders were deleted, or left out of a copy, beside the locks; out: one line for each environment of
its tasks. Wheels that lie beside the locks are taken, others fetched by the locks' hashes.

Not here: how an environment is filled (grade/environment.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from etude.errors import UserError
from etude.grade.environment import restore_environment
from etude.store import TaskStore
from etude.synth.discover import discover
from etude.types import Environment, Repo


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    digest: str
    num_tasks: int
    packages: tuple[str, ...]  # "name==version"
    outcome: str  # there | made again | the reason why not

    @property
    def ok(self) -> bool:
        return self.outcome in ("there", "made again")


def restore_environments(store: TaskStore, *, fetch: bool = True, say: Callable[[int, int, str], None] | None = None) -> list[Restored]:
    """Every environment of the tasks, by digest. `fetch`: wheels that are gone may come from the package index."""
    environments: dict[str, Environment] = {}
    repos: dict[str, dict[str, Repo]] = {}
    num_tasks: dict[str, int] = {}
    for task in store.tasks():
        digest = task.environment.digest
        environments[digest] = task.environment
        repos.setdefault(digest, {})[task.repo.digest] = task.repo
        num_tasks[digest] = num_tasks.get(digest, 0) + 1
    found: list[Restored] = []
    for number, digest in enumerate(sorted(environments)):
        environment = environments[digest]
        if say:
            say(number, len(environments), digest[:12])
        try:
            outcome = _restore(store, environment, repos[digest], fetch)
        except UserError as error:
            outcome = str(error)
        found.append(Restored(digest=digest, num_tasks=num_tasks[digest], packages=environment.requirements, outcome=outcome))
    if say:
        say(len(environments), len(environments), "")
    return found


def _restore(store: TaskStore, environment: Environment, repos: Mapping[str, Repo], fetch: bool) -> str:
    if (store.environments / environment.digest).is_dir():
        return "there"
    if environment.runner != "pytest":
        raise UserError(f"no lock is kept for {environment.runner}; build the tasks again")
    own = {name for repo in repos.values() for name in discover(store.snapshot(repo), repo.name).packages}
    store.environments.mkdir(exist_ok=True)
    restore_environment(environment, store.environments, under_test=sorted(own), fetch=fetch)
    return "made again"
