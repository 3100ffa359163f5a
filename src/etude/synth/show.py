"""A task for a person: what is asked, what was cut, which tests tell, what the checks measured.

In: a Task and its store; out: a rich renderable.

Not here: the command line (cli.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from etude.errors import printable
from etude.store import TaskStore
from etude.types import Task

MAX_TESTS = 20
MAX_VALUE = 600  # characters of one piece of evidence
THEME = "ansi_dark"
LEVELS = {"A": "signatures and docstrings", "B": "names and behaviour", "C": "behaviour only"}
GATE_NAMES = ("gate", "name")  # keys under which a gate in a list has its name
NOTHING: tuple[Any, ...] = (None, "", [], {})
VERDICTS = ("ok", "passed", "holds")  # and its result


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check that the task went through."""

    name: str
    verdict: str  # holds | fails | "" where there is only a measurement
    detail: str


def show_task(task: Task, store: TaskStore, *, gold: bool = False) -> RenderableType:
    """With `gold`, the patch that restores the feature too: the answer."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    rows = [
        ("repository", f"{task.repo.name} ({task.repo.source or task.repo.digest[:12]})"),
        ("kind", f"{words(task.kind)}, {task.mode}, band {task.band}, {lines_to_write(task)} to write"),
        ("instruction", f"level {task.level}: {LEVELS[task.level]}"),
        *([("tests shown", f"{100 * task.visible_share:.0f}% of the feature's")] if task.visible_share else []),
        *([("made from", ", ".join(task.origin))] if task.origin else []),
        *(
            ("gone" if task.mode == "remove" else "stubbed", f"{symbol.path}:{symbol.line} {symbol.qualname} ({symbol.num_lines} lines)")
            for symbol in task.symbols
        ),
        ("tests", f"{len(task.fail_to_pass)} must come to pass, {len(task.pass_to_pass)} must keep passing"),
        ("original", str(store.snapshot(task.repo))),
    ]
    for name, value in rows:
        facts.add_row(name, _plain(value))
    parts: list[RenderableType] = [
        Panel(facts, title=_plain(task.id), title_align="left"),
        Rule("instruction", align="left"),
        Markdown(printable(task.instruction)),
        Rule("cut: original -> what the agent sees", align="left"),
        _diff(task.cut),
    ]
    if gold:
        parts += [Rule("gold: what restores it", align="left"), _diff(task.gold)]
    parts += [Rule("fail_to_pass", align="left"), *map(_plain, task.fail_to_pass[:MAX_TESTS])]
    if len(task.fail_to_pass) > MAX_TESTS:
        parts.append(Text(f"... and {len(task.fail_to_pass) - MAX_TESTS} more"))
    gates, rest = split_evidence(task.evidence)
    parts.append(Rule("evidence", align="left"))
    if gates:
        table = Table("gate", "result", "what was measured", box=None, padding=(0, 2, 0, 0))
        for gate in gates:
            verdict = Text(gate.verdict or "-", style={"holds": "green", "fails": "red"}.get(gate.verdict, ""))
            table.add_row(_plain(gate.name), verdict, _plain(gate.detail))
        parts.append(table)
    evidence = Table.grid(padding=(0, 2))
    for name, value in rest:
        evidence.add_row(Text(printable(name), style="bold"), _plain(value))
    parts.append(evidence)
    return Group(*parts)


def split_evidence(evidence: Mapping[str, Any]) -> tuple[list[Gate], list[tuple[str, str]]]:
    """The gates, a mapping or a list under "gates"; and everything else that is not empty as (name, text)."""
    found = evidence.get("gates")
    gates: list[Gate] = []
    if isinstance(found, Mapping):
        gates = [_gate(str(name), value) for name, value in found.items()]
    elif isinstance(found, list):
        gates = [_gate("", value) for value in found]
    rest = [(words(name), _value(value)) for name, value in evidence.items() if value not in NOTHING and (name != "gates" or not gates)]
    return gates, rest


def lines_to_write(task: Task) -> str:
    lines = sum(line.startswith("+") and not line.startswith("+++ ") for line in task.gold.splitlines())
    return f"{lines:,} line{'' if lines == 1 else 's'}"


def words(name: str) -> str:
    return name.replace("_", " ")


def _gate(name: str, value: Any) -> Gate:
    if isinstance(value, bool):
        return Gate(name=words(name) or "?", verdict="holds" if value else "fails", detail="")
    if not isinstance(value, Mapping):
        return Gate(name=words(name) or "?", verdict="", detail=_value(value))
    name = name or next((str(value[key]) for key in GATE_NAMES if key in value), "?")
    verdict = next((value[key] for key in VERDICTS if isinstance(value.get(key), bool)), None)
    rest = {key: v for key, v in value.items() if key not in GATE_NAMES and not (key in VERDICTS and isinstance(v, bool))}
    detail = "; ".join(f"{words(str(key))}: {_value(v)}" for key, v in rest.items() if v not in NOTHING)
    return Gate(name=words(name), verdict="" if verdict is None else "holds" if verdict else "fails", detail=detail[:MAX_VALUE])


def _value(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        text = ", ".join(map(_value, value))
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} … and {len(text) - MAX_VALUE} more characters"


def _plain(text: str) -> Text:
    """Data on a line, never markup. A line end in a name is shown as what it is."""
    return Text(printable(text.replace("\n", "�")))


def _diff(patch: str) -> Syntax:
    return Syntax(printable(patch), "diff", theme=THEME, word_wrap=True)
