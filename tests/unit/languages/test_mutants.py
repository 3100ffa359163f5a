import pytest

from etude.languages.edits import apply
from etude.languages.java import code as java
from etude.languages.javascript import code as javascript
from etude.languages.mutants import mutants

SCRIPT = """\
class Box {
  constructor (size) {
    super()
    this.clear()
  }
}

function pick (all, limit) {
  // 7 is a lot
  while (all.length > 7) all.pop()
  for (let i = 0; i < limit; i++) {
    note(i)
  }
  if (limit === 3 || all[0] <= 1) return true
  return limit ? all : limit
}
"""
TYPED = """\
class Box {
    private long size;
    Box(long size) {
        super();
        check(size);
        this.size = 1L;
    }
    boolean isLarge() {
        return size > 10;
    }
    int count() {
        if (size != 2) {
            return 0;
        }
        return 5;
    }
    void walk(java.util.List<String> all) {
        all.forEach(each -> { return; });
        all.sort((one, other) -> { return one.compareTo(other); });
    }
    String name() {
        return true ? "a" : "b";
    }
}
"""


def changed(language, path, text, name):
    """(rule, the line as it is after) of every mutant."""
    code = language.read(path, text.encode(), is_test=False)
    definition = next(d for d in code.definitions if d.qualname == name)
    found = []
    for each in mutants(code, definition):
        data = apply(code.data, each.edits)
        language.read(path, data, is_test=False)
        found.append((each.rule, data.decode().splitlines()[each.line - 1].strip()))
    return sorted(found)


def test_wrong_versions_of_a_function():
    assert changed(javascript, "a.js", SCRIPT, "pick") == sorted([
        ("moved boundary", "for (let i = 0; i <= limit; i++) {"),
        ("negated condition", "if (!(limit === 3 || all[0] <= 1)) return true"),
        ("swapped comparison", "if (limit !== 3 || all[0] <= 1) return true"),
        ("moved boundary", "if (limit === 3 || all[0] < 1) return true"),
        ("swapped and/or", "if (limit === 3 && all[0] <= 1) return true"),
        ("off by one", "if (limit === 4 || all[0] <= 1) return true"),
        ("off by one", "if (limit === 3 || all[1] <= 1) return true"),
        ("off by one", "if (limit === 3 || all[0] <= 2) return true"),
        ("flipped constant", "if (limit === 3 || all[0] <= 1) return false"),
        ("returns nothing", "if (limit === 3 || all[0] <= 1) return undefined"),
        ("negated condition", "return !(limit) ? all : limit"),
        ("returns nothing", "return undefined"),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Box.Box", [("dropped call", "{}")]),
        (
            "Box.isLarge",
            [("moved boundary", "return size >= 10;"), ("off by one", "return size > 11;"), ("returns nothing", "return false;")],
        ),
        (
            "Box.count",
            [
                ("negated condition", "if (!(size != 2)) {"),
                ("off by one", "if (size != 3) {"),
                ("off by one", "return 1;"),
                ("off by one", "return 6;"),
                ("returns nothing", "return 0;"),
                ("swapped comparison", "if (size == 2) {"),
            ],
        ),
        ("Box.walk", [("dropped call", "{}"), ("dropped call", "{}")]),
        ("Box.name", [("flipped constant", 'return false ? "a" : "b";'), ("returns nothing", "return null;")]),
    ],
)
def test_what_a_java_method_returns_depends_on_its_type(name, expected):
    assert changed(java, "Box.java", TYPED, name) == expected


def test_calls_of_another_constructor_stay():
    assert changed(javascript, "a.js", SCRIPT, "Box") == [("dropped call", "{}")]


def test_the_order_is_always_the_same_and_rules_take_turns():
    code = javascript.read("a.js", SCRIPT.encode(), is_test=False)
    definition = next(d for d in code.definitions if d.name == "pick")
    first = [each.rule for each in mutants(code, definition, limit=7)]
    assert len(set(first)) == 7
    assert first == [each.rule for each in mutants(code, definition)][:7]
