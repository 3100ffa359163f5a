import pytest

from etude.languages.edits import apply
from etude.languages.javascript.code import read, signature, stub, trace
from etude.languages.protocol import Unreadable
from etude.languages.syntax import innermost


def source(text, path="a.js"):
    return read(path, text if isinstance(text, bytes) else text.encode(), is_test=False)


def names(text, path="a.js"):
    return [d.qualname for d in source(text, path).definitions]


def stubbed(text, name, path="a.js"):
    code = source(text, path)
    definition = next(d for d in code.definitions if d.qualname == name)
    return apply(code.data, stub(code, definition)).decode()


def test_every_way_to_define_something_is_found():
    text = """
export async function one () {}
export default class Two { three () {} static four () {} get five () { return 1 } #six () {} seven = (x) => x }
const eight = (x) => x, nine = function * () {}
module.exports = { ten () {}, eleven: () => 1 }
exports.twelve = function () {}
Two.prototype.thirteen = function () {}
const fourteen = memoize((x) => x)
const table = { fifteen () {} }
"""
    assert set(names(text)) == {
        "one", "Two", "Two.three", "Two.four", "Two.five", "Two.#six", "Two.seven", "eight", "nine", "ten", "eleven", "twelve",
        "Two.thirteen", "fourteen", "table.fifteen",
    }  # fmt: skip


def test_a_getter_and_its_setter_are_two_definitions():
    code = source("class A { get x () { return 1 } set x (value) { this.y = value } }")
    found = [d for d in code.definitions if d.qualname == "A.x"]
    assert len(found) == 2
    assert len({d.key for d in found}) == 2


def test_typescript_overloads_go_with_their_function():
    code = source(
        "export function f(a: string): void;\nexport function f(a: number): void;\nexport function f(a: any) { use(a) }\n", "a.ts"
    )
    (definition,) = code.definitions
    assert definition.start == 0


def test_a_stub_keeps_signature_documentation_line_ends_and_every_other_byte():
    text = "/** Adds. */\r\nfunction add (a, b) {\r\n  // ü\r\n  return a + b\r\n}\r\nconst µ = 'ü'\r\n"
    assert stubbed(text, "add") == (
        "/** Adds. */\r\nfunction add (a, b) {\r\n  throw new Error('not implemented')\r\n}\r\nconst µ = 'ü'\r\n"
    )


def test_the_stub_of_an_expression_and_of_a_class():
    assert stubbed("const f = (x) => ({ x })\n", "f") == "const f = (x) => { throw new Error('not implemented') }\n"
    text = "class A {\n  one () {\n    return 1\n  }\n\n  two () {\n    return 2\n  }\n}\n"
    assert stubbed(text, "A").count("not implemented") == 2


def test_a_body_that_only_throws_has_nothing_to_stub():
    code = source("function f () { throw new Error('no') }\nfunction g () {}\n")
    assert [stub(code, d) for d in code.definitions] == [[], []]


def test_the_tracer_is_called_after_directives_and_inside_nested_functions():
    code = source("function f () {\n  'use strict'\n  return [1].map(x => y => x)\n}\n")
    text = apply(code.data, trace(code, {d.key: 7 for d in code.definitions})).decode()
    assert text.count("__etude?.(7)") == 3
    assert text.index("'use strict'") < text.index("__etude")
    assert source(text).definitions[0].qualname == "f"


def test_a_documenting_comment_belongs_to_the_definition_and_a_licence_does_not():
    code = source("// Licence\n\n// Adds\n// two numbers.\nfunction add (a, b) { return a + b }\n")
    (definition,) = code.definitions
    assert definition.doc == "Adds\ntwo numbers."
    assert code.data[definition.start :].startswith(b"// Adds")
    assert signature(code, definition) == "function add (a, b)"


def test_the_innermost_definition_of_a_place():
    text = "class A { one () { return 1 } }"
    found = innermost(source(text), text.index("return"))
    assert found is not None
    assert found.qualname == "A.one"


def test_tests_are_found_with_modifiers_tables_and_subtests():
    text = """
test('a', () => {})
it.skip('b', () => {})
describe('c', () => { it.each([1])('d %s', () => {}) })
test('e', async t => { await t.test('f', () => {}) })
regex.test(value)
"""
    code = read("a.test.js", text.encode(), is_test=True)
    assert [block.line for block in code.tests] == [2, 3, 4, 4, 5, 5]
    assert [block.is_group for block in code.tests] == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("data", "message"), [(b"function (", "syntax error at line 1"), (b"const a = 1\nconst \xff = 2", "not UTF-8 at byte 18")]
)
def test_a_file_that_cannot_be_edited_says_why(data, message):
    with pytest.raises(Unreadable, match=message):
        source(data)
