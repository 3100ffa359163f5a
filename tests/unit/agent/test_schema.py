import pytest

from etude.agent.schema import example, object_schema, problem, signature

SCHEMA = object_schema(
    path={"type": "string", "minLength": 1},
    start={"type": "integer", "minimum": 1, "maximum": 99, "optional": True},
    text={"type": "string"},
)


def test_it_is_a_plain_json_schema() -> None:
    assert SCHEMA == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1},
            "start": {"type": "integer", "minimum": 1, "maximum": 99},
            "text": {"type": "string"},
        },
        "required": ["path", "text"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"path": "a", "text": ""}, None),
        ({"path": "a", "text": "", "start": 99}, None),
        ({"text": ""}, "path is missing"),
        ({"path": "a", "text": "", "file": "a"}, "there is no argument file"),
        ({"path": "", "text": ""}, "path must be not empty"),
        ({"path": None, "text": ""}, "path must be a string"),
        ({"path": ["a"], "text": ""}, "path must be a string"),
        ({"path": "a\0b", "text": ""}, "path must be text without NUL"),
        ({"path": "a", "text": "", "start": "3"}, "start must be an integer"),
        ({"path": "a", "text": "", "start": True}, "start must be an integer"),
        ({"path": "a", "text": "", "start": 2.0}, "start must be an integer"),
        ({"path": "a", "text": "", "start": 0}, "start must be 1 to 99"),
        ({"path": "a", "text": "", "start": 10**30}, "start must be 1 to 99"),
    ],
)
def test_the_first_problem_is_named(arguments: dict[str, object], wrong: str | None) -> None:
    assert problem(SCHEMA, arguments) == wrong


def test_a_schema_is_shown_in_two_short_forms() -> None:
    assert signature("read", SCHEMA) == "read(path, start?, text)"
    assert example(SCHEMA) == '{"path": string, "start"?: integer, "text": string}'
