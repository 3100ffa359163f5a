"""One build of a git URL with all kinds of tasks and all gates: each kind's evidence, and what the grader says of it."""

import os
import subprocess

import pytest

from etude.grade.grader import grade
from etude.store import TaskStore
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.kinds import FINDERS

PRICES = """\
def net(price, rate):
    if rate < 1:
        return price - price * rate
    return 0


def gross(price, rate):
    return price + price * rate
"""
NAMES = 'def title(text):\n    """In capitals."""\n    if text == "":\n        return "-"\n    return text.strip().upper()\n'
OTHER = "def other(text):\n    return text\n"
TESTS = (
    "from shop.names import other\nfrom shop.prices import gross, net\n\n\n"
    "def test_net():\n    assert net(10, 0.5) == 5\n\n\n"
    "def test_nothing_left():\n    assert net(10, 1) == 0\n    assert net(10, 2) == 0\n\n\n"
    "def test_gross():\n    assert gross(10, 0.5) == 15\n\n\ndef test_other():\n    assert other('a') == 'a'\n\n\n"
)
MORE = "".join(f"def test_{number}():\n    assert {number} == {number}\n\n\n" for number in range(8))
TITLE = "from shop.names import title\n\n\ndef test_title():\n    assert title(' a') == 'A'\n\n\n"
TITLE += "def test_no_title():\n    assert title('') == '-'\n"
FIRST = {"shop/__init__.py": "", "shop/prices.py": PRICES, "shop/names.py": OTHER, "tests/test_shop.py": TESTS + MORE}
SECOND = {"shop/names.py": f"{OTHER}\n\n{NAMES}", "tests/test_title.py": TITLE}
CHOSEN = {
    "feature_deletion": ("prices.py:1 net", "prices.py:7 gross"),  # two, which are then joined
    "bug_injection": ("gross",),
    "joined_features": (" + ",),
    "commit_replay": ("commit_replay ",),
    "refactor_back": ("refactor_back net",),
}


def commit(folder, message):
    settings = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "EMAIL": "a@example.org"}
    for arguments in (["add", "-A"], ["-c", "user.name=a", "commit", "-qm", message]):
        subprocess.run(["git", *arguments], cwd=folder, env=settings, check=True)


def first_like(find, names):
    """The finder's first idea of each name."""
    return lambda *arguments: [idea for name in names for idea in [idea for idea in find(*arguments) if name in idea.name][:1]]


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down, backend):
    """(report, store, the URL)."""
    folder = tmp_path_factory.mktemp("all-kinds")
    origin = lay_down(folder / "shop", FIRST)
    subprocess.run(["git", "init", "-q"], cwd=origin, check=True)
    commit(origin, "First")
    lay_down(origin, SECOND)
    commit(origin, "Titles in capitals")
    finders = {kind: first_like(find, CHOSEN[kind]) for kind, find in FINDERS.items()}
    options = BuildOptions(kinds=tuple(FINDERS), modes=("remove",), gates="full", max_share=0.4, jobs=1)
    report = build_tasks(origin.as_uri(), folder / "tasks", options=options, backend=backend, finders=finders)
    return report, TaskStore.open(folder / "tasks"), origin.as_uri()


def test_every_kind_gives_its_task(built):
    report, store, _ = built
    assert report.rejected == {}
    assert sorted(task.kind for task in store.tasks()) == sorted([*FINDERS, "feature_deletion"])


@pytest.mark.parametrize("kind", FINDERS)
def test_a_task_of_every_kind_has_passed_every_gate(built, backend, kind):
    _, store, _ = built
    task = next(task for task in store.tasks() if task.kind == kind)
    gates = task.evidence["gates"]
    assert gates["residue"] == {"findings": 0}
    assert gates["pass_to_pass"]["runs"] == gates["fail_to_pass"]["runs"] == 3
    assert gates["fail_to_pass"]["tests"] == len(task.fail_to_pass) > 0
    assert gates["inverse"]["matter"] + gates["inverse"].get("not_asked", 0) == len(task.symbols)
    assert gates["mutation"]["noticed"] * 2 >= gates["mutation"]["mutants"] > 0
    assert len(task.evidence["code_hash"]) == 64
    gold = grade(task, task.gold, store=store, backend=backend)
    assert gold.solved, gold.reason


def test_the_repository_of_a_url_is_there_without_its_history(built):
    _, store, url = built
    for task in store.tasks():
        assert (task.repo.source, task.repo.name) == (url, "shop")
        assert not list(store.workspace(task).rglob(".git"))
    assert store.pool.sources == (url,)
