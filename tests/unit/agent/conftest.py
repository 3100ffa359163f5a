"""A tiny repository with one function gone, and its sandbox."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from etude import tree
from etude.agent.loop import Agent, run_agent
from etude.config import AgentConfig
from etude.render import Renderer
from etude.sandbox.protocol import Backend, Sandbox
from etude.store import TaskStore
from etude.types import Environment, Limits, Repo, Symbol, Task

ADD = 'def add(a, b):\n    """The sum of two numbers."""\n    {body}\n\n\n'
DOUBLE = "def double(a):\n    return 2 * a\n"
FILES = {
    "calc/__init__.py": "from calc.ops import add, double\n",
    "calc/ops.py": ADD.format(body="return a + b") + DOUBLE,
    "tests/test_ops.py": "from calc import double\n\n\ndef test_double():\n    assert double(4) == 8\n",
    "notes.txt": "first\nsecond\n",
}
LIMITS = Limits(wall_s=10.0, memory_mb=512, processes=48, disk_mb=16, output_bytes=16384)
AGENT = AgentConfig(turns=8, context_tokens=6000, turn_tokens=2000, observation_chars=400, instruction_chars=300)


@pytest.fixture(scope="session")
def store(
    tmp_path_factory: pytest.TempPathFactory, lay_down: Callable[..., Path], runner_environment: Environment, environments: Path
) -> TaskStore:
    """With one task, "calc-add": the body of `add` is a stub."""
    base = tmp_path_factory.mktemp("pool")
    whole = lay_down(base / "whole", FILES)
    cut = lay_down(base / "cut", {**FILES, "calc/ops.py": ADD.format(body="raise NotImplementedError") + DOUBLE})
    store = TaskStore.create(base / "tasks")
    store.environments.symlink_to(environments)
    repo = Repo(name="calc", digest=store.add_snapshot(whole), import_roots=(".",), test_paths=("tests",))
    store.add(
        Task(
            id="calc-add",
            repo=repo,
            environment=runner_environment,
            instruction="Implement `add` in calc/ops.py: the sum of two numbers.",
            cut=tree.make_patch(whole, cut),
            gold=tree.make_patch(cut, whole),
            fail_to_pass=("tests/test_ops.py::test_add",),
            pass_to_pass=("tests/test_ops.py::test_double",),
            symbols=(Symbol(path="calc/ops.py", qualname="add", line=1, num_lines=3),),
            mode="stub",
            limits=LIMITS,
        )
    )
    return store


@pytest.fixture(scope="session")
def task(store: TaskStore) -> Task:
    return store.get("calc-add")


@pytest.fixture
def open_sandbox(backend: Backend, store: TaskStore, task: Task) -> Iterator[Callable[..., Sandbox]]:
    """Sandboxes over the task's workspace, closed at the end of the test."""
    with ExitStack() as stack:

        def open_one(limits: Limits = LIMITS) -> Sandbox:
            return stack.enter_context(backend.open(store.workspace(task), environment=store.environment(task.environment), limits=limits))

        yield open_one


@pytest.fixture
def new_agent(open_sandbox: Callable[..., Sandbox], store: TaskStore, task: Task, renderer: Renderer) -> Callable[..., Agent]:
    """An agent on the task in a sandbox of its own."""

    def make(limits: AgentConfig = AGENT, sandbox: Sandbox | None = None, **more: object) -> Agent:
        return run_agent(
            task,
            sandbox or open_sandbox(),
            renderer,
            workspace=store.workspace(task),
            limits=limits,
            rollout_id="r0",
            group="g0",
            seed=7,
            temperature=1.0,
            **more,  # type: ignore[arg-type]
        )

    return make
