"""A tiny JavaScript repository, built into tasks in the real sandbox, checked again, solved by an agent and graded."""

import pytest

from etude.agent.calls import write_call
from etude.agent.expert import Habits, demonstrate
from etude.agent.loop import run_agent
from etude.agent.policy import ScriptedPolicy, play
from etude.agent.prompt import opening_messages
from etude.config import AgentConfig
from etude.errors import UserError
from etude.grade.grader import grade
from etude.languages.choose import by_runner, detect
from etude.store import TaskStore
from etude.synth.build import BuildOptions
from etude.synth.check import check_task
from etude.synth.foreign.build import build_any
from etude.synth.kinds import FINDERS

FILES = {
    "package.json": '{"name": "@tiny/abacus", "version": "1.0.0", "scripts": {"test": "node --test"}}',
    "index.js": "'use strict'\nconst { add } = require('./lib/add')\nconst { describeNumber } = require('./lib/words')\n\n"
    "module.exports = {\n  add,\n  describeNumber\n}\n",
    "lib/add.js": "'use strict'\n\n// Adds two numbers.\nfunction add (a, b) {\n  return a + b\n}\n\nmodule.exports = { add }\n",
    "lib/words.js": "'use strict'\n\nfunction sign (x) {\n  return x < 0 ? 'negative' : 'positive'\n}\n\n"
    "// Says what a number is.\nfunction describeNumber (x) {\n  if (x === 0) {\n    return 'zero'\n  }\n  return sign(x)\n}\n\n"
    "module.exports = { describeNumber }\n",
    "dist/abacus.min.js": "function describeNumber(x){return x===0?'zero':x<0?'negative':'positive'}\n",
    "test/abacus.test.js": "'use strict'\nconst { test } = require('node:test')\nconst assert = require('node:assert')\n"
    "const { add, describeNumber } = require('..')\n\n"
    "test('adds', () => {\n  assert.equal(add(1, 2), 3)\n})\n\ntest('adds below zero', () => {\n  assert.equal(add(-1, -2), -3)\n})\n\n"
    "test('adds nothing', () => {\n  assert.equal(add(0, 0), 0)\n})\n\ntest('tells the sign', () => {\n"
    "  assert.equal(describeNumber(-1), 'negative')\n  assert.equal(describeNumber(0), 'zero')\n})\n",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, lay_down, backend):
    folder = tmp_path_factory.mktemp("foreign")
    options = BuildOptions(kinds=tuple(FINDERS), level="B", visible_share=0.5, max_share=0.5, jobs=2)  # as a training run asks for all
    report = build_any(str(lay_down(folder / "abacus", FILES)), folder / "tasks", options=options, backend=backend, lenient=True)
    return report, TaskStore.open(folder / "tasks")


def task_of(store, mode, name):
    return next(task for task in store.tasks() if task.mode == mode and name in task.evidence["removed" if mode == "remove" else "stubbed"])


def test_features_are_removed_and_stubbed_with_their_tests(built):
    report, store = built
    assert report.stable_tests == 4
    task = task_of(store, "remove", "describeNumber")
    assert (task.language, task.environment.runner) == ("javascript", "node")
    assert task.fail_to_pass == ("test/abacus.test.js::tells the sign",)
    assert len(task.pass_to_pass) == 3
    workspace = store.workspace(task)
    assert not (workspace / "dist").exists()
    everything = "".join(path.read_text() for path in workspace.rglob("*.js"))
    assert "describeNumber" not in everything
    assert "function describeNumber (x)" in task.instruction
    stub = task_of(store, "stub", "describeNumber")
    assert "throw new Error('not implemented')" in (store.workspace(stub) / "lib/words.js").read_text()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"kinds": ("feature_deletion", "bug_injection")}, "kind bug_injection"),
        ({"kinds": ("joined_features", "no_such_kind")}, "kind joined_features, kind no_such_kind"),
        ({"level": "C", "visible_share": 0.5}, "level C, a visible share of 0.5"),
    ],
)
def test_what_this_language_lacks_is_refused_by_name_when_somebody_asks_for_it(tmp_path, lay_down, backend, asked, named):
    source = str(lay_down(tmp_path / "abacus", FILES))
    with pytest.raises(UserError) as error:
        build_any(source, tmp_path / "tasks", options=BuildOptions(**asked), backend=backend)
    only = "feature_deletion at level A with no test shown"
    assert str(error.value) == f"tiny-abacus is javascript, for which there is only {only}: leave out {named}"
    assert not (tmp_path / "tasks").exists()
    if "feature_deletion" not in asked.get("kinds", ["feature_deletion"]):
        with pytest.raises(UserError, match="leave out kind joined_features"):
            build_any(source, tmp_path / "tasks", options=BuildOptions(**asked), backend=backend, lenient=True)


def test_where_all_is_asked_for_a_language_gives_what_it_has(built):
    _, store = built
    assert {(task.kind, task.level, task.visible_share) for task in store.tasks()} == {("feature_deletion", "A", 0.0)}


def test_a_task_holds_when_it_is_checked_again(built, backend):
    _, store = built
    report = check_task(task_of(store, "remove", "describeNumber"), store, backend)
    assert report.problems == ()


def test_gold_solves_it_and_neither_nothing_nor_a_forger_nor_a_changed_test_does(built, backend):
    _, store = built
    task = task_of(store, "stub", "describeNumber")
    gold = grade(task, task.gold, store=store, backend=backend)
    assert (gold.solved, gold.evidence["guards"]) == (True, "none for javascript, but files")
    assert not grade(task, "", store=store, backend=backend).solved
    path = "lib/words.js"
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,2 @@\n 'use strict'\n"
    forged = grade(task, head + "+process.stdout.write('ok 1 - tells the sign\\n'); process.exit(0)\n", store=store, backend=backend)
    assert (forged.verdict, forged.solved) == ("graded", False)
    for path in ("test/abacus.test.js", "package.json", "node_modules/assert/index.js"):
        patch = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+1\n"
        verdict = grade(task, patch, store=store, backend=backend)
        assert not verdict.solved
        assert [refused for refused, _ in verdict.refused] == [path]


def test_a_copy_under_another_name_among_its_packages_makes_no_task(tmp_path, lay_down, backend):
    """`node_modules` is read, not only the names of its packages: a fork has another name, and its files have others too."""
    source = lay_down(tmp_path / "abacus", FILES)
    TaskStore.create(tmp_path / "tasks")
    (packages,) = make_env(source, tmp_path / "tasks" / "env")
    lay_down(packages / "@else" / "counter", {"main.js": FILES["lib/words.js"].replace("'use strict'", "// MIT")})
    options = BuildOptions(modes=("remove",), max_share=0.5, jobs=1)
    with pytest.raises(UserError, match=r"can still be read: environment:node_modules/@else/counter/main\.js: tells 'describeNumber'"):
        build_any(str(source), tmp_path / "tasks", options=options, backend=backend)


def make_env(source, out):
    """The packages of the environment that a build of this repository will find there."""
    project = detect(source)
    by_runner(project.runner).make_environment(project, source, out)
    return out.glob("*/node_modules")


def test_a_repository_with_another_runner_is_refused_in_one_line(tmp_path, lay_down):
    files = {"package.json": '{"name": "x", "scripts": {"test": "mocha"}}', "index.js": "", "test/a.js": "describe('x', () => {})"}
    with pytest.raises(UserError, match="the tests of x are run by mocha; known are node's test runner"):
        detect(lay_down(tmp_path, files))


def test_a_source_that_is_only_named_like_a_test_is_a_source(tmp_path, lay_down):
    files = {
        "package.json": '{"name": "x", "type": "module"}',
        "lib/index.js": "import { matches } from './test.js'\nexport const all = [matches]\n",
        "lib/test.js": "export const matches = () => true\n",
        "lib/spec.js": "export const unused = () => true\n",
        "test/helper.js": "export const help = 1\n",
        "test/a.js": "import { test } from 'node:test'\nimport { all } from '../lib/index.js'\ntest('a', () => all)\n",
    }
    project = detect(lay_down(tmp_path, files))
    assert project.sources == ("lib/index.js", "lib/test.js")
    assert (project.tests, project.support) == (("test/a.js",), ("lib/spec.js", "test/helper.js"))


def test_a_python_repository_is_not_taken_for_javascript(tmp_path, lay_down):
    assert detect(lay_down(tmp_path, {"package.json": "{}", "pyproject.toml": "", "a.py": ""})) is None


def test_an_agent_solves_it_with_the_tests_at_hand(built, backend, renderer):
    """The expert that knows gold writes it with the tools, runs node's tests, and is graded."""
    _, store = built
    task = task_of(store, "remove", "describeNumber")
    (_, system), _ = opening_messages(task, instruction_chars=4000)
    assert "run(command): shell, such as node --test\n" in system
    still = Habits(unknown_tool=0, malformed_call=0, bad_arguments=0, edit_not_found=0, finished_untested=0)
    rollout = demonstrate(task, store, backend, renderer, seed=0, hinted=False, habits=still)
    assert rollout.status == "finished"
    assert rollout.error is None  # the link to the environment's packages is no change
    said = [observation.text for turn in rollout.segments[0].turns for observation in turn.observations]
    assert "adds below zero" in said[-2]
    assert "fail 0\n" in said[-2]
    assert "node_modules" not in rollout.patch
    assert grade(task, rollout.patch, store=store, backend=backend).solved


def test_the_shell_sees_the_packages_and_the_link_is_no_part_of_the_patch(built, backend, renderer):
    _, store = built
    task = task_of(store, "remove", "describeNumber")
    commands = [
        "readlink node_modules && node --version && echo 1 > new.js",
        "rm node_modules && mkdir node_modules && echo 1 > node_modules/x",
    ]
    texts = [write_call("run", {"command": command}) for command in commands]
    workspace = store.workspace(task)
    for number in (1, 2):
        with backend.open(workspace, environment=store.environment(task.environment), limits=task.limits) as sandbox:
            limits = AgentConfig(context_tokens=100_000, turn_tokens=10_000)
            agent = run_agent(
                task, sandbox, renderer, workspace=workspace, limits=limits, rollout_id="r", group="g", seed=0, temperature=1.0
            )  # fmt: skip
            rollout = play(agent, ScriptedPolicy(texts[:number], renderer))
        first = rollout.segments[0].turns[0].observations[0].text
        assert first.startswith("/env/node_modules\nv"), first
        assert [line.split(" b/")[1] for line in rollout.patch.splitlines() if line.startswith("diff ")] == ["new.js"]
        assert rollout.error is None
