"""A sampler in the trainer's own process, on the trainer's own module: no copy of the weights, so an update needs no sync.

    engine = LocalEngine(model, slots=32)
    completions = engine.generate(requests)      # up to `slots` at a time; a slot is refilled when its sequence ends
    for request, completion in engine.stream(source): ...        # the same, with requests that come as others end
    engine.version += 1                          # after a weight update: what is kept from older weights is dropped

Sessions keep their keys and values between calls, so the next turn costs only the tokens that are new (the longest common prefix
counts; if the ids diverge, the rest is cut back). Sessions with a common prompt compute it once and copy it. At most
`capacity_tokens` are kept; beyond that the session that was used longest ago is dropped and computed again when it returns.

A step is one forward over packed tokens (kv.py): one token for each sequence that decodes, and up to `prefill_tokens` of prompts.

**Reproducible mode.** Matrix products round differently for different numbers of rows, so a request's bits would depend on what runs
beside it. Here every decoding step has `slots` tokens (padded), a prompt is computed alone in chunks of `prefill_tokens`, prefixes
are shared in whole chunks, and attention reads whole kernel blocks. On the CPU, with the same weights, threads and machine:

1. The same requests after the same history give the same bits, in any order of arrival.
2. A request gives the same bits whatever runs beside it, and whether its prompt was computed or copied. (This rests on the matrix
   library treating every row of a product alike, which MKL and oneDNN do at the sizes tested.)
3. Not covered: a session that was dropped for lack of capacity and recomputed (`stats.dropped` counts them); other slot counts.

Log-probabilities are of the distribution sampled from, temperature included; training assumes temperature 1.

Not here: attention other than plain causal (UserError); top-k and top-p; several threads, one caller at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from etude.engine.kv import KERNEL_BLOCK, KeyValues, Span, packed
from etude.engine.probe import evaluating, probe
from etude.engine.protocol import Completion, Request, Source
from etude.engine.sampling import sample
from etude.engine.sessions import Session, Sessions, common_prefix
from etude.errors import EngineError
from etude.model.attention import attention

_PREFILL_TOKENS, _REPRODUCIBLE_PREFILL_TOKENS = 512, 128
_WORTH_SHARING = 16
"""A common prompt shorter than this is not worth a copy."""


@dataclass(slots=True)
class Stats:
    """Counts since the engine was made; tokens unless said otherwise."""

    forwards: int = 0
    sampled: int = 0
    computed: int = 0  # of contexts
    copied: int = 0  # of contexts, from another session that has the same prompt
    reused: int = 0  # of contexts, kept from the session's earlier turns
    dropped: int = 0  # sessions, for lack of capacity


@dataclass(slots=True, eq=False)
class _Live:
    """A request that has a slot."""

    request: Request
    ids: list[int]  # its context
    session: Session
    uniforms: list[float]
    pending: list[int]  # tokens to feed before the next one can be sampled
    donor: "_Live | None" = None  # is about to compute a prompt that this one begins with
    shared: int = 0  # tokens of it
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def _longest(request: Request) -> int:
    """Tokens of its context when it ends."""
    return len(request.ids) + request.max_tokens


def _in_use(live: Iterable[_Live]) -> list[Session]:
    return [one.session for one in live]


class LocalEngine:
    """`model` is loaded with attn_implementation="etude" (model/load.py does). Memory is taken as contexts grow.

    `prefill_tokens` bounds what a forward computes of prompts: 512 by default, 128 in the reproducible mode.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int = 32,
        capacity_tokens: int = 131072,
        prefill_tokens: int | None = None,
        reproducible: bool = False,
        version: int = 0,
    ) -> None:
        chunk = prefill_tokens if prefill_tokens is not None else _REPRODUCIBLE_PREFILL_TOKENS if reproducible else _PREFILL_TOKENS
        if min(slots, capacity_tokens, chunk) < 1:
            raise ValueError(f"slots {slots}, capacity_tokens {capacity_tokens}, prefill_tokens {chunk}: each must be at least 1")
        self.model, self.slots, self.prefill_tokens, self.reproducible = model, slots, chunk, reproducible
        self.stats = Stats()
        self._version = version
        self._rounding = KERNEL_BLOCK if reproducible else 1
        text = model.config.get_text_config()
        self._context, self._vocabulary = int(text.max_position_embeddings), int(text.vocab_size)
        parameter = next(model.parameters())
        self._device = parameter.device
        shapes, self._group = probe(model)
        self._sessions = Sessions(capacity_tokens, partial(KeyValues, shapes, dtype=parameter.dtype, device=parameter.device))

    @property
    def version(self) -> int:
        """Of the weights. Setting another one drops every kept session: its keys and values are those of older weights."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        if value != self._version:
            self._sessions.clear()
        self._version = value

    def release(self, session: str) -> None:
        self._sessions.release(session)

    def close(self) -> None:
        self._sessions.clear(buffers=True)

    def kept_tokens(self) -> int:
        """Tokens whose keys and values are kept."""
        return self._sessions.tokens()

    def generate(self, requests: Sequence[Request], *, on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """See engine/protocol.py."""
        batches = [list(requests)]
        done = {request.session: answer for request, answer in self.stream(lambda idle: batches.pop() if batches else None, on_tokens)}
        return [done[request.session] for request in requests]

    @torch.inference_mode()
    def stream(self, source: Source, on_tokens: Callable[[int], None] | None = None) -> Iterator[tuple[Request, Completion]]:
        """Serve requests as they come, and give each one back as it ends, so that slots are full while others run their tools.

        `source` is called before every step. Setting `version` between two steps leaves what is under way with keys and values of
        the older weights; the completion says which version sampled each token. The model is in eval mode until the end.
        """
        queue, live = deque[Request](), list[_Live]()
        ended = False
        with evaluating(self.model):
            while queue or live or not ended:
                if not ended:
                    fresh = source(not queue and not live)
                    ended = fresh is None
                    queue += self._checked(fresh or (), queue, live)
                while queue and len(live) < self.slots and self._sessions.reserve(_longest(queue[0]), _in_use(live)):
                    live.append(self._admit(queue.popleft(), live))
                ready = self._step(live) if live else []
                if ready and on_tokens is not None:
                    on_tokens(len(ready))
                for one in ready:
                    stopped = one.sampled[-1] in one.request.stop_ids
                    if stopped or len(one.sampled) == one.request.max_tokens:
                        live.remove(one)
                        answer = Completion(
                            ids=tuple(one.sampled), logprobs=tuple(one.logprobs), versions=tuple(one.versions), stopped=stopped
                        )
                        yield one.request, answer

    def _checked(self, requests: Sequence[Request], queue: Iterable[Request], live: Iterable[_Live]) -> list[Request]:
        """The requests, in the order they are served. ValueError for what cannot be."""
        seen = {request.session for request in queue} | {one.request.session for one in live}
        limit = min(self._context, self._sessions.capacity_tokens)
        for request in requests:
            who = f"session {request.session!r}"
            if request.session in seen:
                raise ValueError(f"two requests of {who} at one time: a session answers one request after the other")
            seen.add(request.session)
            if not request.ids or not 0 <= min(request.ids) <= max(request.ids) < self._vocabulary:
                raise ValueError(f"{who}: its context must be at least one id, each in 0..{self._vocabulary - 1}")
            if request.max_tokens < 1 or not 0 <= request.temperature < math.inf:
                raise ValueError(f"{who}: max_tokens {request.max_tokens} must be at least 1, temperature {request.temperature} at least 0")
            if _longest(request) > limit:
                raise ValueError(
                    f"{who} needs {len(request.ids)} + {request.max_tokens} tokens; the model's context is {self._context}, "
                    f"the engine's capacity_tokens {self._sessions.capacity_tokens}: shorten it, or raise capacity_tokens"
                )
        return sorted(requests, key=lambda request: request.session) if self.reproducible else list(requests)

    def _admit(self, request: Request, live: Sequence[_Live]) -> _Live:
        """Give a request its row, and find what of its context need not be computed."""
        ids = list(request.ids)
        session = self._sessions.open(request.session, ids, _in_use(live))
        self.stats.dropped = self._sessions.dropped
        self.stats.reused += len(session.ids)
        generator = torch.Generator().manual_seed(request.seed % 2**63)
        uniforms = torch.rand(request.max_tokens, generator=generator, dtype=torch.float64).tolist()
        one = _Live(request, ids, session, uniforms, ids[len(session.ids) :])
        best, holder = len(session.ids) + _WORTH_SHARING - 1, None
        for other in self._sessions.others(session):
            length = self._whole(min(common_prefix(other.ids, ids), self._lendable(other), len(ids) - 1))
            if length > best:
                best, holder = length, other
        for ahead in live:
            will_have = len(ahead.ids) if not self.reproducible or self._in_chunks(ahead.session) else ahead.session.aligned
            length = self._whole(min(common_prefix(ahead.ids, ids), will_have, len(ids) - 1))
            if not ahead.sampled and length > best:
                best, holder, one.donor, one.shared = length, None, ahead, length
        if holder is not None:
            self._copy(holder, one, best)
        return one

    def _whole(self, length: int) -> int:
        """What may be shared of a common prefix: in the reproducible mode whole chunks, which everybody computes alike."""
        return length // self.prefill_tokens * self.prefill_tokens if self.reproducible else length

    def _in_chunks(self, session: Session) -> bool:
        """Whether all of the session was computed in whole chunks, so that the next one will be, too."""
        return session.aligned == len(session.ids) and session.aligned % self.prefill_tokens == 0

    def _lendable(self, session: Session) -> int:
        return session.aligned if self.reproducible else len(session.ids)

    def _copy(self, source: Session, one: _Live, length: int) -> None:
        self.stats.copied += length - len(one.session.ids)
        self._sessions.copy_prefix(source, one.session, length)
        one.pending = one.ids[length:]

    def _settle(self, one: _Live) -> bool:
        """Whether the sequence can go on: it waits for no prompt, or what it waited for is there and has been copied."""
        if one.donor is None:
            return True
        donor = one.donor.session
        there = self._lendable(donor) >= one.shared
        if self._sessions.holds(donor) and not there and not one.donor.sampled:
            return False
        if self._sessions.holds(donor) and there:
            self._copy(donor, one, one.shared)
        one.donor = None
        return True

    def _step(self, live: Sequence[_Live]) -> list[_Live]:
        """One forward, and one token for every sequence whose context is complete; returns those."""
        able = [one for one in live if self._settle(one)]
        decoding = [one for one in able if len(one.pending) == 1 and (one.sampled or not self.reproducible)]
        decoding.sort(key=lambda one: one.session.row)
        prefilling = [one for one in able if one not in decoding]
        if self.reproducible:  # one prompt alone, or a full set of decoding rows
            prefilling, decoding = prefilling[:1], [] if prefilling else decoding
        left, chunks = self.prefill_tokens, list[tuple[_Live, int]]()
        for one in prefilling:
            if left:
                chunks.append((one, min(left, len(one.pending))))
                left -= chunks[-1][1]
        logits, ready = self._forward(decoding, chunks)
        if not ready:
            return []
        temperatures = [one.request.temperature for one in ready]
        uniforms = [one.uniforms[len(one.sampled)] for one in ready]
        padding = len(logits) - len(ready)
        try:
            tokens, logprobs = sample(logits, [*temperatures, *[1.0] * padding], [*uniforms, *[0.0] * padding])
        except EngineError:
            self.close()  # broken numbers must not stay in the buffers
            raise
        for one, token, logprob in zip(ready, tokens, logprobs, strict=False):
            one.sampled.append(token)
            one.logprobs.append(logprob)
            one.versions.append(self._version)
            one.pending = [token]
        self.stats.sampled += len(ready)
        return ready

    def _forward(self, decoding: Sequence[_Live], chunks: Sequence[tuple[_Live, int]]) -> tuple[Tensor, list[_Live]]:
        """Feed one token of each of `decoding` and some of each chunk; logits [n, V] of the sequences that are complete, which lead it."""
        fed = [(one, 1) for one in decoding] + list(chunks)
        spans = [Span(one.session.row, len(one.session.ids), count) for one, count in fed]
        tokens = [token for one, count in fed for token in one.pending[:count]]
        positions = [position for span in spans for position in range(span.start, span.stop)]
        ready, last, end = list[_Live](), list[int](), 0
        for one, count in fed:
            end += count
            if count == len(one.pending):
                ready.append(one)
                last.append(end - 1)
        if self.reproducible and decoding:
            padding = self.slots - len(tokens)
            last += range(len(tokens), self.slots)
            tokens, positions = tokens + [0] * padding, positions + [0] * padding
        plan = packed(self._sessions.kv, spans[: len(decoding)], spans[len(decoding) :], group=self._group, rounding=self._rounding)
        with attention(plan):
            logits: Tensor = self.model(
                input_ids=torch.tensor([tokens], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                use_cache=False,
                logits_to_keep=torch.tensor(last or [0], device=self._device),
            ).logits[0]
        for one, count in fed:
            session = one.session
            if not one.sampled and self._in_chunks(session):
                session.aligned += count
            session.ids += one.pending[:count]
            del one.pending[:count]
            self.stats.computed += count if not one.sampled else 0
        self.stats.forwards += 1
        return logits, ready
