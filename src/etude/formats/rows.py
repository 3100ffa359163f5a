"""Rows of tasks as files: JSON Lines, JSON or parquet; and which ids of tests can be believed.

In: dicts with the columns of SWE-bench or SWE-smith; out: a file, and back. Lists of ids are a JSON string in SWE-bench and a list in
SWE-smith: both are read. An id is never split at blanks or `::` and never passes through a shell, so any text that pytest makes survives.

What published rows are known to hold instead of ids: parameters cut off at a blank (`test_x[(AttributeError,`), progress marks (`[100%]`),
names without a file. No solution can pass those, so a row with one is refused and the ids are named.

Not here: what a row means (swebench.py, swesmith.py).
"""

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.errors import UserError

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet")
PROGRESS = re.compile(r"\[ *\d{1,3}%\]$")
COLOUR = re.compile(r"\x1b\[")
DOCTEST_SUFFIXES = (".txt", ".rst", ".md")
NO_PARQUET = "parquet files need pyarrow; install it: pip install 'etude[parquet]'"


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write them in order; the suffix tells the format."""
    _check_suffix(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        try:
            table = arrow.Table.from_pylist([dict(row) for row in rows])
        except UnicodeEncodeError:
            raise UserError(f"{file}: a row holds a lone surrogate, which parquet cannot; choose a .jsonl file") from None
        parquet.write_table(table, file, compression="zstd")
    elif file.suffix == ".json":
        file.write_text(json.dumps(list(rows), indent=1) + "\n", "ascii")
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "ascii")


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a file. UserError, with the line, where one is no JSON object."""
    _check_suffix(file)
    if not file.is_file():
        raise UserError(f"no file {file}; give a {', '.join(SUFFIXES)} file with rows of SWE-bench or SWE-smith")
    if file.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        try:
            batches = parquet.ParquetFile(file).iter_batches(batch_size=64)
            for batch in batches:
                yield from batch.to_pylist()
        except (arrow.ArrowInvalid, OSError) as error:
            raise UserError(f"{file} is no parquet file: {str(error).splitlines()[0]}") from None
        return
    if file.suffix == ".json":
        yield from _objects(file, [(1, file.read_bytes())])
        return
    with file.open("rb") as lines:
        yield from _objects(file, ((number, line) for number, line in enumerate(lines, 1) if line.strip()))


def ids_of(row: Row, column: str) -> tuple[str, ...]:
    """The ids of a column, sorted, each once. ValueError where it holds something else."""
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{column} is no JSON list: {value[:60]!r}") from None
    if not isinstance(value, Sequence) or not all(isinstance(id, str) for id in value):
        raise ValueError(f"{column} is no list of test ids: {str(value)[:60]!r}")
    return tuple(sorted(set(value)))


def text(row: Row, column: str, default: str | None = None) -> str:
    """A column with text. ValueError where it is missing and there is no default."""
    value = row.get(column, default)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise ValueError(f"the row has no {column}; columns: {', '.join(sorted(map(str, row)))[:300]}")
    return value


def bad_ids(ids: Iterable[str], files: Iterable[str] | None = None) -> dict[str, str]:
    """id -> why no test can have it. `files`: the paths of the repository, where they are known."""
    known = None if files is None else set(files)
    return {id: why for id in ids if (why := _why_bad(id, known))}


def refuse_bad_ids(columns: Mapping[str, Sequence[str]], files: Iterable[str] | None = None) -> None:
    """ValueError that counts and quotes the ids that no test can have."""
    for column, ids in columns.items():
        bad = bad_ids(ids, files)
        if bad:
            quoted = "; ".join(f"{id!r}: {why}" for id, why in list(bad.items())[:3])
            raise ValueError(f"{len(bad)} of {len(ids)} ids in {column} are broken, which no solution can pass: {quoted}")


def _why_bad(id: str, files: set[str] | None) -> str:
    if not id.strip():
        return "it is empty"
    if COLOUR.search(id):
        return "it holds a terminal's colour code"
    ends = [match.start() for match in re.finditer("::", id)]
    if not ends:
        return "it names no file; a pytest id is file::test"
    if PROGRESS.search(id):
        return "it ends with a progress mark of pytest's output"
    candidates = [id[:end] for end in ends if id[:end].endswith((".py", *DOCTEST_SUFFIXES))]
    if not candidates:
        return "what stands before '::' is no Python file"
    if files is not None and not files.intersection(candidates):
        return f"the repository has no file {candidates[0]}"
    name = id[ends[0] + 2 :]
    if "[" in name and not name.endswith("]"):
        return "its parameters are cut off"
    return ""


def _objects(file: Path, lines: Iterable[tuple[int, bytes]]) -> Iterator[Row]:
    for number, line in lines:
        try:
            found = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: no JSON: {error}") from None
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict):
                raise UserError(f"{file}, line {number}: a row is a JSON object, not {type(one).__name__}")
            yield one


def _check_suffix(file: Path) -> None:
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file}: rows are read from and written to {', '.join(SUFFIXES)} files")


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(NO_PARQUET) from None
