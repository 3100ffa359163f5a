"""A tiny Java repository, built into a task by the real javac and JUnit; compiled copies of what was cut, planted and found."""

import subprocess
import zipfile

import pytest

from etude import tree
from etude.grade.grader import grade
from etude.grade.residue import Scanner
from etude.grade.scrub import scrub
from etude.languages.choose import runtime_of
from etude.languages.java.jdk import find_jdk
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.foreign.build import build_any

pytestmark = pytest.mark.jdk

MAIN, TEST = "src/main/java/org/example", "src/test/java/org/example"
WORDS = """\
package org.example;

public final class Words {
    public static int count(String text) {
        return text.isBlank() ? 0 : text.strip().split(" +").length;
    }

    /** Joins words loudly. */
    public static String joinLoudly(String... words) {
        StringBuilder out = new StringBuilder();
        for (String word : words) {
            if (out.length() > 0) {
                out.append("-delimited-");
            }
            out.append(loud(word));
        }
        return out.toString();
    }

    private static String loud(String word) {
        if (word.length() > 3) {
            return word.toUpperCase();
        }
        return word + "!";
    }
}
"""
CASE = """\
package org.example;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class WordsTest {
    @Test void none() { assertEquals(0, Words.count(" ")); }

    @Test void one() { assertEquals(1, Words.count("a")); }

    @Test void two() { assertEquals(2, Words.count(" a b ")); }

    @Test void joins() {
        assertEquals("LOUD-delimited-one!", Words.joinLoudly("loud", "one"));
    }
}
"""
FILES = {"pom.xml": "<project/>", f"{MAIN}/Words.java": WORDS, f"{TEST}/WordsTest.java": CASE}
FEATURE = (f"{TEST}/WordsTest.java::WordsTest > joins",)


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down, backend):
    """The fetched folder has compiled classes, too."""
    folder = tmp_path_factory.mktemp("foreign-java")
    source = lay_down(folder / "words", FILES)
    compile_to(source / "target/classes", source)
    options = BuildOptions(modes=("remove",), max_share=0.3, max_tasks=1, jobs=1)
    build_any(str(source), folder / "tasks", options=options, backend=backend)
    store = TaskStore.open(folder / "tasks")
    (task,) = store.tasks()
    return store, task


def compile_to(classes, source):
    classes.mkdir(parents=True)
    subprocess.run([find_jdk().home / "bin" / "javac", "-d", classes, source / MAIN / "Words.java"], check=True)
    return (classes / "org/example/Words.class").read_bytes()


def test_a_feature_of_two_methods_becomes_a_task(built, backend):
    store, task = built
    assert (task.language, task.environment.runner, task.fail_to_pass) == ("java", "junit", FEATURE)
    assert task.evidence["removed"] == ["Words.joinLoudly", "Words.loud"]
    gates = task.evidence["gates"]  # those of gates.py: test_foreign_gates.py, where a run takes a tenth of the time
    assert (gates["pass_to_pass"], gates["fail_to_pass"]) == ({"runs": 2, "tests": 3}, {"runs": 2, "tests": 1})
    assert (gates["residue"], gates["identifiers"], gates["collect"]) == ({"findings": 0}, {"missing": 0}, {"tests": 3, "of": 4})
    assert not (store.workspace(task) / "target").exists()
    gold = grade(task, task.gold, store=store, backend=backend)
    assert (gold.solved, gold.evidence["guards"]) == (True, "none for java, but files")
    empty = grade(task, "", store=store, backend=backend)
    assert (empty.solved, set(empty.fail_to_pass.values())) == (False, {"missing"})  # a test that does not compile


def test_planted_class_files_are_found_by_their_content_and_scrubbed(built, tmp_path):
    store, task = built
    original, agent = store.snapshot(task.repo), tmp_path / "agent"
    tree.copy_tree(store.workspace(task), agent)
    compiled = compile_to(tmp_path / "classes", original)
    (tmp_path / "cut").mkdir()
    subprocess.run([find_jdk().home / "bin" / "javac", "-d", tmp_path / "cut", agent / MAIN / "Words.java"], check=True)
    still = (tmp_path / "cut/org/example/Words.class").read_bytes()
    scanner = Scanner()

    def found():
        return scanner.scan(agent, scanner.needles(original, agent, but=frozenset({f"{TEST}/WordsTest.java"})))

    assert found() == ()
    before = set(tree.files(agent))
    for path, data in {
        "target/classes/org/example/Words.class": compiled,
        "notes.old": compiled,  # no name that says class
        "target/classes/org/example/Still.class": still,  # the name of one, nothing of what was cut
    }.items():
        (agent / path).parent.mkdir(parents=True, exist_ok=True)
        (agent / path).write_bytes(data)
    for path, inside in {"libs/words-1.0.jar": "org/example/Words.class", "libs/data.zip": "a/b.bin"}.items():
        (agent / path).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(agent / path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(inside, compiled)
    findings = found()
    assert {finding.place for finding in findings} == {
        "workspace:target/classes/org/example/Words.class",
        "workspace:notes.old",
        "workspace:libs/words-1.0.jar!org/example/Words.class",
        "workspace:libs/data.zip!a/b.bin",
    }
    assert scrub(agent, findings).left == ()
    assert set(tree.files(agent)) == before
    assert found() == ()


def test_classes_of_it_in_a_jar_of_the_environment_are_found_and_the_jdk_tells_nothing(built, tmp_path):
    store, task = built
    original, agent, environment = store.snapshot(task.repo), store.workspace(task), store.environment(task.environment)
    jar = environment / "lib" / "of-somebody-else-2.1.jar"

    def found():
        scanner = Scanner()
        needles = scanner.needles(original, agent, but=frozenset({f"{TEST}/WordsTest.java"}))
        return [finding.place for finding in scanner.scan(agent, needles, {"environment": environment}, runtime=runtime_of("junit"))]

    assert found() == []
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b/c.bin", compile_to(tmp_path / "classes", original))
    try:
        assert found() == [f"environment:lib/{jar.name}!a/b/c.bin"]
    finally:
        jar.unlink()


def test_a_class_file_among_the_resources_may_not_go_so_no_task_is_made(built, tmp_path):
    store, task = built
    agent = tmp_path / "agent"
    tree.copy_tree(store.workspace(task), agent)
    place = agent / "src/main/resources/words.bin"
    place.parent.mkdir(parents=True)
    place.write_bytes(compile_to(tmp_path / "classes", store.snapshot(task.repo)))
    scanner = Scanner()
    findings = scanner.scan(agent, scanner.needles(store.snapshot(task.repo), agent))
    assert [finding.place for finding in findings] == ["workspace:src/main/resources/words.bin"]
    assert scrub(agent, findings).left == findings
