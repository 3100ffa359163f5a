"""A page about tasks that needs nothing else: `etude tasks show FOLDER [TASK] --html FILE`. No script, no request, inline style.

In: a TaskStore; out: one file, written whole or not at all. For one task: what is asked, what is gone, the diffs, the tests that tell, the
evidence. For all: a table from easy to hard, how they were built, and every task in full while the page has room. Texts of models and
repositories are data: escaped, and made visible, by the environment's finalize.

The page shows the answer; it is for people who look after tasks, not for agents.

Not here: the terminal (synth/show.py), runs (report.py).
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude import __version__
from etude.errors import UserError
from etude.grade import patches
from etude.split import difficulty_key
from etude.store import Pool, TaskStore
from etude.studio.templates import environment_for_pages
from etude.synth.show import LEVELS, lines_to_write, split_evidence, words
from etude.types import Task

PAGE_BYTES = 8_000_000  # a browser opens this at once, also on a phone
MAX_DIFF_LINES = 800  # of one file
MAX_TESTS = 400  # of one list
LINE_BYTES, TASK_BYTES = 60, 6000  # of markup around a line of a diff, around a task
OPEN_LINES = 120  # a file's diff that is longer starts folded
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
COLUMNS = ("repository", "kind", "level", "solved")  # of the index, where tasks differ in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    kind: Literal["add", "del", "same", "hunk", "note"]
    old: str  # line number, "" where there is none
    new: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    path: str
    change: str  # "", "new file", "removed"
    added: int
    removed: int
    lines: tuple[Line, ...]
    left_out: int


def write_task_page(store: TaskStore, file: Path, *, task: str | None = None, page_bytes: int = PAGE_BYTES) -> Path:
    """Write the page of one task, or of all. UserError where there is no such task.

    Of all tasks, full ones are shown up to about `page_bytes`; the page says how to see the others.
    """
    tasks = sorted(store.tasks(), key=difficulty_key) if task is None else [store.get(task)]
    if not tasks:
        raise UserError(f"{store.path} holds no task yet; finish its build: `etude tasks build SOURCE --out {store.path}`")
    environment = environment_for_pages()
    environment.globals.update(open_lines=OPEN_LINES)
    values = {"version": __version__, "folder": str(store.path), "single": task is not None, **page_values(tasks, store.pool, page_bytes)}
    page = environment.get_template("tasks.html.j2").render(values)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(page.encode("utf-8", "replace"))
    os.replace(partial, file)
    return file


def page_values(tasks: Sequence[Task], pool: Pool, page_bytes: int) -> dict[str, Any]:
    shown: dict[str, dict[str, Any]] = {}
    for task in tasks:
        if shown and page_bytes <= 0:
            break
        shown[task.id] = full(task)
        page_bytes -= size(task)
    rows = [row(task, task.id in shown) for task in tasks]
    return {
        "title": tasks[0].id if len(tasks) == 1 else f"{len(tasks)} tasks",
        "rows": rows,
        "columns": [name for name in COLUMNS if len({one[name] for one in rows}) > 1],
        "shown": shown,
        "left_out": len(tasks) - len(shown),
        "counts": counts(tasks),
        "builds": [build(source, found) for source, found in pool.evidence.items() if isinstance(found, dict)],
    }


def row(task: Task, is_shown: bool) -> dict[str, Any]:
    return {
        "id": task.id,
        "anchor": f"t-{task.id}",
        "is_shown": is_shown,
        "repository": task.repo.name,
        "symbols": [symbol.qualname for symbol in task.symbols],
        "files": sorted({symbol.path for symbol in task.symbols}),
        "kind": words(task.kind),
        "size": f"{task.band}, {lines_to_write(task)}",
        "level": task.level,
        "fail_to_pass": len(task.fail_to_pass),
        "pass_to_pass": len(task.pass_to_pass),
        "solved": "–" if task.pass_rate is None else f"{100 * task.pass_rate:.0f}%",
    }


def full(task: Task) -> dict[str, Any]:
    gates, evidence = split_evidence(task.evidence)
    limits = task.limits
    return {
        **row(task, True),
        "facts": [
            ("repository", f"{task.repo.name}, {task.repo.source or task.repo.digest[:12]}"),
            ("kind", f"{words(task.kind)}, {task.mode}, band {task.band}, {lines_to_write(task)} to write"),
            ("instruction", f"level {task.level}: {LEVELS[task.level]}"),
            ("tests the agent sees", f"{100 * task.visible_share:.0f}% of the feature's" if task.visible_share else ""),
            ("made from", ", ".join(task.origin)),
            ("environment", f"Python {task.environment.python}, {task.environment.runner}, {', '.join(task.environment.requirements)}"),
            ("limits", f"{limits.wall_s:g} s, {limits.memory_mb} MB, {limits.processes} processes, {limits.turns} turns"),
            ("protected", ", ".join(task.protected)),
            ("solved so far", "" if task.pass_rate is None else f"{100 * task.pass_rate:.0f}%"),
        ],
        "instruction": blocks(task.instruction),
        "symbol_rows": task.symbols,
        "cut": diff(task.cut),
        "gold": diff(task.gold),
        "hidden": task.fail_to_pass[:MAX_TESTS],
        "hidden_more": max(0, len(task.fail_to_pass) - MAX_TESTS),
        "keep": task.pass_to_pass[:MAX_TESTS],
        "keep_more": max(0, len(task.pass_to_pass) - MAX_TESTS),
        "gates": gates,
        "evidence": evidence,
    }


def size(task: Task) -> int:
    """About how many bytes of page a task makes."""
    diffs = sum(len(patch) + LINE_BYTES * patch.count("\n") for patch in (task.cut, task.gold))
    tests = sum(len(id) + LINE_BYTES for id in (*task.fail_to_pass[:MAX_TESTS], *task.pass_to_pass[:MAX_TESTS]))
    return len(task.instruction) + diffs + tests + TASK_BYTES


def counts(tasks: Sequence[Task]) -> dict[str, Any]:
    """How many of each kind in each band."""
    found = Counter((words(task.kind), task.band) for task in tasks)
    bands = [band for band in ("S", "M", "L", "XL") if any(pair[1] == band for pair in found)]
    kinds = sorted({kind for kind, _ in found})
    return {
        "bands": bands,
        "rows": [(kind, [found[kind, band] for band in bands], sum(found[kind, band] for band in bands)) for kind in kinds],
        "repositories": len({task.repo.name for task in tasks}),
        "fail_to_pass": sum(len(task.fail_to_pass) for task in tasks),
    }


def build(source: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """One source of pool.json: numbers, and why candidates were turned down, the most frequent reason first."""

    def total(value: object) -> str:
        if isinstance(value, Mapping):
            return str(sum(v for v in value.values() if isinstance(v, int)))
        return str(value) if isinstance(value, int) else "–"

    rejected = found.get("rejected")
    whys = rejected.values() if isinstance(rejected, Mapping) else ()
    reasons = Counter(re.sub(r"\d+", "N", str(why).partition(": ")[0])[:160] for why in whys)
    names = ("candidates", "tried", "valid", "stable_tests")
    return {"source": source, "numbers": [total(found.get(name)) for name in names], "reasons": reasons.most_common(6)}


def blocks(text: str) -> list[tuple[str, Any]]:
    """The little of Markdown that instructions have: ("code", text), ("list", items), ("text", pieces); a piece is (is code, text)."""
    found: list[tuple[str, Any]] = []
    at = 0
    for match in FENCE.finditer(text):
        found += _paragraphs(text[at : match.start()])
        found.append(("code", match[1].rstrip("\n")))
        at = match.end()
    return [*found, *_paragraphs(text[at:])]


def diff(patch: str) -> list[FileDiff]:
    """A patch file by file; one note where it cannot be read."""
    try:
        return [_file_diff(each) for each in patches.parse(patch)]
    except ValueError as error:
        note = Line(kind="note", old="", new="", text=str(error))
        return [FileDiff(path="?", change="", added=0, removed=0, lines=(note,), left_out=0)]


def _paragraphs(text: str) -> Iterable[tuple[str, Any]]:
    for paragraph in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in paragraph.strip("\n").split("\n") if line.strip()]
        plain_lines = [line for line in lines if not line.startswith("- ")]
        items = [_pieces(line[2:]) for line in lines if line.startswith("- ")]
        if plain_lines:
            yield "text", _pieces("\n".join(plain_lines))
        if items:
            yield "list", items


def _pieces(text: str) -> list[tuple[bool, str]]:
    parts = re.split(r"`([^`\n]+)`", text)
    return [(bool(number % 2), part) for number, part in enumerate(parts) if part]


def _file_diff(patch: patches.FilePatch) -> FileDiff:
    lines = [Line(kind="note", old="", new="", text="binary file")] if patch.binary else list(_lines(patch.body))
    return FileDiff(
        path=" → ".join(dict.fromkeys(path for path in (patch.old, patch.new) if path)),
        change="new file" if patch.old is None else "removed" if patch.new is None else "",
        added=sum(line.kind == "add" for line in lines),
        removed=sum(line.kind == "del" for line in lines),
        lines=tuple(lines[:MAX_DIFF_LINES]),
        left_out=max(0, len(lines) - MAX_DIFF_LINES),
    )


def _lines(body: Sequence[str]) -> Iterable[Line]:
    old = new = 0
    for line in body:
        if match := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
            old, new = int(match[1]), int(match[2])
            yield Line(kind="hunk", old="", new="", text=line)
        elif line.startswith("+"):
            yield Line(kind="add", old="", new=str(new), text=line[1:])
            new += 1
        elif line.startswith("-"):
            yield Line(kind="del", old=str(old), new="", text=line[1:])
            old += 1
        elif line.startswith("\\"):
            yield Line(kind="note", old="", new="", text=line[2:])
        else:
            yield Line(kind="same", old=str(old), new=str(new), text=line[1:])
            old, new = old + 1, new + 1
