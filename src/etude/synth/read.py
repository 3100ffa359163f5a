"""Every Python file of a repository parsed, and why some are left alone.

In: a folder and its layout; out: sources by path, and the layout without what cannot be worked on.

Not here: parsing one file (source.py), which files are sources and which are tests (discover.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from etude import tree
from etude.errors import UserError
from etude.grade.runner import is_test_path
from etude.synth.discover import Layout
from etude.synth.source import Source, Unreadable, parse


def read_sources(folder: Path, layout: Layout) -> tuple[dict[str, Source], dict[str, str]]:
    """(sources, path -> why it was skipped). UserError where nothing is left."""
    files = tree.files(folder)
    sources: dict[str, Source] = {}
    skipped: dict[str, str] = {}
    for path in (*layout.sources, *layout.tests):
        if path in layout.test_paths and not is_test_path(path):
            skipped[path] = "pytest takes no file of this name; rename it"
            continue
        try:
            sources[path] = parse(path, files[path].read_bytes())
        except Unreadable as error:
            skipped[path] = str(error)
    for kind, paths in (("source file", layout.sources), ("test file", layout.test_paths)):
        if not any(path in sources for path in paths):
            raise UserError(f"no {kind} of {layout.name} can be read; {paths[0]}: {skipped[paths[0]]}")
    return sources, skipped


def without(layout: Layout, skipped: Mapping[str, str]) -> Layout:
    def keep(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(path for path in paths if path not in skipped)

    return replace(layout, test_paths=keep(layout.test_paths), sources=keep(layout.sources), tests=keep(layout.tests))
