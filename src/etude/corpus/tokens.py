"""Token ids of a source, once: in a cache folder, read as memory maps.

    CACHE/<key>/tokens.bin    uint32, all documents one after another
                offsets.bin   uint64 [documents + 1], where each begins
                trained.bin   uint8 per token, 1 where the loss counts it; only for conversations
                about.json    counts, what was refused; written last

The key is a hash of the source's bytes and the tokenizer, so a changed file or another tokenizer makes another folder. A folder is made
aside and renamed: it is whole or absent, also where two processes make it at once.

Not here: which documents come when (order.py).
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from etude.corpus.sources import Document, Refused, Source, documents, fingerprint
from etude.errors import UserError

FORMAT = 1
_BATCH = 256  # documents encoded at a time


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
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"no tokenizer.json in {folder}; name a Hugging Face model folder with a fast tokenizer")
        return cls(file.read_text(encoding="utf-8"), end_token(folder))

    def encode(self, batch: Sequence[Document]) -> list[Encoded]:
        found = self._tokenizer.encode_batch([document.text for document in batch], add_special_tokens=False)
        return [Encoded([*encoding.ids, self.end]) for encoding in found]


def end_token(folder: Path) -> int:
    """Id of the token that ends a document: <|endoftext|> where the tokenizer has one, else its eos_token. UserError without either."""
    tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    names = ["<|endoftext|>", "<|end_of_text|>", "[EOS]"]
    config = folder / "tokenizer_config.json"
    if config.is_file():
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        names.append(named.get("content", "") if isinstance(named, dict) else str(named or ""))
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise UserError(f"the tokenizer in {folder} has no end token; set eos_token in tokenizer_config.json")


class TokenSet:
    """The tokens of one source. Opened by path, so that it can be told to other ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
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


def tokenize(source: Source, encoder: Encoder, cache: Path) -> TokenSet:
    """The cached tokens of a source, made if they are not there. UserError where the source is unusable or holds no text."""
    key = hashlib.sha256(f"{FORMAT} {encoder.fingerprint} {fingerprint(source)}".encode()).hexdigest()[:32]
    target = cache / key
    if not (target / "about.json").is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=cache))
        except OSError as error:
            raise UserError(f"cannot write the token cache {cache}: {error.strerror}; set data.cache to a writable folder") from error
        try:
            _write(aside, source, encoder)
            with contextlib.suppress(OSError):  # another process was quicker
                os.rename(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return TokenSet(target)


def _write(folder: Path, source: Source, encoder: Encoder) -> None:
    refused: Refused = Counter()
    offsets = [0]
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "trained.bin").open("wb") as trained:
        for batch in _batches(documents(source, chat=encoder.chat, refused=refused)):
            for encoded in encoder.encode(batch):
                ids = np.asarray(encoded.ids, dtype=np.uint32)
                ids.tofile(tokens)
                offsets.append(offsets[-1] + len(ids))
                if encoded.trained is not None:
                    np.asarray(encoded.trained, dtype=np.uint8).tofile(trained)
    if offsets[-1] == 0:
        why = ", ".join(f"{count} {name}" for name, count in sorted(refused.items())) or "no documents"
        raise UserError(f"source {source.path} holds no usable text ({why}); raise max_bytes, set suffixes, or name another source")
    if not encoder.chat:
        (folder / "trained.bin").unlink()
    np.asarray(offsets, dtype=np.uint64).tofile(folder / "offsets.bin")
    about = {"source": source.path, "documents": len(offsets) - 1, "tokens": offsets[-1], "refused": dict(sorted(refused.items()))}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _batches(found: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(islice(found, _BATCH)):
        yield batch
