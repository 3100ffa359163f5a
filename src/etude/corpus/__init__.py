"""Training text: documents from disk, their tokens in a cache, and rows of tokens in an order that depends on nothing but the seed.

    encoder = TextEncoder.from_folder(model_folder)
    tokens = tokenize(Source(path="src", suffixes=(".py",)), encoder, cache)          # once; then a memory map
    stream = Stream([tokens], weights=[1.0], seq_len=4096, seed=0)
    batch, cursor = stream.batch(Cursor.start(1), size=64, rank=0, ranks=8)           # this rank's 8 rows of 64

Loads no torch. Not here: chat templates (the caller gives an encoder), moving arrays to a device.
"""

from etude.corpus.order import Batch, Cursor, Stream, cu_seqlens
from etude.corpus.sources import Document, Refused, Source, documents
from etude.corpus.tokens import Encoded, Encoder, TextEncoder, TokenSet, tokenize

__all__ = [
    "Batch", "Cursor", "Document", "Encoded", "Encoder", "Refused", "Source", "Stream", "TextEncoder", "TokenSet", "cu_seqlens",
    "documents", "tokenize",
]  # fmt: skip
