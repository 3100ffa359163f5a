"""Which methods a class file holds the code of: its bytes tell, whatever the names around it."""

import struct

import pytest

from etude.grade.residue import Scanner
from etude.grade.residue.classfile import class_values, method_words

LONE = """\
package a.b;

/* class Not { void never() {} } */
public final class Box<T extends Comparable<T>> {
    private final String text = "} class Fake { void fake() {";

    public Box(int size) {
        check(size);
    }

    @Named(value = "x") int size(
        java.util.function.Function<String, Integer> each) throws Exception, Error {
        if (text.isEmpty()) {
            return new Object() { int inner() { return 1; } }.inner();
        }
        return each.apply(text);
    }

    static class Lid {
        void open() { size(); }
    }
}

enum Side { LEFT; Side other() { return this; } }
"""
STUB = bytes.fromhex("bb000159120002b70003bf")  # new, dup, ldc, invokespecial, athrow
GETTER = bytes.fromhex("2ab40001ac")


def methods_of(*lines):
    return sorted(method_words(LONE, set(lines)).values())


def test_the_methods_that_lines_are_of():
    assert methods_of(8) == ["Box.Box"]
    assert methods_of(11) == ["Box.size"]
    assert methods_of(14) == ["Box.inner", "Box.size"]
    assert methods_of(20) == ["Box.open"]
    assert methods_of(24) == ["Side.other"]
    assert methods_of(3, 5, 9, 10, 19, 21, 22, 23) == []
    assert len(set(method_words(LONE, set(range(1, 25))))) == 5


def class_file(owner, methods):
    """Name -> (flags, code)."""
    names = [owner, "Code", *methods]
    pool = b"".join(b"\x01" + struct.pack(">H", len(name)) + name.encode() for name in names) + b"\x07" + struct.pack(">H", 1)
    this = len(names) + 1
    body = struct.pack(">HHHHHH", 0x21, this, 0, 0, 0, len(methods))
    for number, (flags, code) in enumerate(methods.values()):
        info = struct.pack(">HHI", 2, 1, len(code)) + code + struct.pack(">HH", 0, 0)
        body += struct.pack(">HHHHHI", flags, 3 + number, 1, 1, 2, len(info)) + info
    return b"\xca\xfe\xba\xbe" + struct.pack(">HHH", 0, 61, this + 1) + pool + body


def told(owner, methods):
    known = {word: text for line in range(1, 25) for word, text in method_words(LONE, {line}).items()}
    return sorted(known[value] for value in class_values(class_file(owner, methods)) if value in known)


def test_only_code_counts_not_a_stub_nor_what_the_compiler_adds():
    methods = {"size": (1, GETTER), "open": (1, STUB), "<init>": (1, GETTER), "lambda$inner$0": (0x100A, GETTER), "other": (0x1041, GETTER)}
    assert told("a/b/Box", methods) == ["Box.Box", "Box.inner", "Box.size"]
    assert told("a/b/Box$Lid$1", {"open": (0, GETTER), "size": (0, STUB)}) == ["Box.open"]
    assert told("a/c/Box", methods) == []


@pytest.mark.parametrize("cut", [1, 6, 30])
def test_one_that_ends_too_early_cannot_be_read(cut):
    with pytest.raises(ValueError, match="ends too early"):
        list(class_values(class_file("a/b/Box", {"size": (1, GETTER)})[:-cut]))


def test_a_compiled_method_is_found_though_every_word_of_its_source_survives_elsewhere(tmp_path, lay_down):
    body = "class One {\n    int size(int from) {\n        return from;\n    }\n}\n"
    original = lay_down(tmp_path / "original", {"One.java": body, "Two.java": body.replace("One", "Two")})
    stub = body.replace("return from;", 'throw new Error("no");')
    agent = lay_down(tmp_path / "agent", {"One.java": stub, "Two.java": body.replace("One", "Two")})
    lay_down(agent, {"a.old": class_file("One", {"size": (0, GETTER)}), "b.old": class_file("Two", {"size": (0, GETTER)})})
    lay_down(agent, {"c.old": class_file("One", {"size": (0, STUB)})})
    scanner = Scanner()
    (finding,) = scanner.scan(agent, scanner.needles(original, agent))
    assert (finding.place, finding.matched) == ("workspace:a.old", ("One.size",))
