"""Rows of tokens in an order that depends on the seed alone: not on the number of ranks, and resumable from a few integers.

An epoch of a source is a permutation of its documents, drawn from (seed, source, epoch), cut into rows of T tokens:

    split     documents one after another, a row every T tokens; a document that crosses a row's end goes on in the next row, as a document
              of its own that starts at position 0. Every token of an epoch is in exactly one row.
    whole     (conversations) the next document goes into the row if it fits, else into a new one; one longer than T is cut to T, and left
              out where that cuts off all that it trains on.

The rows of an epoch come in an order that is drawn too, else a long document would fill whole batches. The rest of a row is padding: a
document of its own, trained on nowhere. Row g of a mixture comes from the source that is furthest behind
its share, so a cursor is, per source, how many rows it gave, its epoch, and the row within that.

    B rows of a rank, T tokens of a row

Labels are aligned with their inputs' successor: labels[t] is the token after ids[t] in its document, also where that is in the next row;
-100 where there is none or it is not trained on. Not here: tokens on disk (tokens.py).
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.corpus.tokens import TokenSet
from etude.errors import UserError

IGNORED = -100
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    ids: Ints
    """[B, T]"""
    positions: Ints
    """[B, T], from 0 in each document"""
    labels: Ints
    """[B, T], the next token of the document, or -100"""
    num_tokens: int
    """of documents, without padding"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a stream stands: per source rows given so far, epoch, next row of the epoch."""

    places: tuple[tuple[int, int, int], ...]

    @classmethod
    def start(cls, num_sources: int) -> "Cursor":
        return cls(((0, 0, 0),) * num_sources)

    @classmethod
    def from_json(cls, value: Sequence[Sequence[int]]) -> "Cursor":
        return cls(tuple((int(given), int(epoch), int(row)) for given, epoch, row in value))

    def to_json(self) -> list[list[int]]:
        return [list(place) for place in self.places]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, start + length) of a document."""

    document: int
    start: int
    length: int


class Stream:
    """Rows from one or more token sets. UserError where there is nothing to train on."""

    def __init__(
        self, sets: Sequence[TokenSet], weights: Sequence[float], *, seq_len: int, seed: int, whole: bool = False, pad: int = 0
    ) -> None:
        if not sets:
            raise UserError("a phase needs at least one source")
        total = sum(weights)
        self.sets, self.shares = list(sets), [weight / total for weight in weights]
        self.seq_len, self.seed, self.whole, self.pad = seq_len, seed, whole, pad
        self._epochs: dict[int, tuple[int, _Epoch]] = {}
        self.kept: list[Ints | None] = [_with_targets(tokens, seq_len) if whole else None for tokens in self.sets]
        """per source the documents that are used; None: all"""
        for tokens, kept in zip(self.sets, self.kept, strict=True):
            if kept is not None and not len(kept):
                raise UserError(
                    f"source {tokens.about['source']}: no conversation has a token to train on within {seq_len} tokens; raise seq_len"
                )

    def epoch(self, source: int, epoch: int) -> "_Epoch":
        """The rows of one epoch; the last one asked for is kept."""
        kept = self._epochs.get(source)
        if kept is None or kept[0] != epoch:
            tokens = self.sets[source]
            key = f"{self.seed} {tokens.name} {epoch}"
            documents = self.kept[source]
            order = permutation(tokens.num_documents if documents is None else len(documents), key)
            order = order if documents is None else documents[order]
            kept = (epoch, _Epoch(tokens.lengths[order], order, self.seq_len, self.whole, key))
            self._epochs[source] = kept
        return kept[1]

    def take(self, cursor: Cursor, num_rows: int) -> tuple[list[tuple[int, list[Segment]]], Cursor]:
        """The next rows, each a source and its segments, and the cursor after them."""
        places = [list(place) for place in cursor.places]
        rows = []
        for _ in range(num_rows):
            given = sum(place[0] for place in places)
            source = max(range(len(places)), key=lambda i: (self.shares[i] * (given + 1) - places[i][0], -i))
            place = places[source]
            rows.append((source, self.epoch(source, place[1]).row(place[2])))
            place[0], place[2] = place[0] + 1, place[2] + 1
            if place[2] == self.epoch(source, place[1]).num_rows:
                place[1], place[2] = place[1] + 1, 0
        return rows, Cursor.from_json(places)

    def batch(self, cursor: Cursor, *, size: int, rank: int = 0, ranks: int = 1) -> tuple[Batch, Cursor]:
        """Rows [rank size / ranks, (rank + 1) size / ranks) of the next `size`, and the cursor after all of them."""
        if size % ranks:
            raise UserError(f"a batch of {size} rows does not divide over {ranks} ranks; choose a multiple of {ranks}")
        rows, after = self.take(cursor, size)
        mine = rows[rank * size // ranks : (rank + 1) * size // ranks]
        shape = (len(mine), self.seq_len)
        ids, positions, labels = np.full(shape, self.pad, np.int64), np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        num_tokens = 0
        for i, (source, segments) in enumerate(mine):
            at = 0
            for segment in segments:
                span = slice(at, at + segment.length)
                ids[i, span], labels[i, span] = self._tokens(source, segment)
                positions[i, span] = np.arange(segment.length)
                at += segment.length
            positions[i, at:] = np.arange(self.seq_len - at)
            num_tokens += at
        return Batch(ids, positions, labels, num_tokens), after

    def _tokens(self, source: int, segment: Segment) -> tuple[Ints, Ints]:
        tokens = self.sets[source]
        first = int(tokens.offsets[segment.document])
        begin, end = first + segment.start, first + segment.start + segment.length
        last = min(end + 1, int(tokens.offsets[segment.document + 1]))  # with the token after the segment, if the document goes on
        found = tokens.tokens[begin:last].astype(np.int64)
        following = np.full(segment.length, IGNORED, np.int64)
        following[: len(found) - 1] = found[1:]
        if tokens.trained is not None:
            counted = tokens.trained[begin + 1 : last].astype(bool)
            following[: len(counted)][~counted] = IGNORED
        return found[: segment.length], following


def _with_targets(tokens: TokenSet, seq_len: int) -> Ints:
    """The documents of which some token is trained on when they are cut to a row."""
    if tokens.trained is None:
        return np.flatnonzero(tokens.lengths > 1).astype(np.int64)
    ends = tokens.offsets.astype(np.int64)
    found = [
        i for i, (first, last) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
        if tokens.trained[first + 1 : min(last, first + seq_len + 1)].any()
    ]  # fmt: skip
    return np.asarray(found, dtype=np.int64)


class _Epoch:
    """Rows over documents in their order of this epoch; `lengths` are in that order."""

    def __init__(self, lengths: Ints, order: Ints, seq_len: int, whole: bool, key: str) -> None:
        self._order, self._size, self._whole = order, seq_len, whole
        self._lengths = np.minimum(lengths, seq_len) if whole else lengths
        self._ends = np.cumsum(self._lengths)
        if whole:
            self._firsts = _next_fit(self._lengths, seq_len)
            self.num_rows = len(self._firsts)
        else:
            self.num_rows = -(-int(self._ends[-1]) // seq_len)
        self._shuffled = permutation(self.num_rows, f"{key} rows")

    def row(self, index: int) -> list[Segment]:
        index = int(self._shuffled[index])
        if self._whole:
            last = self._firsts[index + 1] if index + 1 < self.num_rows else len(self._order)
            return [Segment(int(self._order[i]), 0, int(self._lengths[i])) for i in range(self._firsts[index], last) if self._lengths[i]]
        begin = index * self._size
        end = min(begin + self._size, int(self._ends[-1]))
        segments, i = [], bisect_right(self._ends, begin)
        while begin < end:
            stop = min(end, int(self._ends[i]))
            if stop > begin:
                start = begin - int(self._ends[i] - self._lengths[i])
                segments.append(Segment(int(self._order[i]), start, stop - begin))
            begin, i = stop, i + 1
        return segments


def _next_fit(lengths: Ints, size: int) -> list[int]:
    """Index of the first document of every row."""
    firsts: list[int] = []
    room = 0
    for i, length in enumerate(lengths.tolist()):
        if not firsts or length > room:
            firsts.append(i)
            room = size
        room -= length
    return firsts


def permutation(size: int, key: str) -> Ints:
    """Of range(size), from a text; the same with any version of numpy (whose raw generators, not its shuffles, are fixed)."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "little")
    return np.argsort(np.random.Philox(key=seed).random_raw(size), kind="stable").astype(np.int64)


def cu_seqlens(positions: Ints) -> Ints:
    """Where documents begin in rows laid end to end, and the end: [documents + 1]. `positions` is [B, T] or [T]."""
    flat = positions.reshape(-1)
    return np.append(np.flatnonzero(flat == 0), flat.size).astype(np.int64)
