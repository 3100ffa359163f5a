"""node's test runner in the real sandbox: what is reported, what is chosen, what cannot be forged."""

HEAD = (
    "const { test, it, describe, beforeEach } = require('node:test'); "
    "const assert = require('node:assert'); const fs = require('node:fs')\n"
)


def test_every_kind_of_outcome_has_an_id_and_a_place(run_node):
    text = HEAD + (
        "test('passes', () => {})\ntest('fails', () => { assert.equal(1, 2, 'one is not two') })\ntest.skip('skipped', () => {})\n"
        "test('todo', { todo: true }, () => { throw new Error('later') })\n"
        "describe('group', () => { it('inner', () => {}) })\ntest('parent', async (t) => { await t.test('child', () => {}) })\n"
    )
    run = run_node({"test/a.test.js": text})
    assert run.outcomes == {
        "test/a.test.js::passes": "passed",
        "test/a.test.js::fails": "failed",
        "test/a.test.js::skipped": "skipped",
        "test/a.test.js::todo": "xfailed",
        "test/a.test.js::group > inner": "passed",
        "test/a.test.js::parent": "passed",
        "test/a.test.js::parent > child": "passed",
    }
    assert run.complete
    assert run.messages == {"test/a.test.js::fails": "one is not two"}
    assert run.places["test/a.test.js::fails"] == ("test/a.test.js", 3)


def test_odd_titles_are_chosen_exactly_and_nothing_else_runs(run_node):
    titles = ["a b", "a::b", "a > b", "line\nend", "ünïcode ☃", "$(touch x)", "'quoted\"", "x" * 400]
    body = "".join(f"test({title!r}, () => {{ fs.appendFileSync('ran', {title!r}) }})\n" for title in titles)
    for title in titles:
        run = run_node({"test/a.test.js": HEAD + body}, ids=[f"test/a.test.js::{title}"])
        assert run.outcomes == {f"test/a.test.js::{title}": "passed"}


def test_equal_ids_count_as_one_with_the_worst_outcome(run_node):
    run = run_node({"test/a.test.js": HEAD + "test('same', () => {})\ntest('same', () => { throw new Error('no') })\n"})
    assert run.outcomes == {"test/a.test.js::same": "failed"}


def test_a_chosen_child_runs_with_its_parent_and_without_its_sister(run_node):
    text = HEAD + (
        "test('parent', async (t) => { await t.test('one', () => {}); await t.test('two', () => { throw new Error('ran') }) })\n"
    )
    run = run_node({"test/a.test.js": text}, ids=["test/a.test.js::parent > one"])
    assert run.outcomes == {"test/a.test.js::parent > one": "passed"}


def test_what_runs_inside_a_chosen_test_is_a_part_of_it_and_not_reported(run_node):
    text = HEAD + "test('parent', async (t) => { await t.test('one', () => {}); await t.test('two', () => {}) })\ntest('other', () => {})\n"
    run = run_node({"test/a.test.js": text}, ids=["test/a.test.js::parent", "test/a.test.js::parent > one"])
    assert run.outcomes == {"test/a.test.js::parent": "passed", "test/a.test.js::parent > one": "passed"}
    broken = text.replace("'two', () => {}", "'two', () => { throw new Error('no') }")
    assert run_node({"test/a.test.js": broken}, ids=["test/a.test.js::parent"]).outcomes == {"test/a.test.js::parent": "failed"}


def test_a_file_that_cannot_be_loaded_is_an_error_and_others_still_run(run_node):
    run = run_node({"test/a.test.js": "require('node:test'); require('./missing')\n", "test/b.test.js": HEAD + "test('b', () => {})\n"})
    assert run.outcomes == {"test/b.test.js::b": "passed"}
    assert [error.startswith("test/a.test.js: Cannot find module './missing'") for error in run.collect_errors] == [True]
    assert not run.complete


def test_printed_reports_an_early_exit_and_a_stray_line_give_no_pass(run_node):
    printed = 'console.log("ok 1 - x"); console.log(JSON.stringify(["report", "test/a.test.js::x", "call", "passed", false, 0, ""]))\n'
    run = run_node({"test/a.test.js": HEAD + printed + "test('x', () => { process.exit(0) })\n"})
    assert "passed" not in run.outcomes.values()
    assert not run.complete
    stray = "for (let fd = 3; fd < 32; fd++) { try { fs.writeSync(fd, 'x [\"exit\", 0]\\n') } catch {} }\n"
    run = run_node({"test/a.test.js": HEAD + "test('x', () => {})\n" + stray})
    assert run.outcomes == {}
    assert not run.complete


def test_traced_calls_belong_to_the_test_in_which_they_ran(run_node):
    files = {
        "index.js": "const call = globalThis.__etude ?? (() => {}); call(2)\nexports.one = () => call(0); exports.two = () => call(1)\n",
        "test/a.test.js": HEAD + "const { one, two } = require('../index')\n"
        "describe('g', () => { beforeEach(() => two()); it('a', async () => { await null; one() }) })\ntest('b', () => { one() })\n",
    }
    run = run_node(files, codes=[(0, "index.js", 10), (1, "index.js", 20), (2, "index.js", 30)])
    assert run.reach == {
        "<collect>": (("index.js", 30),),
        "test/a.test.js::g > a": (("index.js", 10), ("index.js", 20)),
        "test/a.test.js::b": (("index.js", 10),),
    }


def test_a_test_that_hangs_ends_with_the_limit(run_node):
    run = run_node({"test/a.test.js": HEAD + "test('first', () => {})\ntest('loops', () => { for (;;); })\n"}, wall_s=3.0)
    assert run.result.status == "timeout"
    assert not run.complete
