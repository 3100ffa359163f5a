"""Another original of the same repository, on which tasks stand: the tree of a commit, or one in which features were moved.

In: the workshop of the repository and a folder; out: a `Ground`, its own workshop with its own baseline. It takes the repository's
environment and sandbox, and lies in the build's scratch folder; the build copies it into the store with the first task.

Not here: what is laid there (kinds/replay.py, kinds/refactor.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from etude import tree
from etude.errors import UserError
from etude.synth.discover import Layout, add_generated, discover
from etude.synth.names import Index
from etude.synth.read import read_sources, without
from etude.synth.workshop import BASELINE_WALL_S, Baseline, Rejected, Workshop, compile_files, measure_baseline
from etude.types import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    workshop: Workshop
    baseline: Baseline


def lay_ground(workshop: Workshop, folder: Path) -> Ground:
    """`folder` must stay as it is until the build ends. Rejected where its tests cannot be used."""
    return measure_ground(lay_workshop(workshop, folder))


def measure_ground(laid: Workshop) -> Ground:
    """Five runs."""
    try:
        workshop, baseline = measure_baseline(replace(laid, limits=Limits(wall_s=BASELINE_WALL_S)), lambda done, total, note: None)
    except UserError as error:
        raise Rejected(f"its original cannot be used: {error}", "baseline") from None
    return Ground(workshop=replace(workshop, limits=laid.limits), baseline=baseline)


def lay_workshop(workshop: Workshop, folder: Path) -> Workshop:
    """Without a baseline. Rejected where nothing can be read."""
    try:
        add_generated(folder)
        layout: Layout = discover(folder, workshop.layout.name)
        sources, skipped = read_sources(folder, layout)
    except UserError as error:
        raise Rejected(f"its original cannot be used: {error}", "baseline") from None
    layout = without(layout, skipped)
    files: Mapping[str, Path] = tree.files(folder)
    bytecode = folder.parent / f"{folder.name}-bytecode"
    bytecode.mkdir()
    repo = replace(workshop.repo, digest=tree.digest(folder), import_roots=layout.import_roots, test_paths=layout.test_paths)
    return replace(
        workshop,
        repo=repo,
        layout=layout,
        index=Index(sources, layout.import_roots),
        original=folder,
        files=files,
        bytecode=compile_files(files, bytecode),
        left_out=frozenset(),
        chosen=None,
    )
