"""A task for a person: what is asked, what was cut, which tests tell, what the checks measured.

In: a Task and its store; out: a rich renderable.

Not here: the command line (cli.py).
"""

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
THEME = "ansi_dark"


def show_task(task: Task, store: TaskStore, *, gold: bool = False) -> RenderableType:
    """With `gold`, the patch that restores the feature too: the answer."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    rows = [
        ("repository", f"{task.repo.name} ({task.repo.source or task.repo.digest[:12]})"),
        ("mode", f"{task.mode}, band {task.band}, {task.evidence.get('gold_lines', '?')} lines to write"),
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
    evidence = Table.grid(padding=(0, 2))
    for name, value in task.evidence.items():
        evidence.add_row(Text(printable(name), style="bold"), _plain(str(value)))
    parts += [Rule("evidence", align="left"), evidence]
    return Group(*parts)


def _plain(text: str) -> Text:
    """Data on a line, never markup. A line end in a name is shown as what it is."""
    return Text(printable(text.replace("\n", "�")))


def _diff(patch: str) -> Syntax:
    return Syntax(printable(patch), "diff", theme=THEME, word_wrap=True)
