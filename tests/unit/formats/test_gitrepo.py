"""Trees as commits and back: bytes stay bytes, ids depend on content only, and nothing leaves the folder."""

import subprocess

import pytest

from etude import tree
from etude.errors import UserError
from etude.formats.gitrepo import commit_tree, find_repository, git_folder, read_commit, reverse_patch, take_tree

FILES = {
    "a b.py": "x = 1\r\n",
    "grün/\u00fc.py": b"\xff\x00\r\n",
    "lf.txt": "a\nb\n",
    ".gitattributes": "* text=auto eol=crlf export-ignore\n*.txt filter=evil\n",
    ".gitignore": "lf.txt\n",
    "run.sh": "#!/bin/sh\n",
}


@pytest.fixture
def folder(tmp_path, lay_down):
    found = lay_down(tmp_path / "folder", FILES)
    (found / "run.sh").chmod(0o755)
    return found


def test_a_tree_comes_back_byte_by_byte_whatever_its_attributes_say(tmp_path, folder):
    commit = commit_tree(tmp_path / "git", folder, "one")
    take_tree(tmp_path / "git", commit, tmp_path / "back")
    assert tree.digest(tmp_path / "back") == tree.digest(folder)


def test_a_commit_depends_on_the_tree_only(tmp_path, folder):
    assert commit_tree(tmp_path / "a", folder, "x") == commit_tree(tmp_path / "b", folder, "y")
    (folder / "run.sh").chmod(0o644)
    assert commit_tree(tmp_path / "a", folder, "z") != commit_tree(tmp_path / "b", tmp_path, "w")


def test_a_clone_is_read_at_its_commit_and_not_as_it_lies_there(tmp_path, folder):
    commit = commit_tree(tmp_path / "bare", folder, "main")
    subprocess.run(["git", "clone", "-q", str(tmp_path / "bare"), str(tmp_path / "clone")], check=True, capture_output=True)
    (tmp_path / "clone/lf.txt").write_text("changed")
    assert git_folder(tmp_path / "clone") == tmp_path / "clone/.git"
    take_tree(tmp_path / "clone", commit, tmp_path / "back")
    assert (tmp_path / "back/lf.txt").read_bytes() == b"a\nb\n"


def test_links_that_leave_the_tree_are_no_files_of_it(tmp_path, folder):
    (tmp_path / "secret").write_text("secret")
    for name, target in (("out", "../secret"), ("passwd", "/etc/passwd"), ("inside", "lf.txt")):
        (folder / name).symlink_to(target)
    for arguments in (["init", "-q"], ["add", "-f", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    take_tree(folder, head, tmp_path / "back")
    assert (tmp_path / "back/inside").read_bytes() == b"a\nb\n"
    assert not (tmp_path / "back/out").exists()
    assert not (tmp_path / "back/passwd").exists()


@pytest.mark.parametrize("commit", ["HEAD", "--all", "f" * 40, ""])
def test_what_is_no_commit_of_it_is_one_line(tmp_path, folder, commit):
    commit_tree(tmp_path / "git", folder, "one")
    with pytest.raises(UserError, match=r"no full commit id|has no commit f") as caught:
        read_commit(tmp_path / "git", commit, tmp_path / "back")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["acme__tool", "acme__tool.git", "acme/tool"])
def test_a_repository_is_found_under_its_usual_names(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    assert find_repository(tmp_path, ["acme__tool", "tool"]) == tmp_path / name


@pytest.mark.parametrize("name", ["../other", "/etc", "", "gone"])
def test_no_name_leads_out_of_the_folder_of_repositories(tmp_path, name):
    (tmp_path / "other").mkdir()
    (tmp_path / "repos").mkdir()
    assert find_repository(tmp_path / "repos", [name]) is None


def test_a_patch_is_undone_whole_or_not_at_all(tmp_path, folder, lay_down):
    after = tmp_path / "after"
    tree.copy_tree(folder, after)
    lay_down(after, {"lf.txt": "a\nc\n", "new.py": "1\n", "a b.py": "x = 2\r\n"})
    patch = tree.make_patch(folder, after)
    reverse_patch(after, patch)
    assert tree.digest(after) == tree.digest(folder)
    with pytest.raises(ValueError, match="the patch cannot be undone"):
        reverse_patch(after, patch)
    assert tree.digest(after) == tree.digest(folder)
