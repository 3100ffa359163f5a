"""What the calls of tests come to, once in the original and once in a changed tree: of a plain assert, pytest shows no value.

In: test functions, whose self-contained calls are evaluated in a sandbox on each tree, in the namespace of their file; out: for every
function the calls that do in the original what the test says, and not in the other tree, with what comes there. A call that takes long,
by the processor's clock, or differs from one time to the next is left out; after one that ends the process nothing is told.

Not here: which calls stand for themselves (examples.py), how it is told (symptoms.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.sandbox.protocol import ENV
from etude.synth.examples import Example, test_examples
from etude.synth.names import Key
from etude.synth.source import Definition
from etude.synth.workshop import Workshop

MAX_CALLS = 24  # of all tests together
MAX_CALLS_OF_TEST = 4
WALL_S = 120.0  # a call that waits for ever costs this once
EVALUATE = r"""
import importlib, importlib.util, json, os, re, signal, sys
request = json.loads(sys.stdin.read())
out = os.fdopen(os.dup(1), "w"); null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
sys.path[:0] = [*(os.path.join(os.getcwd(), root) for root in request["roots"]), request["env"]]

class Slow(BaseException):
    pass

def stop(*_):
    raise Slow

def value(text, scope):
    signal.setitimer(signal.ITIMER_PROF, 0.2)
    try:
        return eval(text, scope)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

def shown(got):
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", repr(got))[:400]

def said(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", ": ".join([type(error).__name__, *lines[:1]]))[:400]

def look(call, relation, told, match, scope):
    try:
        wanted = value(told, scope) if relation in ("raises", "gives") else None
        try:
            got = value(call, scope)
            if relation == "raises":
                return [False, "gives", shown(got)]
            if relation == "gives":
                return [bool(got == wanted), "gives", shown(got)]
            if relation in ("is true", "is false"):
                return [bool(got) == (relation == "is true"), "gives", shown(got)]
            return [bool(value(f"({call}) {relation} ({told})", scope)), "gives", ""]
        except Exception as error:
            holds = relation == "raises" and isinstance(error, wanted) and bool(re.search(match, str(error)))
            return [holds, "raises", said(error)]
    except BaseException:
        return None

def load(path):
    folder, parts = os.path.dirname(path), [os.path.basename(path)[:-3]]
    while folder and os.path.exists(os.path.join(folder, "__init__.py")):
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    sys.path.insert(0, os.path.join(os.getcwd(), folder))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    spec = importlib.util.spec_from_file_location(parts[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[parts[0]] = module
    spec.loader.exec_module(module)
    return module

signal.signal(signal.SIGPROF, stop)
found = []
for path, calls in request["files"]:
    try:
        scope = vars(load(path))
    except BaseException:
        found.append([None] * len(calls))
        continue
    first = [look(*call, dict(scope)) for call in calls]
    found.append([one if one and one == look(*call, dict(scope)) else None for one, call in zip(first, calls)])
out.write(json.dumps(found)); out.flush(); os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A call that no longer does what the test says."""

    example: Example
    verb: str  # gives | raises
    came: str  # a value or an exception, as Python shows it; "" where the value says nothing


def observe(workshop: Workshop, changed: Path, tests: Sequence[Definition]) -> dict[Key, tuple[Observed, ...]]:
    """By test function. Empty where nothing can be told; raises SandboxError alone."""
    asked = _asked(workshop, tests)
    if not asked:
        return {}
    before = _evaluate(workshop, workshop.original, asked)
    after = _evaluate(workshop, changed, asked) if any(one and one[0] for one in before) else []
    found: dict[Key, list[Observed]] = {}
    for (test, example), one, other in zip(asked, before, after, strict=False):
        if one is None or other is None or not one[0] or other[0]:
            continue
        same = one[1:] == other[1:]  # objects that only compare as different
        found.setdefault(test.key, []).append(Observed(example=example, verb=other[1], came="" if same else other[2]))
    return {key: tuple(each) for key, each in found.items()}


def _asked(workshop: Workshop, tests: Sequence[Definition]) -> list[tuple[Definition, Example]]:
    """The tests taking turns; then in the order of files, as each file is loaded once."""
    lanes = [[(test, example) for example in test_examples(workshop.index, test)[:MAX_CALLS_OF_TEST]] for test in tests]
    turns = [lane[turn] for turn in range(MAX_CALLS_OF_TEST) for lane in lanes if turn < len(lane)][:MAX_CALLS]
    return sorted(turns, key=lambda one: one[0].key)


def _evaluate(workshop: Workshop, tree: Path, asked: Sequence[tuple[Definition, Example]]) -> list[tuple[bool, str, str] | None]:
    """For every call: (does it do what is told, gives or raises, what); None where that is not known."""
    files: dict[str, list[tuple[str, str, str, str]]] = {}
    for test, example in asked:
        files.setdefault(test.path, []).append((example.call, example.relation, example.value, example.match))
    request = {"roots": workshop.repo.import_roots, "env": ENV, "files": list(files.items())}
    with workshop.open(tree) as sandbox:
        result = sandbox.run(
            ["python3", "-I", "-S", "-B", "-c", EVALUATE], stdin=json.dumps(request).encode(), wall_s=WALL_S, env={"PYTHONHASHSEED": "0"}
        )
    try:
        lists = json.loads(result.stdout) if result.ok else []
        flat = [one for each in lists for one in each]
    except (ValueError, TypeError):  # the code under test wrote there itself
        return []
    if len(flat) != len(asked):
        return []
    return [(bool(one[0]), str(one[1]), str(one[2])) if isinstance(one, list) and len(one) == 3 else None for one in flat]
