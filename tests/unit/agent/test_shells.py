"""The agent's shell in repositories of other languages: the tests run by the command that the prompt names, links are no change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude.agent.calls import parse_calls, write_call
from etude.agent.expert import solution
from etude.agent.loop import workspace_patch
from etude.agent.prompt import system_prompt
from etude.agent.tools import Bench, open_bench, run_call
from etude.errors import UserError
from etude.languages.choose import by_runner
from etude.languages.protocol import Project
from etude.languages.shell import shell_of
from etude.sandbox.protocol import Backend
from etude.types import Environment, Limits, Observation, Repo, Task

NODE = {
    "package.json": '{"name": "tiny", "version": "1.0.0"}',
    "index.js": "module.exports = { one: () => 1 }\n",
    "test/one.test.js": "const { test } = require('node:test')\nconst { one } = require('..')\n"
    "test('is one', () => { if (one() !== 1) throw new Error('it is ' + one()) })\n",
}
JAVA = {
    "src/main/java/tiny/One.java": "package tiny;\n\npublic class One {\n    public static int one() {\n        return 1;\n    }\n}\n",
    "src/test/java/tiny/OneTest.java": "package tiny;\n\nimport static org.junit.jupiter.api.Assertions.assertEquals;\n\n"
    "import org.junit.jupiter.api.Test;\n\nclass OneTest {\n    @Test\n    void isOne() {\n        assertEquals(1, One.one());\n    }\n\n"
    "    @Test\n    void isTwo() {\n        assertEquals(2, 2);\n    }\n}\n",
}
LIMITS = Limits(wall_s=600.0, memory_mb=2048, processes=128)


def use(bench: Bench, name: str, **arguments: object) -> Observation:
    (parsed,) = parse_calls(write_call(name, arguments))
    return run_call(parsed, bench)


@pytest.fixture(scope="module")
def lay_project(tmp_path_factory: pytest.TempPathFactory, lay_down: Callable[..., Path], environments: Path):
    """(folder, repo, runner, environment folder) of a project with these files."""

    def make(runner: str, files: dict[str, str]) -> tuple[Path, Repo, str, Path]:
        folder = lay_down(tmp_path_factory.mktemp(runner), files)
        language = by_runner(runner)
        project: Project | None = language.discover(folder, "tiny")
        assert project is not None
        environment: Environment = language.make_environment(project, folder, environments)
        repo = Repo(name="tiny", digest="0" * 64, import_roots=project.import_roots, test_paths=project.tests)
        return folder, repo, environment.runner, environments / environment.digest

    return make


def test_node_runs_the_tests_and_the_link_to_its_packages_is_no_change(lay_project, backend: Backend) -> None:
    folder, repo, runner, environment = lay_project("node", NODE)
    with backend.open(folder, environment=environment, limits=LIMITS) as sandbox:
        bench = open_bench(sandbox, repo, limits=LIMITS, observation_chars=4000, runner=runner)
        said = use(bench, "run", command=f"{shell_of(runner).tests} && readlink node_modules").text
        assert "# pass 1" in said or "pass 1" in said
        assert said.endswith("/env/node_modules")
        use(bench, "edit", path="index.js", old="=> 1", new="=> 2")
        assert "it is 2" in use(bench, "run", command="node --test test/one.test.js").text
        patch, note = workspace_patch(sandbox, folder, links=shell_of(runner).links)
        assert [line for line in patch.splitlines() if line.startswith("diff ")] == ["diff --git a/index.js b/index.js"]
        assert note is None
        use(bench, "run", command="rm node_modules && mkdir node_modules && echo 1 > node_modules/x")
        assert workspace_patch(sandbox, folder, links=shell_of(runner).links) == (patch, None)  # never part of one


def test_junit_compiles_runs_and_says_what_failed(lay_project, backend: Backend) -> None:
    folder, repo, runner, environment = lay_project("junit", JAVA)
    with backend.open(folder, environment=environment, limits=LIMITS) as sandbox:
        bench = open_bench(sandbox, repo, limits=LIMITS, observation_chars=4000, runner=runner)
        assert use(bench, "run", command="junit").text == "2 passed"
        use(bench, "edit", path="src/main/java/tiny/One.java", old="return 1", new="return 3")
        said = use(bench, "run", command="junit src/test/java/tiny/OneTest.java").text.split("\n")
        assert said[0] == "exit code 1"
        assert said[1].startswith("FAILED src/test/java/tiny/OneTest.java::")
        assert "expected: <1> but was: <3>" in said[1]
        assert said[-1] == "1 failed, 1 passed"
        use(bench, "edit", path="src/main/java/tiny/One.java", old="return 3", new="return x")
        said = use(bench, "run", command="junit").text.split("\n")
        assert said[0] == "exit code 1"
        assert said[1].startswith("src/main/java/tiny/One.java: error: ")
        assert use(bench, "run", command="junit none.java; cd src && which javac").text == "no such file: none.java\n/env/jdk/bin/javac"


@pytest.mark.parametrize(
    ("runner", "tests"), [("pytest", "pytest -q"), ("node", "node --test"), ("vitest", "vitest run"), ("junit", "junit")]
)
def test_the_prompt_and_the_expert_name_the_command_of_the_runner(runner: str, tests: str, task: Task, tmp_path: Path) -> None:
    assert f"\nrun(command): shell, such as {tests}\n" in system_prompt(runner=runner)
    other = replace(task, environment=replace(task.environment, runner=runner))
    (run, _) = solution(other, tmp_path, tmp_path)
    assert run.arguments == {"command": f"{tests} tests/test_ops.py"}


def test_a_runner_that_is_not_known_is_named() -> None:
    with pytest.raises(UserError, match="run by 'mocha'"):
        shell_of("mocha")
