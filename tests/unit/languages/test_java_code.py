import pytest

from etude.languages.edits import apply
from etude.languages.java.code import read, signature, stub, trace
from etude.languages.protocol import Unreadable

BOX = b"""\
package org.example;

import java.util.List;

/**
 * A box.
 */
public class Box<T> extends Base implements Holder {
    private static final List<String> NAMES = names();
    private final T value;

    public Box(T value) {
        super(1);
        // kept
        this.value = value;
    }

    /** Makes an empty one. */
    protected Box() {
        this(null);
    }

    /**
     * Gives it back.
     *
     * @return the value
     */
    @Override
    public T get() throws IllegalStateException {
        Runnable r = () -> { value.hashCode(); };
        return value;
    }

    static List<String> names() { return List.of(); }

    abstract static class Lid {
        abstract void close();
        void open() { close(); }
    }

    enum Size {
        SMALL, LARGE;
        Size() { names(); }
        int width() { return 1; }
    }
}

interface Holder {
    Object get();
    default boolean isFull() { return get() != null; }
}
"""
TESTS = b"""\
import org.junit.Test;

public class BoxTest extends Parent {
    @Test
    public void gives() {}

    // of JUnit 3
    public void testOld() {}

    public void helper() {}

    @Nested
    class Inner {
        @ParameterizedTest
        @ValueSource(ints = {1})
        void each(int x) {}
    }
}
"""


def box():
    return read("src/Box.java", BOX, is_test=False)


def one(code, qualname, number=0):
    return [d for d in code.definitions if d.qualname == qualname][number]


def text(code, definition):
    return code.data[definition.start : definition.end].decode()


def test_definitions_of_every_type_and_depth():
    assert [d.qualname for d in box().definitions] == [
        "Box", "Box.Box", "Box.Box", "Box.get", "Box.names", "Box.Lid", "Box.Lid.close", "Box.Lid.open", "Box.Size", "Box.Size.Size",
        "Box.Size.width", "Holder", "Holder.get", "Holder.isFull",
    ]  # fmt: skip


def test_a_definition_has_its_comment_and_annotations():
    code = box()
    get = one(code, "Box.get")
    assert text(code, get).startswith("/**\n     * Gives it back.")
    assert get.doc == "Gives it back.\n\n@return the value"
    assert (get.owner, get.is_public, get.is_class) == ("Box", True, False)
    assert (get.line, get.end_line) == (23, 32)
    assert signature(code, get) == "@Override\n    public T get() throws IllegalStateException"


def test_visibility():
    public = {d.qualname for d in box().definitions if d.is_public}
    assert public == {"Box", "Box.Box", "Box.get", "Holder", "Holder.get", "Holder.isFull"}


def test_what_has_no_body_worth_a_cut_has_none():
    code = box()
    bodiless = {(d.qualname, d.line) for d in code.definitions if d.body is None and not d.is_class}
    assert {name for name, _ in bodiless} == {"Box.Box", "Box.Lid.close", "Box.Size.Size", "Holder.get"}
    assert one(code, "Box.Box", 0).body is not None
    assert one(code, "Box.Box", 1).body is None


def test_a_stub_throws_and_leaves_the_call_of_another_constructor():
    code = box()
    data = apply(code.data, [*stub(code, one(code, "Box.Box")), *stub(code, one(code, "Box.names"))]).decode()
    said = 'throw new UnsupportedOperationException("not implemented");'
    assert f"public Box(T value) {{\n        super(1);\n        {said}\n    }}\n" in data
    assert f"static List<String> names() {{\n        {said}\n    }}\n" in data
    assert read("x.java", data.encode(), is_test=False)


def test_a_stubbed_class_is_its_stubbed_methods():
    code = box()
    data = apply(code.data, stub(code, one(code, "Box.Lid"))).decode()
    assert data.count("UnsupportedOperationException") == 1
    assert "abstract void close();" in data


def test_carriage_returns_and_tabs_survive():
    code = read("A.java", b"class A {\r\n\tint one() {\r\n\t\treturn 1;\r\n\t}\r\n}\r\n", is_test=False)
    said = b'throw new UnsupportedOperationException("not implemented");'
    assert apply(code.data, stub(code, code.definitions[1])) == b"class A {\r\n\tint one() {\r\n\t\t" + said + b"\r\n\t}\r\n}\r\n"


def test_the_signature_of_a_class_lists_what_can_be_seen():
    assert signature(box(), one(box(), "Box")).splitlines() == [
        "public class Box<T> extends Base implements Holder {",
        "    public Box(T value);",
        "    protected Box();",
        "    @Override public T get() throws IllegalStateException;",
        "    abstract static class Lid { } {}",
        "    enum Size { SMALL, LARGE; } {}",
        "}",
    ]


def test_tracer_calls_stand_in_every_body_with_the_number_of_the_innermost_definition():
    code = box()
    numbers = {d.key: number for number, d in enumerate(code.definitions)}
    data = apply(code.data, trace(code, numbers)).decode()
    assert "super(1);etude_.Trace.hit(1);" in data
    assert "this(null);etude_.Trace.hit(2);" in data
    assert "throws IllegalStateException {etude_.Trace.hit(3);" in data
    assert "() -> {etude_.Trace.hit(3); value" in data
    assert "boolean isFull() {etude_.Trace.hit(13); return" in data
    assert data.count("etude_.Trace.hit(") == 9
    assert data.count("static{etude_.Trace.enter();}") == 1
    assert len(data.splitlines()) == len(BOX.splitlines())
    assert read("src/Box.java", data.encode(), is_test=False)


def test_tests_of_three_junits():
    code = read("BoxTest.java", TESTS, is_test=True)
    assert code.definitions == ()
    found = [(block.line, block.end_line, block.is_group) for block in code.tests]
    assert found == [(3, 18, True), (4, 5, False), (7, 8, False), (12, 17, True), (14, 16, False)]


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"class A {\n  int x(\n}", "syntax error at line 2"), ('class A { String s = "é"; }'.encode("latin-1"), "not UTF-8 at byte 22")],
)
def test_what_cannot_be_read(data, why):
    with pytest.raises(Unreadable, match=why):
        read("A.java", data, is_test=False)
