"""What must not be readable any more: the words and rows of words that a cut took away, and how telling each one is.

In: the original tree and the tree that the agent sees; out: Needles, by feature. A needle is a word, or five words in a row, of the removed
lines that is nowhere in the tree's own plain sources; what survives there tells nothing new. A source that still holds most of a removed
piece is no such witness: it is a copy, and reported as one. Whatever could be a left-over (build/, caches, archives, logs) is no witness.

Not here: where they are looked for (scan.py).
"""

import ast
import builtins
import difflib
import io
import keyword
import re
import sys
import tokenize
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Literal, Protocol

from etude.grade.residue.classfile import method_words
from etude.grade.residue.formats import code_names
from etude.grade.residue.leftovers import is_leftover, is_plain, may_witness
from etude.grade.residue.words import GRAM, hash_gram, hash_word, is_text, split

Kind = Literal["definition", "parameter", "constant", "name", "word", "lines", "bytecode", "compiled", "copy", "unreadable"]
COPY_SHARE = 0.8  # of a removed piece's rows of words in one source: a copy of it
COPY_GRAMS = 12  # a piece with fewer is too small to tell a copy from an accident
COMMON = frozenset(
    word.encode()
    for word in {
        *keyword.kwlist,
        *keyword.softkwlist,
        *dir(builtins),
        *sys.stdlib_module_names,
        "self",
        "args",
        "kwargs",
        "pytest",
        "unittest",
    }
) | frozenset(
    b"const let var function export default extends implements public private static void string number boolean async await".split()
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DEFINITION = re.compile(
    r"\b(?:def|class|interface|enum|record|function\*?|type|struct|fn|func)\s+([A-Za-z_$][\w$]*)"
    r"|\b(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*="
    r"|^\s*(?:[\w<>\[\],.?]+\s+)*([A-Za-z_$][\w$]*)\s*\([^;{}()]*\)\s*(?:throws\s+[\w.,\s]+)?\{",
    re.MULTILINE,
)
LITERAL = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`|\b(\d[\w.]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    text: str
    kind: Kind
    piece: int  # index into Needles.pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedPiece:
    """Removed lines that stood together."""

    path: str
    line: int  # the first, in the original, from 1
    name: str  # of the first definition in it, for people; "" if there is none
    grams: int  # rows of five words among its needles
    code_grams: int  # rows of five names in its bytecode among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A source of the agent's tree that still holds a removed piece."""

    path: str
    piece: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Needles:
    pieces: tuple[RemovedPiece, ...]
    by_feature: Mapping[int, Needle]
    copies: tuple[Copy, ...] = ()
    witnesses: frozenset[str] = field(default_factory=frozenset)  # paths of plain sources, which hold no needle by definition

    @classmethod
    def of(cls, original: Path, cut: Path, reader: "Reader", *, but: Container[str] = ()) -> "Needles":
        """Of two trees, which are only read. `but`: files whose removed lines do not matter."""
        return make_needles(original, cut, reader, but=but)

    @property
    def blind(self) -> tuple[RemovedPiece, ...]:
        """Removed pieces for which nothing can be looked for: all of their words and rows of words survive elsewhere."""
        seen = {needle.piece for needle in self.by_feature.values()}
        return tuple(piece for number, piece in enumerate(self.pieces) if number not in seen)


class Reader(Protocol):
    def features_of(self, file: Path) -> "tuple[bytes, set[int]]":
        """The bytes of a plain file and its features, remembered by content."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removed:
    path: str
    line: int
    text: str
    bare: str  # without comments
    lines: range


def make_needles(original: Path, cut: Path, reader: Reader, *, but: Container[str] = ()) -> Needles:
    old, new = list_files(original), list_files(cut)
    removed: list[_Removed] = []
    for path in sorted(old):
        before = old[path].read_bytes()
        after = new[path].read_bytes() if path in new else None
        if before != after and path not in but and is_text(before) and not is_leftover(path):
            removed += _removed(path, before, after or b"")
    grams = [_grams(piece) for piece in removed]
    survives, copies, witnesses = _survivors(new, [piece.path for piece in removed], grams, reader)
    kinds = _kinds(original, old, removed)
    codes = _code_grams(old, removed)
    found: dict[int, Needle] = {}
    counts, code_counts = [0] * len(removed), [0] * len(removed)
    for number, piece in enumerate(removed):
        for feature, text, kind in _words(piece, kinds):
            if feature not in survives:
                found.setdefault(feature, Needle(text=text, kind=kind, piece=number))
        for feature, words in grams[number].items():
            if feature not in survives:
                counts[number] += 1
                found.setdefault(feature, Needle(text=words, kind="lines", piece=number))
        for feature, words in codes[number].items():
            if feature not in survives:
                code_counts[number] += 1
                found.setdefault(feature, Needle(text=words, kind="bytecode", piece=number))
        for word, text in _compiled(old, piece).items():
            found.setdefault(hash_word(word), Needle(text=text, kind="compiled", piece=number))
    pieces = tuple(
        RemovedPiece(path=piece.path, line=piece.line, name=_first_name(piece.text), grams=counts[number], code_grams=code_counts[number])
        for number, piece in enumerate(removed)
    )
    return Needles(pieces=pieces, by_feature=found, copies=tuple(copies), witnesses=frozenset(witnesses))


def list_files(folder: Path) -> dict[str, Path]:
    """Regular files below a folder, links not followed, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(folder).parts
    }


def _survivors(
    files: Mapping[str, Path], places: Sequence[str], grams: Sequence[Mapping[int, str]], reader: Reader
) -> tuple[set[int], list[Copy], list[str]]:
    """(features of the plain sources, their names included, copies among them, their paths).

    `places`, `grams`: of each removed piece. What is like it in its own file is the author's repetition, no copy.
    """
    survives: set[int] = set()
    copies: list[Copy] = []
    witnesses: list[str] = []
    for path, file in files.items():
        if not may_witness(path):
            continue
        data, found = reader.features_of(file)
        if not is_plain(data):
            continue
        held = [
            Copy(path=path, piece=number, share=sum(gram in found for gram in piece) / len(piece))
            for number, piece in enumerate(grams)
            if len(piece) >= COPY_GRAMS and places[number] != path
        ]
        held = [copy for copy in held if copy.share >= COPY_SHARE]
        copies += held
        if not held:
            survives |= found | set(map(hash_word, split(path.encode("utf-8", "surrogateescape"))))
            witnesses.append(path)
    return survives, copies, witnesses


def _removed(path: str, before: bytes, after: bytes) -> Iterator[_Removed]:
    """The runs of lines that are in the one and not in the other. Line ends and indentation do not count."""
    old, new = _text(path, before), _text(path, after)
    bare = _without_comments(path, old).split("\n")
    old_lines, new_lines = old.split("\n"), [line.strip() for line in new.split("\n")]
    stripped = [line.strip() for line in old_lines]
    matcher = difflib.SequenceMatcher(None, stripped, new_lines)
    kept = set()
    for block in matcher.get_matching_blocks():
        kept |= set(range(block.a, block.a + block.size))
    gone = [number for number, line in enumerate(stripped) if number not in kept or not line]
    runs: list[list[int]] = [[]]
    for number in gone:
        if runs[-1] and number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    for run in runs:
        run = run[next((n for n, number in enumerate(run) if stripped[number]), len(run)) :]
        if run:
            yield _Removed(
                path=path,
                line=run[0] + 1,
                text="\n".join(old_lines[run[0] : run[-1] + 1]),
                bare="\n".join(bare[run[0] : run[-1] + 1]),
                lines=range(run[0] + 1, run[-1] + 2),
            )


def _text(path: str, data: bytes) -> str:
    encoding = "utf-8"
    if path.endswith((".py", ".pyi", ".pyx")):
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        except SyntaxError:
            encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "")


def _without_comments(path: str, text: str) -> str:
    """As many lines as before."""
    if not path.endswith((".py", ".pyi")):
        return COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = text.split("\n")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    except (tokenize.TokenError, SyntaxError):
        return text
    return "\n".join(lines)


def _grams(piece: _Removed) -> dict[int, str]:
    return {**_rows(piece.text.encode("utf-8", "surrogateescape")), **_rows(piece.bare.encode("utf-8", "surrogateescape"))}


def _rows(text: bytes) -> dict[int, str]:
    words = split(text)
    rows = (words[start : start + GRAM] for start in range(len(words) - GRAM + 1))
    return {hash_gram(row): b" ".join(row).decode("utf-8", "replace") for row in rows}


def _code_grams(files: Mapping[str, Path], removed: Sequence[_Removed]) -> list[dict[int, str]]:
    """For each piece the names in the bytecode of its functions, as rows of five: where every single name survives, their order tells."""
    found: list[dict[int, str]] = [{} for _ in removed]
    for path in {piece.path for piece in removed if piece.path.endswith(".py")}:
        for optimize in (0, 2):
            for lines, names in bytecode_names(files[path].read_bytes(), optimize):
                touched = [number for number, piece in enumerate(removed) if piece.path == path and not lines.isdisjoint(piece.lines)]
                for number in touched[:1]:
                    found[number] |= _rows(names)
    return found


def _compiled(files: Mapping[str, Path], piece: _Removed) -> dict[bytes, str]:
    """What a class file says of the methods whose code was removed."""
    if not piece.path.endswith(".java"):
        return {}
    return method_words(_text(piece.path, files[piece.path].read_bytes()), set(piece.lines))


def bytecode_names(source: bytes, optimize: int) -> list[tuple[set[int], bytes]]:
    """(lines, names) of every function; [] for what this Python cannot compile. The source is not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = compile(source, "", "exec", dont_inherit=True, optimize=optimize)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[tuple[set[int], bytes]] = []
    todo: list[CodeType] = [module]
    while todo:
        code = todo.pop()
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        if code is not module and code.co_name not in ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"):
            found.append(({line for _, _, line in code.co_lines() if line is not None}, code_names(code)))
    return found


def _words(piece: _Removed, kinds: Mapping[str, Kind]) -> Iterator[tuple[int, str, Kind]]:
    code = set(split(_without_strings(piece.bare).encode("utf-8", "surrogateescape")))
    for word in dict.fromkeys(split(piece.text.encode("utf-8", "surrogateescape"))):
        text = word.decode("utf-8", "replace")
        kind = kinds.get(text, "name" if word in code else "word")
        if word in COMMON or kinds.get(text, "name") == "word" or (len(word) < 4 and kind not in ("definition", "parameter", "constant")):
            continue
        if word.isdigit() and (len(word) < 4 or not word.strip(b"0")):
            continue
        if len(word) >= 3:
            yield hash_word(word), text, "constant" if word.isdigit() else kind


def _without_strings(text: str) -> str:
    text = re.sub(r'"""(?:[^"\\]|\\.|"(?!""))*"""' + r"|'''(?:[^'\\]|\\.|'(?!''))*'''", "", text, flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'", "", text)


def _kinds(original: Path, files: Mapping[str, Path], removed: Iterable[_Removed]) -> dict[str, Kind]:
    """What the words of the removed lines are. Names that come from other packages say nothing: "word"."""
    own = {
        path.name.removesuffix(".py") for root in (original, original / "src", original / "lib") if root.is_dir() for path in root.iterdir()
    }
    kinds: dict[str, Kind] = {}
    by_path: dict[str, list[_Removed]] = {}
    for piece in removed:
        by_path.setdefault(piece.path, []).append(piece)
    for path, pieces in by_path.items():
        lines = {line for piece in pieces for line in piece.lines}
        text = _text(path, files[path].read_bytes())
        try:
            module = ast.parse(text) if path.endswith((".py", ".pyi")) else None
        except (SyntaxError, ValueError, RecursionError):
            module = None
        if module is not None:
            _python_kinds(module, lines, own, kinds)
        else:
            for piece in pieces:
                _other_kinds(piece.bare, kinds)
    return kinds


def _python_kinds(module: ast.Module, lines: set[int], own: set[str], kinds: dict[str, Kind]) -> None:
    foreign: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None)
            for alias in node.names:
                first = (source or alias.name).split(".")[0]
                if not getattr(node, "level", 0) and first not in own:
                    foreign |= {*alias.name.split("."), alias.asname or "", first}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in foreign:
            kinds.setdefault(node.attr, "word")
        if getattr(node, "lineno", 0) not in lines:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kinds[node.name] = "definition"
        elif isinstance(node, ast.arg):
            kinds.setdefault(node.arg, "parameter")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes | int | float) and not isinstance(node.value, bool):
            _constant(node.value if isinstance(node.value, bytes) else str(node.value).encode("utf-8", "replace"), kinds)
    for name in foreign:
        if kinds.get(name) != "definition":
            kinds[name] = "word"


def _other_kinds(text: str, kinds: dict[str, Kind]) -> None:
    for match in DEFINITION.finditer(text):
        name = next(filter(None, match.groups()), "")
        kinds[name.strip("$")] = "definition"
    for match in LITERAL.finditer(text):
        _constant(next(filter(None, match.groups()), "").encode("utf-8", "replace"), kinds)


def _constant(value: bytes, kinds: dict[str, Kind]) -> None:
    """Only what is no plain word: one of these is telling."""
    words = split(value)
    for word in words if len(words) <= 2 else ():
        if not word.isalpha() or not (word.islower() or word.istitle()):
            kinds.setdefault(word.decode("utf-8", "replace"), "constant")


def _first_name(text: str) -> str:
    match = DEFINITION.search(text)
    return next(filter(None, match.groups()), "") if match else ""
