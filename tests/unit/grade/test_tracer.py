"""What the tracer sees is the same whichever means a Python has for it: cProfile before 3.12, then `sys.monitoring`.

Every Python that is found by name is tried beside the one that runs this, on files of this test; so no sandbox is needed.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from etude.grade import runner
from etude.grade.environment import carried_sources
from etude.grade.runner import BETWEEN, CHILD_ENV, COLLECT

CODE = """\
import dataclasses
import functools


def at_import():
    pass


at_import()


def plain():
    return [n for n in range(3)]


def half(n):
    return n // 2


def numbers():
    while True:
        try:
            yield 1
        except ValueError:
            pass


async def later():
    return await soon()


async def soon():
    return 1


def in_a_thread():
    pass


def key(n):
    return -n


def annotated(n: int) -> "int":
    return n


def keeping(function):
    @functools.wraps(function)
    def kept(*args):
        return function(*args)

    return kept


@keeping
@keeping
def decorated():
    pass


class Held:
    @property
    def x(self):
        return 1

    @x.setter
    def x(self, value):
        pass


@dataclasses.dataclass
class Data:
    n: int

    def __post_init__(self):
        pass


def making():
    class Made:
        n = 1

        def use(self):
            return self.n

    return Made


def elsewhere():
    pass
"""
NEWER = """\
import code_under_test


def generic[T](items: list[T]) -> list[T]:
    return items


class Box[T]:
    def get(self) -> T:
        return self.item
"""
TESTS = """\
import asyncio
import cProfile
import inspect
import subprocess
import sys
import threading

import pytest

import code_under_test as code

RUNNING = code.numbers()


def test_plain():
    code.plain()


def test_plain_again():
    for _ in range(3):
        code.plain()


def test_generator_begins():
    next(RUNNING)


def test_generator_goes_on():
    next(RUNNING)


def test_generator_goes_on_with_an_exception():
    RUNNING.throw(ValueError())


def test_coroutines():
    assert asyncio.run(code.later()) == 1


def test_thread():
    thread = threading.Thread(target=code.in_a_thread)
    thread.start()
    thread.join()


def test_called_from_c():
    assert sorted([1, 2], key=code.key) == [2, 1]


def test_annotations_are_read():
    assert set(inspect.get_annotations(code.annotated)) == {"n", "return"}
    assert inspect.signature(code.Held)


def test_annotated():
    code.annotated(1)


def test_decorated():
    code.decorated()


def test_setter():
    code.Held().x = 2


def test_data():
    code.Data(1)


def test_class_in_a_function():
    assert code.making()().use() == 1


def test_tools_are_taken_away():
    sys.settrace(None)
    sys.setprofile(None)
    code.half(2)


def test_another_profiler():
    cProfile.Profile().runcall(len, [])


def test_after_it():
    code.half(2)


@pytest.fixture
def prepared():
    code.plain()
    yield
    code.half(2)


def test_fixture(prepared):
    pass


def test_other_process():
    subprocess.run([sys.executable, "-c", "import code_under_test; code_under_test.elsewhere()"], check=True)


def test_other_process_with_a_profiler():
    text = "import cProfile, code_under_test; code_under_test.half(2); cProfile.Profile().runcall(len, [])"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_nothing():
    pass


if sys.version_info >= (3, 12):
    import newer

    def test_newer():
        assert newer.generic([1]) == [1]
"""
COLLECTED = {"at_import", "keeping", "Held", "Data"}
EXPECTED = {
    COLLECT: COLLECTED,
    "test_plain": {"plain"},
    "test_plain_again": {"plain"},
    "test_generator_begins": {"numbers"},
    "test_generator_goes_on": {"numbers"},
    "test_generator_goes_on_with_an_exception": {"numbers"},
    "test_coroutines": {"later", "soon"},
    "test_thread": {"in_a_thread"},
    "test_called_from_c": {"key"},
    "test_annotated": {"annotated"},
    "test_decorated": {"keeping.kept", "decorated"},
    "test_setter": {"Held.x (2)"},
    "test_data": {"Data.__post_init__"},
    "test_class_in_a_function": {"making", "making.Made", "making.Made.use"},
    "test_tools_are_taken_away": {"half"},
    "test_after_it": {"half"},
    "test_fixture": {"plain", "half"},
    "test_other_process": {*COLLECTED, "elsewhere"},
    "test_other_process_with_a_profiler": {*COLLECTED, "half"},
}
NEWER_EXPECTED = {COLLECT: {*COLLECTED, "Box"}, "test_newer": {"generic"}}
NAMES = [f"python3.{minor}" for minor in range(11, 20)]


def programs() -> list[str]:
    """One of each version."""
    found: dict[tuple[int, int], str] = {}
    for program in (sys.executable, *filter(None, map(shutil.which, NAMES))):
        told = subprocess.run([program, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if told.returncode == 0:  # a name that leads nowhere, as version managers leave them
            major, minor = map(int, told.stdout.split())
            found.setdefault((major, minor), program)
    return list(found.values())


def definitions(path: str, text: str) -> dict[tuple[str, int], str]:
    """(path, first line as a code object has it) -> name, with its number where the name is there twice."""
    found: dict[tuple[str, int], str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{inner.name}"
                again = sum(each.partition(" ")[0] == name for each in found.values()) + 1
                line = min([inner.lineno, *(each.lineno for each in inner.decorator_list)])
                found[path, line] = f"{name} ({again})" if again > 1 else name
                visit(inner, f"{name}.")

    visit(ast.parse(text), "")
    return found


def reach(program: str, folder: Path, environment: Path) -> dict[str, set[tuple[str, int]]]:
    """Of a traced run of child.py, by the name of the test."""
    config = {"nonce": "n", "env": str(environment), "roots": ["."], "paths": ["test_it.py"], "ids": None, "order": "plain", "seed": 0}
    child, *trace = (Path(runner.__file__).with_name(name).read_text() for name in ("child.py", "tracer.py", "subtrace.py"))
    with tempfile.TemporaryFile() as events_file:
        done = subprocess.run(
            [program, "-S", "-P", "-s", "-B", "-c", child, str(events_file.fileno()), str(environment)],
            input=json.dumps({**config, "trace": trace, "carried": carried_sources()}).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(events_file.fileno(),),
            cwd=folder,
            env={**CHILD_ENV, "PATH": os.environ["PATH"], "TMPDIR": str(folder)},
            timeout=100,
            check=False,
        )
        events_file.seek(0)
        events = [json.loads(line.removeprefix(b"n ")) for line in events_file]
    assert events[-1:] == [["exit", 0]], done.stdout.decode()
    codes = {event[1]: (event[2], event[3]) for event in events if event[0] == "code"}
    found: dict[str, set[tuple[str, int]]] = {}
    for _, owner, numbers in (event for event in events if event[0] == "reach"):
        found.setdefault(owner.rpartition("::")[2], set()).update(codes[number] for number in numbers)
    return found


@pytest.mark.parametrize("program", programs(), ids=os.path.basename)
def test_every_python_sees_the_same_functions_in_the_same_tests(program, tmp_path, lay_down, environments, runner_environment):
    folder = lay_down(tmp_path / "repo", {"code_under_test.py": CODE, "newer.py": NEWER, "test_it.py": TESTS})
    seen = reach(program, folder, environments / runner_environment.digest)
    code = definitions("code_under_test.py", CODE)
    newer = {("newer.py", 4): "generic", ("newer.py", 8): "Box", ("newer.py", 9): "Box.get"}
    named = {owner: {(code | newer)[key] for key in keys if key in code | newer} for owner, keys in seen.items() if owner != BETWEEN}
    is_newer = "test_newer" in seen
    assert {owner: names for owner, names in named.items() if names} == EXPECTED | (NEWER_EXPECTED if is_newer else {})
