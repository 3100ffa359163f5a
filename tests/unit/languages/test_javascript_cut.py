from etude.languages.edits import apply
from etude.languages.javascript.code import read
from etude.languages.javascript.cut import remove, remove_tests

MODULES = {
    "src/math.mjs": "import { log } from './log.mjs'\n\nexport function add (a, b) {\n  return a + b\n}\n\n"
    "// Twice.\nexport function twice (a) {\n  log(a)\n  return 2 * a\n}\n",
    "src/log.mjs": "export function log (text) {}\n",
    "src/index.mjs": "export { add, twice as double } from './math.mjs'\nexport * from './log.mjs'\n",
}
COMMON = {
    "lib/math.js": "'use strict'\nconst { format, pad } = require('./text')\n\nfunction add (a, b) {\n  return format(a + b)\n}\n\n"
    "function twice (a) {\n  return pad(2 * a)\n}\n\nmodule.exports = {\n  add,\n  twice\n}\n",
    "lib/text.js": "exports.format = function (x) {\n  return String(x)\n}\n\nexports.pad = function (x) {\n  return ` ${x}`\n}\n",
    "index.js": "const math = require('./lib/math')\nmodule.exports = { math }\n",
}


def parsed(files, tests=None):
    found = {path: read(path, text.encode(), is_test=False) for path, text in files.items()}
    return found | {path: read(path, text.encode(), is_test=True) for path, text in (tests or {}).items()}


def named(codes, *names):
    return [d for code in codes.values() for d in code.definitions if d.qualname in names]


def after(files, *names):
    codes = parsed(files)
    result = remove(codes, list(files), named(codes, *names))
    return result, {path: None if e is None else apply(codes[path].data, e).decode() for path, e in result.edits.items()}


def test_a_function_goes_with_its_export_and_the_import_that_only_it_needed():
    _, files = after(MODULES, "twice")
    assert files == {
        "src/math.mjs": "export function add (a, b) {\n  return a + b\n}\n",
        "src/index.mjs": "export { add } from './math.mjs'\nexport * from './log.mjs'\n",
    }


def test_common_js_exports_and_destructured_requires_go_element_by_element():
    _, files = after(COMMON, "twice")
    assert files == {
        "lib/math.js": "'use strict'\nconst { format } = require('./text')\n\nfunction add (a, b) {\n  return format(a + b)\n}\n\n"
        "module.exports = {\n  add\n}\n"
    }


def test_a_statement_goes_with_its_last_element():
    _, files = after({**MODULES, "src/index.mjs": "export { twice } from './math.mjs'\nexport const one = () => 1\n"}, "twice")
    assert files["src/index.mjs"] == "export const one = () => 1\n"


def test_what_surviving_code_calls_is_kept_with_the_place_that_needs_it():
    result, files = after(MODULES, "log")
    assert files == {}
    assert [d.qualname for d in result.kept] == ["log"]
    assert result.blockers == ("src/math.mjs:9",)


def test_caller_and_callee_go_together_and_an_empty_file_with_them():
    result, files = after(MODULES, "log", "twice", "add")
    assert [d.qualname for d in result.removed] == ["add", "twice", "log"]
    assert files["src/log.mjs"] is None or files["src/log.mjs"] == ""


def test_a_member_used_on_the_module_object_is_kept():
    text = "const math = require('./lib/math')\nmodule.exports = () => math.twice(2)\n"
    result, _ = after({**COMMON, "index.js": text}, "twice")
    assert result.removed == ()
    assert result.blockers == ("index.js:2",)


def test_a_method_goes_unless_its_name_is_used_anywhere():
    text = "class A {\n  one () {\n    return 1\n  }\n\n  two () {\n    return this.one()\n  }\n}\nmodule.exports = A\n"
    result, files = after({"a.js": text}, "A.two")
    assert files == {"a.js": "class A {\n  one () {\n    return 1\n  }\n}\nmodule.exports = A\n"}
    result, files = after({"a.js": text}, "A.one")
    assert result.blockers == ("a.js:7",)


def test_tests_go_with_groups_that_are_left_empty_and_imports_that_are_left_unused():
    test = (
        "import { test, describe } from 'node:test'\nimport assert from 'node:assert'\nimport { add, double } from '../src/index.mjs'\n\n"
        "describe('math', () => {\n  test('twice', () => {\n    assert.equal(double(2), 4)\n  })\n})\n\n"
        "test('add', () => {\n  add(1, 2)\n})\n"
    )
    codes = parsed(MODULES, {"test/a.test.mjs": test})
    gone = [block for block in codes["test/a.test.mjs"].tests if block.line == 6]
    edits = remove_tests(codes, gone, named(codes, "twice"))
    found = edits["test/a.test.mjs"]
    assert found is not None
    assert apply(test.encode(), found).decode() == (
        "import { test } from 'node:test'\nimport { add } from '../src/index.mjs'\n\ntest('add', () => {\n  add(1, 2)\n})\n"
    )


def test_a_test_file_without_a_test_goes():
    codes = parsed(MODULES, {"a.test.mjs": "import { test } from 'node:test'\ntest('x', () => {})\n"})
    assert remove_tests(codes, codes["a.test.mjs"].tests, []) == {"a.test.mjs": None}
