"""Made-up repositories as dicts of texts, cut without a sandbox."""

import pytest

from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.closure import Closure
from etude.synth.cut import cut_sources, render
from etude.synth.kinds import deletion
from etude.synth.names import Index
from etude.synth.reduce import reduce_tests
from etude.synth.source import parse


class Repository:
    """Files by path; what is in a folder `tests` or named test_* is a test."""

    def __init__(self, files, roots=(".",)):
        sources = {path: parse(path, text if isinstance(text, bytes) else text.encode()) for path, text in files.items()}
        self.index = Index(sources, roots)
        self.tests = [path for path in sources if "test" in path]
        self.sources = [path for path in sources if path not in self.tests]

    def definition(self, name, number=0):
        """By qualified name; `number` tells definitions of one name apart."""
        found = [d for source in self.index.sources.values() for d in source.definitions if d.qualname == name]
        return found[number]

    def cut(self, *names, mode="remove"):
        targets = [self.definition(name) if isinstance(name, str) else self.definition(*name) for name in names]
        return cut_sources(self.index, self.sources, targets, mode)

    def files_after(self, *names, mode="remove"):
        """What changes in the source files, as text; None for a removed file."""
        cut = self.cut(*names, mode=mode)
        return texts(render(cut.closure, cut.stubbed))

    def tests_after(self, *names, mode="remove", feature=()):
        """What changes in the test files once the feature's tests are gone too."""
        cut = self.cut(*names, mode=mode)
        closure: Closure = cut.closure.copy()
        reduce_tests(closure, self.tests, [self.definition(name) for name in feature], cut.culprits)
        changed = texts(render(closure, cut.stubbed))
        return {path: text for path, text in changed.items() if path in self.tests}


def texts(changes):
    return {path: None if data is None else data.decode() for path, data in changes.items()}


@pytest.fixture
def repository():
    return Repository


@pytest.fixture(scope="session")
def build_chosen(tmp_path_factory, lay_down):
    """(report, store) of a build with quick gates of the deletions whose names are wanted."""

    def build(name, files, is_wanted):
        folder = tmp_path_factory.mktemp(name)
        report = build_tasks(
            str(lay_down(folder / name, files)),
            folder / "tasks",
            options=BuildOptions(max_share=0.5, gates="quick"),
            backend=Bubblewrap(),
            finders={"feature_deletion": lambda *arguments: [idea for idea in deletion.find(*arguments) if is_wanted(idea.name)]},
        )
        return report, TaskStore.open(folder / "tasks")

    return build
