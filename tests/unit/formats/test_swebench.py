"""Rows of SWE-bench and SWE-smith from a task and back, and rows of others from a git clone, tried by the real grader."""

import json
import subprocess
from dataclasses import replace

import pytest

from etude import tree
from etude.errors import UserError
from etude.formats import swebench, swesmith
from etude.formats.rows import read_rows
from etude.formats.transfer import export_tasks, import_tasks, problem
from etude.store import TaskStore

ODD = "tests/test_odd.py::test_odd[a b::c [d]]"


def git(folder, *arguments):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "as it was")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def new_store(tmp_path, environments):
    store = TaskStore.create(tmp_path / "read")
    store.environments.symlink_to(environments)
    return store


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, lay_down, pocket):
    """A clone of pocket before slugify came, and its row."""
    repos = tmp_path_factory.mktemp("repos")
    before = {
        **pocket,
        "pocket/__init__.py": "from pocket.stack import Stack\nfrom pocket.stats import mean, median\nfrom pocket.text import shout\n",
        "pocket/text.py": "def shout(text):\n    return text.upper() + '!'\n",
        "tests/test_text.py": pocket["tests/test_text.py"].split("\n\ndef test_slugify")[0],
        ".gitattributes": "*.py export-ignore text eol=crlf\n",
    }
    base = lay_down(repos / "acme__pocket", before)
    solved = lay_down(repos / "solved", {**before, **{path: pocket[path] for path in ("pocket/__init__.py", "pocket/text.py")}})
    both = lay_down(repos / "both", {**before, **pocket})
    row = {
        "repo": "acme/pocket",
        "instance_id": "acme__pocket-7",
        "base_commit": commit(base),
        "patch": tree.make_patch(base, solved),
        "test_patch": tree.make_patch(solved, both),
        "problem_statement": "slugify is missing",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["tests/test_text.py::test_slugify", "tests/test_text.py::test_slugify_separator"]),
        "PASS_TO_PASS": json.dumps(["tests/test_text.py::test_shout", "tests/test_stats.py::test_median[even: two in the middle]"]),
    }
    (base / "pocket/text.py").write_text("what lies in the work tree does not matter")
    return repos, row


@pytest.mark.parametrize("format", ["swebench", "swesmith", "parquet"])
def test_an_exported_task_reads_back_equal_and_holds(pocket_store, tmp_path, environments, backend, format):
    report = export_tasks(pocket_store, tmp_path / "out", format=format)
    assert (report.tasks, dict(report.refused)) == (("pocket-slugify",), {})
    TaskStore.create(tmp_path / "in").environments.symlink_to(environments)
    found = import_tasks(tmp_path / "out", tmp_path / "in", backend=backend)
    assert (found.tasks, dict(found.refused)) == (("pocket-slugify",), {})
    assert TaskStore.open(tmp_path / "in").tasks() == pocket_store.tasks()


def test_exporting_twice_gives_the_same_rows(pocket_store, tmp_path):
    for name in ("one", "two"):
        export_tasks(pocket_store, tmp_path / name, format="swebench")
    assert (tmp_path / "one/tasks.jsonl").read_bytes() == (tmp_path / "two/tasks.jsonl").read_bytes()


def test_a_row_has_the_columns_and_a_commit_without_history(pocket_store, tmp_path):
    task = pocket_store.get("pocket-slugify")
    row = swebench.to_row(task, pocket_store, tmp_path)
    assert {"instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", "version"} < row.keys()
    assert json.loads(row["FAIL_TO_PASS"]) == list(task.fail_to_pass)
    assert tree.patch_paths(row["test_patch"]) == ["tests/test_text.py"]
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--branch", task.id, str(tmp_path / "etude__pocket"), str(clone))
    assert git(clone, "rev-list", "--all").split() == [row["base_commit"]]
    assert tree.digest(clone) == tree.digest(pocket_store.workspace(task))


def test_ids_with_blanks_colons_and_brackets_survive_both_ways(pocket_store, tmp_path, new_store):
    task = replace(
        pocket_store.get("pocket-slugify"), pass_to_pass=("tests/test_text.py::test_shout[a b::c [d\n]]", "tests/test_text.py::ü")
    )
    for module in (swebench, swesmith):
        row = json.loads(json.dumps(module.to_row(task, pocket_store, tmp_path)))
        assert module.from_row(row, repos=tmp_path, store=new_store) == task


def test_a_row_of_others_becomes_a_task_that_holds(foreign, new_store, backend):
    repos, row = foreign
    task = swebench.from_row(row, repos=repos, store=new_store)
    assert (task.id, task.kind, task.level, task.repo.source) == (
        "acme__pocket-7", "commit_replay", "C", f"acme/pocket at {row['base_commit']}"
    )  # fmt: skip
    assert "slugify" not in (new_store.workspace(task) / "tests/test_text.py").read_text()
    assert "def slugify" in (new_store.snapshot(task.repo) / "pocket/text.py").read_text()
    assert problem(task, new_store, backend) == ""


def test_plain_files_stand_for_a_clone(foreign, new_store, tmp_path, lay_down, pocket):
    repos, row = foreign
    task = swebench.from_row(row, repos=repos, store=new_store)
    tree.copy_tree(new_store.workspace(task), tmp_path / "plain/pocket")
    again = swebench.from_row(row, repos=tmp_path / "plain", store=new_store)
    assert (again.cut, again.repo.digest) == (task.cut, task.repo.digest)


def test_a_row_whose_gold_or_whose_tests_tell_nothing_is_named(foreign, new_store, backend):
    repos, row = foreign
    task = swebench.from_row(row, repos=repos, store=new_store)
    assert "the gold patch does not solve it here" in problem(replace(task, gold=""), new_store, backend)
    easy = replace(task, fail_to_pass=task.pass_to_pass[:1], pass_to_pass=())
    assert "1 of 1 tests in fail_to_pass pass without a solution" in problem(easy, new_store, backend)


def test_a_row_of_swe_smith_hides_the_files_of_the_tests_that_notice(foreign, new_store, tmp_path, lay_down, pocket, backend):
    clean = lay_down(tmp_path / "clean", pocket)
    broken = lay_down(tmp_path / "repos/swesmith__acme__pocket.12345678", {
        **pocket, "pocket/stats.py": pocket["pocket/stats.py"].replace("middle - 1 : middle + 1", "middle : middle + 1")
    })  # fmt: skip
    row = {
        "instance_id": "acme__pocket.12345678.func_pm_op__abc",
        "repo": "swesmith/acme__pocket.12345678",
        "base_commit": commit(broken),
        "patch": tree.make_patch(clean, broken),
        "FAIL_TO_PASS": ["tests/test_stats.py::test_median[even: two in the middle]"],
        "PASS_TO_PASS": ["tests/test_stats.py::test_mean", "tests/test_text.py::test_shout"],
        "problem_statement": "The median of four numbers is wrong.",
    }
    task = swesmith.from_row(row, repos=tmp_path / "repos", store=new_store)
    assert task.kind == "bug_injection"
    assert tree.patch_paths(task.gold) == ["pocket/stats.py"]
    assert not (new_store.workspace(task) / "tests/test_stats.py").exists()
    assert problem(task, new_store, backend) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": '["tests/test_text.py::test_x[(AttributeError,"]'}, "cut off"),
        ({"PASS_TO_PASS": '["[100%]"]'}, "names no file"),
        ({"PASS_TO_PASS": '["tests/test_gone.py::test_x"]'}, "the repository has no file tests/test_gone.py"),
        ({"PASS_TO_PASS": '["tests/test_text.py::test_slugify"]'}, "in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({"base_commit": "f" * 40}, "has no commit f"),
        ({"base_commit": "main; rm"}, "no full commit id"),
        ({"repo": "acme/other"}, "no repository acme/other"),
        ({"repo": "../../etc"}, "no repository"),
        ({"patch": "nothing"}, "^patch: this is no patch"),
        (
            {"test_patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"},
            "^test_patch: the patch does not apply",
        ),
        ({"etude": "{}"}, "its column 'etude' is damaged"),
    ],
)
def test_a_broken_row_is_one_line(foreign, new_store, change, message):
    repos, row = foreign
    with pytest.raises((UserError, ValueError), match=message) as caught:
        swebench.from_row({**row, **change}, repos=repos, store=new_store)
    assert "\n" not in str(caught.value)


def test_the_rest_of_a_file_goes_on_after_a_broken_row(foreign, tmp_path, environments, backend):
    repos, row = foreign
    rows = [{**row, "instance_id": "bad", "FAIL_TO_PASS": "[]"}, row, row]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    TaskStore.create(tmp_path / "in").environments.symlink_to(environments)
    report = import_tasks(tmp_path / "rows.jsonl", tmp_path / "in", repos=repos, backend=backend)
    assert report.tasks == ("acme__pocket-7",)
    assert dict(report.refused) == {
        "bad": "FAIL_TO_PASS is empty: no test could tell a solution",
        "acme__pocket-7": "acme__pocket-7 is there twice",
    }


def test_a_refused_task_leaves_no_tree_and_its_reason_stands_in_the_pool(foreign, tmp_path, environments, backend):
    repos, row = foreign
    easy = {**row, "FAIL_TO_PASS": row["PASS_TO_PASS"], "PASS_TO_PASS": "[]"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(easy) + "\n")
    store = TaskStore.create(tmp_path / "in")
    store.environments.symlink_to(environments)
    report = import_tasks(tmp_path / "rows.jsonl", tmp_path / "in", repos=repos, backend=backend)
    assert "2 of 2 tests in fail_to_pass pass without a solution" in report.refused["acme__pocket-7"]
    assert [*(store.path / "repos").iterdir(), *(store.path / ".cache").iterdir()] == []
    found = TaskStore.open(store.path).pool.evidence[str(tmp_path / "rows.jsonl")]
    assert (found["candidates"], found["valid"], found["rejected"]) == (1, 0, dict(report.refused))


@pytest.mark.parametrize("what", ["gone", "empty"])
def test_what_holds_no_tasks_is_one_line_and_leaves_nothing(tmp_path, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no file or folder|holds neither"):
        import_tasks(tmp_path / what, tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_a_row_that_was_changed_reads_as_changed(pocket_store, tmp_path, new_store):
    export_tasks(pocket_store, tmp_path / "out", format="swebench")
    row = {**next(iter(read_rows(tmp_path / "out/tasks.jsonl"))), "problem_statement": "Other words"}
    assert swebench.from_row(row, repos=tmp_path / "out/repos", store=new_store).instruction == "Other words"
    with pytest.raises(ValueError, match="give the tree"):
        swebench.from_row({**row, "test_patch": ""}, repos=tmp_path / "out/repos", store=new_store)
