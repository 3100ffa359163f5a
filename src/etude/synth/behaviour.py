"""What a definition does, in prose, without its code: for instructions that give names and behaviour, or behaviour only.

In: definitions; out: sentences from their docstrings (the prose before the first example or section), parameters, what they raise and when,
what kind of result they give.

Not here: what tests show (examples.py), the text around it (instruct.py).
"""

import ast
import builtins
import re
from collections.abc import Iterator, Sequence

from etude.synth.examples import code
from etude.synth.source import Definition, DefinitionNode, FunctionNode

MAX_PARAGRAPHS = 6
MAX_CONDITION = 80  # characters of code
SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|See [Aa]lso|References|Attributes|Usage|Todo|"
    r"Warnings?|Other Parameters|Keyword Arg(ument)?s)\s*:?|:(param|type|returns?|rtype|raises)\b.*|\.\. .*|[-=~]{3,}"
)
DECORATORS = {
    "property": "It is a property.",
    "cached_property": "It is a property, worked out once.",
    "classmethod": "It is a class method.",
    "staticmethod": "It is a static method.",
    "contextmanager": "It is used in a `with` statement.",
    "asynccontextmanager": "It is used in an `async with` statement.",
}


def prose(node: DefinitionNode | ast.Module) -> str:
    """The docstring's paragraphs before its first example or section, each on one line."""
    text = ast.get_docstring(node) or ""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        stop = next(
            (number for number, line in enumerate(lines) if SECTION.fullmatch(line.strip()) or line.lstrip().startswith(">>>")), None
        )
        if stop is not None:
            lines = lines[:stop]
        if lines and not lines[0].startswith((" ", "\t")):
            found.append(" ".join(line.strip() for line in lines))
        elif lines:
            found.append("\n".join(f"    {line.strip()}" for line in lines))
        if stop is not None or len(found) >= MAX_PARAGRAPHS:
            break
    found = [part for part in found if part.strip()]
    if len(found) > 1 and found[-1].endswith(":") and len(found[-1]) < MAX_CONDITION:  # of an example that is left out
        found.pop()
    return "\n\n".join(map(_ended, found))


def with_facts(text: str, sentences: Sequence[str]) -> str:
    """Sentences after the first paragraph of a prose, before the others."""
    first, _, rest = text.partition("\n\n")
    told = " ".join(part for part in (first, *sentences) if part)
    return f"{told}\n\n{rest}" if rest else told


def parameters(definition: Definition) -> str:
    """ "It takes `n` and `seq`; `fill` is `None` unless given." """
    node = definition.node
    if not isinstance(node, FunctionNode):
        return ""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = dict(zip([argument.arg for argument in positional][len(positional) - len(given.defaults) :], given.defaults, strict=True))
    static = any(_last(decorator) == "staticmethod" for decorator in node.decorator_list)
    names = [argument.arg for argument in positional[1 if definition.owner is not None and not static else 0 :]]
    taken = [code(name) for name in names]
    if given.vararg:
        taken.append(f"any number of further arguments ({code('*' + given.vararg.arg)})")
    if given.kwonlyargs:
        taken.append(f"by keyword only {_list([code(argument.arg) for argument in given.kwonlyargs])}")
        defaults |= {a.arg: value for a, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value is not None}
    if given.kwarg:
        taken.append(f"any keywords ({code('**' + given.kwarg.arg)})")
    if not taken:
        return ""
    told = [f"{code(name)} is {code(ast.unparse(value))}" for name, value in defaults.items() if len(ast.unparse(value)) <= MAX_CONDITION]
    return f"It takes {_list(taken)}{'; unless given, ' + _list(told) if told else ''}."


def facts(definition: Definition, *, conditions: bool) -> list[str]:
    """Sentences about what calling it does; `conditions`: say in code when it raises."""
    node = definition.node
    if not isinstance(node, FunctionNode):
        return []
    told = [DECORATORS[name] for decorator in node.decorator_list if (name := _last(decorator)) in DECORATORS]
    managed = any("with" in sentence for sentence in told)
    own = list(_own(node))
    if isinstance(node, ast.AsyncFunctionDef):
        told.append("It is asynchronous.")
    if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own) and not managed:
        told.append("It gives its results one after the other, as a generator.")
    return told + list(dict.fromkeys(_raised(node, conditions)))


def _raised(node: FunctionNode, conditions: bool) -> Iterator[str]:
    known = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)} | set(dir(builtins))
    for owner in (node, *_own(node)):
        for statement in (
            getattr(owner, "body", []) if isinstance(owner, (FunctionNode, ast.If, ast.Try, ast.For, ast.While, ast.With)) else []
        ):
            if not isinstance(statement, ast.Raise) or statement.exc is None:
                continue
            name = _last(statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc)
            if not name[:1].isupper():
                continue
            first = statement.exc.args[0] if isinstance(statement.exc, ast.Call) and statement.exc.args else None
            said = f" ({first.value})" if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            when = ""
            if conditions and isinstance(owner, ast.If):
                names = {part.id for part in ast.walk(owner.test) if isinstance(part, ast.Name)}
                text = ast.unparse(owner.test)
                when = f" when {code(text)}" if names <= known and len(text) <= MAX_CONDITION else ""
            yield f"It raises {code(name)}{said}{when}."


def _own(node: FunctionNode) -> Iterator[ast.AST]:
    """What is in a function and in no function inside of it."""
    stack: list[ast.AST] = list(reversed(node.body))
    while stack:
        part = stack.pop()
        yield part
        if not isinstance(part, (DefinitionNode, ast.Lambda)):
            stack += reversed(list(ast.iter_child_nodes(part)))


def _ended(text: str) -> str:
    text = f"{text[:-1]}." if text.endswith(":") else text
    return f"{text}." if text[-1:].isalnum() or (text.endswith((")", "`", "'", '"')) and not text.endswith(".)")) else text


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
