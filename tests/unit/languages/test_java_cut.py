from etude.languages.edits import apply
from etude.languages.java.code import read
from etude.languages.java.cut import remove, remove_tests

SOURCES = {
    "src/a/Maths.java": """\
package a;

import java.util.ArrayList;
import java.util.List;

public class Maths {
    public static int add(int a, int b) {
        return a + b;
    }

    /** Of many. */
    public static int add(List<Integer> all) {
        List<Integer> copy = new ArrayList<>(all);
        return copy.size();
    }

    public int twice(int a) {
        return add(a, a);
    }
}
""",
    "src/a/Shape.java": """\
package a;

public interface Shape {
    double area();

    default double half() {
        return area() / 2;
    }
}
""",
    "src/a/Circle.java": """\
package a;

public class Circle implements Shape {
    public Circle() {
    }

    public Circle(int r) {
        this();
    }

    @Override
    public double area() {
        return 3;
    }

    @Override
    public String toString() {
        return "circle";
    }
}
""",
    "src/b/Use.java": """\
package b;

import a.Circle;
import a.Maths;
import java.util.List;

class Use {
    int size(List<String> names) {
        return names.size() + Maths.add(1, 2);
    }

    Object make() {
        return new Circle(3);
    }
}
""",
}
TESTS = {
    "test/a/MathsTest.java": """\
package a;

import static org.junit.Assert.assertEquals;

import java.util.Collections;
import org.junit.Ignore;
import org.junit.Test;

public class MathsTest {
    private final Maths maths = new Maths();

    @Test
    public void adds() {
        assertEquals(3, Maths.add(1, 2));
    }

    @Test
    public void addsNone() {
        check(0);
    }

    @Ignore
    @Test
    public void addsMany() {
        assertEquals(0, Maths.add(Collections.emptyList()));
    }

    private void check(int wanted) {
        assertEquals(wanted, Maths.add(Collections.<Integer>emptyList()));
    }
}
""",
}


def parsed(sources=SOURCES, tests=TESTS):
    found = {path: read(path, text.encode(), is_test=False) for path, text in sources.items()}
    return found | {path: read(path, text.encode(), is_test=True) for path, text in tests.items()}


def named(codes, *names):
    return [d for code in codes.values() for d in code.definitions if (d.qualname, d.line) in names or d.qualname in names]


def cut(codes, *names):
    result = remove(codes, [path for path in codes if path.startswith("src/")], named(codes, *names))
    return result, {path: None if e is None else apply(codes[path].data, e).decode() for path, e in result.edits.items()}


def reduced(codes, removed, *lines, path="test/a/MathsTest.java"):
    blocks = [block for block in codes[path].tests if block.line in lines]
    edits = remove_tests(codes, blocks, removed)
    return {path: None if e is None else apply(codes[path].data, e).decode() for path, e in edits.items()}


MANY = ("Maths.add", 11)


def test_an_overload_goes_with_its_comment_and_the_imports_that_only_it_needed():
    result, files = cut(parsed(), MANY)
    assert [d.qualname for d in result.removed] == ["Maths.add"]
    before = SOURCES["src/a/Maths.java"]
    start, end = before.index("    /** Of many"), before.index("    public int twice")
    imports = "import java.util.ArrayList;\nimport java.util.List;\n\n"
    assert files == {"src/a/Maths.java": (before[:start] + before[end:]).replace(imports, "")}


def test_a_method_that_others_call_with_as_many_arguments_is_kept():
    result, files = cut(parsed(), ("Maths.add", 7))
    assert files == {}
    assert [d.line for d in result.kept] == [7]
    assert result.blockers == ("src/a/Maths.java:18", "src/b/Use.java:9")
    result, _ = cut(parsed(), ("Maths.add", 7), "Maths.twice")
    assert result.blockers == ("src/b/Use.java:9",)


def test_a_method_of_the_same_name_on_another_type_does_not_count():
    bag = "package a;\nclass Bag {\n    int size() { return 1; }\n%s}\n"
    other = "    int other() { return 2; }\n"
    _, files = cut(parsed({**SOURCES, "src/a/Bag.java": bag % other}), "Bag.size")
    assert files == {"src/a/Bag.java": f"package a;\nclass Bag {{\n{other}}}\n"}
    codes = parsed({**SOURCES, "src/a/Bag.java": bag % "    int other(Bag b) { return b.size(); }\n"})
    assert [d.name for d in cut(codes, "Bag.size")[0].kept] == ["size"]


def test_what_a_type_must_have_is_kept():
    assert [d.name for d in cut(parsed(), "Circle.area")[0].kept] == ["area"]
    assert [d.name for d in cut(parsed(), "Circle.toString")[0].removed] == ["toString"]
    assert [d.name for d in cut(parsed(), "Shape.half")[0].removed] == ["half"]


def test_constructors_are_matched_by_their_arguments():
    result, _ = cut(parsed(), ("Circle.Circle", 4))
    assert result.blockers == ("src/a/Circle.java:8",)
    result, _ = cut(parsed(), ("Circle.Circle", 7))
    assert result.blockers == ("src/b/Use.java:13",)
    sources = {path: text for path, text in SOURCES.items() if path != "src/b/Use.java"}
    assert [d.line for d in cut(parsed(sources), ("Circle.Circle", 7))[0].removed] == [7]
    assert [d.line for d in cut(parsed(sources), "Circle.Circle")[0].kept] == [4, 7]


def test_a_class_takes_its_file_and_the_imports_of_it_along():
    codes = parsed({**SOURCES, "src/b/Use.java": "package b;\n\nimport a.Circle;\n\nclass Use {\n}\n"})
    _, files = cut(codes, "Circle")
    assert files == {"src/a/Circle.java": None, "src/b/Use.java": "package b;\n\nclass Use {\n}\n"}


def test_a_class_that_others_name_is_kept():
    result, files = cut(parsed(), "Circle")
    assert files == {}
    assert result.blockers == ("src/b/Use.java:13",)


def test_an_override_below_needs_what_it_overrides():
    dot = "package a;\nclass Dot extends Circle {\n    @Override\n    public double half() { return 0; }\n}\n"
    assert cut(parsed({**SOURCES, "src/a/Dot.java": dot}), "Shape.half")[0].blockers == ("src/a/Dot.java:4",)


def test_tests_go_with_the_helpers_that_cannot_stay_and_what_calls_those():
    codes = parsed()
    removed = cut(codes, MANY)[0].removed
    before = TESTS["test/a/MathsTest.java"]
    start = before.index("\n    @Test\n    public void addsNone")
    kept = before[:start].replace("import java.util.Collections;\nimport org.junit.Ignore;\n", "")
    assert reduced(codes, removed) == {"test/a/MathsTest.java": kept + "}\n"}


def test_a_test_file_goes_with_its_last_test():
    assert reduced(parsed(), (), 12, 17, 22) == {"test/a/MathsTest.java": None}


def test_a_class_of_tests_that_others_name_stays_without_them():
    codes = parsed(tests={**TESTS, "test/a/AllTests.java": "package a;\n\n@SuiteClasses({MathsTest.class})\npublic class AllTests {\n}\n"})
    files = reduced(codes, (), 12, 17, 22)
    assert list(files) == ["test/a/MathsTest.java"]
    assert "@Test" not in files["test/a/MathsTest.java"]
    assert "public class MathsTest {" in files["test/a/MathsTest.java"]


def test_a_class_that_extends_what_is_gone_goes_with_its_file():
    sources = {path: text for path, text in SOURCES.items() if path != "src/b/Use.java"}
    codes = parsed(sources, {**TESTS, "test/a/Round.java": "package a;\n\nclass Round extends Circle {\n}\n"})
    assert reduced(codes, cut(codes, "Circle")[0].removed) == {"test/a/Round.java": None}


def test_static_imports_of_what_is_gone_go():
    tests = {"test/a/T.java": "package a;\n\nimport static a.Maths.more;\n\nclass T {\n    int one;\n}\n"}
    codes = parsed({"src/a/Maths.java": "package a;\nclass Maths {\n    static int more() { return 1; }\n}\n"}, tests)
    files = reduced(codes, cut(codes, "Maths.more")[0].removed, path="test/a/T.java")
    assert files == {"test/a/T.java": "package a;\n\nclass T {\n    int one;\n}\n"}
