"""Which adapter: by what runs the tests, or by what lies in a folder.

Not here: Python, whose runner is pytest and whose factory is synth/build.py.
"""

from pathlib import Path
from typing import cast

from etude.errors import UserError
from etude.languages.protocol import Language, Project


def by_runner(runner: str) -> Language:
    """The adapter of an Environment's runner. Imported here, as parsers are an extra that only the factory needs."""
    if runner in ("node", "vitest"):
        from etude.languages.javascript import adapter

        return cast(Language, adapter)
    if runner == "junit":
        from etude.languages.java import adapter as java

        return cast(Language, java)
    raise UserError(f"tests of a task are run by {runner!r}, which this etude does not know; known are pytest, node, vitest, junit")


def runtime_of(runner: str) -> tuple[Path, ...]:
    """Files that a residue scan of an environment need not look into; none where the runtime is not on this machine."""
    try:
        return () if runner == "pytest" else by_runner(runner).runtime()
    except UserError:
        return ()


def detect(folder: Path, name: str = "") -> Project | None:
    """The project in a folder, if it is of a language here and not of Python."""
    if any((folder / manifest).is_file() for manifest in ("pyproject.toml", "setup.py", "setup.cfg")):
        return None
    for runner in ("node", "junit"):
        project = by_runner(runner).discover(folder, name)
        if project is not None:
            return project
    return None
