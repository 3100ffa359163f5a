"""Documents from disk: the text files of a folder, JSON lines or parquet.

In: a `Source`. Out: an iterator of `Document`, always in the same order, and a count of what was refused and why:

    large      above max_bytes           binary    has NUL bytes
    encoding   not UTF-8                 empty     nothing but white space, or null

A broken line of JSON is no refusal but an error that names it. Hidden folders, links, __pycache__ and node_modules are not entered; pipes
and devices are not read. All that the system refuses (a file that has gone, permissions) is a UserError with the file's name.

Not here: tokens (tokens.py), chat templates.
"""

import contextlib
import hashlib
import importlib
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude.errors import UserError

Kind = Literal["auto", "folder", "jsonl", "parquet"]
Refused = Counter[str]
KINDS: tuple[Kind, ...] = ("auto", "folder", "jsonl", "parquet")
SKIPPED_FOLDERS = ("__pycache__", "node_modules")
CODE = (
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".kt", ".scala", ".js", ".jsx", ".ts", ".tsx", ".rb",
    ".php", ".swift", ".sh", ".sql", ".lua", ".jl", ".hs", ".ml", ".ex", ".zig", ".md", ".rst", ".toml", ".yaml", ".yml",
)  # fmt: skip
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    path: str
    """a folder of text files, a .jsonl or .parquet file, or a folder with `kind` jsonl or parquet"""
    kind: Kind = "auto"
    """auto: by the path's suffix; a folder is a folder of text files"""
    weight: float = 1.0
    """share of the rows, against the other sources of the phase"""
    suffixes: tuple[str, ...] = CODE
    """files of a folder that are read, by the end of their name"""
    field: str = "text"
    """key of a JSON line (or column of a parquet file) that holds the text"""
    messages_field: str = "messages"
    """the same for a conversation: a list of {"role": ..., "content": ...}; used in phases with `supervised`"""
    max_bytes: int = 1_000_000
    """a longer document is left out: generated files, data"""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"source {self.path}: kind {self.kind!r}; allowed are {', '.join(KINDS)}")
        if not 0 < self.weight < math.inf:
            raise UserError(f"source {self.path}: weight {self.weight}; it must be a number above 0 (leave the source out instead)")
        if self.max_bytes < 1:
            raise UserError(f"source {self.path}: max_bytes {self.max_bytes}; it must be 1 or more")
        if any(not suffix.startswith(".") for suffix in self.suffixes):
            raise UserError(f'source {self.path}: suffixes {list(self.suffixes)}; each begins with a dot, as in ".py"')

    def resolved_kind(self) -> Kind:
        """UserError where the path is missing or its kind cannot be told."""
        path = Path(self.path)
        with _telling(path):
            kind = path.stat().st_mode if os.path.lexists(path) else None
        if kind is None or not self.path:
            raise UserError(f"source {self.path or repr('')} does not exist; name a folder, a .jsonl file or a .parquet file")
        if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
            raise UserError(f"source {self.path} is neither a file nor a folder; pipes and devices cannot be read twice")
        if self.kind != "auto":
            return self.kind
        if path.is_dir():
            return "folder"
        if path.suffix in (".jsonl", ".parquet"):
            return "jsonl" if path.suffix == ".jsonl" else "parquet"
        raise UserError(f'source {self.path} ends neither in .jsonl nor in .parquet; set kind = "jsonl" or "parquet", or name a folder')


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    name: str
    """file within the source, and the line of it"""
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, content) in order; a conversation has no text"""


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """What the system refuses is the user's to mend, wherever it shows."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror or error}; mend it, or name another source") from None


def _refused_folder(error: OSError) -> None:
    raise error  # os.walk would leave it out in silence


def files(source: Source) -> list[Path]:
    """The files of a source, in the order in which they are read. UserError where there is none."""
    kind, path = source.resolved_kind(), Path(source.path)
    if path.is_file():
        return [path]
    suffixes = source.suffixes if kind == "folder" else (f".{kind}",)
    found = []
    links = 0
    with _telling(path):
        for folder, names, leaves in os.walk(path, onerror=_refused_folder):
            names[:] = [name for name in names if not name.startswith(".") and name not in SKIPPED_FOLDERS]
            for file in (Path(folder) / leaf for leaf in leaves if leaf.endswith(suffixes) and not leaf.startswith(".")):
                links += file.is_symlink()
                if stat.S_ISREG(file.lstat().st_mode):
                    found.append(file)
    if not found:
        aside = f" ({links} links are not followed)" if links else ""
        ends = ", ".join(suffixes)
        raise UserError(f"source {source.path} has no file that ends in {ends}{aside}; set suffixes, or name another folder")
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def fingerprint(source: Source) -> str:
    """Of all that the documents depend on: the files' names and bytes, and how they are read."""
    digest = hashlib.sha256()
    how = [source.resolved_kind(), source.field, source.messages_field, source.max_bytes]
    digest.update(json.dumps(how).encode())
    for file in files(source):
        with _telling(file), file.open("rb") as data:
            size = os.fstat(data.fileno()).st_size
            digest.update(f"\n{file.relative_to(source.path).as_posix()} {size}\n".encode("utf-8", "surrogateescape"))
            while chunk := data.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def documents(source: Source, *, chat: bool = False, refused: Refused | None = None) -> Iterator[Document]:
    """All documents of a source; with `chat`, its conversations. UserError for a line without the field."""
    refused = Counter() if refused is None else refused
    kind = source.resolved_kind()
    if chat and kind == "folder":
        raise UserError(f"source {source.path} is a folder of text files; supervised phases need conversations in .jsonl or .parquet")
    for file in files(source):
        name = file.relative_to(source.path).as_posix() if file != Path(source.path) else file.name
        if kind == "folder":
            found = _file(file, name, source, refused)
            if found is not None:
                yield found
            continue
        rows = _json_lines(file) if kind == "jsonl" else _parquet_rows(file, source.messages_field if chat else source.field)
        for number, row in rows:
            found = _conversation(row, f"{name}:{number}", source) if chat else _text(row, f"{name}:{number}", source, refused)
            if found is not None:
                yield found


def _file(file: Path, name: str, source: Source, refused: Refused) -> Document | None:
    with _telling(file):
        if file.stat().st_size > source.max_bytes:
            return _refuse(refused, "large")
        data = file.read_bytes()
    if b"\0" in data:
        return _refuse(refused, "binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _refuse(refused, "encoding")
    return _checked(text, name, source, refused)


def _checked(text: str, name: str, source: Source, refused: Refused) -> Document | None:
    if not text.strip():
        return _refuse(refused, "empty")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:  # a lone surrogate
        return _refuse(refused, "encoding")
    if "\0" in text:
        return _refuse(refused, "binary")
    return Document(name=name, text=text) if size <= source.max_bytes else _refuse(refused, "large")


def _refuse(refused: Refused, why: str) -> Document | None:
    refused[why] += 1
    return None


def _json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    with _telling(file), file.open("rb") as data:
        for number, line in enumerate(data, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
                raise UserError(f"{file}:{number}: not JSON ({error}); mend or remove the line") from None
            yield number, row


def _parquet_rows(file: Path, column: str) -> Iterator[tuple[int, Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"{file}: parquet needs pyarrow; run `pip install pyarrow`, or convert the file to .jsonl") from None
    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            if column not in names:
                raise UserError(f"{file} has no column {column!r}, but {', '.join(names)}; set the source's field")
            for batch in opened.iter_batches(columns=[column], batch_size=256):
                rows = batch.to_pylist()
                for row in rows:
                    number += 1
                    yield number, row
    except (OSError, ValueError, LookupError, NotImplementedError) as error:  # Arrow's own errors are of these kinds
        line = " ".join(str(error).split())[:200]
        raise UserError(f"{file} is not a whole parquet file (after row {number}: {line}); make or fetch it again") from None


def _text(row: Any, name: str, source: Source, refused: Refused) -> Document | None:
    if not isinstance(row, dict) or source.field not in row:
        keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise UserError(f"{source.path} {name}: no text under {source.field!r} (there is: {keys}); set the source's field")
    text = row[source.field]
    if text is None:
        return _refuse(refused, "empty")
    if not isinstance(text, str):
        raise UserError(f"{source.path} {name}: {source.field!r} is of type {type(text).__name__}, not text; set the source's field")
    return _checked(text, name, source, refused)


def _conversation(row: Any, name: str, source: Source) -> Document:
    found = row.get(source.messages_field) if isinstance(row, dict) else None
    if not isinstance(found, list) or not found:
        raise UserError(f"{source.path} {name}: no list of messages under {source.messages_field!r}; set the source's messages_field")
    messages = []
    for message in found:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError(f'{source.path} {name}: a message is {{"role": text, "content": text}}; this one is {str(message)[:80]}')
        messages.append((role, content))
    return Document(name=name, messages=tuple(messages))
