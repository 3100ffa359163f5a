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

from etude.store import TaskStore
from etude.types import Task

MAX_TESTS = 20
THEME = "ansi_dark"


def show_task(task: Task, store: TaskStore, *, gold: bool = False) -> RenderableType:
    """With `gold`, the patch that restores the feature too: the answer."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("repository", f"{task.repo.name} ({task.repo.source or task.repo.digest[:12]})")
    facts.add_row("mode", f"{task.mode}, band {task.band}, {task.evidence.get('gold_lines', '?')} lines to write")
    for symbol in task.symbols:
        facts.add_row(
            "gone" if task.mode == "remove" else "stubbed", f"{symbol.path}:{symbol.line} {symbol.qualname} ({symbol.num_lines} lines)"
        )
    facts.add_row("tests", f"{len(task.fail_to_pass)} must come to pass, {len(task.pass_to_pass)} must keep passing")
    facts.add_row("original", str(store.snapshot(task.repo)))
    parts: list[RenderableType] = [
        Panel(facts, title=task.id, title_align="left"),
        Rule("instruction", align="left"),
        Markdown(task.instruction),
        Rule("cut: original -> what the agent sees", align="left"),
        Syntax(task.cut, "diff", theme=THEME, word_wrap=True),
    ]
    if gold:
        parts += [Rule("gold: what restores it", align="left"), Syntax(task.gold, "diff", theme=THEME, word_wrap=True)]
    parts += [Rule("fail_to_pass", align="left"), Text("\n".join(task.fail_to_pass[:MAX_TESTS]))]
    if len(task.fail_to_pass) > MAX_TESTS:
        parts.append(Text(f"... and {len(task.fail_to_pass) - MAX_TESTS} more"))
    evidence = Table.grid(padding=(0, 2))
    for name, value in task.evidence.items():
        evidence.add_row(Text(name, style="bold"), Text(str(value)))
    parts += [Rule("evidence", align="left"), evidence]
    return Group(*parts)
