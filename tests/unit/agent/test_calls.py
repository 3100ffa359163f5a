import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.agent.calls import CLOSE, OPEN, parse_calls, write_call


def test_every_call_of_a_message_is_read_and_the_text_around_them_left_alone() -> None:
    spread = json.dumps({"name": "run", "arguments": {"command": "ls"}}, indent=1)
    text = f"First {write_call('list', {'path': '.'})} then\n{OPEN}\n {spread}\n{CLOSE} done"
    first, second = parse_calls(text)
    assert (first.call.name, first.call.arguments, first.problem) == ("list", {"path": "."}, None)
    assert (second.call.name, second.call.arguments, second.problem) == ("run", {"command": "ls"}, None)
    assert first.call.raw == '{"name": "list", "arguments": {"path": "."}}'


def test_a_closing_tag_inside_a_string_is_text() -> None:
    (parsed,) = parse_calls(write_call("write", {"path": "a", "content": f"x = '{CLOSE}'"}))
    assert parsed.call.arguments["content"] == f"x = '{CLOSE}'"


@pytest.mark.parametrize("text", ["", "I am done.", '{"name": "list", "arguments": {}}', CLOSE, "<tool_call"])
def test_a_message_without_the_tag_has_no_call(text: str) -> None:
    assert parse_calls(text) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('{"name": "list", "arguments": {"path": "."}' + CLOSE, "not valid JSON"),
        ("list(path='.')" + CLOSE, "not valid JSON"),
        (CLOSE, "not valid JSON"),
        ('{"name": "list", "arguments": {}}', "does not end with </tool_call>"),
        ('{"name": "li', "does not end with </tool_call>"),
        ('{"name": "list", "arguments": {}} {}' + CLOSE, "something else than </tool_call>"),
        ('["list"]' + CLOSE, "not a JSON object"),
        ('{"arguments": {}}' + CLOSE, "has no name"),
        ('{"name": 3, "arguments": {}}' + CLOSE, "has no name"),
        ('{"name": "list"}' + CLOSE, "arguments is not an object"),
        ('{"name": "list", "arguments": "."}' + CLOSE, "arguments is not an object"),
        ('{"name": "list", "arguments": {}, "id": 1}' + CLOSE, "keys besides"),
        ('{"name": "list", "arguments": {"path": "\\ud800"}}' + CLOSE, "half a character"),
        ("[" * 100_000 + CLOSE, "not valid JSON"),
        ('{"name": "list", "arguments": {"path": ' + "9" * 5000 + "}}" + CLOSE, "not valid JSON"),
    ],
)
def test_what_is_wrong_with_the_form_is_said(body: str, problem: str) -> None:
    (parsed,) = parse_calls(OPEN + body)
    assert parsed.problem is not None
    assert problem in parsed.problem
    assert parsed.call.name == ""
    assert parsed.call.raw == body.removesuffix(CLOSE)


def test_after_a_malformed_call_the_next_one_is_read() -> None:
    broken, unclosed, good = parse_calls(f"{OPEN}{{]{CLOSE} {OPEN}{{ {write_call('list', {'path': '.'})}")
    assert (broken.problem, broken.call.raw) == ("it is not valid JSON", "{]")
    assert unclosed.problem == "it does not end with </tool_call>"
    assert good.call.name == "list"


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_written_is_read(arguments: dict[str, str]) -> None:
    (parsed,) = parse_calls(write_call("edit", arguments))
    assert (parsed.problem, parsed.call.name, parsed.call.arguments) == (None, "edit", arguments)


@given(st.lists(st.sampled_from([OPEN, CLOSE, "{", "}", '"name": "a"', ",", '"arguments": {}', "x", " ", "\\", '"'])).map("".join))
def test_any_text_is_read_to_its_end(text: str) -> None:
    assert len(parse_calls(text)) <= text.count(OPEN)
