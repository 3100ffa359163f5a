"""Solutions that behave like gold and look otherwise: what an honest grader has to take.

    renamed_locals    the local variables of the feature's functions have other names
    reordered         the feature's functions stand at the end of their module or class
    helper_module     what they return goes through a function of a new module beside theirs
    inner_function    their bodies have become a function inside, which is called
    all_of_them       everything above
    other_algorithm   loops for comprehensions, while for for, branches the other way round, and more (other_algorithm.py)

In: a task's solved tree; out: a diff against the agent's first tree, None where nothing can be written that way.

Not here: grading (grader.py).
"""

import ast
import symtable
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.other_algorithm import other_algorithm
from etude import tree
from etude.store import TaskStore
from etude.types import Task

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
HELPER = "passing_on"
Rewrite = Callable[[ast.Module, Sequence[ast.FunctionDef], str], bool]


def rewritten(task: Task, store: TaskStore, kind: str) -> str | None:
    """The diff of one rewrite."""
    changed = False
    with tempfile.TemporaryDirectory() as name:
        after = Path(name, "after")
        tree.copy_tree(store.solved_tree(task), after)
        for path in sorted({symbol.path for symbol in task.symbols if symbol.path.endswith(".py")}):
            wanted = {symbol.qualname for symbol in task.symbols if symbol.path == path}
            try:
                module = ast.parse((after / path).read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
            helper = f"{Path(path).stem.strip('_')}_{HELPER}"
            dot = "." if (after / path).with_name("__init__.py").is_file() else ""
            done = [rewrite(module, _functions(module, wanted), dot + helper) for rewrite in REWRITES[kind]]
            if any(done):
                changed = True
                (after / path).write_text(ast.unparse(ast.fix_missing_locations(module)) + "\n", "utf-8")
                if helper_module in REWRITES[kind]:
                    (after / path).with_name(f"{helper}.py").write_text(f"def {HELPER}(value):\n    return value\n", "utf-8")
        return tree.make_patch(store.workspace(task), after) if changed else None


def renamed_locals(module: ast.Module, functions: Sequence[ast.FunctionDef], helper: str) -> bool:
    done = False
    for function in functions:
        names = {name: f"{name}_here" for name in _locals(function)}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in names:
                node.id = names[node.id]
                done = True
    return done


def reordered(module: ast.Module, functions: Sequence[ast.FunctionDef], helper: str) -> bool:
    done = False
    holders: list[ast.Module | ast.ClassDef] = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
    for holder in holders:
        own = [each for each in holder.body if each in functions and isinstance(each, ast.FunctionDef) and not each.decorator_list]
        used_early = {
            node.id
            for statement in holder.body
            if not isinstance(statement, FunctionNode) and (holder is not module or not isinstance(statement, ast.ClassDef))
            for node in ast.walk(statement)
            if isinstance(node, ast.Name)
        } | {
            node.id
            for statement in module.body
            for part in getattr(statement, "decorator_list", [])
            for node in ast.walk(part)
            if isinstance(node, ast.Name)
        }
        names = [each.name for each in holder.body if isinstance(each, FunctionNode)]
        own = [each for each in own if each.name not in used_early and names.count(each.name) == 1]
        if own and holder.body[-len(own) :] != own:
            holder.body = [*(each for each in holder.body if each not in own), *reversed(own)]
            done = True
    return done


def helper_module(module: ast.Module, functions: Sequence[ast.FunctionDef], helper: str) -> bool:
    done = False
    for function in functions:
        for node in _own(function):
            if isinstance(node, ast.Return) and node.value is not None:
                node.value = ast.Call(func=ast.Name(id=HELPER, ctx=ast.Load()), args=[node.value], keywords=[])
                done = True
    if done:
        module.body.insert(_after_header(module), ast.parse(f"from {helper} import {HELPER}").body[0])
    return done


def inner_function(module: ast.Module, functions: Sequence[ast.FunctionDef], helper: str) -> bool:
    done = False
    for function in functions:
        own = list(_own(function))
        arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        assigned = {each.id for each in own if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
        odd = (ast.Yield, ast.YieldFrom, ast.Nonlocal, ast.Global)
        names = {each.id for each in own if isinstance(each, ast.Name)}
        if any(isinstance(each, odd) for each in own) or assigned & arguments or names & {"super", "locals", "vars", "__class__", "sys"}:
            continue
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        if not body:
            continue
        inner = ast.parse("def worked_out():\n    pass").body[0]
        assert isinstance(inner, ast.FunctionDef)
        inner.body = list(body)
        function.body[len(function.body) - len(body) :] = [inner, ast.parse("return worked_out()").body[0]]
        done = True
    return done


REWRITES: Mapping[str, tuple[Rewrite, ...]] = {
    "renamed_locals": (renamed_locals,),
    "reordered": (reordered,),
    "helper_module": (helper_module,),
    "inner_function": (inner_function,),
    "all_of_them": (renamed_locals, reordered, helper_module, inner_function),
    "other_algorithm": (other_algorithm,),
}


def _functions(module: ast.Module, wanted: set[str]) -> list[ast.FunctionDef]:
    found: list[ast.FunctionDef] = []
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in wanted:
            found.append(statement)
        elif isinstance(statement, ast.ClassDef):
            whole = statement.name in wanted
            inner = (each for each in statement.body if isinstance(each, ast.FunctionDef))
            found += [each for each in inner if whole or f"{statement.name}.{each.name}" in wanted]
    return found


def _locals(function: ast.FunctionDef) -> set[str]:
    """Names that are nothing but local variables of one function, used in no function inside."""
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    text = ast.unparse(function)
    if {"locals", "vars", "eval", "exec", "format_map", "del "} & set(text.split()) or "locals()" in text:
        return set()
    table = symtable.symtable(text, "rewrites", "exec").get_children()[0]
    inner = {name for child in table.get_children() for name in child.get_identifiers()}
    kept = {each.name for each in ast.walk(function) if isinstance(each, ast.ExceptHandler) and each.name}
    kept |= {name for each in ast.walk(function) if isinstance(each, (ast.Import, ast.ImportFrom)) for name in _imported(each)}
    kept |= {each.name for each in ast.walk(function) if isinstance(each, (FunctionNode, ast.ClassDef))}
    patterns = (ast.MatchAs, ast.MatchStar, ast.MatchMapping)
    kept |= {name for each in ast.walk(function) if isinstance(each, patterns) for name in _captured(each)}
    return {each.get_name() for each in table.get_symbols() if each.is_local()} - arguments - inner - kept


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]


def _captured(node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> list[str]:
    name = node.rest if isinstance(node, ast.MatchMapping) else node.name
    return [name] if name else []


def _own(function: ast.FunctionDef) -> list[ast.AST]:
    """What is in a function and in no function inside of it."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, (FunctionNode, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return found


def _after_header(module: ast.Module) -> int:
    """After the docstring and the imports from __future__."""
    at = 1 if ast.get_docstring(module) is not None else 0
    while at < len(module.body) and isinstance(node := module.body[at], ast.ImportFrom) and node.module == "__future__":
        at += 1
    return at
