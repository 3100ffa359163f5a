"""Every kind of task on a made-up repository, in the real sandbox: what is proposed holds, and what does not is not proposed."""

import os
import subprocess
from dataclasses import replace
from itertools import islice

import pytest

from etude import tree
from etude.grade.environment import make_environment
from etude.sandbox.bubblewrap import Bubblewrap
from etude.store import TaskStore
from etude.synth.cut import CutError
from etude.synth.discover import discover
from etude.synth.kinds import bug, joined, refactor, replay
from etude.synth.names import Index
from etude.synth.options import BuildOptions
from etude.synth.prove import prove_change
from etude.synth.read import read_sources
from etude.synth.workshop import Workshop, compile_files, measure_baseline
from etude.types import Limits, Repo

CORE = '''\
import math


def clamp(value, low=0, high=10):
    """Bring a value into a range."""
    if value < low:
        return low
    return min(value, high)


def grow(value, step=1):
    """One step more, in the range."""
    return clamp(value + step, 0, 10)


def root(value):
    """The square root, of a positive value."""
    if value < 0:
        raise ValueError("value is negative")
    return math.sqrt(value)


def unseen(value):
    """No test notices what it does."""
    left = value + 1
    return left
'''
FILES = {
    "pkg/__init__.py": "from .core import clamp, grow, root, unseen\n",
    "pkg/core.py": CORE,
    "pkg/names.py": 'def title(text):\n    """In capitals."""\n    return text.strip().upper()\n',
    "tests/test_core.py": (
        "import pytest\nfrom pkg import clamp, grow, unseen\nfrom pkg.core import root\nfrom pkg.names import title\n\n\n"
        "def test_clamp():\n    assert clamp(5) == 5\n\n\ndef test_low():\n    assert clamp(-1) == 0\n\n\n"
        "def test_high():\n    assert clamp(11) == 10\n\n\ndef test_grow():\n    assert grow(1) == 2\n\n\n"
        "def test_root():\n    assert root(4) == 2.0\n\n\n"
        "def test_negative():\n    with pytest.raises(ValueError):\n        root(-1)\n\n\n"
        "def test_unseen():\n    unseen(1)\n\n\ndef test_title():\n    assert title(' a') == 'A'\n\n\n"
    )
    + "".join(f"def test_{number}():\n    assert {number} == {number}\n\n\n" for number in range(12)),
}
OPTIONS = BuildOptions(max_share=0.3)


def lay(folder, files):
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """(workshop, baseline) of the repository."""
    folder = tmp_path_factory.mktemp("kinds")
    original, scratch = lay(folder / "repo", FILES), folder / "scratch"
    scratch.mkdir()
    layout = discover(original, "pkg")
    sources, _ = read_sources(original, layout)
    store = TaskStore.create(folder / "tasks")
    environment = make_environment(layout.requirements, store.environments, under_test=layout.packages)
    repo = Repo(name="pkg", digest=tree.digest(original), import_roots=layout.import_roots, test_paths=layout.test_paths)
    files = tree.files(original)
    workshop = Workshop(
        repo=repo,
        layout=layout,
        index=Index(sources, layout.import_roots),
        original=original,
        files=files,
        environment=store.environment(environment),
        backend=Bubblewrap(),
        limits=Limits(wall_s=60),
        scratch=scratch,
        bytecode=compile_files(files, scratch),
    )
    return measure_baseline(workshop, lambda done, total, note: None)


def proven(workshop, baseline, proposal):
    if proposal.ground:
        workshop, baseline = proposal.ground.workshop, proposal.ground.baseline
    with workshop.folder() as folder:
        proof = prove_change(workshop, baseline, proposal, folder)
        hidden = {path: data.decode() for path, data in proof.source_changes.items() if data is not None}
        agent = {path: data.decode() for path, data in proof.changes.items() if data is not None}
    return proof, hidden, agent


def names(proof):
    return {id.rpartition("::")[2] for id in proof.fail_to_pass}


# -- bugs


def test_a_bug_is_a_mutant_that_tests_notice(bench):
    ideas = list(bug.find(*bench, OPTIONS, ()))
    idea = next(idea for idea in ideas if idea.name.startswith("bug_injection 1") and idea.name.endswith("root"))
    proposal = idea.make()
    proof, hidden, agent = proven(*bench, proposal)
    assert names(proof) & {"test_root", "test_negative"}
    assert hidden["pkg/core.py"] != CORE
    assert len(proposal.evidence["mutations"]) == 1
    assert all(name not in agent["tests/test_core.py"] for name in names(proof))
    assert "test_grow" in agent["tests/test_core.py"]
    assert set(proof.messages) == set(proof.fail_to_pass)


def test_bugs_go_together_in_a_function_and_its_caller_and_each_is_noticed_alone(bench):
    ideas = {idea.name: idea for idea in bug.find(*bench, OPTIONS, ())}
    name = next(name for name in ideas if name.startswith("bug_injection 2") and "grow" in name and "clamp" in name)
    proposal = ideas[name].make()
    assert len(proposal.evidence["mutations"]) == 2
    assert all(count > 0 for count in proposal.evidence["failing_alone"])
    assert {definition.name for definition in proposal.symbols} == {"clamp", "grow"}
    proof, _, _ = proven(*bench, proposal)
    assert "test_grow" in names(proof)


def test_a_function_whose_mutants_nobody_notices_gives_no_bug(bench):
    idea = next(idea for idea in bug.find(*bench, OPTIONS, ()) if idea.name.startswith("bug_injection 1") and idea.name.endswith("unseen"))
    with pytest.raises(CutError, match="no test notices"):
        idea.make()


def test_the_same_repository_gives_the_same_bugs_in_the_same_order(bench):
    first, second = ([(idea.name, idea.group) for idea in bug.find(*bench, OPTIONS, ())] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


# -- joined features


def test_features_of_one_file_are_joined(bench):
    ideas = list(joined.find(*bench, OPTIONS, ()))
    assert len({idea.name for idea in ideas}) == len(ideas)
    idea = next(
        idea for idea in ideas if "remove" in idea.name and "root" in idea.name and idea.name.count(" + ") == 1 and "title" not in idea.name
    )
    proposal = idea.make()
    assert proposal.kind == "joined_features"
    assert len(proposal.evidence["parts"]) == 2
    assert proposal.evidence["shared"][0].startswith(("file pkg/core.py", "caller "))
    proof, hidden, _ = proven(*bench, proposal)
    assert {"test_root", "test_negative"} < names(proof)
    assert "def root" not in hidden["pkg/core.py"]


def test_what_has_nothing_in_common_is_not_joined(bench):
    for idea in joined.find(*bench, OPTIONS, ()):
        if "title" in idea.name:
            assert not idea.make().evidence["shared"][0].startswith("file")


# -- refactor-back


def test_a_feature_is_demanded_in_another_module(bench):
    ideas = list(refactor.find(*bench, OPTIONS, ()))
    idea = next(idea for idea in ideas if "refactor_back root" in idea.name)
    assert not any("unseen from" in each.name and "core" not in each.name for each in ideas)
    proposal = idea.make()
    new = proposal.evidence["moved"][1]
    assert proposal.evidence["failing_in_the_old_place"] == 2
    ground = proposal.ground.workshop
    assert "def root" in (ground.original / new).read_text()
    assert "def root" not in (ground.original / "pkg/core.py").read_text()
    proof, hidden, _ = proven(*bench, proposal)
    assert names(proof) == {"test_root", "test_negative"}
    assert all("def root" not in text for text in hidden.values())


# -- commit replay


def commit(folder, message):
    settings = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "EMAIL": "a@example.org"}
    for arguments in (["add", "-A"], ["-c", "user.name=a", "commit", "-qm", message]):
        subprocess.run(["git", *arguments], cwd=folder, env=settings, check=True)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A repository in which `title` was written second, documents with it, and two commits are of no use."""
    folder = tmp_path_factory.mktemp("history") / "repo"
    tests = FILES["tests/test_core.py"]
    without = {
        **FILES,
        "pkg/names.py": "def other(text):\n    return text\n",
        "tests/test_core.py": tests.replace("from pkg.names import title\n", "").replace(
            "def test_title():\n    assert title(' a') == 'A'\n\n\n", ""
        ),
        "CHANGES.md": "Nothing.\n",
    }
    lay(folder, without)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    commit(folder, "First")
    names = f"{without['pkg/names.py']}\n\n{FILES['pkg/names.py']}"
    lay(folder, {"pkg/names.py": names, "tests/test_core.py": tests, "CHANGES.md": "Titles, by title().\n"})
    commit(folder, "Titles in capitals (#12)\n\nFor names.\n\nSigned-off-by: A <a@example.org>")
    lay(folder, {"pkg/names.py": f"# names\n{names}", "tests/test_core.py": f"# tests\n{tests}"})
    commit(folder, "Comments only")
    lay(folder, {"README.md": "Read.\n"})
    commit(folder, "No code")
    return folder / ".git"


def test_commits_with_sources_and_tests_are_listed_newest_first(history):
    assert [each.message for each in replay.commits(history)] == ["Comments only", "Titles in capitals\n\nFor names."]


def test_a_commit_is_taken_back_and_its_history_and_documents_are_not_there(bench, history):
    workshop, baseline = replace(bench[0], history=history), bench[1]
    comments, titles = list(islice(replay.find(workshop, baseline, OPTIONS, ()), 2))
    with pytest.raises(CutError, match="comments and layout only"):
        comments.make()
    proposal = titles.make()
    proof, hidden, agent = proven(workshop, baseline, proposal)
    assert names(proof) == {"test_title"}
    assert hidden["pkg/names.py"] == "def other(text):\n    return text\n"
    assert "title" not in agent["tests/test_core.py"]
    original = proposal.ground.workshop.original
    assert not (original / ".git").exists()
    assert (original / "CHANGES.md").read_text() == "Nothing.\n"
    assert [definition.qualname for definition in proposal.cut.removed] == ["title"]
    assert proposal.evidence["preface"] == "Titles in capitals\n\nFor names."


def test_without_a_history_there_is_nothing_to_replay(bench):
    assert list(replay.find(*bench, OPTIONS, ())) == []
