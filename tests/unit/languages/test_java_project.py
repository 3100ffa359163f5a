import zipfile

import pytest

from etude.errors import UserError
from etude.languages.choose import detect
from etude.languages.java.environment import make_environment
from etude.languages.java.jdk import jdk_of
from etude.languages.java.project import discover, products

pytestmark = pytest.mark.jdk

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <groupId>org.example</groupId><artifactId>tiny</artifactId>
  <properties><project.build.sourceEncoding>ISO-8859-1</project.build.sourceEncoding></properties>
  <dependencies>
    <dependency><groupId>org.nowhere</groupId><artifactId>nothing</artifactId></dependency>
    <dependency><groupId>junit</groupId><artifactId>junit</artifactId><scope>test</scope></dependency>
  </dependencies>
</project>
"""
TEST = "package org.example;\n\nimport org.junit.Test;\n\npublic class TinyTest {\n    @Test public void t() {}\n}\n"
MAVEN = {
    "pom.xml": POM,
    "src/main/java/module-info.java": "module tiny {}\n",
    "src/main/java/org/example/Tiny.java": "package org.example;\n\npublic class Tiny {\n}\n",
    "src/main/java/org/example/Far.java": "package org.example;\n\nimport org.nowhere.Thing;\n\nclass Far {\n}\n",
    "src/main/java/org/example/Near.java": "package org.example;\n\nimport javax.crypto.Cipher;\n\nclass Near {\n    Far far;\n}\n",
    "src/main/resources/org/example/words.txt": "one\n",
    "src/test/java/org/example/TinyTest.java": TEST,
    "src/test/java/org/example/AbstractTest.java": TEST.replace("class TinyTest", "abstract class AbstractTest"),
    "src/test/java/org/example/Helper.java": "package org.example;\n\nclass Helper {\n}\n",
    "src/test/java/org/example/FarTest.java": TEST.replace("TinyTest", "FarTest").replace("t() {}", "t() { new Far(); }"),
    "src/test/resources/data.txt": "x\n",
    "examples/Example.java": "class Example {}\n",
}


@pytest.fixture
def maven(tmp_path, lay_down):
    return lay_down(tmp_path / "tiny", MAVEN)


def test_a_maven_project(maven):
    project = detect(maven, "tiny")
    assert (project.language, project.runner, project.name) == ("java", "junit", "tiny")
    assert project.sources == ("src/main/java/org/example/Tiny.java",)
    assert project.tests == ("src/test/java/org/example/TinyTest.java",)
    assert project.support == tuple(f"src/test/java/org/example/{name}.java" for name in ("AbstractTest", "FarTest", "Helper"))
    assert project.import_roots == ("src/main/java",)
    assert project.requirements == ("org.nowhere:nothing",)
    assert project.own_names == ("org.example:tiny",)
    assert {"pom.xml", "src/test/java/*", "src/test/resources/*"} <= set(project.protected)


def test_what_no_jar_here_has_is_left_out_with_what_names_it(maven):
    settings = detect(maven, "tiny").settings
    assert settings["left_out"].split("\n") == ["src/main/java/org/example/Far.java", "src/main/java/org/example/Near.java"]
    assert settings["resources"].split("\n") == ["src/main/resources", "src/test/resources"]
    assert settings["encoding"] == "ISO-8859-1"


def test_roots_are_where_packages_begin(tmp_path, lay_down):
    files = {
        "build.xml": "<project/>",
        "source/org/example/Tiny.java": "/* package nothing; */\npackage org.example;\nclass Tiny {}\n",
        "test/unit/org/example/TinyTest.java": TEST,
    }
    project = discover(lay_down(tmp_path / "ant", files), "ant")
    assert project.import_roots == ("source",)
    assert project.settings["tests"] == "test/unit"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"pom.xml": "<project", **{p: t for p, t in MAVEN.items() if p != "pom.xml"}}, "pom.xml cannot be read"),
        ({p: t for p, t in MAVEN.items() if "TinyTest" not in p}, "has no tests of JUnit that can be worked on"),
        ({p: t for p, t in MAVEN.items() if "/main/java/org/example/Tiny" not in p}, "has no sources that can be worked on .*org.nowhere"),
    ],
)
def test_what_cannot_be_worked_on_is_told_in_one_line(tmp_path, lay_down, files, why):
    with pytest.raises(UserError, match=why) as caught:
        discover(lay_down(tmp_path / "bad", files), "bad")
    assert "\n" not in str(caught.value)


def test_other_folders_are_not_java(tmp_path, lay_down):
    assert discover(lay_down(tmp_path / "a", {"notes.txt": "x"}), "a") is None
    assert discover(lay_down(tmp_path / "b", {"lib/One.java": "class One {}"}), "b") is None


def test_products_are_classes_jars_of_our_own_and_what_lies_in_target(maven):
    for name in ("target/classes/org/example/Tiny.class", "target/site/index.html", "lib/Old.class"):
        (maven / name).parent.mkdir(parents=True, exist_ok=True)
        (maven / name).write_bytes(b"\xca\xfe\xba\xbe")
    for name, inside in (("lib/tiny-0.9.jar", "org/example/Tiny.class"), ("lib/other.jar", "org/other/Tiny.class")):
        with zipfile.ZipFile(maven / name, "w") as archive:
            archive.writestr(inside, b"")
    found = products(maven, discover(maven, "tiny"))
    assert found == ["lib/Old.class", "lib/tiny-0.9.jar", "target/classes/org/example/Tiny.class", "target/site/index.html"]


def test_without_a_jdk_one_line_says_what_to_install(tmp_path):
    remedy = "install it by: apt-get install --no-install-recommends default-jdk-headless junit4 junit5"
    with pytest.raises(UserError, match=f"^Java needs a JDK; {remedy}$"):
        jdk_of(None, str(tmp_path))
    with pytest.raises(UserError, match=f"^Java needs a JDK, and JAVA_HOME={tmp_path} has no bin/javac; {remedy}$"):
        jdk_of(str(tmp_path), "/usr/bin")


def test_a_published_copy_among_the_dependencies_is_refused(tmp_path, lay_down):
    files = {**MAVEN, "src/main/java/org/hamcrest/Matcher.java": "package org.hamcrest;\n\npublic class Matcher {\n}\n"}
    folder = lay_down(tmp_path / "own", files)
    with pytest.raises(UserError, match=r"hamcrest.*\.jar has org/hamcrest/Matcher; choose another repository"):
        make_environment(discover(folder, "own"), folder, tmp_path / "env")
