"""The scrub takes caches and build products, no sources, and follows no link."""

import subprocess

import pytest

from etude.grade.residue import Finding
from etude.grade.scrub import scrub


def lay(folder, files):
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x = 1\n")
    return folder


def listed(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


SOURCES = {
    "pkg/__init__.py", "pkg/build/make.py", "pkg/dist/normal.py", "build/__init__.py", "docs/index.rst", "tests/data/sample.zip",
    "pkg/coverage.py", "pkg/target/a.py", "debug.log", "lib.jar",
}  # fmt: skip
LEFT_OVERS = {
    "pkg/__pycache__/a.cpython-311.pyc", "pkg/old.pyc", ".mypy_cache/3.11/cache.db", "dist/pkg-1.0.tar.gz", "docs/_build/index.html",
    "pkg.egg-info/PKG-INFO", "src/pkg.egg-info/SOURCES.txt", "htmlcov/index.html", ".coverage", ".hypothesis/x", "pkg/a.py~",
    "pkg/Core.class", "packages/one/dist/index.js", ".git/HEAD", "sub/.git/HEAD",
}  # fmt: skip


def test_left_overs_go_and_sources_stay(tmp_path):
    report = scrub(lay(tmp_path, SOURCES | LEFT_OVERS))
    assert listed(tmp_path) == SOURCES
    assert "pkg/__pycache__" in report.removed
    assert scrub(tmp_path).removed == ()


def finding(path, folder="workspace"):
    return Finding(folder=folder, path=path, inside="", kind="lines", matched=(), why="tells it", removable=True)


def test_only_what_a_finding_names_goes_of_logs_and_archives(tmp_path):
    lay(tmp_path, SOURCES)
    found = [finding("debug.log"), finding("tests/data/sample.zip"), finding("pkg/__init__.py"), finding("lib.jar", "environment")]
    report = scrub(tmp_path, found)
    assert report.removed == ("debug.log",)
    assert list(report.left) == found[1:]
    assert listed(tmp_path) == SOURCES - {"debug.log"}


@pytest.mark.parametrize("path", ["../outside/a.log", "link/a.log"])
def test_nothing_outside_of_the_folder_is_removed(tmp_path, path):
    lay(tmp_path / "outside", ["a.log", "__pycache__/a.pyc"])
    inside = lay(tmp_path / "inside", ["a.py"])
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "build").symlink_to(tmp_path / "outside")
    scrub(inside, [finding(path)])
    assert listed(tmp_path / "outside") == {"a.log", "__pycache__/a.pyc"}
    assert not (inside / "build").is_symlink()


def test_a_fresh_repository_has_one_commit_whatever_the_attributes_and_hooks(tmp_path):
    heads = []
    for name in ("a", "b"):
        folder = lay(tmp_path / name, ["pkg/a.py", ".git/hooks/pre-commit", "pkg/__pycache__/a.pyc"])
        (folder / ".gitattributes").write_text("* text=auto eol=crlf filter=evil\n")
        (folder / "pkg/crlf.py").write_bytes(b"x = 1\r\n")
        scrub(folder, git="fresh")
        git = ["git", "-C", str(folder)]
        heads.append(subprocess.run([*git, "rev-list", "--all"], check=True, capture_output=True).stdout)
        listing = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD"], check=True, capture_output=True, text=True).stdout
        assert listing.split() == [".gitattributes", "pkg/a.py", "pkg/crlf.py"]
        assert subprocess.run([*git, "show", "HEAD:pkg/crlf.py"], check=True, capture_output=True).stdout == b"x = 1\r\n"
        assert not (folder / ".git/hooks").exists()
    assert heads[0] == heads[1]
    assert len(heads[0].split()) == 1
