"""TOML in and out: a file -> nested dicts -> checked dataclasses -> text again. Every mistake is one line that names the key.

    values = read_toml(path)                               # UserError: cannot be read, is no TOML
    config = read_table(Config, values, file=str(path))    # UserError: an unknown, missing or wrongly typed key, a value not allowed
    text = write_toml(asdict(config))

Types of fields: bool, int, float (whole numbers too), str, Literal, X | None, tuple[X, ...], tuple[X, Y], dict[str, X], dataclasses, and
Any, which is what TOML has but dates. A dataclass' own checks raise ValueError (`require`); that is a UserError here.

Not here: which keys there are (the stages' config.py).
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from etude.errors import UserError

WIDEST_INT = 1 << 63  # TOML's integers have 64 bits
SHOWN = 80  # characters of a wrong value


def require(name: str, value: Any, allowed: str, ok: bool, remedy: str) -> None:
    """ValueError unless `ok`: the value, what is allowed, what to do."""
    if not ok:
        raise ValueError(f"{name} is {_shown(value)}, allowed is {allowed}: {remedy}")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. UserError where it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name an existing TOML file") from None
    except ValueError as error:  # not TOML, not UTF-8
        raise UserError(f"{path} is no TOML file: {error}") from None
    except RecursionError:
        raise UserError(f"{path} is no TOML file that can be read: its values are nested too deeply") from None


def read_value(text: str) -> Any:
    """A TOML value; what is none is a text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def read_table(cls: Any, data: Any, *, file: str, where: str = "") -> Any:
    """The dataclass `cls` from a table that stands at `where`, or an instance of it as it is. UserError: see the module's docstring."""
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise UserError(f"{file}: `{where}` is {_shown(data)}, expected a table [{where}]")
    known, hints = {one.name: one for one in fields(cls)}, get_type_hints(cls)
    table = f"[{where}]" if where else "the top level"
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"allowed are {', '.join(known)}"
            raise UserError(f"{file}: {table} has no key `{key}`; {hint}")
    values = {}
    for name, one in known.items():
        if name in data:
            values[name] = _value(hints[name], data[name], file, f"{where}.{name}" if where else name)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise UserError(f"{file}: {table} lacks `{name}`; add it ({getattr(hints[name], '__name__', hints[name])})")
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None


def _value(kind: Any, value: Any, file: str, where: str) -> Any:
    options, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        if value not in options:
            raise UserError(f"{file}: `{where}` is {_shown(value)}, allowed are {', '.join(map(repr, options))}")
        return value
    if origin is tuple:
        return _tuple(options, value, file, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{file}: `{where}` is {_shown(value)}, expected a table")
        return {name: _value(options[1], one, file, f"{where}.{name}") for name, one in value.items()}
    if type(None) in options:
        return _value(options[0], value, file, where)
    if kind is Any:
        return _plain(value, file, where)
    if is_dataclass(kind):
        return read_table(kind, value, file=file, where=where)
    if type(value) is int and abs(value) >= WIDEST_INT:
        raise UserError(f"{file}: `{where}` is {_shown(value)}, expected a number of 64 bits")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{file}: `{where}` is {_shown(value)}, expected {kind.__name__}")
    return value


def _tuple(options: tuple[Any, ...], value: Any, file: str, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UserError(f"{file}: `{where}` is {_shown(value)}, expected a list")
    if options[-1] is not Ellipsis and len(value) != len(options):
        raise UserError(f"{file}: `{where}` is {_shown(value)}, expected a list of {len(options)}")
    kinds = options if options[-1] is not Ellipsis else options[:1] * len(value)
    named = len(value) > 1 or any(map(is_dataclass, kinds))  # phases.0.sources.1, as settings on the command line name them
    pairs = zip(kinds, value, strict=True)
    return tuple(_value(kind, one, file, f"{where}.{i}" if named else where) for i, (kind, one) in enumerate(pairs))


def _plain(value: Any, file: str, where: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one, file, f"{where}.{name}") for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, file, where) for one in value]
    if type(value) not in (bool, int, float, str):
        raise UserError(f"{file}: `{where}` is {_shown(value)}, expected a number, a text, true, false, a list or a table")
    return value if type(value) is not int else _value(int, value, file, where)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def write_toml(values: Mapping[str, Any]) -> str:
    """TOML that `read_toml` reads as the same nested dicts and lists."""
    lines: list[str] = []
    _write(values, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write(values: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in values.items() if _of_tables(value)}
    lines += [f"{_key(key)} = {inline(value)}" for key, value in values.items() if key not in tables and key not in lists]
    for key, value in tables.items():
        lines += ["", f"[{prefix}{_key(key)}]"]
        _write(value, f"{prefix}{_key(key)}.", lines)
    for key, items in lists.items():
        for item in items:
            lines += ["", f"[[{prefix}{_key(key)}]]"]
            _write(item, f"{prefix}{_key(key)}.", lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else inline(name)


def _of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def inline(value: Any) -> str:
    """A value on one line. JSON's texts are TOML's, but for characters beyond 16 bits, which TOML takes as they are, and DEL."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
