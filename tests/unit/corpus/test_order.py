"""Rows: every token once an epoch, the same for any number of ranks, resumable anywhere, sources in proportion."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.corpus.order import Cursor, Stream, cu_seqlens, permutation
from etude.corpus.sources import Document, Source
from etude.corpus.tokens import Encoded, tokenize
from etude.errors import UserError


class Numbers:
    """Encodes "5 6 7" as 5, 6, 7; of a conversation the odd tokens are trained."""

    def __init__(self, chat: bool = False) -> None:
        self.chat, self.fingerprint = chat, f"numbers {chat}"

    def encode(self, batch: list[Document]) -> list[Encoded]:
        if not self.chat:
            return [Encoded([int(word) for word in document.text.split()]) for document in batch]
        found = [[int(word) for _, text in document.messages for word in text.split()] for document in batch]
        return [Encoded(ids, [token % 2 == 1 for token in ids]) for ids in found]


def make(folder, lengths, first=1, chat=False):
    """Documents of those lengths, whose tokens count up through all of them."""
    path = folder / f"{first}-{len(lengths)}{'-chat' * chat}.jsonl"
    lines, token = [], first
    for length in lengths:
        text = " ".join(str(token + i) for i in range(length))
        lines.append(f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}' if chat else f'{{"text": "{text}"}}')
        token += length
    path.write_text("\n".join(lines))
    return tokenize(Source(path=str(path)), Numbers(chat), folder / "cache")


def rows(stream, num_rows):
    batch, _ = stream.batch(Cursor.start(len(stream.sets)), size=num_rows)
    return batch


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12), seq_len=st.integers(1, 16), seed=st.integers(0, 3))
def test_an_epoch_has_every_token_once_with_its_successor_as_label(tmp_path_factory, lengths, seq_len, seed):
    tokens = make(tmp_path_factory.mktemp("set"), lengths)
    stream = Stream([tokens], [1.0], seq_len=seq_len, seed=seed)
    batch = rows(stream, stream.epoch(0, 0).num_rows)
    seen = batch.ids[batch.ids > 0]
    assert sorted(seen) == list(range(1, sum(lengths) + 1))
    ends = set(np.cumsum(lengths).tolist())
    for token, label in zip(batch.ids[batch.ids > 0], batch.labels[batch.ids > 0], strict=True):
        assert label == (-100 if int(token) in ends else token + 1)
    assert (batch.labels[batch.ids == 0] == -100).all()


def test_positions_restart_with_each_document_and_give_the_cumulative_lengths(tmp_path):
    tokens = make(tmp_path, [5, 3, 9])
    batch = rows(Stream([tokens], [1.0], seq_len=8, seed=0), 3)
    for row, positions in zip(batch.ids, batch.positions, strict=True):
        bounds = cu_seqlens(positions)
        assert bounds[0] == 0
        assert bounds[-1] == 8
        for begin, end in itertools.pairwise(bounds.tolist()):
            assert positions[begin:end].tolist() == list(range(end - begin))
            part = row[begin:end]
            assert (part == 0).all() or (np.diff(part) == 1).all()
    assert cu_seqlens(batch.positions)[-1] == 24


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_the_ranks_together_have_the_rows_of_one(tmp_path, ranks):
    stream = Stream([make(tmp_path, [7] * 9), make(tmp_path, [4] * 9, first=500)], [2.0, 1.0], seq_len=8, seed=3)
    cursor = Cursor.start(2)
    for _ in range(3):
        whole, after = stream.batch(cursor, size=6)
        parts = [stream.batch(cursor, size=6, rank=rank, ranks=ranks) for rank in range(ranks)]
        assert np.array_equal(np.concatenate([part.ids for part, _ in parts]), whole.ids)
        assert np.array_equal(np.concatenate([part.labels for part, _ in parts]), whole.labels)
        assert {cursor for _, cursor in parts} == {after}
        cursor = after


def test_a_cursor_from_json_goes_on_with_the_very_next_row_over_epochs_and_sources(tmp_path):
    sets = [make(tmp_path, [7, 2, 5]), make(tmp_path, [4] * 3, first=500)]
    straight, _ = Stream(sets, [2.0, 1.0], seq_len=4, seed=1).batch(Cursor.start(2), size=24)
    cursor, parts = Cursor.start(2), []
    for size in (1, 5, 2, 16):
        batch, cursor = Stream(sets, [2.0, 1.0], seq_len=4, seed=1).batch(Cursor.from_json(cursor.to_json()), size=size)
        parts.append(batch.ids)
    assert np.array_equal(np.concatenate(parts), straight.ids)
    assert [place[0] for place in cursor.places] == [16, 8]
    assert cursor.places[0][1] == 4


def test_epochs_and_seeds_give_different_orders_and_the_same_ones_again(tmp_path):
    tokens = make(tmp_path, [4] * 12)

    def order(seed, first):
        return rows(Stream([tokens], [1.0], seq_len=4, seed=seed), first + 12).ids[first:, 0].tolist()

    assert sorted(order(0, 0)) == sorted(order(0, 12)) == sorted(order(1, 0))
    assert len({tuple(order(0, 0)), tuple(order(0, 12)), tuple(order(1, 0))}) == 3
    assert order(0, 0) == order(0, 0)


def test_the_mixture_is_never_a_row_off_its_shares(tmp_path):
    sets = [make(tmp_path, [4] * 5, first=first) for first in (1, 100, 200)]
    batch = rows(Stream(sets, [5.0, 3.0, 2.0], seq_len=4, seed=0), 200)
    source = np.searchsorted([100, 200], batch.ids[:, 0], side="right")
    for share, index in ((0.5, 0), (0.3, 1), (0.2, 2)):
        given_rows = np.cumsum(source == index)
        assert np.abs(given_rows - share * np.arange(1, 201)).max() <= 1


def test_conversations_are_whole_cut_only_above_the_row_and_trained_where_said(tmp_path):
    tokens = make(tmp_path, [5, 3, 20, 2, 6], chat=True)
    stream = Stream([tokens], [1.0], seq_len=8, seed=0, whole=True, pad=0)
    batch = rows(stream, stream.epoch(0, 0).num_rows)
    starts = {1, 6, 9, 29, 31}
    for row, positions, labels in zip(batch.ids, batch.positions, batch.labels, strict=True):
        for token, position, label in zip(row.tolist(), positions.tolist(), labels.tolist(), strict=True):
            assert token == 0 or (position == 0) == (token in starts)
            assert label == -100 or (label == token + 1 and label % 2 == 1)
    assert sorted(batch.ids[batch.ids > 0].tolist()) == [*range(1, 17), *range(31, 37)], "a conversation without a target is left out"
    assert 15 in batch.labels
    assert 17 in batch.labels, "the successor of a cut conversation's last token is known"


def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(tmp_path):
    with pytest.raises(UserError, match="a batch of 6 rows does not divide over 4 ranks; choose a multiple of 4"):
        Stream([make(tmp_path, [4])], [1.0], seq_len=4, seed=0).batch(Cursor.start(1), size=6, ranks=4)


def test_the_order_is_pinned():
    assert permutation(8, "0 key 0").tolist() == [7, 4, 6, 3, 1, 5, 2, 0]


def test_a_long_document_is_spread_over_the_epoch(tmp_path):
    tokens = make(tmp_path, [400, *[4] * 100])
    batch = rows(Stream([tokens], [1.0], seq_len=4, seed=0), 200)
    long = batch.ids[:, 0] <= 400
    assert long.sum() >= 100
    assert all(10 <= int(part.sum()) <= 40 for part in long.reshape(4, 50))


def test_conversations_whose_answers_are_all_cut_off_are_refused(tmp_path):
    tokens = make(tmp_path, [3, 4], first=2, chat=True)
    assert rows(Stream([tokens], [1.0], seq_len=2, seed=0, whole=True), 1).num_tokens == 2
    with pytest.raises(UserError, match="no conversation has a token to train on within 1 tokens; raise seq_len"):
        Stream([make(tmp_path, [2, 2], first=1, chat=True)], [1.0], seq_len=1, seed=0, whole=True)
