"""Files of rows: any text survives, lists in either form, and ids that no test can have are named."""

import json

import pytest

from etude.errors import UserError
from etude.formats.rows import bad_ids, ids_of, read_rows, refuse_bad_ids, text, write_rows

ODD = (
    "tests/test_a.py::test_x[a b]",
    "tests/test_a.py::test_x[a::b]",
    "tests/test_a.py::test_x[line\nend]",
    "tests/test_a.py::test_x[grün \U0001f40d]",
    "tests/test_a.py::test_x[[x] [y]]",
    "tests/test_a.py::TestC::test_y['\"$(id)`;]",
    f"tests/test_a.py::test_x[{'long' * 100}]",
    "docs/guide.rst::guide.rst",
)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_ids_and_texts_survive_every_kind_of_file(tmp_path, name):
    rows = [
        {"instance_id": "a", "FAIL_TO_PASS": json.dumps(ODD), "patch": "diff\r\n\t\x0c"},
        {"instance_id": "b", "FAIL_TO_PASS": "[]", "patch": ""},
    ]
    write_rows(rows, tmp_path / "deep" / name)
    found = list(read_rows(tmp_path / "deep" / name))
    assert found == rows
    assert ids_of(found[0], "FAIL_TO_PASS") == tuple(sorted(ODD))


def test_lists_of_ids_survive_parquet(tmp_path):
    write_rows([{"FAIL_TO_PASS": list(ODD)}], tmp_path / "rows.parquet")
    assert ids_of(next(iter(read_rows(tmp_path / "rows.parquet"))), "FAIL_TO_PASS") == tuple(sorted(ODD))


def test_a_lone_surrogate_survives_json_lines_and_is_refused_for_parquet(tmp_path):
    rows = [{"patch": "\udce4"}]
    write_rows(rows, tmp_path / "rows.jsonl")
    assert list(read_rows(tmp_path / "rows.jsonl")) == rows
    with pytest.raises(UserError, match=r"choose a \.jsonl file"):
        write_rows(rows, tmp_path / "rows.parquet")


def test_odd_ids_are_no_broken_ones():
    assert bad_ids(ODD, ["tests/test_a.py", "docs/guide.rst"]) == {}


@pytest.mark.parametrize(
    ("id", "why"),
    [
        ("tests/test_a.py::test_x[(AttributeError,", "its parameters are cut off"),
        ("[100%]", "it names no file; a pytest id is file::test"),
        ("[", "it names no file; a pytest id is file::test"),
        ("", "it is empty"),
        ("tests/test_a.py::test_x [ 42%]", "it ends with a progress mark of pytest's output"),
        ("tests/test_a.py::test_x\x1b[0m", "it holds a terminal's colour code"),
        ("test_x (tests.test_a.Case)", "it names no file; a pytest id is file::test"),
        ("Case::test_x", "what stands before '::' is no Python file"),
        ("tests/gone.py::test_x", "the repository has no file tests/gone.py"),
    ],
)
def test_an_id_that_no_test_can_have_is_told_why(id, why):
    assert bad_ids([id], ["tests/test_a.py"]) == {id: why}


def test_broken_ids_refuse_a_row_and_are_quoted():
    with pytest.raises(ValueError, match=r"2 of 3 ids in PASS_TO_PASS are broken.*'\[': it names no file"):
        refuse_bad_ids({"FAIL_TO_PASS": ODD, "PASS_TO_PASS": ["[", "a.py::t[x", "a.py::t"]})


@pytest.mark.parametrize("value", [None, 3, "no JSON", "{}", ["a", 1]])
def test_a_column_that_is_no_list_of_ids_is_one_line(value):
    with pytest.raises(ValueError, match=r"^FAIL_TO_PASS is no (JSON )?list[^\n]*$"):
        ids_of({"FAIL_TO_PASS": value}, "FAIL_TO_PASS")


def test_a_missing_column_names_those_that_are_there():
    with pytest.raises(ValueError, match="no patch; columns: repo"):
        text({"repo": "a/b"}, "patch")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "rows are read from"),
        ("a.jsonl", b'{"a": 1}\n{', "line 2: no JSON"),
        ("a.jsonl", b"3\n", "line 1: a row is a JSON object, not int"),
        ("a.parquet", b"PAR?", "no parquet file"),
        ("gone.jsonl", None, "no file"),
    ],
)
def test_a_file_that_holds_no_rows_is_one_line(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        list(read_rows(tmp_path / name))
    assert "\n" not in str(caught.value)
