"""What a judge can look at: one function a tool, from a case and arguments to text of a bounded length.

    list_turns(start?)  read_turn(turn, start?)  search(text)  diff(start?)  findings()
    compare()  read_other(number, start?)  task_file(name?, start?)

Not here: fencing and verdicts (protocol.py).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from etude.agent.schema import Schema, object_schema, problem, signature
from etude.monitor.contrast import traits
from etude.monitor.judge.case import Case, addressed, done_texts
from etude.monitor.trajectory import Step, Trajectory

PAGE_CHARS = 6000
LIST_LINES = 80
HITS = 20
AROUND = 120  # characters shown around a hit

Arguments = Mapping[str, Any]


class Refused(Exception):
    """The call cannot be done; the text is what the judge reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    about: str
    schema: Schema
    run: Callable[[Case, Arguments], str]

    @property
    def signature(self) -> str:
        return signature(self.name, self.schema)


def use(case: Case, name: str, arguments: Arguments) -> str:
    """Raises: Refused."""
    tool = TOOLS.get(name)
    if tool is None:
        raise Refused(f"there is no tool {name[:40]}; there are {', '.join(TOOLS)}, verdict")
    wrong = problem(tool.schema, arguments)
    if wrong:
        raise Refused(f"{tool.signature}: {wrong}")
    return tool.run(case, arguments)


def page(text: str, start: int) -> str:
    """A part of a text, and where it goes on."""
    if start and start >= len(text):
        raise Refused(f"it has {len(text)} characters; start below that")
    rest = len(text) - start - PAGE_CHARS
    return text[start : start + PAGE_CHARS] + (f"\n({rest} more characters: start={start + PAGE_CHARS})" if rest > 0 else "")


def write_turn(step: Step) -> str:
    parts = [f"turn {step.index}"]
    parts += [f"said:\n{step.text}"] if step.text else []
    parts += [f"thought:\n{step.reasoning}"] if step.reasoning else []
    for number, act in enumerate(step.acts):
        given = "\n".join(
            f"{key}: {value if isinstance(value, str) else json.dumps(value, default=str)}" for key, value in act.arguments.items()
        )
        command = f"\ncommand: {act.command}" if act.command and act.command not in given else ""
        parts.append(f"call {number}: {act.name}\n{given}{command}")
        parts.append(f"result {number}{' (failed)' if act.failed else ''}:\n{act.result}")
    return "\n".join(parts)


def _list_turns(case: Case, arguments: Arguments) -> str:
    steps, start = case.trajectory.steps, arguments.get("start", 0)
    lines = [_line(step) for step in steps[start : start + LIST_LINES]]
    rest = len(steps) - start - LIST_LINES
    told = case.trajectory
    head = f"{len(steps)} turns, solved: {told.solved}, patch: {len(told.patch)} characters, task: {told.task_id or 'unknown'}"
    return "\n".join([head, *lines, *([f"({rest} more: start={start + LIST_LINES})"] if rest > 0 else [])])


def _line(step: Step) -> str:
    acts = "; ".join(
        f"{act.name} {act.command or act.path}"[:100].replace("\n", " ") + (" (failed)" if act.failed else "") for act in step.acts
    )
    return f"{step.index}: {acts or 'no call'} | {' '.join(step.text.split())[:80]}"


def _read_turn(case: Case, arguments: Arguments) -> str:
    step = case.step(arguments["turn"])
    if step is None:
        raise Refused(f"there is no turn {arguments['turn']}; list_turns shows them")
    seen = [f"{event.kind}: {event.what}" for event in case.trajectory.events or () if event.step == step.index]
    return page("\n".join([write_turn(step), *(["seen by the sandbox:", *seen] if seen else [])]), arguments.get("start", 0))


def _search(case: Case, arguments: Arguments) -> str:
    wanted, hits = arguments["text"].casefold(), []
    for index in [*(step.index for step in case.trajectory.steps), -1]:
        step = case.step(index)
        for text in [*done_texts(case, index), step.reasoning if step else ""]:
            at = text.casefold().find(wanted)
            if at >= 0:
                hits.append(f"{'patch' if index < 0 else f'turn {index}'}: {text[max(0, at - AROUND) : at + len(wanted) + AROUND]}")
                break
    more = f"\n(in {len(hits) - HITS} more places)" if len(hits) > HITS else ""
    return "\n".join(hits[:HITS]) + more if hits else "nowhere"


def _diff(case: Case, arguments: Arguments) -> str:
    return page(case.trajectory.patch or "nothing was changed", arguments.get("start", 0))


def _findings(case: Case, arguments: Arguments) -> str:
    """JSON lines: the first tells of the rollout, each other one is a finding."""
    head = {"solved": case.trajectory.solved, "turns": len(case.trajectory.steps), "addresses_the_judge": bool(addressed(case.trajectory))}
    rows = [
        {
            "step": one.step,
            "family": one.family,
            "strength": one.strength,
            "in_reasoning": one.in_reasoning,
            "why": one.why,
            "quote": one.quote,
        }
        for one in case.findings
    ]
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in [head, *rows])


def _compare(case: Case, arguments: Arguments) -> str:
    if not case.others:
        return "no other rollout of this task is known"
    solved = Counter(str(one.solved) for one in case.others)
    lines = [f"{len(case.others)} other rollouts, solved: {dict(solved)}", f"this one: {_traits(case.trajectory)}"]
    return "\n".join([*lines, *(f"{number}: {_traits(one)}" for number, one in enumerate(case.others[:20]))])


def _traits(one: Trajectory) -> str:
    found = traits(one)
    touched = ", ".join(sorted(found.paths)[:12])
    return (
        f"solved {one.solved}, {found.steps} turns, {found.added} lines added in {', '.join(sorted(found.edited)) or 'no file'}, "
        f"{found.test_runs} test runs, programs {', '.join(sorted(found.programs)[:12])}, touched {touched}"
    )


def _read_other(case: Case, arguments: Arguments) -> str:
    if arguments["number"] >= len(case.others):
        raise Refused(f"there are {len(case.others)} other rollouts; compare lists them")
    other = case.others[arguments["number"]]
    return page("\n\n".join([*(write_turn(step) for step in other.steps), f"patch:\n{other.patch}"]), arguments.get("start", 0))


def _task_file(case: Case, arguments: Arguments) -> str:
    files = {**({"instruction": case.trajectory.instruction} if case.trajectory.instruction else {}), **case.files}
    name = arguments.get("name", "")
    if not name:
        return "\n".join(f"{key}: {len(text)} characters" for key, text in files.items()) or "nothing of the task is known"
    if name not in files:
        raise Refused(f"the task has no file {name[:80]}; task_file without a name lists them")
    return page(files[name], arguments.get("start", 0))


START = {"type": "integer", "minimum": 0, "maximum": 10_000_000, "optional": True}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 10_000_000}
TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(name="list_turns", about="a line a turn", schema=object_schema(start=START), run=_list_turns),
        Tool(name="read_turn", about="a turn in full", schema=object_schema(turn=NUMBER, start=START), run=_read_turn),
        Tool(name="search", about="where a text occurs", schema=object_schema(text={"type": "string", "minLength": 2}), run=_search),
        Tool(name="diff", about="what was submitted", schema=object_schema(start=START), run=_diff),
        Tool(name="findings", about="what rules found, as JSON lines", schema=object_schema(), run=_findings),
        Tool(name="compare", about="other rollouts of the task, a line each", schema=object_schema(), run=_compare),
        Tool(name="read_other", about="one of them", schema=object_schema(number=NUMBER, start=START), run=_read_other),
        Tool(
            name="task_file",
            about="the task: instruction, hidden tests, gold; without a name a list",
            schema=object_schema(name={"type": "string", "optional": True}, start=START),
            run=_task_file,
        ),
    )
}
