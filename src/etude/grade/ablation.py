"""Take away what was submitted: the hidden tests must fail then, or it was not the submission that made them pass.

    symbols    every binding of the feature's names in its files, whatever form it has now (a function, a class, an alias, an import):
               bodies of functions raise NotImplementedError, anything else becomes a function that does
    changed    where none of these names is bound any more: the bodies of all functions that the diff added or changed

Code beside them stays, and with it what may have written the report.

In: the submitted tree and the agent's first one; out: the new files. The texts are written by ast.unparse: nobody reads them.

Not here: running the tests again (guards.py). Python only.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from etude.types import Symbol

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
How = Literal["symbols", "changed", "nothing"]
STUB = "raise NotImplementedError"


def ablate(work: Path, start: Path, symbols: Sequence[Symbol], changed: Iterable[str]) -> tuple[How, dict[str, str], list[str]]:
    """What was done, the new texts by path, the names that are gone. `changed`: paths of the diff."""
    by_path: dict[str, set[str]] = {}
    for symbol in symbols:
        by_path.setdefault(symbol.path, set()).add(symbol.qualname)
    texts: dict[str, str] = {}
    gone: list[str] = []
    for path, names in sorted(by_path.items()):
        found = _parse(work / path)
        if found is not None and (stubbed := _take(found, names)):
            texts[path] = ast.unparse(ast.fix_missing_locations(found))
            gone += [f"{path}:{name}" for name in stubbed]
    if texts:
        return "symbols", texts, gone
    for path in sorted(set(changed)):
        found = _parse(work / path)
        if found is not None and (stubbed := _take_changed(found, _bodies(_parse(start / path)))):
            texts[path] = ast.unparse(ast.fix_missing_locations(found))
            gone += [f"{path}:{name}" for name in stubbed]
    return ("changed" if texts else "nothing"), texts, gone


def _parse(place: Path) -> ast.Module | None:
    try:
        return ast.parse(place.read_bytes()) if place.suffix == ".py" else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _take(module: ast.Module, names: set[str]) -> list[str]:
    """Stub the definitions of these qualified names in place; those that were found."""
    found: list[str] = []

    def suite(body: list[ast.stmt], prefix: str, whole: bool) -> None:
        for index, statement in enumerate(body):
            if isinstance(statement, ast.ClassDef):
                name = prefix + statement.name
                suite(statement.body, f"{name}.", whole or name in names)
            elif isinstance(statement, FunctionNode):
                if whole or prefix + statement.name in names:
                    found.append(prefix + statement.name)
                    _stub(statement)
            else:
                bound = [name for name in _bound(statement) if prefix + name in names]
                for name in bound:
                    found.append(prefix + name)
                    body.insert(index + 1, _raising(name))
                for inner in _suites(statement):
                    suite(inner, prefix, whole)

    suite(module.body, "", False)
    return sorted(set(found))


def _take_changed(module: ast.Module, before: Mapping[str, str]) -> list[str]:
    found = []
    for name, node in _functions(module):
        if before.get(name) != ast.dump(node):
            found.append((name, node))
    for _, node in found:
        _stub(node)
    return sorted({name for name, _ in found})


def _bodies(module: ast.Module | None) -> dict[str, str]:
    return {name: ast.dump(node) for name, node in _functions(module)} if module is not None else {}


def _functions(module: ast.Module) -> list[tuple[str, FunctionNode]]:
    found: list[tuple[str, FunctionNode]] = []

    def suite(body: Sequence[ast.stmt], prefix: str) -> None:
        for statement in body:
            if isinstance(statement, FunctionNode):
                found.append((prefix + statement.name, statement))
            elif isinstance(statement, ast.ClassDef):
                suite(statement.body, f"{prefix}{statement.name}.")
            else:
                for inner in _suites(statement):
                    suite(inner, prefix)

    suite(module.body, "")
    return found


def _suites(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The statement lists inside `if`, `try`, `with`, loops; none for definitions."""
    found = [suite for name in ("body", "orelse", "finalbody") if (suite := getattr(statement, name, None))]
    return found + [part.body for part in getattr(statement, "handlers", [])]


def _bound(statement: ast.stmt) -> list[str]:
    """Names that a plain statement binds."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _raising(name: str) -> ast.stmt:
    return ast.parse(f"def {name}(*args, **kwargs):\n    {STUB}\n").body[0]


def _stub(node: FunctionNode) -> None:
    node.body = ast.parse(STUB).body
