"""TOML in and out: what is written is read again, and every mistake is one line that names the key."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.toml import read_table, read_toml, read_value, require, write_toml


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
    share: float = 0.5

    def __post_init__(self) -> None:
        require("share", self.share, "0 to 1", 0 <= self.share <= 1, "a share")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str = ""
    on: bool = False
    choice: Literal["a", "b"] = "a"
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    table: dict[str, Inner] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


def test_every_type_is_read() -> None:
    found = read_table(
        Outer,
        {
            "name": "x", "on": True, "choice": "b", "pair": [1, 2.5], "names": ["a"], "inner": {"number": 1, "share": 1},
            "items": [{"number": 2}], "table": {"t": {"number": 3}}, "more": {"x": [1, {"y": "z"}]},
        },
        file="f",
    )  # fmt: skip
    assert found == Outer(
        name="x", on=True, choice="b", pair=(1.0, 2.5), names=("a",), inner=Inner(number=1, share=1.0), items=(Inner(number=2),),
        table={"t": Inner(number=3)}, more={"x": [1, {"y": "z"}]},
    )  # fmt: skip
    assert type(found.pair[0]) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nmae": "x"}, "f: the top level has no key `nmae`; did you mean `name`?"),
        ({"zzz": 1}, "f: the top level has no key `zzz`; allowed are name, on,"),
        ({"inner": {}}, "f: [inner] lacks `number`; add it (int)"),
        ({"inner": {"number": 1, "share": 2}}, "f: share is 2.0, allowed is 0 to 1: a share"),
        ({"inner": 3}, "f: `inner` is 3, expected a table [inner]"),
        ({"items": {}}, "f: `items` is {}, expected a list"),
        ({"items": [{"number": 1}, {"number": "x"}]}, "f: `items.1.number` is 'x', expected int"),
        ({"table": {"t": {"number": 1.0}}}, "f: `table.t.number` is 1.0, expected int"),
        ({"table": []}, "f: `table` is [], expected a table"),
        ({"on": 1}, "f: `on` is 1, expected bool"),
        ({"inner": {"number": True}}, "f: `inner.number` is True, expected int"),
        ({"pair": [1.0]}, "f: `pair` is [1.0], expected a list of 2"),
        ({"choice": []}, "f: `choice` is [], allowed are 'a', 'b'"),
        ({"inner": {"number": 1 << 63}}, "expected a number of 64 bits"),
        ({"more": {"x": [{"y": 1 << 80}]}}, "f: `more.x.y` is 1208925819614629174706176, expected a number of 64 bits"),
        ({"name": ["long"] * 1000}, "…, expected str"),
    ],
)
def test_a_mistake_names_its_key_and_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_table(Outer, values, file="f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("data", "message"), [(b"a = [", "is no TOML file"), (b"\xff", "is no TOML file"), (b"a = " + b"[" * 5000, "nested too deeply")]
)
def test_a_file_that_is_no_toml_is_one_line(tmp_path, data, message) -> None:
    (tmp_path / "c.toml").write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        read_toml(tmp_path / "c.toml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_a_folder_is_one_line(tmp_path) -> None:
    for path, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=rf"cannot read .*: {why}.*; name an existing TOML file"):
            read_toml(path)


def test_a_value_that_is_none_is_a_text() -> None:
    found = [read_value(text) for text in ("3", "0.5", "true", "[1]", "a/b", "", "[", "1\nother = 2", "[" * 5000)]
    assert found == [3, 0.5, True, [1], "a/b", "", "[", "1\nother = 2", "[" * 5000]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SIMPLE = st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)


@settings(deadline=None, max_examples=60)
@given(values=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory, values) -> None:
    file = tmp_path_factory.getbasetemp() / "written.toml"
    file.write_text(write_toml(values), encoding="utf-8", newline="")
    assert read_toml(file) == values


def test_what_no_comparison_holds_for_is_written_too(tmp_path) -> None:
    (tmp_path / "c.toml").write_text(write_toml({"x": math.nan}))
    assert math.isnan(read_toml(tmp_path / "c.toml")["x"])
