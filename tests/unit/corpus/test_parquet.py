"""Parquet files as sources: what is read, what is refused, and every kind of damage in one line."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etude.corpus.sources import Source, documents
from etude.errors import UserError

TEXTS = [f"text {i}" for i in range(700)]


def read(path, *, chat=False, refused=None, **more):
    return list(documents(Source(path=str(path), **more), chat=chat, refused=Counter() if refused is None else refused))


def write(path, column, name="text", **more):
    pq.write_table(pa.table({name: column}), path, **more)
    return path


@pytest.mark.parametrize(
    "column", [pa.array(TEXTS), pa.array(TEXTS).cast(pa.large_string()), pa.array(TEXTS).dictionary_encode()], ids=["text", "large", "dict"]
)
def test_rows_come_in_order_over_many_row_groups_whatever_the_text_type(tmp_path, column):
    found = read(write(tmp_path / "a.parquet", column, row_group_size=3))
    assert [document.text for document in found] == TEXTS
    assert found[-1].name == "a.parquet:700"


def test_a_folder_of_parquet_files_is_read_in_the_order_of_names_and_an_empty_one_gives_nothing(tmp_path):
    write(tmp_path / "b.parquet", pa.array(["b"]))
    write(tmp_path / "a.parquet", pa.array(["a"]))
    write(tmp_path / "0.parquet", pa.array([], pa.string()))
    assert [document.text for document in read(tmp_path, kind="parquet")] == ["a", "b"]


def test_nulls_blanks_and_nul_bytes_are_counted_and_left_out(tmp_path):
    refused = Counter()
    found = read(write(tmp_path / "a.parquet", pa.array(["a", None, " ", "x\0y", "b"])), refused=refused)
    assert [document.text for document in found] == ["a", "b"]
    assert refused == {"empty": 2, "binary": 1}


def test_conversations_are_read_from_nested_columns(tmp_path):
    messages = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]]
    (found,) = read(write(tmp_path / "a.parquet", pa.array(messages), "messages"), chat=True)
    assert found.messages == (("user", "hi"), ("assistant", "ho"))


@pytest.mark.parametrize(
    ("column", "name", "message"),
    [
        (pa.array(["a"]), "content", "has no column 'text', but content; set the source's field"),
        (pa.array([1]), "text", "'text' is of type int, not text"),
        (pa.array([b"a"]), "text", "'text' is of type bytes, not text"),
    ],
)
def test_a_column_that_is_no_text_is_named(tmp_path, column, name, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "a.parquet", column, name))


def damage(data: bytes, how: str) -> bytes:
    third = len(data) // 3
    kinds = {
        "empty": b"", "foreign": b"hello world" * 20, "cut": data[: len(data) // 2], "footer": data[:-60] + b"\xff" * 40 + data[-20:],
        "pages": data[:third] + b"\xff" * 200 + data[third + 200 :],
    }  # fmt: skip
    return kinds[how]


@pytest.mark.parametrize("how", ["empty", "foreign", "cut", "footer", "pages"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, how):
    path = write(tmp_path / "a.parquet", pa.array(TEXTS), row_group_size=300)
    path.write_bytes(damage(path.read_bytes(), how))
    with pytest.raises(UserError, match=r"a\.parquet is not a whole parquet file") as caught:
        read(path)
    assert "\n" not in str(caught.value)
