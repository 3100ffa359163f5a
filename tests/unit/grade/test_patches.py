"""Anyone's diff is read: prefixes, line ends, mails around it; a broken one is refused in one line."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude import tree
from etude.grade.patches import parse, to_text, with_line_ends_of

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]
HUNK = "@@ -1,3 +1,3 @@ def f():\n one\n-two\n+2\n three\n"
OLD, NEW = "one\ntwo\nthree\n", "one\n2\nthree\n"
SAME_CHANGE = {
    "git": "diff --git a/p/x.py b/p/x.py\nindex 1234567..89abcde 100644\n--- a/p/x.py\n+++ b/p/x.py\n",
    "git without prefixes": "diff --git p/x.py p/x.py\nindex 1234567..89abcde 100644\n--- p/x.py\n+++ p/x.py\n",
    "git with mnemonic prefixes": "diff --git i/p/x.py w/p/x.py\n--- i/p/x.py\n+++ w/p/x.py\n",
    "unified with prefixes": "--- a/p/x.py\n+++ b/p/x.py\n",
    "unified without": "--- p/x.py\n+++ p/x.py\n",
    "unified with times": "--- p/x.py\t2024-01-01 10:00:00.000 +0000\n+++ p/x.py\t2024-01-02 10:00:00.000 +0000\n",
    "a copy kept as .orig": "--- p/x.py.orig\n+++ p/x.py\n",
    "subversion": "Index: p/x.py\n=========\n--- p/x.py\t(revision 1)\n+++ p/x.py\t(working copy)\n",
    "a mail": "From 12ab Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\nText - with - dashes\n---\n p/x.py | 2 +-\n\n"
    "diff --git a/p/x.py b/p/x.py\n--- a/p/x.py\n+++ b/p/x.py\n",
}


def _applied(folder: Path, text: str) -> dict[str, bytes]:
    tree.apply_patch(folder, to_text(parse(text)))
    return {path: file.read_bytes() for path, file in tree.files(folder).items()}


@pytest.mark.parametrize("style", SAME_CHANGE)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_every_style_of_diff_means_the_same(tmp_path: Path, lay_down: LayDown, style: str, end: str) -> None:
    lay_down(tmp_path, {"p/x.py": OLD})
    text = SAME_CHANGE[style] + HUNK
    text = text.replace("\n", "\r\n") if end == "\r\n" else text if end else text.removesuffix("\n")
    assert _applied(tmp_path, text) == {"p/x.py": NEW.encode()}


def test_the_signature_of_a_mail_is_no_part_of_the_diff(tmp_path: Path, lay_down: LayDown) -> None:
    lay_down(tmp_path, {"p/x.py": OLD})
    assert _applied(tmp_path, SAME_CHANGE["a mail"] + HUNK + "-- \n2.39.5\n\n") == {"p/x.py": NEW.encode()}


def test_files_come_go_and_move(tmp_path: Path, lay_down: LayDown) -> None:
    lay_down(tmp_path, {"gone.py": "1\n", "git_gone.py": "1\n", "old.py": OLD, "kept.py": "1\n"})
    text = (
        "--- /dev/null\n+++ b/new dir/new.py\n@@ -0,0 +1,2 @@\n+--- a\n+\n"
        "--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
        "diff --git a/git_gone.py b/git_gone.py\ndeleted file mode 100644\n--- a/git_gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
        "diff --git a/empty.py b/empty.py\nnew file mode 100644\nindex 0000000..e69de29\n"
        f"diff --git a/old.py b/moved.py\nsimilarity index 60%\nrename from old.py\nrename to moved.py\n"
        f"--- a/old.py\n+++ b/moved.py\n{HUNK}"
        "diff --git a/kept.py b/copy.py\nsimilarity index 100%\ncopy from kept.py\ncopy to copy.py\n"
    )
    assert [patch.paths for patch in parse(text)][-2] == ("moved.py", "old.py")
    assert _applied(tmp_path, text) == {
        "new dir/new.py": b"--- a\n\n",
        "empty.py": b"",
        "moved.py": NEW.encode(),
        "kept.py": b"1\n",
        "copy.py": b"1\n",
    }


def test_folders_named_like_prefixes_are_kept(tmp_path: Path, lay_down: LayDown) -> None:
    lay_down(tmp_path, {"a/x.py": OLD})
    assert _applied(tmp_path, f"--- a/x.py\n+++ a/x.py\n{HUNK}") == {"a/x.py": NEW.encode()}
    assert (
        parse("diff --git b/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+1\n")[0].new == "b/new.py"
    )


def test_a_patch_of_ours_is_read_and_written_unchanged(tmp_path: Path, lay_down: LayDown) -> None:
    before = lay_down(tmp_path / "before", {"ü x.py": b"\xff\n", "a.py": OLD, "gone.py": b"\0", 'q"\\.py': "1\n"})
    after = lay_down(tmp_path / "after", {"ü x.py": b"\xfe\n", "a.py": NEW, "b/new file.py": "x", 'q"\\.py': "2\n", "empty": ""})
    patch = tree.make_patch(before, after)
    assert to_text(parse(patch)) == patch


@given(st.lists(st.sampled_from(["a", "-- x", "++ y", "@@ -1 +1 @@", "", " ", "diff --git a/x b/x"]), max_size=8), st.data())
@settings(max_examples=30, deadline=None)
def test_lines_that_look_like_headers_are_content(tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)))
    after = [line if keep else f"{line}!" for line, keep in zip(lines, kept, strict=True)]
    text = "".join(difflib.unified_diff([f"{line}\n" for line in lines], [f"{line}\n" for line in after], "a/x.py", "b/x.py"))
    folder = tmp_path_factory.mktemp("lines")
    (folder / "x.py").write_text("".join(f"{line}\n" for line in lines))
    assert _applied(folder, text)["x.py"].decode() == "".join(f"{line}\n" for line in after)


def test_a_diff_with_plain_ends_fits_a_file_with_carriage_returns() -> None:
    (patch,) = parse(SAME_CHANGE["git"] + "@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n")
    body = with_line_ends_of(patch, b"one\r\ntwo\r\n").body
    assert body == ("@@ -1,2 +1,2 @@", " one\r", "-two\r", "+2", "\\ No newline at end of file")
    assert with_line_ends_of(patch, b"one\r\ntwo\n") == patch
    assert with_line_ends_of(patch, None) == patch


def test_a_blank_text_is_a_diff_of_nothing() -> None:
    assert parse("") == parse(" \n\n") == []
    assert to_text([]) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I fixed it.\n", "this is no patch"),
        ("def f():\n    return -1\n", "this is no patch"),
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1 is a hunk of no file"),
        (SAME_CHANGE["git"] + "@@ -1,9 +1,3 @@\n one\n", "the hunk at line 5 is shorter than it says"),
        (SAME_CHANGE["git"] + "@@ -1,9 +1,3 @@\n one\n" + SAME_CHANGE["git"], "the hunk at line 5 is shorter than it says"),
        (SAME_CHANGE["git"] + "@@ -1 +1 @@\n-one\n+1\n+more\n", "line 8 is beyond the length that its hunk gives"),
        (SAME_CHANGE["git"] + "@@ -1,2 +1,1 @@\n one\n one\n", "the hunk at line 5 is not as long as it says"),
        ("diff --git a/x.py\n", "cannot read the names"),
    ],
)
def test_a_broken_diff_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        parse(text)
