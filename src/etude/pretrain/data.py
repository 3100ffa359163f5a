"""What a pretraining run reads: its sources as tokens, one stream of rows per phase, and conversations for the supervised one.

In: the configuration. Out: Streams, the same on all ranks; rank 0 tokenizes, the others open what it made.

Not here: token files and the order of rows (corpus), rows as tensors (loop.py).
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from etude.corpus import Document, Encoded, Stream, TextEncoder, TokenSet, tokenize
from etude.corpus.tokens import cached, end_token
from etude.errors import EtudeError, UserError
from etude.model.load import cache_folder
from etude.pretrain.config import PretrainConfig, stages
from etude.render import Renderer
from etude.view import View

T = TypeVar("T")


def on_first(work: Callable[[], T]) -> T:
    """Do it on rank 0 and tell all; a user's mistake there is raised on every rank."""
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = work()
        except EtudeError as error:
            told[1] = error
        except OSError as error:  # elsewhere the other ranks would wait for this one
            where = error.filename2 or error.filename or "a file"
            told[1] = UserError(f"{where}: {error.strerror or error}; mend it, or choose another folder")
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    found: T = told[0]
    return found


class ChatEncoder:
    """Conversations through the model's chat template; trained are the tokens that the assistant writes, its stop token included."""

    chat = True

    def __init__(self, folder: Path) -> None:
        self._renderer = Renderer.from_folder(folder)
        parts = [(folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json") if (folder / name).is_file()]
        template = folder / "chat_template.jinja"
        parts.append(template.read_bytes() if template.is_file() else b"")
        self.fingerprint = hashlib.sha256(b"chat\0" + b"\0".join(parts)).hexdigest()

    def encode(self, batch: Sequence[Document]) -> list[Encoded]:
        return [self._encode(document) for document in batch]

    def _encode(self, document: Document) -> Encoded:
        roles = [role for role, _ in document.messages]
        turns = [i for i, role in enumerate(roles) if role == "assistant"]
        if not turns or turns[0] == 0:
            raise UserError(f"{document.name}: a conversation of {', '.join(roles)}; it needs a user's message and then an assistant's")
        renderer = self._renderer
        ids = list(renderer.opening(document.messages[: turns[0]]))
        trained = [False] * len(ids)
        for i in range(turns[0], turns[-1] + 1):
            role, text = document.messages[i]
            if role == "assistant":
                if roles[i - 1] == "assistant":
                    raise UserError(f"{document.name}: two assistant messages in a row; join them")
                answer = renderer.assistant(text)
                ids += [*renderer.header, *answer]
                trained += [False] * len(renderer.header) + [True] * len(answer)
            elif roles[i - 1] == "assistant":
                more = renderer.following(text, closed=True, role=role)
                ids += more
                trained += [False] * len(more)
            else:
                raise UserError(f"{document.name}: a {role} message after a {roles[i - 1]} message; join them")
        return Encoded(ids, trained)


def streams_of(config: PretrainConfig, view: View, begun_with: Sequence[Sequence[str]] | None = None) -> list[Stream]:
    """One per phase. Rank 0 tokenizes, the others open what it made.

    `begun_with`: names of the token sets that the run began with, per phase. They are used where the cache still has them, whatever became
    of the sources; else a source must give the same tokens again. UserError where it does not.
    """
    tokenizer = config.tokenizer_folder
    cache = Path(config.data.cache) if config.data.cache else cache_folder() / "tokens"

    def make() -> tuple[list[list[str]], int]:
        view.stage(stages(config)[0], total=sum(len(phase.sources) for phase in config.phases))
        text = TextEncoder.from_folder(tokenizer)
        made = []
        for i, phase in enumerate(config.phases):
            encoder = ChatEncoder(tokenizer) if phase.supervised else text
            sets = []
            for k, source in enumerate(phase.sources):
                wanted = begun_with[i][k] if begun_with is not None else None
                tokens = (cached(cache, wanted) if wanted is not None else None) or tokenize(source, encoder, cache)
                if wanted not in (None, tokens.name):
                    raise UserError(
                        f"source {source.path} or the tokenizer has changed since the run began, and its tokens are no longer in {cache}: "
                        "put it back as it was, or begin a new run"
                    )
                sets.append(tokens)
                refused = "".join(f", {count} {why}" for why, count in tokens.about["refused"].items())
                view.note(f"{source.path}: {tokens.about['documents']} documents, {tokens.about['tokens']} tokens{refused}")
                view.advance()
            made.append([str(tokens.folder) for tokens in sets])
        return made, end_token(tokenizer)

    folders, pad = on_first(make)
    streams = []
    for phase, sets in zip(config.phases, folders, strict=True):
        try:
            opened = [TokenSet(Path(folder)) for folder in sets]
        except ValueError as error:  # on another machine
            raise UserError(f"{error}; set data.cache to a folder that all ranks see") from None
        weights = [source.weight for source in phase.sources]
        streams.append(Stream(opened, weights, seq_len=phase.seq_len, seed=config.seed, whole=phase.supervised, pad=pad))
    return streams
