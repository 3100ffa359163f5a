"""Trees and patches: bytes stay bytes, nothing leaves the folder, and the surroundings do not matter."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude import tree

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]
HEADER = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n"
ODD_FILES: dict[str, tuple[bytes | None, bytes | None]] = {
    "crlf.py": (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
    "mixed.py": (b"a\r\nb\nc\rd\n", b"a\nb\r\nc\rd\x0ce\n"),
    "latin1.py": (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", b"# -*- coding: latin-1 -*-\nx = '\xe8'\n"),
    "becomes_latin1.py": (b"x = 'e'\n", b"x = '\xe8'\n"),
    "bom.py": (b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbfx = 2\n"),
    "no_end.py": (b"x = 1", b"x = 1\ny = 2"),
    "gains_end.py": (b"x = 1", b"x = 1\n"),
    "empty_new.py": (None, b""),
    "empty_gone.py": (b"", None),
    "filled.py": (b"", b"x\n"),
    "emptied.py": (b"x\n", b""),
    "nul.bin": (b"a\0b", b"a\0c\n"),
    "new.bin": (None, bytes(range(256)) * 20),
    "gone.bin": (bytes(range(256)), None),
    "gone.py": (b"x\n", None),
    "pkg/deep/new file.py": (None, "ünïcode \u2028 line\n".encode()),
    'quote"back\\slash\ttab.py': (b"1\n", b"2\n"),
    "ünïcode.py": (b"1\n", b"2\n"),
    "star*[x]?.py": (b"\xff1\n", b"\xff2\n"),
    ".gitattributes": (b"* text=auto eol=lf\n*.py -diff\n", b"* text eol=crlf\n*.py filter=lfs diff=python\n"),
    ".gitignore": (b"", b"*\n"),
    "same.py": (b"same\n", b"same\n"),
    "dash.sql": (b"-- a comment\n++ b\nrest\n", b"++ b\nrest\n-- end\n"),
}


def _two(folder: Path, lay_down: LayDown, files: Mapping[str, tuple[bytes | None, bytes | None]]) -> tuple[Path, Path]:
    sides = []
    for index, name in enumerate(("before", "after")):
        (folder / name).mkdir()
        sides.append(lay_down(folder / name, {path: pair[index] for path, pair in files.items() if pair[index] is not None}))  # type: ignore[misc]
    return sides[0], sides[1]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path: file.read_bytes() for path, file in tree.files(folder).items()}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_patch_of_odd_files_gives_the_very_bytes(tmp_path: Path, lay_down: LayDown, backwards: bool) -> None:
    before, after = _two(tmp_path, lay_down, ODD_FILES)
    if backwards:
        before, after = after, before
    patch = tree.make_patch(before, after)
    patch.encode("utf-8")
    tree.copy_tree(before, tmp_path / "work")
    tree.apply_patch(tmp_path / "work", patch)
    assert _contents(tmp_path / "work") == _contents(after)
    assert tree.digest(tmp_path / "work") == tree.digest(after)
    assert tree.patch_paths(patch) == sorted(set(ODD_FILES) - {"same.py"})


@given(before=st.binary(max_size=40), after=st.binary(max_size=40))
@settings(max_examples=15, deadline=None)
def test_any_two_contents_make_a_patch_between_them(
    tmp_path_factory: pytest.TempPathFactory, lay_down: LayDown, before: bytes, after: bytes
) -> None:
    first, second = _two(tmp_path_factory.mktemp("any"), lay_down, {"a.py": (before, after)})
    tree.apply_patch(first, tree.make_patch(first, second))
    assert (first / "a.py").read_bytes() == after


def test_each_odd_file_alone_round_trips_through_its_section(tmp_path: Path, lay_down: LayDown) -> None:
    before, after = _two(tmp_path, lay_down, ODD_FILES)
    sections = tree.split_patch(tree.make_patch(before, after))
    assert len(sections) == len(ODD_FILES) - 1
    for section in sections:
        tree.apply_patch(before, section)
    assert _contents(before) == _contents(after)


def test_equal_trees_have_no_patch_and_no_patch_changes_nothing(tmp_path: Path, lay_down: LayDown) -> None:
    before, after = _two(tmp_path, lay_down, {"a.py": (b"1\n", b"1\n")})
    assert tree.make_patch(before, after) == ""
    tree.apply_patch(before, " \n")
    assert _contents(before) == {"a.py": b"1\n"}


def test_a_patch_looks_as_git_prints_it(tmp_path: Path, lay_down: LayDown) -> None:
    before, after = _two(tmp_path, lay_down, {"b/a.py": (None, b"1\n"), "a/b.py": (b"2\n", None)})
    lines = tree.make_patch(before, after).splitlines()
    assert [line for line in lines if not line.startswith("index ")] == [
        "diff --git a/a/b.py b/a/b.py",
        "deleted file mode 100644",
        "--- a/a/b.py",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-2",
        "diff --git a/b/a.py b/b/a.py",
        "new file mode 100644",
        "--- /dev/null",
        "+++ b/b/a.py",
        "@@ -0,0 +1 @@",
        "+1",
    ]


def test_the_same_two_trees_always_give_the_same_patch(tmp_path: Path, lay_down: LayDown) -> None:
    before, after = _two(tmp_path, lay_down, ODD_FILES)
    copies = [tmp_path / "other" / "x", tmp_path / "y"]
    tree.copy_tree(before, copies[0])
    tree.copy_tree(after, copies[1])
    assert tree.make_patch(before, after) == tree.make_patch(*copies)


def test_the_executable_bit_is_part_of_a_tree_and_of_a_patch(tmp_path: Path, lay_down: LayDown) -> None:
    before, after = _two(tmp_path, lay_down, {"run.sh": (b"1\n", b"1\n"), "new.sh": (None, b"2\n")})
    plain = tree.digest(before)
    for name in ("run.sh", "new.sh"):
        (after / name).chmod(0o755)
    tree.apply_patch(before, tree.make_patch(before, after))
    assert all(os.access(before / name, os.X_OK) for name in ("run.sh", "new.sh"))
    assert tree.digest(before) == tree.digest(after) != plain


def test_a_file_may_become_a_folder_and_a_folder_a_file(tmp_path: Path, lay_down: LayDown) -> None:
    files: dict[str, tuple[bytes | None, bytes | None]] = {
        "x": (b"1\n", None),
        "x/y.py": (None, b"2\n"),
        "z/a.py": (b"3\n", None),
        "z": (None, b"4\n"),
    }
    before, after = _two(tmp_path, lay_down, files)
    tree.apply_patch(before, tree.make_patch(before, after))
    assert _contents(before) == {"x/y.py": b"2\n", "z": b"4\n"}


def test_the_configuration_of_user_and_surrounding_repository_has_no_effect(tmp_path: Path, lay_down: LayDown) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    subprocess.run(["git", "init", "-q", str(outer)], check=True)
    subprocess.run(["git", "-C", str(outer), "config", "core.autocrlf", "true"], check=True)
    subprocess.run(["git", "-C", str(outer), "config", "diff.noprefix", "true"], check=True)
    (outer / "inner").mkdir()
    before, after = _two(outer / "inner", lay_down, {"a.py": (b"1\r\n2\n", b"1\r\n3\n"), "n.py": (None, b"x\n")})
    patch = tree.make_patch(before, after)
    assert tree.patch_paths(patch) == ["a.py", "n.py"]
    tree.apply_patch(before, patch)
    assert _contents(before) == _contents(after)


@pytest.mark.parametrize("path", ["../out.py", "a/../../out.py", "/etc/out.py", ".git/config", "a/.GIT/hooks/x", "a//b.py", "./x.py"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(ValueError, match=r"^the patch [^\n]*$"):
        tree.apply_patch(tmp_path / "work", HEADER.format(path).replace(f"--- a/{path}", "--- /dev/null") + "@@ -0,0 +1 @@\n+x\n")
    assert list(tmp_path.rglob("*")) == [tmp_path / "work"]


def test_nothing_is_written_through_a_link(tmp_path: Path, lay_down: LayDown) -> None:
    outside = lay_down(tmp_path / "outside", {"a.py": "1\n"})
    work = lay_down(tmp_path / "work", {"b.py": "1\n"})
    (work / "folder").symlink_to(outside)
    (work / "file.py").symlink_to(outside / "a.py")
    for path in ("folder/a.py", "file.py"):
        with pytest.raises(ValueError, match="goes through a link"):
            tree.apply_patch(work, HEADER.format(path) + "@@ -1 +1 @@\n-1\n+2\n")
    assert (outside / "a.py").read_text() == "1\n"


@pytest.mark.parametrize("mode", ["120000", "160000", "100600", "040000"])
def test_a_patch_makes_regular_files_only(tmp_path: Path, mode: str) -> None:
    patch = f"diff --git a/x b/x\nnew file mode {mode}\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n"
    with pytest.raises(ValueError, match="only regular files can be patched"):
        tree.apply_patch(tmp_path, patch)
    assert not os.path.lexists(tmp_path / "x")


def test_a_patch_that_does_not_apply_changes_nothing(tmp_path: Path, lay_down: LayDown) -> None:
    lay_down(tmp_path, {"a.py": "1\n", "b.py": "1\n"})
    good, bad = (HEADER.format(name) + f"@@ -1 +1 @@\n-{old}\n+2\n" for name, old in (("a.py", 1), ("b.py", 9)))
    with pytest.raises(ValueError, match=r"^the patch does not apply: [^\n]*b\.py[^\n]*$"):
        tree.apply_patch(tmp_path, good + bad)
    assert _contents(tmp_path) == {"a.py": b"1\n", "b.py": b"1\n"}


@pytest.mark.parametrize("patch", ["nonsense\n", HEADER.format("a.py") + "@@ -1,9 +1 @@\n-1\n", "diff --git a b c\n", "\ud800"])
def test_a_malformed_patch_is_one_line_of_complaint(tmp_path: Path, patch: str) -> None:
    with pytest.raises(ValueError, match=r"^the patch [^\n]*$"):
        tree.apply_patch(tmp_path, patch)


def test_caches_bytecode_and_version_control_are_no_part_of_a_tree(tmp_path: Path, lay_down: LayDown) -> None:
    kept = {"a.py": b"1\n", "pkg/b.txt": b"2\n"}
    noise = [
        ".git/HEAD",
        "__pycache__/a.pyc",
        "pkg/__pycache__/b.cpython-311.pyc",
        ".pytest_cache/v",
        ".mypy_cache/x.json",
        "pkg/c.pyc",
        ".coverage",
    ]
    lay_down(tmp_path / "noisy", {**kept, **dict.fromkeys(noise, b"noise")})
    lay_down(tmp_path / "clean", kept)
    assert tree.digest(tmp_path / "noisy") == tree.digest(tmp_path / "clean")
    assert tree.make_patch(tmp_path / "clean", tmp_path / "noisy") == ""
    tree.copy_tree(tmp_path / "noisy", tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*") if path.is_file()) == ["a.py", "b.txt"]


def test_the_digest_depends_on_every_path_and_byte_and_on_nothing_else(tmp_path: Path, lay_down: LayDown) -> None:
    variants = [{"a": b"1", "b": b"2"}, {"a": b"12", "b": b""}, {"a": b"1"}, {"a": b"1", "c": b"2"}, {"x/a": b"1", "b": b"2"}]
    digests = {tree.digest(lay_down(tmp_path / str(n), files)) for n, files in enumerate(variants)}
    assert len(digests) == len(variants)
    again = lay_down(tmp_path / "again", dict(reversed(variants[0].items())))
    os.utime(again / "a", (0, 0))
    assert tree.digest(again) == tree.digest(tmp_path / "0")


def test_a_link_inside_counts_as_its_file_and_other_links_are_left_out(tmp_path: Path, lay_down: LayDown) -> None:
    lay_down(tmp_path / "outside", {"secret.py": "no\n"})
    source = lay_down(tmp_path / "source", {"real.py": "1\n"})
    (source / "alias.py").symlink_to("real.py")
    (source / "leaves.py").symlink_to("../outside/secret.py")
    (source / "folder").symlink_to("../outside")
    (source / "dangling.py").symlink_to("nowhere")
    (source / "circle.py").symlink_to("circle.py")
    tree.copy_tree(source, tmp_path / "copy")
    assert _contents(tmp_path / "copy") == {"alias.py": b"1\n", "real.py": b"1\n"}
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))
    assert tree.digest(source) == tree.digest(tmp_path / "copy")


def test_a_copy_can_be_read_by_every_user(tmp_path: Path, lay_down: LayDown) -> None:
    source = lay_down(tmp_path / "source", {"pkg/a.py": "1\n"})
    (source / "pkg/a.py").chmod(0o600)
    target = tmp_path / "copy"
    target.mkdir(mode=0o700)
    tree.copy_tree(source, target)
    assert [(path.stat().st_mode & 0o777) for path in (target, target / "pkg", target / "pkg/a.py")] == [0o755, 0o755, 0o644]
