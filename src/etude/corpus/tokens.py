"""Token ids of a source, once: in a cache folder, read as memory maps.

    CACHE/<key>/tokens.bin    uint32, all documents one after another
                offsets.bin   uint64 [documents + 1], where each begins
                trained.bin   uint8 per token, 1 where the loss counts it; only for conversations
                about.json    counts, what was refused; written last

The key is a hash of the source's bytes and the tokenizer, so a changed file or another tokenizer makes another folder. A folder is made
aside and renamed: it is whole or absent, also where two processes make it at once. One that was damaged since is made again.

Not here: which documents come when (order.py).
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from etude.corpus.sources import Document, Refused, Source, documents, fingerprint
from etude.errors import UserError

FORMAT = 1
_BATCH, _BATCH_CHARS = 256, 4_000_000  # documents encoded at a time, and their text: an encoding takes a hundred times its bytes
_ABANDONED_S = 3600.0  # without a write


@dataclass(frozen=True, slots=True)
class Encoded:
    ids: Sequence[int]
    trained: Sequence[bool] | None = None
    """per token, whether the loss counts it as a target; None: all"""


class Encoder(Protocol):
    chat: bool
    """whether it takes conversations"""
    fingerprint: str
    """of all that the ids depend on besides the documents"""

    def encode(self, batch: Sequence[Document]) -> list[Encoded]: ...


class TextEncoder:
    """Plain text, and the end token after each document. Names of special tokens in a text are text."""

    chat = False

    def __init__(self, tokenizer_json: str, end: int) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.end = end
        self.fingerprint = hashlib.sha256(f"text {end} {tokenizer_json}".encode()).hexdigest()

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """With the tokenizer of a Hugging Face folder. UserError where it has none, or no end token."""
        end = end_token(folder)
        return cls((folder / "tokenizer.json").read_text(encoding="utf-8"), end)

    def encode(self, batch: Sequence[Document]) -> list[Encoded]:
        found = self._tokenizer.encode_batch([document.text for document in batch], add_special_tokens=False)
        return [Encoded([*encoding.ids, self.end]) for encoding in found]


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder. UserError where it has none, or a damaged one."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"no tokenizer.json in {folder}; name a Hugging Face model folder with a fast tokenizer")
    try:
        return Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises no other kind
        raise UserError(f"{file} is damaged: {' '.join(str(error).split())[:200]}; fetch it again") from None


def end_token(folder: Path) -> int:
    """Id of the token that ends a document: <|endoftext|> where the tokenizer has one, else its eos_token. UserError without either."""
    tokenizer = read_tokenizer(folder)
    names = ["<|endoftext|>", "<|end_of_text|>", "[EOS]"]
    config = folder / "tokenizer_config.json"
    if config.is_file():
        try:
            about = json.loads(config.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{config} is no JSON: {error}; fetch it again") from None
        named = about.get("eos_token") if isinstance(about, dict) else None
        names.append(str(named.get("content", "")) if isinstance(named, dict) else str(named or ""))
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise UserError(f"the tokenizer in {folder} has no end token; set eos_token in tokenizer_config.json")


class TokenSet:
    """The tokens of one source. Opened by path, so that it can be told to other ranks. ValueError where files are missing or cut short."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = _about(folder)
        self.tokens: NDArray[np.uint32] = np.memmap(folder / "tokens.bin", dtype=np.uint32, mode="r")
        self.offsets: NDArray[np.uint64] = np.fromfile(folder / "offsets.bin", dtype=np.uint64)
        self.trained: NDArray[np.uint8] | None = None
        if (folder / "trained.bin").is_file():
            self.trained = np.memmap(folder / "trained.bin", dtype=np.uint8, mode="r")
        ends = self.offsets.astype(np.int64)
        self.lengths: NDArray[np.int64] = ends[1:] - ends[:-1]

    @property
    def name(self) -> str:
        """The key in the cache: equal for equal content."""
        return self.folder.name

    @property
    def num_tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def num_documents(self) -> int:
        return len(self.lengths)


def _about(folder: Path) -> dict[str, Any]:
    """about.json of a whole folder; ValueError where it is none."""
    try:
        about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        sizes = {"tokens.bin": 4 * about["tokens"], "offsets.bin": 8 * (about["documents"] + 1)}
        if (folder / "trained.bin").exists():
            sizes["trained.bin"] = about["tokens"]
        for name, size in sizes.items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} has not {size} bytes")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} has no whole token files: {error}") from None
    return about


def cached(cache: Path, key: str) -> TokenSet | None:
    """The whole tokens of that name, or None."""
    try:
        return TokenSet(cache / key)
    except ValueError:
        return None


def tokenize(source: Source, encoder: Encoder, cache: Path) -> TokenSet:
    """The cached tokens of a source, made if they are not there. UserError where the source is unusable or holds no text."""
    content = fingerprint(source)
    key = hashlib.sha256(f"{FORMAT} {encoder.fingerprint} {content}".encode()).hexdigest()[:32]
    found = cached(cache, key)
    if found is not None:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        aside = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=cache))
        try:
            made = aside / key
            made.mkdir()
            _write(made, source, encoder)
            if fingerprint(source) != content:
                raise UserError(f"source {source.path} changed while it was read; start again when nothing writes to it")
            if cached(cache, key) is None:  # else another process was quicker
                with contextlib.suppress(OSError):  # nothing there
                    os.rename(cache / key, aside / "damaged")
                os.rename(made, cache / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return TokenSet(cache / key)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"cannot write the token cache {cache}: {why}; make room, or set data.cache to another folder") from None


def _sweep(cache: Path) -> None:
    """Remove what killed processes left."""
    for left in cache.glob(".*-*"):
        with contextlib.suppress(OSError):
            last = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if time.time() - last > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def _write(folder: Path, source: Source, encoder: Encoder) -> None:
    refused: Refused = Counter()
    offsets = [0]
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "trained.bin").open("wb") as trained:
        for batch in _batches(documents(source, chat=encoder.chat, refused=refused)):
            for encoded in encoder.encode(batch):
                ids = np.asarray(encoded.ids, dtype=np.uint32)
                tokens.write(ids.data)  # tofile would not say why it failed
                offsets.append(offsets[-1] + len(ids))
                if encoded.trained is not None:
                    trained.write(np.asarray(encoded.trained, dtype=np.uint8).data)
    if offsets[-1] == 0:
        why = ", ".join(f"{count} {name}" for name, count in sorted(refused.items())) or "no documents"
        raise UserError(f"source {source.path} holds no usable text ({why}); raise max_bytes, set suffixes, or name another source")
    if not encoder.chat:
        (folder / "trained.bin").unlink()
    (folder / "offsets.bin").write_bytes(np.asarray(offsets, dtype=np.uint64).data)
    about = {"source": source.path, "documents": len(offsets) - 1, "tokens": offsets[-1], "refused": dict(sorted(refused.items()))}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _batches(found: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    chars = 0
    for document in found:
        batch.append(document)
        chars += len(document.text)
        if len(batch) == _BATCH or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
