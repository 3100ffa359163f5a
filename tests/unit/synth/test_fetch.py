"""Sources of a repository: folder, archive, git, release; nothing of it may run."""

import io
import subprocess
import tarfile
import zipfile

import pytest

from etude.errors import UserError
from etude.synth.fetch import fetch


def make_archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_folder_is_taken_as_it_is(tmp_path):
    with fetch(str(tmp_path)) as fetched:
        assert fetched.folder == tmp_path
        assert fetched.source == tmp_path.name


def test_an_archive_is_unpacked_below_its_only_folder(tmp_path):
    archive = make_archive(tmp_path / "pkg-1.0.tar.gz", {"pkg-1.0/pkg.py": "x = 1\n"})
    with fetch(str(archive)) as fetched:
        assert (fetched.folder / "pkg.py").read_text() == "x = 1\n"
        assert fetched.source == "pkg-1.0.tar.gz"
    assert not fetched.folder.exists()


def test_a_zip_file_is_unpacked_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "pkg.zip", "w") as file:
        file.writestr("a.py", "1")
        file.writestr("b.py", "2")
    with fetch(str(tmp_path / "pkg.zip")) as fetched:
        assert sorted(path.name for path in fetched.folder.iterdir()) == ["a.py", "b.py"]


def test_a_git_url_is_cloned(tmp_path):
    repo = tmp_path / "origin"
    repo.mkdir()
    (repo / "pkg.py").write_text("x = 1\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=repo, check=True)
    with fetch(repo.as_uri()) as fetched:
        assert (fetched.folder / "pkg.py").read_text() == "x = 1\n"
        assert fetched.name == "origin"


def test_a_release_is_downloaded_without_running_its_build(tmp_path):
    marker = tmp_path / "marker"
    setup = f"open({str(marker)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    project = "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    files = {"evil-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n\ntext", "evil-1.0/setup.py": setup}
    files |= {"evil-1.0/pyproject.toml": project, "evil-1.0/backend.py": setup}
    make_archive(tmp_path / "evil-1.0.tar.gz", files)
    with fetch("evil==1.0", pip_options=("--no-index", "--find-links", str(tmp_path))) as fetched:
        assert (fetched.folder / "setup.py").read_text() == setup
        assert fetched.source == "evil==1.0 sdist"
    assert not marker.exists()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nowhere/at/all", "no folder or file"),
        ("notes.txt", "no archive"),
        ("broken.tar.gz", "cannot be unpacked"),
        ("broken.zip", "cannot be unpacked"),
        ("leaves.tar.gz", "cannot be unpacked"),
    ],
)
def test_a_source_that_cannot_be_had_is_one_clear_line(tmp_path, source, why):
    for name in ("notes.txt", "broken.tar.gz", "broken.zip"):
        (tmp_path / name).write_text("x")
    make_archive(tmp_path / "leaves.tar.gz", {"../outside.py": "x"})
    with pytest.raises(UserError, match=why) as error, fetch(str(tmp_path / source)):
        pass
    assert "\n" not in str(error.value)
    assert not (tmp_path.parent / "outside.py").exists()


@pytest.mark.parametrize(("source", "why"), [("file:///nowhere/at/all", "git cannot clone"), ("nothing==1", "pip cannot download")])
def test_what_git_and_pip_say_becomes_one_clear_line(source, why):
    with pytest.raises(UserError, match=why) as error, fetch(source, pip_options=("--no-index",)):
        pass
    assert "\n" not in str(error.value)


def test_an_archive_that_python_cannot_read_is_one_line(tmp_path):
    locked, broken = tmp_path / "locked.zip", tmp_path / "broken.tar.xz"
    with zipfile.ZipFile(locked, "w") as file:
        file.writestr("a.py", "x = 1\n")
    data = bytearray(locked.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + flags] |= 1  # encrypted
    locked.write_bytes(data)
    broken.write_bytes(b"\xfd7zXZ\x00\x00\x04" + b"\xff" * 100)
    for archive in (locked, broken):
        with pytest.raises(UserError, match=f"{archive.name} cannot be unpacked: ") as error, fetch(str(archive)):
            pass
        assert "\n" not in str(error.value)


def test_a_home_of_nobody_is_one_line():
    with pytest.raises(UserError, match="no folder or file '~no-such-user/repo'"), fetch("~no-such-user/repo"):
        pass
