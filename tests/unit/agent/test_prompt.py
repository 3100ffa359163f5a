from dataclasses import replace

from etude.agent.calls import parse_calls
from etude.agent.hints import hint_text
from etude.agent.prompt import opening_messages, system_prompt
from etude.agent.tools import TOOLS
from etude.types import CallError, Task

KINDS: tuple[CallError, ...] = ("unknown_tool", "malformed_call", "bad_arguments", "edit_not_found", "finished_untested", "tool_failed")


def test_the_system_prompt_is_short_and_names_every_tool_with_its_arguments() -> None:
    prompt = system_prompt()
    assert all(f"\n{tool.signature}: {tool.about}" in prompt for tool in TOOLS.values())
    assert len(prompt) < 520  # about 130 tokens of a usual tokenizer
    (example,) = parse_calls(prompt)
    assert example.call.name in TOOLS


def test_a_long_instruction_is_cut_and_says_so(task: Task) -> None:
    assert opening_messages(task, instruction_chars=300)[1] == ("user", task.instruction)
    (_, shown) = opening_messages(replace(task, instruction="a b c d e\n" * 100), instruction_chars=100)[1]
    assert len(shown) <= 100
    assert shown.startswith("a b c d e\n")
    assert shown.endswith(" characters cut) ...")


def test_every_kind_of_error_has_a_short_hint_that_is_no_tool_result() -> None:
    texts = [hint_text(kind, tool) for kind in KINDS for tool in (None, "open_file", *TOOLS)]
    assert all(text.startswith("Reminder: ") and len(text) < 110 and "\n" not in text for text in texts)


def test_hints_say_what_was_wanted() -> None:
    assert all(tool in hint_text("unknown_tool") for tool in TOOLS)
    assert hint_text("bad_arguments", "edit") == 'Reminder: edit takes {"path": string, "old": string, "new": string}.'
    assert parse_calls(hint_text("malformed_call"))[0].problem is None
