"""Layouts, requirements and bad folders, without running anything."""

import pytest

from etude.errors import UserError
from etude.synth.discover import discover


def lay(folder, files):
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def test_a_flat_layout_with_tests_beside_the_package(tmp_path):
    layout = discover(
        lay(
            tmp_path,
            {"pkg/__init__.py": "", "pkg/a.py": "", "tests/test_a.py": "", "tests/helper.py": "", "setup.py": "", "docs/conf.py": ""},
        )
    )
    assert layout.import_roots == (".",)
    assert layout.sources == ("pkg/__init__.py", "pkg/a.py")
    assert layout.test_paths == ("tests/test_a.py",)
    assert layout.tests == ("tests/helper.py", "tests/test_a.py")
    assert layout.packages == ("pkg",)


def test_a_src_layout_needs_no_settings(tmp_path):
    layout = discover(lay(tmp_path, {"src/pkg/__init__.py": "", "src/mod.py": "", "tests/test_a.py": "", "noxfile.py": ""}))
    assert layout.import_roots == ("src",)
    assert layout.sources == ("src/mod.py", "src/pkg/__init__.py")
    assert layout.packages == ("mod", "pkg")


def test_tests_inside_the_package_are_no_sources(tmp_path):
    layout = discover(lay(tmp_path, {"pkg/__init__.py": "", "pkg/tests/test_a.py": "", "pkg/tests/__init__.py": "", "conftest.py": ""}))
    assert layout.sources == ("pkg/__init__.py",)
    assert layout.test_paths == ("pkg/tests/test_a.py",)
    assert "conftest.py" in layout.tests


def test_settings_name_the_root_and_the_test_files(tmp_path):
    project = (
        "[project]\nname = 'My.Project'\n[tool.setuptools.packages.find]\nwhere = ['lib']\n"
        "[tool.pytest.ini_options]\npython_files = 'check_*.py'\n"
    )
    layout = discover(lay(tmp_path, {"pyproject.toml": project, "lib/pkg/__init__.py": "", "check_a.py": ""}))
    assert (layout.name, layout.import_roots, layout.test_paths) == ("my-project", ("lib",), ("check_a.py",))


def test_setup_cfg_names_the_root(tmp_path):
    settings = "[metadata]\nname = pkg\n[options]\npackage_dir =\n    = python\ninstall_requires =\n    six>=1  # why\n"
    settings += "[options.extras_require]\ntest = pytz\ndocs = sphinx\n"
    layout = discover(lay(tmp_path, {"setup.cfg": settings, "python/pkg/__init__.py": "", "tests/test_a.py": ""}))
    assert layout.import_roots == ("python",)
    assert layout.requirements == ("pytz", "six>=1")


def test_requirements_come_from_every_place_that_is_about_tests(tmp_path):
    project = (
        "[project]\nname = 'pkg'\ndependencies = ['attrs']\n"
        "[project.optional-dependencies]\ntests = ['sortedcontainers']\ndocs = ['sphinx']\n"
        "[dependency-groups]\ntest = ['pytz', {include-group = 'more'}, {include-group = 'test'}]\nmore = ['six']\n"
    )
    files = {
        "pyproject.toml": project,
        "setup.py": "raise SystemExit\nsetup(tests_require=['toolz'], install_requires=[x])\n",
        "requirements/testing.txt": "# about\npytest-mock==3\n-r other.txt\ncoverage\nruff==1\ngit+https://x/y\n",
        "requirements/docs.txt": "furo\n",
        "pkg.py": "",
        "test_pkg.py": "",
    }
    assert discover(lay(tmp_path, files)).requirements == ("attrs", "pytest-mock==3", "pytz", "six", "sortedcontainers", "toolz")


def test_setup_py_is_read_and_not_run(tmp_path):
    marker = tmp_path / "marker"
    discover(lay(tmp_path, {"setup.py": f"open({str(marker)!r}, 'w')\n", "pkg.py": "", "test_pkg.py": ""}))
    assert not marker.exists()


def test_a_distribution_is_named_by_its_metadata(tmp_path):
    assert (
        discover(lay(tmp_path, {"PKG-INFO": "Metadata-Version: 2.1\nName: Nice_Name\n", "pkg.py": "", "test_pkg.py": ""})).name
        == "nice-name"
    )


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "empty repository"),
        ({"README.md": "x"}, "empty repository"),
        ({"setup.py": "", "tests/test_a.py": ""}, "no Python package"),
        ({"pkg/__init__.py": "", "pkg/a.py": ""}, "no tests"),
        ({"pkg/__init__.py": "", "test_a.py": "", "pyproject.toml": "x = ["}, "pyproject.toml cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path, files, why):
    with pytest.raises(UserError, match=why) as error:
        discover(lay(tmp_path, files))
    assert "\n" not in str(error.value)


def test_a_missing_folder_says_what_to_give(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        discover(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "project",
    [
        "project = 3\ntool = 3\ndependency-groups = 3\n",
        "[project]\nname = 3\ndependencies = 'attrs'\noptional-dependencies = {test = 'attrs'}\n[tool]\nsetuptools = 3\npytest = 3\n",
        "[tool.setuptools]\npackage-dir = 3\n[tool.setuptools.packages.find]\nwhere = 3\n[tool.poetry]\npackages = [1]\n",
        "[tool.pytest.ini_options]\npython_files = [1]\npythonpath = 3\n[dependency-groups]\ntest = [{include-group = 3}, 5]\n",
    ],
)
def test_settings_of_the_wrong_type_are_passed_over(tmp_path, project):
    layout = discover(lay(tmp_path, {"pyproject.toml": project, "pkg/__init__.py": "", "test_a.py": ""}))
    assert (layout.import_roots, layout.test_paths) == ((".",), ("test_a.py",))
    assert set(layout.requirements) <= {"attrs"}


def test_one_string_in_place_of_a_list_is_a_list_of_it(tmp_path):
    project = "[tool.setuptools.packages.find]\nwhere = 'lib'\n"
    assert discover(lay(tmp_path, {"pyproject.toml": project, "lib/pkg/__init__.py": "", "test_a.py": ""})).import_roots == ("lib",)
