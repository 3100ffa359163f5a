"""Tiny Java projects in the real sandbox: what is reported, what is chosen, what ran where."""

import subprocess
import zipfile

import pytest

from etude import tree
from etude.grade.residue import Scanner
from etude.grade.runner import run_tests
from etude.grade.scrub import scrub
from etude.languages.edits import apply
from etude.languages.java.code import read, trace
from etude.languages.java.environment import make_environment
from etude.languages.java.jdk import find_jdk
from etude.languages.java.project import discover
from etude.types import Limits, Repo

pytestmark = pytest.mark.jdk

SOURCE = """\
package org.example;

public class Tiny {
    static final int[] TABLE = table();

    static int[] table() {
        return new int[] {1, 2};
    }

    public static int one() {
        return TABLE[0];
    }

    public int two() {
        return TABLE[1];
    }
}
"""
HEAD = "package org.example;\n\nimport static org.junit.jupiter.api.Assertions.*;\n\nimport org.junit.jupiter.api.*;\n"
NEW = (
    HEAD
    + """\
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class NewTest {
    Tiny tiny = new Tiny();

    @Test void passes() { assertEquals(1, Tiny.one()); }

    @Test void fails() { fail("a\\nb"); }

    @Test void findsNoHarness() throws Exception {
        for (var field : Class.forName("etude_.Run").getDeclaredFields()) {
            if (!java.lang.reflect.Modifier.isStatic(field.getModifiers())) continue;
            field.setAccessible(true);
            assertNull(field.get(null));
        }
        assertEquals(-1, System.in.read());
    }

    @Disabled @Test void never() {}

    @Test void assumes() { Assumptions.assumeTrue(false); }

    @ParameterizedTest(name = "{0}")
    @ValueSource(strings = {"a b", "c::d", "ü\\n\\"x"})
    void each(String text) { assertNotEquals("", text); }

    @TestFactory DynamicTest made() { return DynamicTest.dynamicTest("while it runs", () -> {}); }

    @Nested class Inner {
        @Test void inside() { assertEquals(2, tiny.two()); }
    }
}
"""
)
OLD = """\
package org.example;

import org.junit.*;
import org.junit.runner.RunWith;
import org.junit.runners.Parameterized;

@RunWith(Parameterized.class)
public class OldTest extends Base {
    @Parameterized.Parameters(name = "of {0}")
    public static Object[] all() { return new Object[] {1, 2}; }

    @Parameterized.Parameter public int number;

    @Test public void small() { Assert.assertTrue(number < 2); }
}
"""
BASE = "package org.example;\n\nimport org.junit.Test;\n\npublic abstract class Base {\n    @Test\n    public void inherited() {}\n}\n"
OLDEST = "package org.example;\n\npublic class OldestTest extends junit.framework.TestCase {\n    public void testIt() {}\n}\n"
BROKEN = HEAD + "class BrokenTest {\n    @Test void t() { Tiny.three(); }\n}\n"
EXIT = HEAD + 'class ExitTest {\n    @Test void a() { System.out.println("PASSED"); System.exit(0); }\n    @Test void b() {}\n}\n'
SETUP = HEAD + 'class SetupTest {\n    @BeforeAll static void all() { throw new RuntimeException("no"); }\n    @Test void t() {}\n}\n'
MAIN, TEST = "src/main/java/org/example", "src/test/java/org/example"


@pytest.fixture(scope="module")
def run_java(tmp_path_factory, lay_down, backend):
    """Lay down a project with these test files and run them; the rest of the arguments are run_tests'."""
    environments = tmp_path_factory.mktemp("java-env")

    def run(tests, sources=None, **options):
        folder = tmp_path_factory.mktemp("java")
        files = {f"{MAIN}/{name}.java": text for name, text in (sources or {"Tiny": SOURCE}).items()}
        lay_down(folder, files | {f"{TEST}/{name}.java": text for name, text in tests.items()})
        project = discover(folder, "tiny")
        environment = make_environment(project, folder, environments)
        repo = Repo(name="tiny", digest="0" * 64, import_roots=project.import_roots, test_paths=project.tests)
        with backend.open(folder, environment=environments / environment.digest, limits=Limits(memory_mb=2048, processes=128)) as sandbox:
            return run_tests(sandbox, repo, runner="junit", wall_s=120.0, **options)

    return run


def short(ids):
    return [id.partition("::")[2] for id in ids]


def test_every_kind_of_outcome_of_three_junits(run_java):
    run = run_java({"NewTest": NEW, "OldTest": OLD, "Base": BASE, "OldestTest": OLDEST, "BrokenTest": BROKEN, "SetupTest": SETUP})
    assert {id.partition("::")[2]: outcome for id, outcome in run.outcomes.items()} == {
        "NewTest > passes": "passed",
        "NewTest > fails": "failed",
        "NewTest > findsNoHarness": "passed",
        "NewTest > never": "skipped",
        "NewTest > assumes": "skipped",
        "NewTest > each > a b": "passed",
        "NewTest > each > c:d": "passed",
        'NewTest > each > ü "x': "passed",
        "NewTest > made > while it runs": "passed",
        "NewTest > Inner > inside": "passed",
        "OldTest > [of 1] > small[of 1]": "passed",
        "OldTest > [of 2] > small[of 2]": "failed",
        "OldTest > [of 1] > inherited[of 1]": "passed",
        "OldTest > [of 2] > inherited[of 2]": "passed",
        "OldestTest > testIt": "passed",
        "SetupTest > t": "failed",
    }
    assert run.complete
    assert sorted(run.collected) == sorted(run.outcomes)
    assert run.messages[f"{TEST}/SetupTest.java::SetupTest > t"] == "java.lang.RuntimeException: no"
    assert len(run.collect_errors) == 1
    assert run.collect_errors[0].startswith(f"{TEST}/BrokenTest.java: line 7: cannot find symbol")
    assert run.places[f"{TEST}/NewTest.java::NewTest > each > a b"] == (f"{TEST}/NewTest.java", 31)
    assert run.places[f"{TEST}/OldTest.java::OldTest > [of 1] > inherited[of 1]"] == (f"{TEST}/Base.java", 7)


def test_a_source_that_does_not_compile_is_a_load_error_and_nothing_runs(run_java):
    run = run_java({"OldestTest": OLDEST}, {"Tiny": "package org.example;\n\nclass Tiny { int x = y; }\n"})
    assert run.collect_errors[0].startswith(f"{MAIN}/Tiny.java: line 3: cannot find symbol")
    assert (run.outcomes, run.collected) == ({}, ())


def test_a_process_that_ends_in_a_test_passes_none(run_java):
    run = run_java({"ExitTest": EXIT})
    assert not run.complete
    assert short(run.collected) == ["ExitTest > a", "ExitTest > b"]
    assert "passed" not in run.outcomes.values()


def test_chosen_tests_in_reverse_and_what_they_reach(run_java):
    code = read(f"{MAIN}/Tiny.java", SOURCE.encode(), is_test=False)
    numbers = {d.key: number for number, d in enumerate(code.definitions)}
    traced = apply(code.data, trace(code, numbers)).decode()
    ids = [f"{TEST}/NewTest.java::NewTest > {name}" for name in ("passes", "fails", "each > a b", "Inner > inside")]
    ids.append(f"{TEST}/OldTest.java::OldTest > [of 1] > small[of 1]")
    names = {(d.path, d.start): d.name for d in code.definitions}
    codes = [(number, *key) for key, number in numbers.items()]
    run = run_java({"NewTest": NEW, "OldTest": OLD, "Base": BASE}, {"Tiny": traced}, ids=ids, order="reversed", codes=codes)
    assert sorted(run.collected) == sorted(ids)
    assert run.collected[0] == ids[-1]
    reach = {owner.partition("::")[2] or owner: {names[place] for place in places} for owner, places in run.reach.items()}
    assert reach == {"<collect>": {"table"}, "NewTest > passes": {"one"}, "NewTest > Inner > inside": {"two"}}


def test_compiled_copies_of_a_cut_feature_are_found_and_scrubbed(tmp_path, lay_down):
    """A class file and a jar with one, made by javac."""
    body = "        StringBuilder out = new StringBuilder();\n        for (String word : words) {\n"
    body += '            out.append(word.toUpperCase()).append("-delimited-");\n        }\n        return out.toString();\n'
    method = f"    public static String joinLoudly(String... words) {{\n{body}    }}\n\n"
    whole = SOURCE.replace("    public int two", f"{method}    public int two")
    original = lay_down(tmp_path / "original", {"pom.xml": "<project/>", f"{MAIN}/Tiny.java": whole})
    agent = lay_down(tmp_path / "agent", {"pom.xml": "<project/>", f"{MAIN}/Tiny.java": SOURCE})
    scanner = Scanner()
    assert scanner.scan(agent, scanner.needles(original, agent)) == ()
    classes = agent / "target/classes"
    subprocess.run([find_jdk().home / "bin" / "javac", "-d", classes, original / MAIN / "Tiny.java"], check=True)
    (agent / "libs").mkdir()
    with zipfile.ZipFile(agent / "libs/tiny-1.0.jar", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(classes / "org/example/Tiny.class", "org/example/Tiny.class")
    found = scanner.scan(agent, scanner.needles(original, agent))
    assert {finding.place.split("!")[0] for finding in found} == {
        "workspace:target/classes/org/example/Tiny.class",
        "workspace:libs/tiny-1.0.jar",
    }
    assert scrub(agent, found).left == ()
    assert set(tree.files(agent)) == {"pom.xml", f"{MAIN}/Tiny.java"}
    assert scanner.scan(agent, scanner.needles(original, agent)) == ()
