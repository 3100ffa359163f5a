"""JSON schemas of tool arguments: the few keywords that tools use, checked with words a model can act on.

Not here: which tools there are (tools.py).
"""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_TYPES: dict[str, type] = {"string": str, "integer": int}


def object_schema(**properties: Schema) -> dict[str, Any]:
    """Arguments of one call. A property with `"optional": True` need not be given (the mark is not part of the schema)."""
    required = [name for name, p in properties.items() if not p.get("optional")]
    plain = {name: {k: v for k, v in p.items() if k != "optional"} for name, p in properties.items()}
    return {"type": "object", "properties": plain, "required": required, "additionalProperties": False}


def problem(schema: Schema, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments, in a few words, or None. The first problem in the schema's order, so that it is always the same."""
    properties = schema["properties"]
    for name in schema["required"]:
        if name not in arguments:
            return f"{name} is missing"
    for name in arguments:
        if name not in properties:
            return f"there is no argument {name[:40]}"
    for name, rule in properties.items():
        if name in arguments and (wrong := _wrong(rule, arguments[name])):
            return f"{name} must be {wrong}"
    return None


def _wrong(rule: Schema, value: Any) -> str | None:
    if not isinstance(value, _TYPES[rule["type"]]) or isinstance(value, bool):
        return f"{'an' if rule['type'] == 'integer' else 'a'} {rule['type']}"
    if isinstance(value, str):
        if len(value) < rule.get("minLength", 0):
            return "not empty"
        if "\0" in value:
            return "text without NUL"
    elif not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        return f"{rule['minimum']} to {rule['maximum']}"
    return None


def signature(name: str, schema: Schema) -> str:
    """`read(path, start?, lines?)`"""
    return f"{name}({', '.join(p if p in schema['required'] else p + '?' for p in schema['properties'])})"


def example(schema: Schema) -> str:
    """`{"path": string, "start"?: integer}`"""
    shown = (f'"{p}"{"" if p in schema["required"] else "?"}: {rule["type"]}' for p, rule in schema["properties"].items())
    return "{" + ", ".join(shown) + "}"
