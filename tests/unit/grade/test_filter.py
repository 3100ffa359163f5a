"""What decides how a diff is judged cannot be part of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from etude.grade.filter import Rules, bad_content, make_rules, refusal, split_allowed
from etude.grade.patches import parse
from etude.types import Repo

EXISTING = (
    *("pkg/__init__.py", "pkg/core.py", "pkg/data.json", "tests/test_core.py", "tests/data/golden.txt", "conftest.py", "types.py"),
    *("pkg/loose/test_near.py", "pkg/loose/near.py", "pkg/inside/__init__.py", "pkg/inside/test_in.py", "setup.py"),
)
REPO = Repo(name="r", digest="", import_roots=(".",), test_paths=("tests", "checks/one.py"))


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    for name in ("numpy", "numpy-1.0.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "six.py").touch()
    return make_rules(REPO, EXISTING, protected=("pkg/frozen/*",), environment=tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        *("pkg/core.py", "pkg/new.py", "pkg/sub/__init__.py", "new_module.py", "pkg/data.json", "pkg/py.typed", "pkg/stub.pyi"),
        *("pkg/json.py", "pkg/pytest/x.py", "types.py", "checks/two.py", "pkg/testing.py", "testsuite/x.py", "pkg/contest.py", "README.md"),
        "pkg/inside/json.py",
    ],
)
def test_source_files_may_enter(rules: Rules, path: str) -> None:
    assert refusal(path, rules) is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests/test_core.py", "test"),
        ("tests/new_helper.py", "test"),
        ("tests/data/golden.txt", "test"),
        ("tests", "test"),
        ("checks/one.py", "test"),
        ("pkg/test_more.py", "test"),
        ("pkg/more_test.py", "test"),
        ("conftest.py", "conftest.py steers the tests"),
        ("pkg/deep/conftest.py", "conftest.py steers the tests"),
        ("pkg/Conftest.py", "conftest.py steers the tests"),
        *((f"pkg/{name}", "conftest.py steers the tests") for name in ("CONFTEST.py", "conftest/__init__.py", "conftest.pyi")),
        *(
            (f"pkg/{name}", "configuration")
            for name in ("package.json", "PACKAGE.JSON", "vitest.config.mts", "vitest.workspace.ts", "tsconfig.json")
        ),
        *(
            (f"pkg/{name}", "configuration")
            for name in ("jest.config.js", "jest.setup.ts", "vite.config.js", "babel.config.cjs", "node.config.json")
        ),
        *((f"pkg/{name}", "configuration") for name in ("pom.xml", "build.gradle.kts", "junit-platform.properties", "maven-surefire.xml")),
        ("pkg/META-INF/services/org.junit.platform.launcher.TestExecutionListener", "is found by a class path without being named"),
        ("pkg/meta-inf/MANIFEST.json", "is found by a class path without being named"),
        *(
            (f"pkg/{name}", "test")
            for name in ("a.test.ts", "a.spec.js", "a-test.mjs", "__tests__/a.js", "__mocks__/fs.js", "__snapshots__/a.json")
        ),
        ("Tests/helper.py", "test"),
        ("PKG/frozen/x.py", "protected by the task"),
        ("pkg/SiteCustomize.py", "runs when Python starts"),
        ("git~1/x.py", "hidden or version control file"),
        ("Pytest.py", "hides a module of the standard library, the runner or a dependency"),
        ("_pytest/x.py", "hides a module of the standard library, the runner or a dependency"),
        ("iniconfig.py", "hides a module of the standard library, the runner or a dependency"),
        ("pkg/loose/PLUGGY.py", "hides a module of the standard library, the runner or a dependency"),
        ("pkg/\uff50ytest.py", "its name looks like 'pkg/pytest.py'"),
        ("pkg/c\u043ere.py", "the names of new files are plain ASCII here"),
        ("pkg/Core.py", "its name differs from an existing one by case alone"),
        ("Pkg/new.py", "its name differs from an existing one by case alone"),
        ("pytest.ini", "configuration"),
        ("pkg/pytest.toml", "configuration"),
        ("tox.ini", "configuration"),
        ("setup.cfg", "configuration"),
        ("setup.py", "configuration"),
        ("pyproject.toml", "configuration"),
        ("evil.pth", "runs when Python starts"),
        ("sitecustomize.py", "runs when Python starts"),
        ("usercustomize/__init__.py", "runs when Python starts"),
        ("pkg/core.so", "not a source file"),
        ("pkg/core.cpython-311-x86_64-linux-gnu.so", "not a source file"),
        ("pkg/core.pyc", "not a source file"),
        ("pkg/bundle.zip", "not a source file"),
        ("pkg/Makefile", "not a source file"),
        ("pkg/__pycache__/core.py", "written by tools, not source"),
        ("pkg.egg-info/entry_points.txt", "written by tools, not source"),
        ("evil.dist-info/entry_points.txt", "written by tools, not source"),
        (".git/hooks/x.py", "hidden or version control file"),
        (".gitattributes", "hidden or version control file"),
        ("pkg/.hidden/x.py", "hidden or version control file"),
        (".github/workflows/ci.yml", "hidden or version control file"),
        ("pkg/frozen/x.py", "protected by the task"),
        ("json.py", "hides a module of the standard library, the runner or a dependency"),
        ("json/__init__.py", "hides a module of the standard library, the runner or a dependency"),
        ("unittest/case.py", "hides a module of the standard library, the runner or a dependency"),
        ("pytest.py", "hides a module of the standard library, the runner or a dependency"),
        ("_pytest/assertion/__init__.py", "hides a module of the standard library, the runner or a dependency"),
        ("pluggy/__init__.py", "hides a module of the standard library, the runner or a dependency"),
        ("numpy/__init__.py", "hides a module of the standard library, the runner or a dependency"),
        ("six.py", "hides a module of the standard library, the runner or a dependency"),
        ("os.pyi", "hides a module of the standard library, the runner or a dependency"),
        ("pkg/loose/json.py", "hides a module of the standard library, the runner or a dependency"),
        ("../out.py", "path leaves the repository"),
        ("/etc/x.py", "path leaves the repository"),
        ("pkg/../tests/x.py", "path leaves the repository"),
        ("pkg//x.py", "path leaves the repository"),
        ("pkg\\x.py", "path leaves the repository"),
        ("pkg/a\nb.py", "path leaves the repository"),
    ],
)
def test_what_steers_the_judgement_is_refused_with_a_reason(rules: Rules, path: str, why: str) -> None:
    assert refusal(path, rules) == why


def test_only_import_roots_count_as_source() -> None:
    rules = make_rules(replace(REPO, import_roots=("src", "./lib/")), ("src/pkg/__init__.py",))
    assert refusal("src/pkg/a.py", rules) is None
    assert refusal("lib/a.py", rules) is None
    assert refusal("tools/a.py", rules) == refusal("srcs/a.py", rules) == "outside the import roots"
    assert refusal("src/random.py", rules) == "hides a module of the standard library, the runner or a dependency"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("diff --git a/pkg/l.py b/pkg/l.py\nnew file mode 120000\n--- /dev/null\n+++ b/pkg/l.py\n@@ -0,0 +1 @@\n+/etc/passwd\n", "link"),
        ("diff --git a/pkg/l.py b/pkg/l.py\nindex 12..34 120000\n--- a/pkg/l.py\n+++ b/pkg/l.py\n@@ -1 +1 @@\n-a\n+/etc/passwd\n", "link"),
        ("diff --git a/pkg/l.py b/pkg/l.py\nold mode 100644\nnew mode 120000\n", "link"),
        (
            "diff --git a/pkg/sub b/pkg/sub\nnew file mode 160000\n--- /dev/null\n+++ b/pkg/sub\n@@ -0,0 +1 @@\n+Subproject commit 1\n",
            "not a regular file",
        ),
        (
            "diff --git a/pkg/core.py b/pkg/core.py\nindex 1..2 100644\nBinary files a/pkg/core.py and b/pkg/core.py differ\n",
            "binary without its content",
        ),
    ],
)
def test_links_and_empty_binaries_are_refused(rules: Rules, text: str, why: str) -> None:
    assert [reason for _, reason in split_allowed(parse(text), rules)[1]] == [why]


def test_one_refused_file_leaves_the_others(rules: Rules) -> None:
    text = "".join(f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n" for name in ("pkg/core.py", "conftest.py", "pkg/data.json"))
    allowed, refused = split_allowed(parse(text), rules)
    assert [patch.new for patch in allowed] == ["pkg/core.py", "pkg/data.json"]
    assert refused == [("conftest.py", "conftest.py steers the tests")]


def test_a_test_cannot_be_moved_into_the_source_nor_the_source_into_tests(rules: Rules) -> None:
    for old, new in (("tests/test_core.py", "pkg/gone.py"), ("pkg/core.py", "tests/test_core.py")):
        text = f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
        allowed, refused = split_allowed(parse(text), rules)
        assert allowed == []
        assert refused[0][1] == "test"


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [
        ("a.py", b"# -*- coding: latin-1 -*-\n\xe9", None),
        ("a.json", '"ü"'.encode(), None),
        ("a.py", b"x = 1\0", "binary"),
        ("a.json", b"\xff\xfe", "binary"),
        ("a.py", b"#" * (2**20 + 1), "larger than 1024 KiB"),
    ],
)
def test_content_is_text_of_a_sane_size(path: str, data: bytes, why: str | None) -> None:
    assert bad_content(path, data) == why


@pytest.mark.parametrize(
    ("cookie", "why"),
    [("utf-8", None), ("latin-1", None), ("cp1252", None), ("utf_7", "utf_7"), ("unicode_escape", "unicode_escape"), ("rot13", "rot13")],
)
def test_sources_in_an_encoding_that_hides_what_they_say_stay_out(cookie: str, why: str | None) -> None:
    reason = bad_content("pkg/core.py", f"# coding: {cookie}\nx = 1\n".encode())
    assert reason == (why and f"written as {why}, which hides what it says")
