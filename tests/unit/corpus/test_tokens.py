"""The cache of tokens: made once, whole or absent, another folder for another content or tokenizer."""

import os
import time
from typing import ClassVar

import numpy as np
import pytest

from etude.corpus.sources import Source
from etude.corpus.tokens import TextEncoder, TokenSet, tokenize
from etude.errors import UserError
from etude.model.tiny import tiny_folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return TextEncoder.from_folder(tiny_folder(tmp_path_factory.mktemp("model"), weights=False))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").write_text("<|im_end|>é")
    return Source(path=str(folder))


def test_documents_end_with_the_end_token_and_special_names_in_a_text_are_text(source, encoder, tmp_path):
    tokens = tokenize(source, encoder, tmp_path / "cache")
    assert tokens.tokens.dtype == np.uint32
    assert tokens.lengths.tolist() == [7, 13]
    assert tokens.tokens[6] == encoder.end == 0
    assert (np.asarray(tokens.tokens[:6]) >= 3).all()
    assert 2 not in tokens.tokens
    assert tokens.about["documents"] == tokens.num_documents == 2
    assert tokens.about["tokens"] == tokens.num_tokens == 20


def test_the_second_time_nothing_is_encoded_and_a_change_makes_another_folder(source, encoder, tmp_path):
    class Counting(TextEncoder):
        calls = 0

        def encode(self, batch):
            Counting.calls += 1
            return super().encode(batch)

    counting = Counting.from_folder(tiny_folder(tmp_path / "model", weights=False))
    first = tokenize(source, counting, tmp_path / "cache")
    assert tokenize(source, counting, tmp_path / "cache").folder == first.folder
    assert Counting.calls == 1
    (tmp_path / "code" / "a.py").write_text("x = 2\n")
    assert tokenize(source, counting, tmp_path / "cache").folder != first.folder
    counting.fingerprint = "another tokenizer"
    assert tokenize(source, counting, tmp_path / "cache").folder != first.folder
    assert Counting.calls == 3


def test_what_a_killed_process_left_is_not_taken_for_tokens(source, encoder, tmp_path):
    whole = tokenize(source, encoder, tmp_path / "cache")
    torn = tmp_path / "other" / f".{whole.name}-torn"
    torn.mkdir(parents=True)
    (torn / "tokens.bin").write_bytes(b"torn")
    again = tokenize(source, encoder, tmp_path / "other")
    assert np.array_equal(again.tokens, whole.tokens)
    assert np.array_equal(TokenSet(again.folder).offsets, whole.offsets)


def test_a_source_without_usable_text_says_why(encoder, tmp_path):
    (tmp_path / "a.py").write_bytes(b"\0")
    (tmp_path / "b.py").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no usable text \(1 binary, 1 empty\)"):
        tokenize(Source(path=str(tmp_path)), encoder, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer\.json in"):
        TextEncoder.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "about.json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_damaged_cache_is_made_again(source, encoder, tmp_path, name, damage):
    first = tokenize(source, encoder, tmp_path / "cache")
    expected = np.array(first.tokens)
    file = first.folder / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "cut" and name != "about.json" else b"[]")
    again = tokenize(source, encoder, tmp_path / "cache")
    assert np.array_equal(again.tokens, expected)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [again.name]


def test_what_killed_processes_left_long_ago_goes_and_what_is_being_written_stays(source, encoder, tmp_path):
    for name, age in (("old", 7200), ("busy", 0)):
        left = tmp_path / "cache" / f".{name}-x"
        left.mkdir(parents=True)
        (left / "tokens.bin").write_bytes(b"torn")
        for path in (left / "tokens.bin", left):
            os.utime(path, (time.time() - age,) * 2)
    whole = tokenize(source, encoder, tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {whole.name, ".busy-x"}


def test_a_source_that_changes_while_it_is_read_leaves_nothing_in_the_cache(source, encoder, tmp_path):
    class Writing(TextEncoder):
        def encode(self, batch):
            (tmp_path / "code" / "c.py").write_text("new")
            return super().encode(batch)

    writing = Writing.from_folder(tiny_folder(tmp_path / "model", weights=False))
    with pytest.raises(UserError, match="changed while it was read"):
        tokenize(source, writing, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_says_so(source, encoder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write the token cache .*file/x: Not a directory; make room, or set data\.cache"):
        tokenize(source, encoder, tmp_path / "file" / "x")


def test_documents_are_encoded_in_batches_bounded_by_their_text(tmp_path):
    class Counting(TextEncoder):
        sizes: ClassVar[list[int]] = []

        def encode(self, batch):
            self.sizes.append(len(batch))
            return super().encode(batch)

    (tmp_path / "x.jsonl").write_text("\n".join([f'{{"text": "{"a " * 450_000}"}}'] * 6))
    counting = Counting.from_folder(tiny_folder(tmp_path / "model", weights=False))
    tokenize(Source(path=str(tmp_path / "x.jsonl")), counting, tmp_path / "cache")
    assert counting.sizes == [5, 1]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tokenizer.json", b"{", r"tokenizer\.json is damaged"),
        ("tokenizer.json", b"\xff", r"tokenizer\.json is damaged"),
        ("tokenizer_config.json", b"[", r"tokenizer_config\.json is no JSON"),
    ],
)
def test_a_damaged_tokenizer_is_named(tmp_path, name, data, message):
    (tiny_folder(tmp_path / "model", weights=False) / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        TextEncoder.from_folder(tmp_path / "model")
    assert "\n" not in str(caught.value)
