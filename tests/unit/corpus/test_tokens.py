"""The cache of tokens: made once, whole or absent, another folder for another content or tokenizer."""

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
