"""Environment folders: the runner from what is installed here, the rest as wheels, never foreign set-up code."""

import base64
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.grade.environment import make_environment, refuse_runner_packages, restore_environment, runner_names
from etude.grade.runner import run_tests
from etude.sandbox.protocol import Backend
from etude.types import Environment, Limits, Repo

LayDown = Callable[[Path, Mapping[str, str | bytes]], Path]

CODE = "import pytest\n\nVALUE = 41\n\n\n@pytest.fixture\ndef tiny():\n    return VALUE\n"
ENTRY_POINTS = "[console_scripts]\ntiny = {0}:main\n[pytest11]\ntiny = {0}\nrandomly = no_such_module\n"


def _wheel(folder: Path, *, name: str = "tiny_dep", requires: str = "") -> Path:
    files = {
        f"{name}.py": CODE,
        f"{name}-1.5.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{requires}",
        f"{name}-1.5.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.5.dist-info/entry_points.txt": ENTRY_POINTS.format(name),
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n"
        for path, text in files.items()
    )
    path = folder / f"{name}-1.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{name}-1.5.dist-info/RECORD": record + f"{name}-1.5.dist-info/RECORD,,\n"}.items():
            archive.writestr(file, text)
    return path


def _run(folder: Path, code: str) -> str:
    command = [sys.executable, "-I", "-S", "-B", "-c", f"import sys; sys.path.append({str(folder)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_runner_alone_needs_no_network_and_is_made_once(environments: Path, runner_environment: Environment) -> None:
    folder = environments / runner_environment.digest
    made = folder.stat().st_ino
    assert make_environment((), environments) == runner_environment
    assert make_environment(["pytest"], environments) == runner_environment
    assert folder.stat().st_ino == made
    assert [text.split("==")[0] for text in runner_environment.requirements] == ["iniconfig", "packaging", "pluggy", "pygments", "pytest"]
    assert f"pytest=={pytest.__version__}" in runner_environment.requirements
    assert _run(folder, "import pytest; print(pytest.__version__)") == pytest.__version__


def test_bytecode_is_of_the_unchecked_kind_and_in_place(environments: Path, runner_environment: Environment) -> None:
    folder = environments / runner_environment.digest
    for name in ("pytest/__init__.py", "_pytest/main.py", "pygments/lexers/python.py"):
        source = folder / name
        data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
        assert data[:8] == importlib.util.MAGIC_NUMBER + b"\1\0\0\0"
        assert data[8:16] == importlib.util.source_hash(source.read_bytes())


def test_a_folder_of_packages_holds_no_programs_and_is_readable_by_all(environments: Path, runner_environment: Environment) -> None:
    folder = environments / runner_environment.digest
    assert folder.stat().st_mode & 0o777 == 0o755
    assert not (folder / "bin").exists()


def test_a_wheel_is_installed_and_its_pytest_plugin_is_loaded(
    tmp_path: Path, lay_down: LayDown, backend: Backend, runner_environment: Environment
) -> None:
    out = tmp_path / "out"
    environment = make_environment([f"tiny_dep @ {_wheel(tmp_path).as_uri()}"], out)
    assert environment.requirements == tuple(sorted((*runner_environment.requirements, "tiny-dep==1.5")))
    assert environment.digest != runner_environment.digest
    folder = out / environment.digest
    assert Path(importlib.util.cache_from_source(str(folder / "tiny_dep.py"))).exists()
    assert sorted(path.name for path in out.iterdir()) == sorted([".wheels", environment.digest, f"{environment.digest}.lock"])
    assert not (folder / "bin").exists()

    files = {
        "tests/test_x.py": "import tiny_dep\n\n\ndef test_tiny(tiny):\n    assert tiny == tiny_dep.VALUE == 41\n",
        "own.egg-info/entry_points.txt": "[pytest11]\nown = no_such_module\n",
        "own.egg-info/PKG-INFO": "Name: own\nVersion: 1\n",
    }
    repo = Repo(name="own", digest="", import_roots=(".",), test_paths=("tests",))
    limits = Limits(wall_s=30.0, memory_mb=512, disk_mb=16)
    with backend.open(lay_down(tmp_path / "repo", files), environment=folder, limits=limits) as sandbox:
        assert run_tests(sandbox, repo).passed(["tests/test_x.py::test_tiny"])


def test_set_up_code_of_a_source_distribution_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = tmp_path / "evil-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(mark)!r}, 'w')\n")
    with tarfile.open(tmp_path / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "evil-1.0")
    with pytest.raises(UserError, match="only a wheel can be given by its address"):
        make_environment([f"evil @ {(tmp_path / 'evil-1.0.tar.gz').as_uri()}"], tmp_path / "out")
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def test_a_requirement_that_wants_another_runner_is_refused(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, requires="Requires-Dist: pluggy<1\n")
    with pytest.raises(UserError, match="pip could not install"):
        make_environment([f"tiny_dep @ {wheel.as_uri()}"], tmp_path / "out")


def test_a_requirement_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="requirement 'no such thing!': "):
        make_environment(["no such thing!"], tmp_path)


def test_only_the_runner_itself_is_refused(tmp_path: Path) -> None:
    assert {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"} <= runner_names()
    with pytest.raises(UserError, match="_pytest: this runs the tests, so tasks cannot be cut from it"):
        make_environment((), tmp_path, under_test=["_pytest", "mine"])
    refuse_runner_packages(["toolz", "pluggy"])


def test_a_second_copy_of_the_package_under_test_is_taken_out(tmp_path: Path, runner_environment: Environment) -> None:
    """tiny_dep comes along with tiny_tool; it is the repository's own here."""
    wheel = _wheel(tmp_path)
    tool = _wheel(tmp_path, name="tiny_tool", requires=f"Requires-Dist: tiny_dep @ {wheel.as_uri()}\n")
    environment = make_environment([f"tiny_tool @ {tool.as_uri()}"], tmp_path / "out", under_test=["tiny_dep", "pluggy"])
    left = [each for each in runner_environment.requirements if not each.startswith("pluggy==")]
    assert environment.requirements == tuple(sorted((*left, "tiny-tool==1.5")))
    folder = tmp_path / "out" / environment.digest
    assert not list(folder.rglob("*tiny_dep*"))
    assert not list(folder.rglob("*pluggy*"))
    assert (folder / "tiny_tool.py").is_file()


def test_pytest_runs_without_a_copy_of_what_is_under_test(tmp_path: Path, lay_down: LayDown, backend: Backend) -> None:
    """It gets what it needs of pluggy from the request; the tests get the tree's."""
    environment = make_environment((), tmp_path / "out", under_test=["pluggy", "iniconfig", "packaging"])
    assert [each.split("==")[0] for each in environment.requirements] == ["pygments", "pytest"]
    code = (
        "import sys\n\nimport iniconfig\nimport packaging.version\nimport pluggy\nimport pytest\n\n\n"
        "def test_a():\n    assert pluggy.MINE == packaging.version.MINE == 1\n    assert not hasattr(iniconfig, 'IniConfig')\n"
        "    assert sys.modules['_pytest.config'].PluginManager is not None\n\n\n"
        "def test_b():\n    with pytest.raises(ModuleNotFoundError):\n        import pluggy._manager\n"
        "    with pytest.raises(ModuleNotFoundError):\n        import packaging.requirements\n"
    )
    files = dict.fromkeys(("pluggy.py", "packaging/__init__.py", "packaging/version.py", "iniconfig/__init__.py"), "MINE = 1\n")
    repo = Repo(name="own", digest="", import_roots=(".",), test_paths=("tests",))
    folder = lay_down(tmp_path / "repo", {**files, "tests/test_x.py": code})
    with backend.open(folder, environment=tmp_path / "out" / environment.digest, limits=Limits(wall_s=30.0)) as sandbox:
        run = run_tests(sandbox, repo)
    assert run.passed(["tests/test_x.py::test_a", "tests/test_x.py::test_b"]), (run.messages, run.result.stdout[-900:])


def test_a_folder_that_was_lost_is_made_again_from_its_lock_without_a_network(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path)
    environment = make_environment([f"tiny_dep @ {wheel.as_uri()}"], tmp_path / "out")
    folder = tmp_path / "out" / environment.digest
    before = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.py")}
    shutil.rmtree(folder)
    wheel.unlink()
    restore_environment(environment, tmp_path / "out")
    assert {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.py")} == before
    (tmp_path / "out" / ".wheels" / wheel.name).write_bytes(b"another")
    with pytest.raises(UserError, match=r"tiny_dep-1\.5-py3-none-any\.whl is missing or was changed"):
        restore_environment(environment, tmp_path / "out")
