"""Harbor folders: what is in which image, the verifier as its container runs it, and back to an equal task."""

import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib

import pytest

from etude import tree
from etude.errors import UserError
from etude.formats import harbor
from etude.formats.archive import read_tar, write_tar
from etude.formats.harbor_verify import assemble
from etude.formats.transfer import export_tasks, import_tasks
from etude.grade.filter import make_rules
from etude.grade.grader import prepare
from etude.store import TaskStore
from etude.types import Limits

VERIFY = "import sys; sys.path.insert(0, 'tests'); from etude.formats.harbor_verify import main; main(sys.argv[1:])"
PLACES = ["--tests", "tests", "--work", "submitted", "--graded", "/tmp/graded", "--out", "out"]


@pytest.fixture(scope="module")
def exported(pocket_store, tmp_path_factory):
    """(task, its Harbor folder)."""
    folder = tmp_path_factory.mktemp("harbor")
    export_tasks(pocket_store, folder, format="harbor")
    return pocket_store.get("pocket-slugify"), folder / "pocket-slugify"


@pytest.fixture(scope="module")
def submit(exported, tmp_path_factory, backend, pocket_store):
    """Grades a folder as the verifier's container would: (reward.json, verdict.json)."""
    task, folder = exported

    def grade(change):
        work = tmp_path_factory.mktemp("trial")
        tree.copy_tree(folder / "tests", work / "tests")
        for name in ("original.tar", "start.tar"):
            (work / "tests" / name).write_bytes((folder / "tests" / name).read_bytes())
        tree.copy_tree(pocket_store.workspace(task), work / "submitted")
        change(work / "submitted")
        work.chmod(0o755)
        environment = pocket_store.environment(task.environment)
        with backend.open(work, environment=environment, limits=Limits(wall_s=60.0)) as sandbox:
            done = sandbox.run(["python3", "-I", "-S", "-B", "-c", VERIFY, *PLACES], wall_s=60.0)
            assert done.ok, done.stderr.decode()
            return json.loads(sandbox.read("out/reward.json")), json.loads(sandbox.read("out/verdict.json"))

    return grade


def contents(file):
    with tarfile.open(file) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_configuration_keeps_verifier_and_network_apart(exported):
    _, folder = exported
    found = tomllib.loads((folder / "task.toml").read_text())
    assert found["verifier"]["environment_mode"] == "separate"
    assert [found[part]["network_mode"] for part in ("agent", "verifier", "environment")] == ["no-network"] * 3
    assert found["verifier"]["environment"]["network_mode"] == "no-network"
    assert [artifact["source"] for artifact in found["artifacts"]] == ["/work"]
    assert found["task"]["name"] == "etude/pocket-slugify"


def test_the_agents_image_holds_its_tree_and_no_answer(exported, pocket_store):
    task, folder = exported
    tracked = tree.files(pocket_store.workspace(task))
    assert contents(folder / "environment/repo.tar") == {path: file.read_text() for path, file in tracked.items()}
    assert not any(b"slugify" in data for data in files_below(folder / "environment").values())
    assert (folder / "environment/requirements.txt").read_text().splitlines() == list(task.environment.requirements)


def test_the_verifiers_image_holds_no_gold(exported):
    _, folder = exported
    assert "task.json" not in files_below(folder / "tests")
    assert contents(folder / "tests/start.tar").keys() == {"pocket/__init__.py", "pocket/text.py", "tests/test_text.py"}
    assert "test_slugify" in contents(folder / "tests/original.tar")["tests/test_text.py"]


def test_exporting_again_gives_the_same_bytes(exported, pocket_store, tmp_path):
    task, folder = exported
    before = files_below(folder)
    harbor.write_task(task, pocket_store, folder)
    harbor.write_task(task, pocket_store, tmp_path / "elsewhere")
    assert files_below(folder) == before == files_below(tmp_path / "elsewhere")


def test_an_exported_folder_reads_back_equal_and_holds(exported, tmp_path, environments, backend, pocket_store):
    _, folder = exported
    TaskStore.create(tmp_path / "in").environments.symlink_to(environments)
    report = import_tasks(folder.parent, tmp_path / "in", backend=backend)
    assert (report.tasks, dict(report.refused)) == (("pocket-slugify",), {})
    assert TaskStore.open(tmp_path / "in").tasks() == pocket_store.tasks()


def test_the_solution_makes_the_solved_tree(exported, pocket_store, tmp_path):
    task, folder = exported
    tree.copy_tree(pocket_store.workspace(task), tmp_path / "work")
    script = (folder / "solution/solve.sh").read_text().replace("cd /work", f"cd {tmp_path}/work")
    subprocess.run(["sh", "-c", script, str(folder / "solution/solve.sh")], check=True)
    assert tree.digest(tmp_path / "work") == tree.digest(pocket_store.solved_tree(task))


def test_the_verifier_gives_one_for_gold_and_zero_for_nothing(submit, exported):
    task, _ = exported
    reward, verdict = submit(lambda work: tree.apply_patch(work, task.gold))
    assert reward == {"reward": 1.0, "fail_to_pass_share": 1.0, "pass_to_pass_share": 1.0}
    assert verdict["refused"] == []
    reward, verdict = submit(lambda work: None)
    assert (reward["reward"], reward["fail_to_pass_share"]) == (0.0, 0.0)
    assert verdict["fail_to_pass"].keys() == set(task.fail_to_pass)


def test_the_verifier_lets_no_test_configuration_or_reward_of_the_agent_in(submit, exported):
    def cheat(work):
        (work / "tests/test_text.py").write_text("def test_slugify(): pass\ndef test_slugify_separator(): pass\ndef test_shout(): pass\n")
        (work / "conftest.py").write_text("import os\nos._exit(0)\n")
        (work / "pytest.ini").write_text("[pytest]\naddopts = --co\n")
        (work / "reward.json").write_text('{"reward": 1}')
        (work / "pocket/stack.py").unlink()
        (work / "pocket/stack.py").symlink_to("/etc/passwd")

    reward, verdict = submit(cheat)
    assert reward["reward"] == 0.0
    assert reward["pass_to_pass_share"] == 1.0
    assert {path for path, _ in verdict["refused"]} == {
        "tests/test_text.py", "conftest.py", "pytest.ini", "pocket/stack.py"
    }  # fmt: skip


def test_the_verifier_gives_zero_when_nothing_came_or_the_code_ends_the_run(submit):
    reward, verdict = submit(lambda work: os.rename(work, work.with_name("gone")))
    assert (reward["reward"], verdict["reason"]) == (0.0, "nothing came from the agent's container: no folder /work")
    reward, verdict = submit(lambda work: (work / "pocket/__init__.py").write_text("import os\nos._exit(0)\n"))
    assert (reward["reward"], reward["pass_to_pass_share"]) == (0.0, 0.0)


def test_the_verifiers_tree_is_the_graders(exported, pocket_store, tmp_path):
    task, folder = exported
    start, original = pocket_store.workspace(task), pocket_store.snapshot(task.repo)
    work = tmp_path / "work"
    tree.copy_tree(start, work)
    tree.apply_patch(work, task.gold)
    (work / "pocket/new.py").write_text("x = 1\n")
    (work / "pocket/stats.py").unlink()
    (work / "pocket/stack.py").write_bytes(b"\0")
    (work / "tests/test_text.py").write_text("")
    (work / "json.py").write_text("")
    (work / "pocket/large.py").write_bytes(b"#" * (2**20 + 1))
    rules = make_rules(task.repo, tree.files(original), protected=task.protected, environment=pocket_store.environment(task.environment))
    refused = prepare(tmp_path / "one", tree.make_patch(start, work), start=start, original=original, rules=rules)
    read_tar(folder / "tests/start.tar", tmp_path / "changed")
    removed = json.loads((folder / "tests/grading.json").read_text())["removed"]
    again = assemble(work, original=original, start=tmp_path / "changed", removed=removed, graded=tmp_path / "two", rules=rules)
    assert tree.digest(tmp_path / "one") == tree.digest(tmp_path / "two")
    assert sorted(refused) == again
    assert [path for path, _ in again] == ["json.py", "pocket/large.py", "pocket/stack.py", "tests/test_text.py"]


def test_what_the_verifier_imports_is_all_there_and_needs_nothing_else(exported):
    _, folder = exported
    code = f"import sys; sys.path.insert(0, {str(folder / 'tests')!r}); import etude.formats.harbor_verify as found; print(found.__file__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(folder / "tests/etude/formats/harbor_verify.py"), done.stderr


def test_a_folder_of_others_says_what_it_would_need(tmp_path, pocket_store):
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello/task.toml").write_text('schema_version = "1.4"\n[metadata]\n')
    with pytest.raises(UserError, match="not exported by etude: its tests need the docker image"):
        harbor.read_task(tmp_path / "hello", pocket_store)
    report = import_tasks(tmp_path, tmp_path / "in")
    assert (report.tasks, list(report.refused)) == ((), ["hello"])


def test_no_folder_of_others_is_written_over(exported, pocket_store, tmp_path):
    task, _ = exported
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(UserError, match="no task that etude exported"):
        harbor.write_task(task, pocket_store, tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("damage", ["task.json", "original.tar", "link", "instruction.md"])
def test_a_damaged_folder_is_one_line(exported, pocket_store, tmp_path, damage, lay_down):
    task, _ = exported
    folder = tmp_path / "task"
    harbor.write_task(task, pocket_store, folder)
    match damage:
        case "task.json":
            (folder / "solution/task.json").write_text("{}")
        case "instruction.md":
            (folder / "instruction.md").write_bytes(b"\xff")
        case "original.tar":
            write_tar(lay_down(tmp_path / "other", {"a.py": ""}), folder / "tests/original.tar")
        case "link":
            with tarfile.open(folder / "tests/original.tar", "w") as archive:
                link = tarfile.TarInfo("a.py")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(link, io.BytesIO())
    with pytest.raises(UserError, match="export the task again") as caught:
        harbor.read_task(folder, pocket_store)
    assert "\n" not in str(caught.value)


def test_a_rewritten_instruction_is_taken(exported, pocket_store, tmp_path):
    task, _ = exported
    harbor.write_task(task, pocket_store, tmp_path / "task")
    (tmp_path / "task/instruction.md").write_text("Other words\n")
    assert harbor.read_task(tmp_path / "task", pocket_store).instruction == "Other words\n"


def test_modes_and_odd_names_survive_an_archive(tmp_path, lay_down):
    folder = lay_down(tmp_path / "a", {"run.sh": "#!/bin/sh\n", "grün b.py": "é\r\n", "deep/" * 30 + "x.py": b"\xff\x00"})
    (folder / "run.sh").chmod(0o755)
    write_tar(folder, tmp_path / "a.tar")
    read_tar(tmp_path / "a.tar", tmp_path / "b")
    assert tree.digest(tmp_path / "b") == tree.digest(folder)
